"""Pastes, the window's title, the clipboard, and standard error."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from textual._xterm_parser import BRACKETED_PASTE_END as END
from textual._xterm_parser import BRACKETED_PASTE_START as START
from textual._xterm_parser import XTermParser
from textual.drivers.headless_driver import HeadlessDriver
from textual.events import AppBlur, AppFocus, Key, Paste
from textual.message import Message

from app.protocol.commands import Load
from app.ui.app import SpecchatApp
from app.ui.start import Start
from app.ui.terminal import (
    NOT_COPIED,
    TERMINAL_MAY_COPY,
    PasteSafeDriver,
    SystemClipboard,
    Window,
    system_clipboard,
)
from app.ui.terminal_input import PasteSafeParser
from tests.fakes import FakeEngine, Story
from tests.tables import slow, table
from tests.ui.helpers import DOCUMENT, SMALL, ask, screen_text, until, until_shown

HOSTILE = [
    "an escape \x1b alone",
    "colours \x1b[31mred\x1b[0m and more",
    "an arrow \x1b[A then Enter \r and quit \x11",
    "\x1b",
    "\x1b\x1b\x1b",
    "\r\n\r\n\n\r",
    "NUL \x00 inside, form feed \x0c, unit \x1f",
    "C1 \x9b31m and \x85",
    "half a marker \x1b[20",
    "half a marker \x1b[201",
    "a start marker " + START + " again",
    "focus \x1b[I\x1b[O mouse \x1b[<0;1;1M size \x1b[48;24;80;480;800t",
    "\u2028\u2029\u202e\ufeff\ud7ff\U0001f600",
    "",
]


def fed(parser: XTermParser, reads: list[str]) -> list[Message]:
    messages: list[Message] = []
    for read in reads:
        messages.extend(parser.feed(read))
    return messages


def split(text: str, length: int) -> list[str]:
    return [text[start : start + length] for start in range(0, len(text), length)]


def outline(messages: list[Message]) -> list[tuple[str, str]]:
    kinds = []
    for message in messages:
        assert isinstance(message, Key | Paste), message
        if isinstance(message, Key):
            kinds.append(("key", message.key))
        else:
            kinds.append(("paste", message.text))
    return kinds


@table("text, length", itertools.product(HOSTILE, [1, 2, 3, 5, 7, 4096]))
def test_a_hostile_paste_is_one_paste_however_it_is_split(text: str, length: int) -> None:
    stream = f"a{START}{text}{END}\r"
    got = outline(fed(PasteSafeParser(), split(stream, length)))
    assert got == [("key", "a"), ("paste", text), ("key", "enter")]


def test_the_defect_is_there_without_our_parser() -> None:
    """When this fails, Textual was repaired, and `app/ui/terminal` can go."""
    text = "one \x1b[31m two \x1b\r three"
    got = outline(fed(XTermParser(), [f"{START}{text}{END}"]))
    assert got != [("paste", text)]


@given(st.text(st.characters(blacklist_categories=["Cs"]), max_size=60), st.integers(1, 20))
def test_any_text_arrives_whole(text: str, length: int) -> None:
    text = text.replace(END, "")
    got = outline(fed(PasteSafeParser(), split(f"{START}{text}{END}", length)))
    assert got == [("paste", text)]


@given(st.lists(st.sampled_from(["\x1b", "[", "2", "0", "1", "~", "x", "\r"]), max_size=24))
def test_texts_made_of_pieces_of_markers_arrive_whole(pieces: list[str]) -> None:
    text = "".join(pieces)
    assume(END not in text)
    got = outline(fed(PasteSafeParser(), split(f"{START}{text}{END}", 1)))
    assert got == [("paste", text)]


def test_two_pastes_and_keys_between() -> None:
    stream = f"{START}one\x1b[A{END}\x1b[B{START}two{END}\t"
    got = outline(fed(PasteSafeParser(), [stream]))
    assert got == [("paste", "one\x1b[A"), ("key", "down"), ("paste", "two"), ("key", "tab")]


def test_an_end_marker_inside_a_paste_of_one_read_is_text() -> None:
    text = f"before {END}\r after"
    assert outline(fed(PasteSafeParser(), [f"{START}{text}{END}"])) == [("paste", text)]


def test_keys_are_read_as_before() -> None:
    stream = "a\x1b[A\x1b[20~\x1bOP\x14\x07\n\r"
    assert outline(fed(PasteSafeParser(), [stream])) == outline(fed(XTermParser(), [stream]))


def test_a_lone_escape_is_still_the_escape_key(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = PasteSafeParser()
    assert outline(list(parser.feed("\x1b"))) == []
    monkeypatch.setattr("textual._parser.get_time", lambda: float("inf"))
    assert outline(list(parser.tick())) == [("key", "escape")]


def test_a_start_marker_split_by_a_slow_line_is_still_one(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = PasteSafeParser()
    assert outline(list(parser.feed("\x1b[20"))) == []
    monkeypatch.setattr("textual._parser.get_time", lambda: float("inf"))
    assert outline(list(parser.tick())) == []
    assert outline(list(parser.feed(f"0~text{END}"))) == [("paste", "text")]


def test_input_that_has_arrived_is_read_before_a_key_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program stands still between two reads, while the rest of a sequence arrives."""
    now, (reading, writing) = [100.0], os.pipe()
    monkeypatch.setattr("textual._parser.get_time", lambda: now[0])

    class Reader(PasteSafeDriver):
        def __init__(self) -> None:
            self.fileno, self.exit_event, self._debug = reading, threading.Event(), False
            self.input_tty, self.keys = False, list[str]()

        def process_message(self, message: Message) -> None:
            assert isinstance(message, Key)
            self.keys.append(message.key)
            if message.key == "a":
                now[0] += 60
                os.write(writing, b"[5~b")
            elif message.key == "b":
                self.exit_event.set()

    reader = Reader()
    os.write(writing, b"a\x1b")
    reader.run_input_thread()
    os.close(reading)
    os.close(writing)
    assert reader.keys == ["a", "pageup", "b"]


def test_a_megabyte_of_escapes_is_quick() -> None:
    """The parent takes a step of a generator per character; a paste must not."""
    text = "\x1b[31m" * 200_000
    got = fed(PasteSafeParser(), split(f"{START}{text}{END}", 4096))
    assert outline(got) == [("paste", text)]


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


@table("hostile", ["\x1b\\", "\x07", "\x9c", "\x1b]52;c;eA==\x07", "\n", "x" * 999])
def test_text_in_a_sequence_cannot_end_it(hostile: str) -> None:
    written: list[str] = []
    window = Window(written.append)
    window.show_title(f"a{hostile}b")
    window.notify(f"a{hostile}b")
    for sequence in written:
        inner = sequence[2:].rstrip(BELL)
        assert inner.isprintable()
        assert len(inner) < 120


@pytest.mark.parametrize(
    ("looks", "seconds", "told"),
    [(False, 60.0, True), slow(True, 60.0, False), slow(False, 1.0, False)],
)
async def test_users_are_notified_only_of_long_turns_in_another_window(
    looks: bool, seconds: float, told: bool
) -> None:
    engine, now, written = FakeEngine(stepping=True), [0.0], list[str]()
    app = SpecchatApp(Start(engine, Load("models/target", None), clock=lambda: now[0]))
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
            lambda: app.chat.open_chats.shown.conversation.last and not app.chat.readiness.busy,
        )
        await pilot.pause()
        assert any(sequence.startswith("\x1b]9;") for sequence in written) is told
        if told:
            app.post_message(AppFocus())
            await until(pilot, lambda: written[-1] == f"\x1b]2;specchat{BELL}")


SCRIPT = """
import os, signal, sys
from app.ui.terminal import capture_stderr

log = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
with capture_stderr(log):
    os.write(2, b"from a library\\n")
    print("drawn", file=sys.__stderr__)
    print("said", file=sys.stderr)
    if sys.argv[2] == "abort":
        os.abort()
os.write(2, b"afterwards\\n")
print("the end", file=sys.stderr)
"""


def run(how: str) -> tuple[str, str, int]:
    """What came on standard error, what is in the log, and the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(log), how], capture_output=True, text=True
        )
        return ran.stderr, log.read_text(), ran.returncode


def test_libraries_write_into_the_log_and_the_app_on_the_terminal() -> None:
    terminal, log, status = run("end")
    assert terminal.splitlines() == ["drawn", "said", "afterwards", "the end"]
    assert log == "from a library\n"
    assert status == 0


def test_after_an_abort_the_log_has_a_traceback() -> None:
    terminal, log, status = run("abort")
    assert terminal.splitlines() == ["drawn", "said"]
    assert log.startswith("from a library\nFatal Python error: Aborted")
    assert status == -6


class ScriptedClipboard:
    """The twin of `SystemClipboard`."""

    def __init__(self, text: str | None) -> None:
        self.text = text

    def read(self) -> Future[str | None]:
        future: Future[str | None] = Future()
        future.set_result(self.text)
        return future

    def write(self, text: str) -> None:
        self.text = text


def app_on(clipboard: ScriptedClipboard | None) -> SpecchatApp:
    return SpecchatApp(Start(FakeEngine(), Load("target", "draft"), clipboard=clipboard))


async def test_short_text_is_typed_and_long_text_is_a_chip_and_copied_text_is_pasted() -> None:
    clipboard = ScriptedClipboard("older")
    app = app_on(clipboard)
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("a", "b", "ctrl+x", "ctrl+v")
        await until(pilot, lambda: app.chat.composer.box.text == "ab")
        assert clipboard.text == "ab"
        clipboard.text = "one\r\ntwo\x1b"
        await pilot.press("ctrl+u")
        await pilot.press("ctrl+v")
        await until(pilot, lambda: app.chat.composer.box.text == "one\ntwo␛")
        clipboard.text = DOCUMENT
        await pilot.press("ctrl+v")
        await until_shown(pilot, "Paste 1 · 102 KB")
        assert app.chat.composer.chips.attached[0].documents[0].text == DOCUMENT


@pytest.mark.slow
@pytest.mark.parametrize("clipboard", [slow(None), ScriptedClipboard(None)])
async def test_without_a_clipboard_text_copied_in_the_app_is_pasted(
    clipboard: ScriptedClipboard | None,
) -> None:
    app = app_on(clipboard)
    async with app.run_test(size=SMALL) as pilot:
        await pilot.press("a", "b", "ctrl+x", "c", "ctrl+v")
        await until(pilot, lambda: app.chat.composer.box.text == "cab")


COPIED = "Copied the answer as Markdown: 6 characters."


@pytest.mark.parametrize("writes", [True, False, None])
async def test_a_copy_says_what_is_known(
    writes: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a terminal takes OSC 52 is not."""
    monkeypatch.setattr(SpecchatApp, "is_headless", False)
    monkeypatch.setenv("TMUX", "/tmp/tmux,1,0")
    written: list[str] = []
    monkeypatch.setattr(HeadlessDriver, "write", lambda _, data: written.append(data))
    code = f"import sys; sys.exit({int(not writes)})"
    clipboard = None if writes is None else SystemClipboard([], [sys.executable, "-c", code])
    engine = FakeEngine(Story(answer="Short."))
    app = SpecchatApp(Start(engine, Load("target", "draft"), clipboard=clipboard))
    async with app.run_test(size=(140, 24)) as pilot:
        await until_shown(pilot, "ready")
        await ask(pilot, engine)
        await pilot.press("tab", "ctrl+y")
        sentence = {True: COPIED, False: NOT_COPIED, None: f"{COPIED} {TERMINAL_MAY_COPY}"}[writes]
        await until_shown(pilot, f"! {sentence}")
        assert (TERMINAL_MAY_COPY in screen_text(pilot)) == (writes is None)
    osc52 = "\x1b]52;c;U2hvcnQu\x07"
    assert osc52 in "".join(written)
    assert f"\x1bPtmux;\x1b{osc52}\x1b\\" in written


def test_in_tmux_its_buffer_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    buffer = tmp_path / "buffer"
    tmux = tmp_path / "tmux"
    tmux.write_text(
        f'#!/bin/sh\ntest "$1" = load-buffer && exec cat >{buffer} || exec cat {buffer}\n'
    )
    tmux.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("TMUX", "/tmp/tmux,1,0")
    clipboard = system_clipboard()
    assert clipboard is not None
    assert clipboard.write("text é").result()
    assert clipboard.read().result() == "text é"


def program(path: Path, code: str) -> list[str]:
    path.write_text(code)
    return [sys.executable, str(path)]


def test_the_programs_are_run(tmp_path: Path) -> None:
    held = tmp_path / "held"
    reads = program(tmp_path / "r.py", f"import sys; print(open({str(held)!r}).read(), end='')")
    writes = program(
        tmp_path / "w.py", f"import sys; open({str(held)!r}, 'w').write(sys.stdin.read())"
    )
    clipboard = SystemClipboard(reads, writes)
    assert clipboard.write("text é").result()
    assert clipboard.read().result() == "text é"


@pytest.mark.parametrize("code", ["", "import sys; print('x'); sys.exit(1)"])
def test_nothing_and_failure_are_none(tmp_path: Path, code: str) -> None:
    assert SystemClipboard(program(tmp_path / "r.py", code), []).read().result() is None
    assert SystemClipboard([str(tmp_path / "absent")], []).read().result() is None


def test_without_a_display_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "TMUX"):
        monkeypatch.delenv(name, raising=False)
    assert system_clipboard() is None
