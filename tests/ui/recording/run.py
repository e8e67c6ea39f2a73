"""What the user of the recording does."""

from __future__ import annotations

import asyncio

from textual.pilot import Pilot

from app.ui.app import SpecchatApp
from tests.ui.helpers import screen_text
from tests.ui.recording.camera import DOCUMENT

KEY_SECONDS = 0.05
PATIENCE_SECONDS = 300.0
FIRST, SECOND = 'What is a "patent license"?', 'What does "object code" mean?'


async def play(pilot: Pilot[None]) -> None:
    """Attach a PDF file, ask, open the page that the answer cites, ask another question."""
    await _shown(pilot, "ready in")
    await asyncio.sleep(1.5)
    await _type(pilot, "@gpl")
    await _shown(pilot, DOCUMENT)
    await asyncio.sleep(0.8)
    await pilot.press("enter")
    await _shown(pilot, " tok")
    await _ask(pilot, FIRST, "infringement).")
    await _shown(pilot, "1 citation")
    await pilot.press("tab", "ctrl+x")
    await _shown(pilot, "show the passage")
    await asyncio.sleep(2.0)
    await pilot.press("enter")
    await _shown(pilot, "What was read")
    await asyncio.sleep(2.5)
    for _ in range(2):
        await pilot.press("n")
        await asyncio.sleep(0.7)
    await pilot.press("escape", "escape")
    await _shown(pilot, "⏎ send")
    await asyncio.sleep(0.8)
    await _ask(pilot, SECOND, "form of a work.")


async def _ask(pilot: Pilot[None], question: str, answer: str) -> None:
    await _type(pilot, question)
    await asyncio.sleep(0.6)
    await pilot.press("enter")
    await _shown(pilot, answer)
    app = pilot.app
    assert isinstance(app, SpecchatApp)
    while app.chat.readiness.busy:
        await pilot.pause(0.01)
    await asyncio.sleep(2.5)


async def _shown(pilot: Pilot[None], text: str) -> None:
    """Waits for it as a user would: for minutes where the machine has much else to do."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while text not in screen_text(pilot):
            await pilot.pause(0.01)


async def _type(pilot: Pilot[None], text: str) -> None:
    for character in text:
        await pilot.press({"@": "at", " ": "space"}.get(character, character))
        await asyncio.sleep(KEY_SECONDS)
