"""The figures of the next message: how full the context gets, and how soon the first word comes."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from app.models.embedded import draft_path, target_path
from app.protocol.commands import Load
from app.protocol.cost_model import Costs, LinearCost
from app.protocol.events import BackgroundProgress, CostsUpdated
from app.ui.app import SpecchatApp
from app.ui.chat.chrome import ContextMeter
from app.ui.start import Start
from app.ui.state import asking
from tests.fakes import FakeEngine, Story
from tests.ui.helpers import (
    DOCUMENT,
    SMALL,
    ask,
    attach,
    paste,
    repository,
    screen_text,
    started,
    type_in,
    until,
    until_gone,
    until_shown,
)

KNOWN = Costs(LinearCost(0, 5e-5), LinearCost(0, 1e-5), LinearCost(0.1, 0), LinearCost(0.1, 0))


def counting_app(engine: FakeEngine) -> SpecchatApp:
    """One that has a tokenizer to count with."""
    return SpecchatApp(Start(engine, Load(str(target_path()), str(draft_path()))))


def figures(pilot: Pilot[None]) -> str:
    return next((line for line in screen_text(pilot).splitlines() if "ctx" in line), "")


def drawn(meter: ContextMeter) -> list[str]:
    return [each.plain for each in meter.variants()]


def test_the_sketch_of_the_design() -> None:
    assert drawn(ContextMeter(118_100, 104, 131_072, 0.4)) == [
        "ctx 118K/131K ▓▓▓▓▓▓▓▓▓░   new 0.1K · est <1 s",
        "ctx 118K/131K   new 0.1K · est <1 s",
        "new 0.1K · est <1 s",
    ]
    assert (
        drawn(ContextMeter(20_000, 20_000, 131_072, None))[0] == "ctx 40K/131K ▓▓▓░░░░░░░   new 20K"
    )
    assert drawn(ContextMeter(950, 0, 0))[0] == "ctx 950"
    assert drawn(ContextMeter(None, 20, 40_960, 12.0))[0] == "new <0.1K · est 12 s"
    assert drawn(ContextMeter(0, None, 40_960))[0] == "ctx 0/41K ░░░░░░░░░░   new …"
    assert drawn(ContextMeter(40_000, 960, 40_960))[1] == "ctx 41K/41K full   new 1.0K"


async def test_what_is_attached_and_typed_is_new_and_then_part_of_the_context() -> None:
    engine = FakeEngine(Story(answer="Yes."))
    async with counting_app(engine).run_test(size=SMALL) as pilot:
        # An empty conversation says how much there is room for.
        await until_shown(pilot, "ready", "next: AUTO", "ctx 0/41K ░░░░░░░░░░")
        assert "new" not in figures(pilot)
        # A note says before sending that not everything fits.
        await paste(pilot, DOCUMENT * 3)
        await until_shown(pilot, " tokens in 1 file · only the best parts are read")
        await until_shown(pilot, "ctx 20K/41K ▓▓▓▓▓░░░░░   new 20K")  # half of it
        await pilot.press("backspace")
        await until_gone(pilot, "only the best parts")
        await paste(pilot, DOCUMENT)
        await until_shown(pilot, " tok · 2,276 lines", "/41K ▓", "next: AUTO  (^T in full)")
        (chip,) = pilot.app.chat.composer.chips.attached  # type: ignore[attr-defined]
        assert f"new {chip.tokens / 1000:.0f}K" in figures(pilot)
        assert "est" not in figures(pilot)  # nothing was ever clocked
        await ask(pilot, engine)
        await until_shown(pilot, "▸ Read 2")
        await until(pilot, lambda: "ctx 26K/41K" in figures(pilot) and "new" not in figures(pilot))
        # No keep saves anything if everything is cached.
        await pilot.press("ctrl+g", "5")
        await until_shown(pilot, "would read")
        await pilot.press("escape")
        name = engine.asks[0].conversation
        assert name is not None
        engine.say(BackgroundProgress(name, 10, 20))
        engine.say(BackgroundProgress(name, 20, 20))
        desk = pilot.app.chat.open_chats  # type: ignore[attr-defined]
        await until(pilot, lambda: desk.is_fully_cached(desk.shown.conversation.last))
        await pilot.press("ctrl+g", "4")
        await until_shown(pilot, "saves nothing (all cached)")
        # The figures fit in a narrow terminal.
        await pilot.press("5", "enter")
        await pilot.resize_terminal(46, 24)
        await until_shown(pilot, "next: SPARSE 45%", "⏎ send")
        assert "(^T in full)" not in screen_text(pilot)


async def test_a_document_is_predicted_at_every_keep_once_the_pair_was_timed() -> None:
    engine = FakeEngine()
    async with counting_app(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await paste(pilot, DOCUMENT + "more")
        await until_shown(pilot, " tok · 2,27")
        assert "est" not in figures(pilot)
        engine.say(CostsUpdated(KNOWN))
        await until_shown(pilot, "· est <1 s")
        engine.say(
            CostsUpdated(
                Costs(LinearCost(0, 1e-3), LinearCost(0, 1e-4), LinearCost(1, 0), LinearCost(1, 0))
            )
        )
        await until_shown(pilot, "· est 6.5 s")
        await pilot.press("ctrl+g", "9", "0")
        await until_shown(pilot, "90%   est 35 s")
        await pilot.press("enter")
        await until_shown(pilot, "next: SPARSE 90%", "· est 35 s")
        await type_in(pilot, "How many foxes?")
        await pilot.press("ctrl+g", "a")
        await until(pilot, lambda: "est" not in figures(pilot))  # auto may read all of it
        engine.say(CostsUpdated(Costs()))
        await pilot.press("ctrl+t")
        await until(pilot, lambda: "est" not in figures(pilot))  # another pair, never timed


async def test_each_question_about_a_large_folder_gets_other_files() -> None:
    engine = FakeEngine(Story(answer="Yes.", prompt_tokens=30_000, retrieves=2))
    async with started(engine) as pilot:
        engine.say(CostsUpdated(KNOWN))
        attach(pilot, repository(), tokens=8_379_266)
        await until_shown(pilot, "8,379,266 tokens in 30 files · only the best files are read")
        await ask(pilot, engine)
        await until_shown(pilot, "2 of 30 files")
        assert "new" not in figures(pilot)
        await type_in(pilot, "And where?")
        await until(pilot, lambda: "new 5.5K" in figures(pilot))  # half of what is left


@pytest.mark.slow
@pytest.mark.parametrize("width", [46, 60, 80, 200])
async def test_the_figures_fit_in_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "lacks_document", lambda load, turns, documents: False)
    engine = FakeEngine(Story(answer="Yes."))
    async with counting_app(engine).run_test(size=(width, 24)) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine)
        await until_shown(pilot, "▸ Read")
        await pilot.press("ctrl+g", "5", "5", "enter")
        await paste(pilot, DOCUMENT)
        await until_shown(pilot, " tok", "new 3", "next: SPARSE 55%", "⏎ send")
        assert ("(^T in full)" in screen_text(pilot)) == (width > 46)
        await pilot.press("tab")
        await until_gone(pilot, "next:")
        await until_shown(pilot, "ctx")
