"""All conversations, and what the palette finds."""

from __future__ import annotations

from textual.screen import Screen

from app.ui.conversations.screen import ConversationsScreen
from tests.fakes import FakeEngine
from tests.ui.pictures import samples
from tests.ui.pictures.stage import Stage


async def conversations(stage: Stage) -> None:
    samples.earlier_conversations(stage.home / "data")
    async with stage.opened(FakeEngine(samples.story(), stepping=True)):
        await stage.shown("ready")
        await stage.paste(samples.licence())
        await stage.ask(samples.QUESTION)
        await stage.press("ctrl+o")
        await stage.shown("7 conversations", "reading")
        await stage.take("all")
        await stage.press("down", "ctrl+r")
        await stage.shown("Title")
        await stage.take("rename")
        await stage.press("escape")
        stage.engine.finish()  # while an answer is written, nothing is indexed
        await stage.press(*"repairs")
        await stage.shown("1 of 7", "pays for all")
        await stage.until(lambda: all_found(stage.app.screen, "repairs"), "the index")
        await stage.take("found")
        await stage.press("escape", "down", "down", "ctrl+d")
        await stage.shown("to the trash")
        await stage.take("trashed")


def all_found(screen: Screen[object], text: str) -> bool:
    """Whether every document was searched for `text`."""
    assert isinstance(screen, ConversationsScreen)
    return screen._documents_searched == text and not screen._documents.unindexed


async def palette(stage: Stage) -> None:
    samples.earlier_conversations(stage.home / "data")
    async with stage.opened():
        await stage.shown("ready")
        await stage.press("ctrl+p")
        await stage.shown("Start a new conversation")
        await stage.take("open")
        await stage.press(*"keep")
        await stage.shown("Keep: auto", "^G")
        await stage.take("found")
