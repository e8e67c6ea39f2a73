"""Citations in the chat: numbers, the folded line, the list, and the passage in the spans view."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from textual.pilot import Pilot

from app.protocol.citations import Citation, CitationKind, Citations
from app.ui.app import SpecchatApp
from app.ui.spans.screen import SpansScreen
from tests.fakes import FakeEngine, Story
from tests.tables import slow
from tests.ui.helpers import SMALL, app_with, paste, screen_text, until, until_gone, until_shown

ANSWER = "The fox jumps. Nothing else moves.\n\nThat is **all**."
LINE = "The quick brown fox jumps over the lazy dog."
LONG = f"{LINE}\n" * 2_000
PASSAGE = 1_000 * len(LINE) + 1_000
"""The start of a line."""
CITED = Citations(
    (
        Citation(CitationKind.SUPPORT, 0, 14, 0, 0, PASSAGE, PASSAGE + len(LINE)),
        Citation(CitationKind.QUOTATION, 36, 49, 0, 0, 0, len(LINE)),
    ),
    1,
)


@asynccontextmanager
async def answered(
    answer: str, citations: Citations, text: str = LONG, size: tuple[int, int] = (100, 40)
) -> AsyncIterator[Pilot[None]]:
    """The app after a question about a text."""
    app = app_with(engine := FakeEngine(Story(answer=answer, citations=citations)))
    engine.start_thread(lambda event: 0.0)
    async with app.run_test(size=size) as pilot:
        await until_shown(pilot, "ready")
        await paste(pilot, text)
        await pilot.press(*"why", "enter")
        yield pilot


async def test_an_answer_has_numbers_and_a_line_that_unfolds() -> None:
    async with answered(ANSWER, CITED) as pilot:
        app = pilot.app
        assert isinstance(app, SpecchatApp)
        await until_shown(pilot, "The fox jumps.¹ Nothing else moves.", "That is all.²")
        await until_shown(pilot, "▸ 2 citations · 1 sentence without a source")
        await pilot.click("CitationsView")
        await until_shown(pilot, "[1] paste-1.txt, line 1,001:", "[2] paste-1.txt, line 1:")
        await pilot.click("CitationsView", offset=(8, 1))
        await until(pilot, lambda: isinstance(app.screen, SpansScreen), "the spans")
        await until_shown(pilot, "line 1,001 · cited")
        await pilot.press("escape")
        await until_shown(pilot, "▾ 2 citations")
        (turn,) = app.chat.open_chats.shown.conversation.turns
        view = app.chat.transcript.view(turn.number)
        assert view is not None
        view.answer.action_run("copy")
        await until(pilot, lambda: app.clipboard.startswith("The fox jumps.¹"), "the copy")
        assert f'¹ paste-1.txt, line 1,001: "{LINE}"' in app.clipboard
        # A list of them leads to a passage.
        app.chat.composer.box.focus()
        await pilot.press("tab", "ctrl+x")
        await until_shown(pilot, "⏎ show the passage", "[2] paste-1.txt, line 1:")
        box = app.screen.query_one("#citations")
        await until(pilot, lambda: box.size.height == 8, "a box as high as two rows")
        await pilot.press("down", "enter")
        await until_shown(pilot, "line 1 · cited")
        await pilot.press("a")
        await until_shown(pilot, "line 1,001 · cited")
        await pilot.press("escape")
        await until_gone(pilot, "· cited")


async def test_what_could_not_be_read_is_said_below_the_answer() -> None:
    mail = f"{LONG}\n[Attachment scan.png, not read]\n"
    async with answered("Yes.", Citations(), mail) as pilot:
        await until_shown(pilot, "▸ paste-1.txt: 1 attachment not read")
        # An answer without citations says so.
        await until_shown(pilot, "Yes.", "Ask in the document's words")
        assert not {"passage", "^F"} & set(screen_text(pilot).split())
        await pilot.press("tab", "ctrl+x")
        await until_shown(pilot, "This answer has no citations.")


@pytest.mark.parametrize("size", [SMALL, slow((60, 14))])
async def test_the_list_of_citations_is_as_high_as_they_are_and_shows_whole_quotes(
    size: tuple[int, int],
) -> None:
    quoted = "The tenant, and whoever uses the rooms with the consent of the tenant, pays for them."
    text = "".join(f"{quoted} {number}\n" for number in range(100, 160))
    line = len(quoted) + 5
    found = tuple(
        Citation(CitationKind.QUOTATION, 0, 4, 0, 0, at * line, at * line + line - 1)
        for at in range(60)
    )
    for count in (1, 60):
        async with answered("Yes.", Citations(found[:count]), text, size) as pilot:
            await until_shown(pilot, f"{count} citation")
            await pilot.press("tab", "ctrl+x")
            await until_shown(pilot, "⏎ show the passage")
            await until(pilot, lambda: "pays for them. 100" in _flat(pilot), "the whole quote")
            box = pilot.app.screen.query_one("#citations")
            most = size[1] if count > 1 else 12
            await until(pilot, lambda box=box, most=most: box.outer_size.height <= most, "the box")


def _flat(pilot: Pilot[None]) -> str:
    return " ".join(screen_text(pilot).split())
