"""What is written of crashes, and of failures that cost nothing but time."""

from __future__ import annotations

import logging
import os
import pty
import signal
import stat
import sys
import termios
import tty
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.cli import supervisor
from app.cli.logs import CRASH_LOG, CRASH_NOTE, LOG, Crash, last_stderr_line, log_to, pop_crash
from app.cli.status import RESTART
from tests.tables import table

METAL = """\
loading
libc++abi: terminating due to uncaught exception: [METAL] Insufficient Memory

Fatal Python error: Aborted

Thread 0x1 (most recent call first):
  File "engine.py", line 1 in run
"""


def test_a_crash_is_told_once(tmp_path: Path) -> None:
    crash = Crash("SIGABRT", "out of memory")
    folder = tmp_path / "new" / "folder"
    assert crash.record(folder, "all of it") == folder / CRASH_LOG
    assert pop_crash(folder) == crash
    assert pop_crash(folder) is None
    assert (folder / CRASH_LOG).read_text() == "all of it"


def test_without_a_word_there_is_no_log(tmp_path: Path) -> None:
    assert Crash("SIGKILL").record(tmp_path, "") is None
    assert pop_crash(tmp_path) == Crash("SIGKILL")


@table("note", ["", "{", "[]", "null", '{"signal": "SIGABRT"}', "\ud800"])
def test_a_note_that_makes_no_sense_is_dropped(tmp_path: Path, note: str) -> None:
    (tmp_path / CRASH_NOTE).write_bytes(note.encode(errors="surrogatepass"))
    assert pop_crash(tmp_path) is None
    assert not (tmp_path / CRASH_NOTE).exists()


def test_a_folder_that_cannot_be_written_is_no_second_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert Crash("SIGABRT").record(tmp_path / "file", "said") is None
    assert pop_crash(tmp_path / "file") is None


def test_the_reason_is_what_the_library_said_last() -> None:
    assert last_stderr_line(METAL).endswith("[METAL] Insufficient Memory")
    assert last_stderr_line("Fatal Python error: Aborted\n") == ""
    assert last_stderr_line("") == ""
    assert len(last_stderr_line("x" * 10_000)) == 200


def test_the_sentence_says_why() -> None:
    assert "SIGABRT: no room" in Crash("SIGABRT", "no room").sentence
    assert "(SIGSEGV)" in Crash("SIGSEGV").sentence
    assert "memory" in Crash("SIGKILL").sentence


def test_an_app_that_loses_the_gpu_is_started_again_but_not_twice_in_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A real child, which finds out from its parent whether it replaces another one."""
    code = (
        "import sys; from app.cli.supervisor import current_supervisor as parent;"
        "again = parent().restarted; print('again' if again else 'first', flush=True);"
        f"sys.exit({RESTART} if not again or 'twice' in sys.argv else 0)"
    )
    master, slave = pty.openpty()
    with open(master, "rb"), open(slave) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        for word, status in (("once", 0), ("twice", 1)):
            monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", code, word])
            assert supervisor.supervise() == status
            told = capfd.readouterr()
            assert told.out.split() == ["first", "again"]
            assert ("again, soon after a restart" in told.err) == (word == "twice")
        monkeypatch.setattr(supervisor, "MIN_SECONDS", 0.0)
        statuses = iter([RESTART, RESTART, RESTART, 3])
        monkeypatch.setattr(supervisor, "_run", lambda *_, restarted: next(statuses) << 8)
        assert supervisor.supervise() == 3


@pytest.mark.parametrize("is_restored", [True, False])
def test_a_terminal_that_the_app_could_not_restore_is_restored(
    is_restored: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a signal while the app's event loop hangs."""

    def ended(log: int, restore: object, restarted: bool) -> int:
        if not is_restored:
            tty.setraw(slave)
        return 143 << 8

    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    with open(master, "rb"), open(slave) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(supervisor, "_run", ended)
        assert supervisor.supervise() == 143
        assert termios.tcgetattr(slave) == before
    written = capsys.readouterr().err
    for each in ("\x1b[?1049l", "\x1b[?2004l", "\x1b[<u", "\x1b>", "\x1b[23;2t"):
        assert (each in written) != is_restored, each


def test_signals_of_the_parent_reach_the_app(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import os, signal, sys, time\n"
        "number = int(sys.argv[1])\n"
        "signal.signal(number, lambda *_: os._exit(7))\n"
        "os.kill(os.getppid(), number)\n"
        "time.sleep(20)"
    )
    master, slave = pty.openpty()
    with open(master, "rb"), open(slave) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        before = {each: signal.getsignal(each) for each in supervisor.REQUESTED}
        try:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
                argv = [sys.executable, "-c", code, str(int(number))]
                monkeypatch.setattr(sys, "orig_argv", argv)
                assert supervisor.supervise() == 7
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def test_what_a_library_said_last_is_shown_harmless(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The parent of the app writes it to the terminal."""

    def killed(log: int, restore: object, restarted: bool) -> int:
        os.write(log, b"terminating: \x1b]52;c;aGk=\x07\n")
        return int(signal.SIGABRT)

    master, slave = pty.openpty()
    with open(master, "rb"), open(slave) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(supervisor, "_run", killed)
        assert supervisor.supervise() == 128 + signal.SIGABRT
    said = capsys.readouterr().err
    assert "SIGABRT: terminating: ␛]52;c;aGk=␇" in said
    assert "\x1b]52" not in said


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    logger = logging.getLogger("app")
    before = list(logger.handlers)
    yield
    for handler in set(logger.handlers) - set(before):
        logger.removeHandler(handler)
        handler.close()


def test_a_warning_is_written_down_with_where_it_happened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_to(tmp_path / "logs")
    assert not (tmp_path / "logs" / LOG).exists(), "not before there is something to say"
    try:
        raise ValueError("broken on purpose")
    except ValueError as error:
        logging.getLogger("app.engine.memory.cache_pool").warning("it failed", exc_info=error)
    text = (tmp_path / "logs" / LOG).read_text(encoding="utf-8")
    assert "WARNING app.engine.memory.cache_pool: it failed" in text
    assert "ValueError: broken on purpose" in text
    assert capsys.readouterr().err == ""


def test_a_log_that_cannot_be_written_does_not_run_over_the_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / LOG).mkdir()
    log_to(tmp_path)
    logging.getLogger("app.engine").warning("it failed")
    (tmp_path / "file").write_text("")
    log_to(tmp_path / "file")
    assert capsys.readouterr().err == ""


def test_a_pipe_in_the_place_of_the_log_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / LOG)
    log_to(tmp_path)
    logging.getLogger("app.engine.memory.cache_pool").warning("it failed")
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
