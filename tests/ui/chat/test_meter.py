"""The figures of the next message: how full the context gets, and how soon the first word comes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from app.engine.messages import Load
from app.models.embedded import draft_path, target_path
from app.settings.file import SettingsFile
from app.settings.values import Look, Settings
from app.ui.app import SpecchatApp
from app.ui.chat import asking
from app.ui.chat.meter import Meter
from tests.fakes import FakeEngine, Story
from tests.ui.helpers import (
    DOCUMENT,
    SMALL,
    app_with,
    ask,
    kept_app,
    paste,
    screen_text,
    type_in,
    until,
    until_gone,
    until_shown,
)

pytestmark = pytest.mark.asyncio


def counting_app(engine: FakeEngine) -> SpecchatApp:
    """One that has a tokenizer to count with."""
    return SpecchatApp(engine, Load(str(target_path()), str(draft_path())))


def figures(pilot: Pilot[None]) -> str:
    return next((line for line in screen_text(pilot).splitlines() if "ctx" in line), "")


def drawn(meter: Meter) -> list[str]:
    return [each.plain for each in meter.drawn()]


async def test_the_sketch_of_the_design() -> None:
    assert drawn(Meter(118_100, 104, 131_072, 0.4)) == [
        "ctx 118K/131K ▓▓▓▓▓▓▓▓▓░   new 0.1K · est <1 s",
        "ctx 118K/131K   new 0.1K · est <1 s",
        "new 0.1K · est <1 s",
    ]
    assert drawn(Meter(20_000, 20_000, 131_072, None))[0] == "ctx 40K/131K ▓▓▓░░░░░░░   new 20K"
    assert drawn(Meter(950, 0, 0))[0] == "ctx 950"
    assert drawn(Meter(None, 20, 40_960, 12.0))[0] == "new <0.1K · est 12 s"
    assert drawn(Meter(0, None, 40_960))[0] == "ctx 0/41K ░░░░░░░░░░   new …"
    assert drawn(Meter(40_000, 960, 40_960))[1] == "ctx 41K/41K full   new 1.0K"


async def test_an_empty_conversation_says_how_much_there_is_room_for() -> None:
    async with app_with(FakeEngine()).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready", "next: AUTO", "ctx 0/41K ░░░░░░░░░░")
        assert "new" not in figures(pilot)


async def test_what_is_attached_and_typed_is_new_and_then_part_of_the_context() -> None:
    engine = FakeEngine(Story(answer="Yes."))
    async with counting_app(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await paste(pilot, DOCUMENT)
        await until_shown(pilot, " tok · 2,276 lines", "/41K ▓", "next: AUTO  (^T full)")
        (chip,) = pilot.app.chat.entry.chips.attached  # type: ignore[attr-defined]
        assert f"new {chip.tokens / 1000:.0f}K" in figures(pilot)
        assert "est" not in figures(pilot)  # nothing was ever clocked
        await ask(pilot, engine)
        await until_shown(pilot, "▸ read 2")
        await until(pilot, lambda: "ctx 26K/41K" in figures(pilot) and "new" not in figures(pilot))


async def test_a_second_document_is_foretold_by_the_first_at_every_keep() -> None:
    engine = FakeEngine(Story(answer="Yes."))
    async with counting_app(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        await until_shown(pilot, "▸ read 2")
        await pilot.press("ctrl+n", "ctrl+n")  # it is not kept
        await until_gone(pilot, "▸ read")
        await paste(pilot, DOCUMENT + "more")
        await until_shown(pilot, "· est ")
        seconds = figures(pilot).partition("est ")[2].split()[0]
        await pilot.press("ctrl+g", "9", "0")
        await until_shown(pilot, "90%   est ")
        await pilot.press("enter")
        await until_shown(pilot, "next: SPARSE 90%")
        await until(pilot, lambda: float(figures(pilot).partition("est ")[2].split()[0]) > 2)
        assert float(seconds) < 3
        await type_in(pilot, "How many foxes?")
        await pilot.press("ctrl+g", "a")
        await until(pilot, lambda: "est" not in figures(pilot))  # auto may read all of it


async def test_an_earlier_start_tells_the_pace(tmp_path: Path) -> None:
    settings = SettingsFile(settings=Settings(look=replace(Look(), animations=False)))
    async with kept_app(tmp_path, engine := FakeEngine(Story(answer="Yes."))) as (pilot, _):
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        await until_shown(pilot, "▸ read 2")
    async with kept_app(tmp_path, settings=settings) as (pilot, app):
        await until_shown(pilot, "ctx 26K/41K")
        await pilot.press("ctrl+n")
        await until_gone(pilot, "▸ read")
        await type_in(pilot, "word " * 800)
        await pilot.press("ctrl+t")
        await until_shown(pilot, "new 1.0K", "next: FULL")
        assert app.chat.forecast.at(0.2) == ""  # nothing to be left out, and never read in full


async def test_more_than_the_model_takes_is_said_before_it_is_sent() -> None:
    engine = FakeEngine()
    async with counting_app(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await paste(pilot, DOCUMENT * 3)
        await until_shown(pilot, "tokens, and qwen3-8b-4bit takes at", "K/41K full")
        await until_shown(pilot, "begin anew with ^N")
        await pilot.press("backspace")
        await until_gone(pilot, "takes at")


@pytest.mark.parametrize("width", [46, 60, 80, 200])
async def test_the_figures_fit_in_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "knows_documents_only", lambda load: False)
    engine = FakeEngine(Story(answer="Yes."))
    async with counting_app(engine).run_test(size=(width, 24)) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine)
        await until_shown(pilot, "▸ read")
        await pilot.press("ctrl+g", "5", "5", "enter")
        await paste(pilot, DOCUMENT)
        await until_shown(pilot, " tok", "new 3", "next: SPARSE 55%", "⏎ send")
        assert ("(^T full)" in screen_text(pilot)) == (width > 46)
        await pilot.press("tab")
        await until_gone(pilot, "next:")
        await until_shown(pilot, "ctx")
