"""The very first start explains itself, has something to try, and is never in the way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from app.chat.sample import QUESTION, sample
from app.models.catalogue import catalogue
from app.models.fit import mac_with
from app.models.pairs import Recommendation, recommend
from app.protocol.commands import Load
from app.settings.file import SettingsFile
from app.store.store import Store
from app.ui.app import SpecchatApp
from app.ui.chat import welcome
from app.ui.start import Start
from tests.fakes import FakeEngine, Story
from tests.tables import slow
from tests.ui.helpers import DOCUMENT, SMALL, paste, screen_text, until, until_gone, until_shown

FIRST = "specchat answers questions about long documents"
READY = f"❯ {QUESTION}"


def offered() -> Recommendation | None:
    return recommend(catalogue(), mac_with(32 << 30))


@asynccontextmanager
async def first_app(
    folder: Path, engine: FakeEngine | None = None, size: tuple[int, int] = SMALL
) -> AsyncIterator[tuple[Pilot[None], SpecchatApp]]:
    app = SpecchatApp(
        Start(
            engine or FakeEngine(Story(answer="Yes.")),
            Load("models/target", "models/draft"),
            settings=SettingsFile(folder / "settings.toml"),
            folder=folder / "store",
            show_welcome=True,
        )
    )
    try:
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: not app.chat.open_chats.repository.opening, "the store")
            yield pilot, app
    finally:
        app.shutdown()


@pytest.fixture(autouse=True)
def _thirty_two_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(welcome, "_recommend", offered)


@pytest.mark.parametrize("size", [slow((60, 24)), SMALL, slow((100, 30)), slow((120, 36))])
async def test_the_first_start_says_what_it_is_and_one_key_tries_it(
    tmp_path: Path, size: tuple[int, int]
) -> None:
    engine = FakeEngine(Story(answer="Yes."))
    async with first_app(tmp_path, engine, size) as (pilot, app):
        await until_shown(pilot, "ready", FIRST, "▣ gpl-3.0.txt", READY, "Press ⏎ to ask")
        found = offered()
        assert found is not None
        await until_shown(
            pilot, "32 GB", found.target.name.rpartition("/")[2], "^L", "F6 downloads"
        )
        guide = app.chat.transcript.banner.lines(app.chat.transcript.banner.content_size.width)
        words = [line.split() for paragraph in guide[4:] for line in paragraph.plain.splitlines()]
        assert all(len(each) > 1 for each in words)
        assert app.focused is app.chat.composer.box
        await pilot.press("enter")
        await until(pilot, lambda: engine.asks)
        (message,) = engine.asks[0].messages
        assert (message.text, message.documents) == (QUESTION, (sample(),))
        await until_shown(pilot, "Yes.")
        await pilot.press("ctrl+n")
        await until_shown(pilot, "ready", "Paste a long document")
        assert FIRST not in screen_text(pilot)
    async with first_app(tmp_path) as (pilot, _):
        await until_shown(pilot, "ready")
        assert FIRST not in screen_text(pilot)


async def test_typed_text_replaces_the_sample_question(tmp_path: Path) -> None:
    async with first_app(tmp_path) as (pilot, app):
        await until_shown(pilot, READY)
        await pilot.press("W", "h", "y")
        await until(pilot, lambda: app.chat.composer.box.text == "Why")
        await until_shown(pilot, "▣ gpl-3.0.txt")


@pytest.mark.slow
@pytest.mark.parametrize(("key", "shown"), [("/", "/attach"), ("@", "app/")])
async def test_commands_and_files_work_at_once(tmp_path: Path, key: str, shown: str) -> None:
    async with first_app(tmp_path) as (pilot, app):
        await until_shown(pilot, READY)
        await pilot.press(key)
        await until(pilot, lambda: app.chat.composer.box.text == key)
        await until_shown(pilot, shown)


async def test_an_attached_document_replaces_the_sample(tmp_path: Path) -> None:
    async with first_app(tmp_path) as (pilot, app):
        await until_shown(pilot, READY)
        await paste(pilot, DOCUMENT)
        await until_shown(pilot, "▣ Paste 1")
        await until_gone(pilot, "▣ gpl-3.0.txt")
        assert app.chat.composer.box.text == ""
        await paste(pilot, DOCUMENT + "more")
        await until_shown(pilot, "▣ Paste 1", "▣ Paste 2")


@pytest.mark.slow
async def test_the_explanation_is_shown_once(tmp_path: Path) -> None:
    async with first_app(tmp_path) as (pilot, _):
        await until_shown(pilot, READY)
        with Store(tmp_path / "store") as beside:
            await until(pilot, lambda: (d := beside.last_draft()) and d.text == QUESTION)
    async with first_app(tmp_path) as (pilot, _):
        await until_shown(pilot, READY, "Paste a long document")
        assert FIRST not in screen_text(pilot)


async def test_users_with_settings_or_conversations_see_no_explanation(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("")
    async with first_app(tmp_path) as (pilot, app):
        await until_shown(pilot, "ready", "Paste a long document")
        await until(pilot, lambda: not app.workers, "the end of the start")
        assert app.chat.composer.box.text == ""
    (tmp_path / "settings.toml").unlink()
    with Store(tmp_path / "store") as store:
        store.trash(store.create("Old").id)
    async with first_app(tmp_path) as (pilot, app):
        await until_shown(pilot, "ready", "Paste a long document")
        await until(pilot, lambda: not app.workers, "the end of the start")
        assert app.chat.composer.box.text == ""


@pytest.mark.slow
async def test_text_typed_during_the_start_gets_no_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def typed(app: SpecchatApp) -> None:
        app.chat.composer.box.insert("Hi")

    monkeypatch.setattr(SpecchatApp, "on_ready", typed, raising=False)
    async with first_app(tmp_path) as (pilot, app):
        await until_shown(pilot, FIRST, "32 GB")
        assert (app.chat.composer.box.text, app.chat.composer.chips.items) == ("Hi", ())
        assert "Press ⏎ to ask" not in screen_text(pilot)
