"""Widgets and milliseconds of long conversations: `python -m tests.ui.chat.measure`.

Opens a stored conversation of 200 messages and one with an answer of 10,000 lines, and scrolls each
from its end to its beginning, a page at a time.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from textual.pilot import Pilot

from app.ui.app import SpecchatApp
from tests.ui.helpers import kept_app, until, until_shown
from tests.ui.transcript.test_long import LONG, store_turns

MIXED = "A paragraph of some words.\n\n- one\n- two\n\n```python\nx = 1\n```\n\n" * 4
PAGES = 60


async def measured(name: str, turns: int, answer: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store_turns(Path(folder), turns, answer)
        started = time.perf_counter()
        async with kept_app(Path(folder)) as (pilot, app):
            await until_shown(pilot, "x = 1" if turns > 1 else "4999")
            opened = time.perf_counter() - started
            pages = [await _page_up(pilot, app) for _ in range(PAGES)]
            widgets, blocks = len(app.screen.query("*")), len(app.screen.query("MarkdownBlock"))
    middle, worst = statistics.median(pages) * 1000, max(pages) * 1000
    print(
        f"{name}: first seen {opened * 1000:.0f} ms after the start, a page {middle:.0f} ms"
        f" (worst {worst:.0f}), {widgets} widgets mounted then, {blocks} of them Markdown"
    )


async def _page_up(pilot: Pilot[None], app: SpecchatApp) -> float:
    transcript = app.chat.transcript
    before, started = transcript.scroll_y, time.perf_counter()
    await pilot.press("pageup")
    await until(pilot, lambda: transcript.scroll_y != before or before == 0, "scrolling")
    return time.perf_counter() - started


async def main() -> None:
    await measured("200 messages", 100, MIXED)
    await measured("10,000 lines", 1, LONG)


if __name__ == "__main__":
    asyncio.run(main())
