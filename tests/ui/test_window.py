"""The window's title, and the word to one who looked elsewhere."""

from __future__ import annotations

import pytest
from textual.events import AppBlur, AppFocus

from app.protocol.commands import Load
from app.ui.app import SpecchatApp
from app.ui.terminal.window import Window
from tests.fakes import FakeEngine
from tests.ui.helpers import SMALL, ask, until

BELL = "\x07"


def test_the_title_is_written_when_it_changes() -> None:
    written: list[str] = []
    window = Window(written.append)
    window.show_title("")
    window.show_title("")
    window.show_title("A contract")
    assert written == [f"\x1b]2;specchat{BELL}", f"\x1b]2;A contract · specchat{BELL}"]


def test_a_notification_marks_the_title_until_it_is_seen() -> None:
    written: list[str] = []
    window = Window(written.append)
    window.show_title("A contract")
    window.notify("Answered: what?")
    window.clear_mark()
    assert written[1:] == [
        f"\x1b]9;Answered: what?{BELL}{BELL}",
        f"\x1b]2;✓ A contract · specchat{BELL}",
        f"\x1b]2;A contract · specchat{BELL}",
    ]


@pytest.mark.parametrize(
    "hostile", ["\x1b\\", "\x07", "\x9c", "\x1b]52;c;eA==\x07", "\n", "x" * 999]
)
def test_what_is_quoted_ends_no_sequence(hostile: str) -> None:
    written: list[str] = []
    window = Window(written.append)
    window.show_title(f"a{hostile}b")
    window.notify(f"a{hostile}b")
    for sequence in written:
        inner = sequence[2:].rstrip(BELL)
        assert inner.isprintable()
        assert len(inner) < 120


@pytest.mark.parametrize(
    ("looks", "seconds", "told"), [(False, 60.0, True), (True, 60.0, False), (False, 1.0, False)]
)
async def test_only_who_waited_long_and_looks_elsewhere_is_told(
    looks: bool, seconds: float, told: bool
) -> None:
    engine, now, written = FakeEngine(stepping=True), [0.0], list[str]()
    app = SpecchatApp(engine, Load("models/target", None), clock=lambda: now[0])
    app.window = Window(written.append)
    async with app.run_test(size=SMALL) as pilot:
        engine.finish()
        await ask(pilot, engine)
        if not looks:
            app.post_message(AppBlur())
            await until(pilot, lambda: not app.app_focus)
        now[0] = seconds
        engine.finish()
        await until(
            pilot,
            lambda: app.chat.open_chats.shown.conversation.last and not app.chat.busy,
        )
        await pilot.pause()
        assert any(sequence.startswith("\x1b]9;") for sequence in written) is told
        if told:
            app.post_message(AppFocus())
            await until(pilot, lambda: written[-1] == f"\x1b]2;specchat{BELL}")
