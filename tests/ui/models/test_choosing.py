"""Choosing a pair: what it costs is said first, and what goes wrong leaves the one before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from app.chat.model_pairs import find_pair, resolve_pair
from app.models.library import Library
from app.protocol.commands import CalibrateCosts, Load
from app.protocol.cost_model import Costs, LinearCost
from app.protocol.events import CommandFailed
from app.protocol.reasons import Failure, FailureKind
from app.settings.file import SettingsFile
from app.ui.app import SpecchatApp
from app.ui.models.screen import ActionDialog, ModelsScreen
from app.ui.start import Start
from tests.fakes import FakeEngine, LoadStory, Story
from tests.ui.helpers import (
    DOCUMENT,
    SMALL,
    ask,
    paste,
    screen_text,
    type_in,
    until,
    until_gone,
    until_shown,
)
from tests.ui.models.conftest import BIG, OTHER, Here, Make
from tests.ui.models.conftest import SMALL as DRAFT

NARROW = (60, 20)


async def open_models(pilot: Pilot[None], *shown: str) -> ModelsScreen:
    await until(pilot, lambda: not pilot.app.chat.readiness.busy, "the pair")  # type: ignore[attr-defined]
    await pilot.press("ctrl+l")
    await until_shown(pilot, *(shown or ("embedded",)))
    screen = pilot.app.screen
    assert isinstance(screen, ModelsScreen)
    return screen


@asynccontextmanager
async def models_of(
    app: SpecchatApp, *shown: str, size: tuple[int, int] = SMALL
) -> AsyncIterator[Pilot[None]]:
    """The app with its models screen open."""
    async with app.run_test(size=size) as pilot:
        await open_models(pilot, *shown)
        yield pilot


async def open_dialog(pilot: Pilot[None], name: str) -> ActionDialog:
    """Of the model of this name."""
    for letter in name:
        await pilot.press(letter if letter.isalnum() else {"-": "minus", "/": "slash"}[letter])
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, ActionDialog), "the dialog")
    dialog = pilot.app.screen
    assert isinstance(dialog, ActionDialog)
    return dialog


async def do(pilot: Pilot[None], words: str) -> None:
    """Choose what begins with these words, in the dialog that is open."""
    dialog = pilot.app.screen
    assert isinstance(dialog, ActionDialog)
    labels = [label for label, _ in dialog.choices]
    starts = [label.startswith(words) for label in labels]
    assert any(starts), labels
    dialog.list.highlighted = starts.index(True)
    await pilot.press("enter")


async def choose(pilot: Pilot[None], name: str, words: str = "Use with small-4bit") -> None:
    """Up to the dialog that says what it takes."""
    await open_dialog(pilot, name)
    await do(pilot, words)
    await until_shown(pilot, "Load now")


async def test_the_cost_of_a_pair_is_shown_before_it_is_loaded(
    app: Make, here: Here, library: Library
) -> None:
    await here(BIG, DRAFT, OTHER)
    engine = FakeEngine(Story(answer="Yes."))
    async with app(engine).run_test(size=SMALL) as pilot:
        await paste(pilot, DOCUMENT)
        await ask(pilot, engine)
        await until_shown(pilot, "Read 2")
        await open_models(pilot, "big-4bit")
        await choose(pilot, "big")
        await until_shown(
            pilot,
            "big-4bit + small-4bit instead of first + first-draft",
            "Loads 180 KB in about",
            "reads this conversation again (25,647 tokens)",
            "target, weights",
        )
        assert len(engine.sent(Load)) == 1
        labels = [label for label, _ in pilot.app.screen.choices]  # type: ignore[attr-defined]
        assert not any("across" in label for label in labels), "there are no hosts"
        await do(pilot, "Load now")
        await until_shown(pilot, "big-4bit + small-4bit is loaded.")
        load = engine.sent(Load)[-1]
        assert isinstance(load, Load)
        assert load.target == str(library.cache.snapshot_folder(BIG))
        assert load.draft == str(library.cache.snapshot_folder(DRAFT))
        await until_shown(pilot, "big-4bit + small-4bit  ")  # in the header
        await ask(pilot, engine, "And now?")
        earlier = engine.asks[-1].messages[:-1]
        assert [message.token_ids for message in earlier] == [None, None]
        await pilot.press("ctrl+l")
        await until_shown(pilot, "loaded")


async def test_a_pair_by_default_from_now_on_and_a_target_alone(
    app: Make, here: Here, tmp_path: Path
) -> None:
    await here(BIG, DRAFT, OTHER)
    file = SettingsFile(tmp_path / "settings.toml")
    async with models_of(app(settings=file), "big-4bit", size=NARROW) as pilot:
        await choose(pilot, "big")
        await do(pilot, "Load now and make it")
        await until_shown(pilot, "is loaded.")
        await until(pilot, lambda: not file.has_unsaved, "the settings on the disk")
        again = SettingsFile(tmp_path / "settings.toml").settings.models
        assert (again.target, again.draft) == (BIG, DRAFT)
        await open_models(pilot, "other")
        await choose(pilot, "other", "Use with the built-in scorer")
        await until_shown(pilot, "The built-in scorer chooses what is read.")
        await do(pilot, "Load now")
        await until_shown(pilot, "other is loaded.", "other + built-in scorer")


async def test_one_that_does_not_load_or_is_cancelled_leaves_the_pair_before(
    app: Make, here: Here
) -> None:
    await here(BIG, DRAFT)
    failure = CommandFailed(Failure(FailureKind.OUT_OF_MEMORY, {"loading": True}))
    engine = FakeEngine(Story(answer="Yes."), load_stories={"big-4bit": LoadStory(failure=failure)})
    async with models_of(app(engine), "big-4bit") as pilot:
        await choose(pilot, "big")
        await do(pilot, "Load now")
        await until_shown(
            pilot,
            "big-4bit + small-4bit was not loaded. The machine ran out of memory. Close",
            "first + first-draft is loaded",
        )
        assert [load.names for load in engine.sent(Load) if isinstance(load, Load)] == [
            ("first", "first-draft"),
            ("big-4bit", "small-4bit"),
            ("first", "first-draft"),
        ]
        await ask(pilot, engine, "Are you there?")
        # Esc goes back to the pair before.
        engine.load_stories.clear()
        await open_models(pilot, "big-4bit")
        await choose(pilot, "big")
        engine.step_load = True
        await do(pilot, "Load now")
        await until_shown(pilot, "Loading big-4bit + small-4bit", "Esc goes back to first")
        await type_in(pilot, "Asked meanwhile")
        await pilot.press("enter")
        await pilot.press("escape")  # takes the question back
        await until(pilot, lambda: "Esc go back" in screen_text(pilot), "the pair's own Esc")
        await pilot.press("escape")
        await until(pilot, lambda: len(engine.sent(Load)) == 5, "the first pair")
        engine.finish()
        await until_shown(pilot, "was not loaded. first + first-draft is loaded")
        await until_gone(pilot, "Loading big-4bit")
        assert len(engine.asks) == 1
        # A question waits for the new pair.
        engine.step_load = False
        pilot.app.chat.notice.show("")  # type: ignore[attr-defined]
        await open_models(pilot, "big-4bit")
        await choose(pilot, "big")
        engine.step_load = True
        await do(pilot, "Load now")
        await until_shown(pilot, "Loading big-4bit")
        await until_shown(pilot, "❯ Asked meanwhile")
        await pilot.press("enter")
        assert len(engine.asks) == 1
        engine.finish()
        await until(pilot, lambda: len(engine.asks) == 2, "the question")


async def test_no_pair_is_loaded_while_answering_and_no_damaged_one(
    app: Make, here: Here, library: Library
) -> None:
    await here(BIG, DRAFT)
    engine = FakeEngine(Story(answer="Yes."), stepping=True)
    async with app(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine)
        await pilot.press("ctrl+l")
        await until_shown(pilot, "big-4bit")
        await choose(pilot, "big")
        await until_shown(pilot, "! Still answering. Esc stops it.")
        await do(pilot, "Load now")
        await until(pilot, lambda: not isinstance(pilot.app.screen, ModelsScreen), "the chat")
        assert len(engine.sent(Load)) == 1
        engine.finish()
        await open_models(pilot, "big-4bit")
        await choose(pilot, "big")
        snapshot = library.cache.snapshot_folder(BIG)
        assert snapshot is not None
        weights = next(snapshot.glob("*.safetensors"))
        weights.resolve().write_bytes(b"short")
        await do(pilot, "Load now")
        await until_shown(pilot, "truncated or not a safetensors")
        assert len(engine.sent(Load)) == 1


async def test_a_damaged_first_pair_is_reported_and_not_loaded(
    app: Make, here: Here, library: Library
) -> None:
    await here(BIG, DRAFT)
    snapshot = library.cache.snapshot_folder(BIG)
    assert snapshot is not None
    (snapshot / "tokenizer.json").unlink()
    (snapshot / "tokenizer.json").write_text("{")
    engine = FakeEngine()
    found = find_pair(BIG, cache=library.cache)
    running = SpecchatApp(Start(engine, found, settings=SettingsFile(), library=lambda: library))
    async with running.run_test(size=SMALL) as pilot:
        await until_shown(pilot, "is not valid JSON", "Ctrl+L")
        assert engine.sent(Load) == []
        await pilot.press("ctrl+l")
        await until_shown(pilot, "small-4bit")
        await choose(pilot, "small-4bit", "Use with the built-in scorer")
        await do(pilot, "Load now")
        await until_shown(pilot, "small-4bit is loaded.")


@pytest.mark.slow
async def test_the_first_pair_may_fail_and_another_be_chosen(app: Make, here: Here) -> None:
    await here(BIG, DRAFT)
    failure = CommandFailed(Failure(FailureKind.LOADING_STOPPED))
    engine = FakeEngine(load_stories={"first": LoadStory(failure=failure)})
    async with app(engine).run_test(size=SMALL) as pilot:
        await until_shown(pilot, "Loading was stopped")
        await pilot.press("ctrl+l")
        await until_shown(pilot, "big-4bit")
        await choose(pilot, "big")
        await do(pilot, "Load now")
        await until_shown(pilot, "big-4bit + small-4bit is loaded.")
        await ask(pilot, engine, "Are you there?")


async def test_the_pair_that_answers_can_be_timed(library: Library) -> None:
    """The first pair is checked before the engine gets it."""
    engine = FakeEngine()
    app = SpecchatApp(Start(engine, find_pair(), settings=SettingsFile(), library=lambda: library))
    async with models_of(app) as pilot:
        assert engine.sent(Load) == [resolve_pair()]
        await open_dialog(pilot, "embedded")
        await do(pilot, "Measure its speed")
        await until_shown(pilot, "The models could not be timed")
        engine.costs = Costs(
            LinearCost(0, 1e-3), LinearCost(0, 1e-4), LinearCost(0.1, 0), LinearCost(0.2, 0)
        )
        await open_dialog(pilot, "")
        await do(pilot, "Measure its speed")
        await until_shown(pilot, "32,768 tokens: first word in 33 s when", "10 s at")
        assert len(engine.sent(CalibrateCosts)) == 2
