"""Long conversations and long answers: what is mounted, and where the view stays."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.screen import Screen

from app.protocol.events import Token
from app.protocol.prompt import Role
from app.store import records
from app.store.store import Store
from app.ui import terminal, transcript
from app.ui.app import SpecchatApp
from app.ui.transcript.transcript import Transcript
from tests.fakes import FakeEngine, Story
from tests.tables import slow
from tests.ui.helpers import (
    SMALL,
    app_with,
    ask,
    kept_app,
    screen_text,
    until,
    until_gone,
    until_shown,
)


def store_turns(folder: Path, turns: int, answer: str) -> None:
    with Store(folder) as store:
        id = store.create("Long").id
        for number in range(turns):
            asked = store.add_message(id, Role.USER, f"Question {number}?")
            reply = store.begin_reply(asked.id)
            reply.append(answer)
            reply.finish()
        store.save_draft(records.DraftRecord(id))


def drawn(app: SpecchatApp) -> int:
    """Widgets that Markdown is made of."""
    return len(app.screen.query("MarkdownBlock"))


def rows_shown(pilot: Pilot[None]) -> list[str]:
    return re.findall(r"Row (\d+)", screen_text(pilot))


def settled(transcript: Transcript) -> bool:
    """Whether all that is near has its widgets and is drawn."""
    return not transcript._update_scheduled and not transcript._change_lock.locked()


@pytest.mark.parametrize("lines", [500, slow(5_000)])
async def test_only_lines_near_the_visible_part_of_a_long_answer_are_drawn(
    tmp_path: Path, lines: int
) -> None:
    answer = "".join(f"Line number {number} of it.\n\n" for number in range(lines))
    store_turns(tmp_path, 1, answer)
    last = f"Line number {lines - 1}"
    async with kept_app(tmp_path, size=SMALL) as (pilot, app):
        await until_shown(pilot, f"{last} of it.")
        transcript = app.chat.transcript
        await until(pilot, lambda: 0 < drawn(app) < 200)
        assert transcript.max_scroll_y > 1.8 * lines
        for _ in range(5):
            await pilot.press("pageup")
        await until(pilot, lambda: last not in screen_text(pilot))
        transcript.scroll_to(y=transcript.max_scroll_y // 2, animate=False)
        await until_shown(pilot, f"Line number {(lines // 2 - 1) // 100}")
        await until(pilot, lambda: drawn(app) < 200)
        transcript.scroll_to(y=0, animate=False)
        await until_shown(pilot, "Question 0?")
        await until(pilot, lambda: drawn(app) < 200)
        await pilot.press("ctrl+b")
        await until_shown(pilot, f"{last} of it.")


@pytest.mark.slow
async def test_of_sixty_messages_only_what_is_near_is_drawn(tmp_path: Path) -> None:
    store_turns(tmp_path, 30, "One paragraph.\n\nAnd another.\n\n" * 5)
    async with kept_app(tmp_path, size=SMALL) as (pilot, app):
        await until_shown(pilot, "And another.")
        transcript = app.chat.transcript
        while "Question 0?" not in screen_text(pilot):
            top = screen_text(pilot)
            await pilot.press("pageup")
            await until(pilot, lambda top=top: screen_text(pilot) != top, "scrolling")
        await until(pilot, lambda: drawn(app) < 120)
        assert len(app.screen.query("TurnView")) == 30
        height = transcript.virtual_size.height
        await pilot.press("ctrl+b")
        await until_shown(pilot, "And another.")
        await until(pilot, lambda: transcript.scroll_y == transcript.max_scroll_y)
        await until(pilot, lambda: drawn(app) < 120)
        assert transcript.virtual_size.height == height


@pytest.mark.slow
async def test_what_is_seen_stays_while_earlier_parts_are_laid_out(tmp_path: Path) -> None:
    """Going up shows the rows that come before those that were seen, and these further down."""
    link = f"[and so on](https://example.org/{'long/' * 30}) "
    # Asleep these are taken for higher than they are.
    answer = "".join(f"Row {number} {link * (number % 3)}\n\n" for number in range(400))
    store_turns(tmp_path, 1, answer)
    async with kept_app(tmp_path, size=SMALL) as (pilot, app):
        await until_shown(pilot, "Row 399")
        transcript = app.chat.transcript
        while transcript.scroll_y > 0:
            first, before = rows_shown(pilot)[0], transcript.scroll_y
            transcript.scroll_relative(y=-10, animate=False)
            await until(pilot, lambda b=before: transcript.scroll_y != b, "scrolling")
            await until(pilot, lambda: settled(transcript), "what is near")
            await until(pilot, lambda row=first: row in rows_shown(pilot), first)


@pytest.mark.parametrize(("turns", "scrolls"), [(1, 8), slow(1, 25), slow(40, 25)])
async def test_the_visible_part_never_jumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int, scrolls: int
) -> None:
    """Not even until it is put back: what is above it is laid out in the same frame."""
    link = f"[and so on](https://example.org/{'long/' * 30}) "
    rows = 400 // turns
    answer = "".join(f"Row {number} {link * (number % 3)}\n\n" for number in range(rows))
    store_turns(tmp_path, turns, answer)
    frames: list[list[str]] = []
    display = SpecchatApp._display

    def record(app: SpecchatApp, screen: Screen[None], *rest: Any) -> None:
        display(app, screen, *rest)
        frames.append(
            ["".join(part.text for part in strip) for strip in screen._compositor.render_strips()]
        )

    monkeypatch.setattr(SpecchatApp, "_display", record)
    async with kept_app(tmp_path, size=SMALL) as (pilot, app):
        await until_shown(pilot, f"Row {rows - 1}")
        transcript = app.chat.transcript
        await until(pilot, lambda: settled(transcript) and not transcript.scroll_locks)
        for _ in range(scrolls):
            before, text = transcript.scroll_y, screen_text(pilot).splitlines()
            first = next(y for y, line in enumerate(text) if "Row " in line)
            mark, after = text[first].strip(" █▁▂▃▄▅▆▇"), first + min(8, int(before))
            frames.clear()
            transcript.scroll_relative(y=-8, animate=False)
            await until(pilot, lambda b=before: transcript.scroll_y != b, "scrolling")
            await until(pilot, lambda: settled(transcript) and not transcript.scroll_locks)
            for number, frame in enumerate(frames):
                shown = "\n".join(frame)
                told = f"{mark} was in line {first}: frame {number} of {len(frames)}\n{shown}"
                assert any(mark in frame[y] for y in (first, after)), told


async def test_an_answer_streams_in_sections_and_is_whole_at_the_end() -> None:
    text = "".join(f"Line {number}.\n\n" for number in range(300))
    app = app_with(engine := FakeEngine(Story(answer=text), stepping=True))
    async with app.run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine)
        for _ in range(400):
            engine.advance_to(lambda event: isinstance(event, Token))
        await until(pilot, lambda: len(app.screen.query(".section")) > 3)
        await until(pilot, lambda: drawn(app) < 200)
        engine.finish()
        await until_shown(pilot, "Line 299.")
        sections = app.screen.query(".section").results()
        assert "".join(section._text for section in sections) == text  # type: ignore[attr-defined]


async def test_new_text_below_is_marked_until_it_is_visible() -> None:
    app = app_with(engine := FakeEngine(Story(answer="line\n\n" * 80), stepping=True))
    async with app.run_test(size=SMALL) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine)
        transcript = app.chat.transcript
        for _ in range(50):
            engine.advance_to(lambda event: isinstance(event, Token))
        await until(pilot, lambda: transcript.max_scroll_y > 10)
        await until(pilot, lambda: transcript.scroll_y == transcript.max_scroll_y)
        assert "new text below" not in screen_text(pilot)
        # It follows its end until the user scrolls up.
        await pilot.press("pageup")
        await until(pilot, lambda: not transcript.follows_end)
        await until(pilot, lambda: transcript.scroll_y < transcript.max_scroll_y, "scrolling up")
        await until(pilot, lambda: settled(transcript))
        place, height = transcript.scroll_y, transcript.max_scroll_y
        assert "new text below" not in screen_text(pilot)
        engine.advance_to(lambda event: isinstance(event, Token))
        await until_shown(pilot, "↓ new text below")
        for _ in range(20):
            engine.advance_to(lambda event: isinstance(event, Token))
        await until(pilot, lambda: transcript.max_scroll_y > height)
        assert transcript.scroll_y == place
        await pilot.press("ctrl+b")
        await until_gone(pilot, "new text below")
        await until(pilot, lambda: transcript.scroll_y == transcript.max_scroll_y)
        await pilot.press("pageup")
        engine.advance_to(lambda event: isinstance(event, Token))
        await until_shown(pilot, "↓ new text below")
        await pilot.click("#below")
        await until_gone(pilot, "new text below")
        await pilot.press("pageup")
        engine.finish()
        await until_shown(pilot, "↓ new text below")
        while transcript.scroll_y < transcript.max_scroll_y:
            await pilot.press("pagedown")
        await until_gone(pilot, "new text below")


def test_the_installed_textual_is_the_one_that_was_checked() -> None:
    for room in (transcript, terminal):
        checked = re.findall(r"Textual (\d+\.\d+\.\d+)", room.__doc__ or "")
        assert checked == [version("textual")], f"see the docstring of {room.__name__}"
