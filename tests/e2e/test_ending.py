"""Every way in which the program can end leaves a terminal that works, and nothing lost."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from app.cli.logs import CRASH_NOTE
from app.store.store import Store
from benchmarks import terminal as plain
from benchmarks.terminal import own_folders
from tests.e2e.terminal import MARKS, PROGRAM, ROOT, Terminal
from tests.patience import PATIENCE

MAKE = ["make", "-C", str(ROOT), "-o", ".venv/.installed", "PYTHON=python3", "run"]
SECONDS = 30 * PATIENCE

pytestmark = [*MARKS, pytest.mark.slow]


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return own_folders(tmp_path)


@pytest.fixture
def started(home: dict[str, str]) -> Iterator[Terminal]:
    with Terminal(PROGRAM, folder=ROOT, environment=home) as terminal:
        terminal.wait_for("ready", "next: AUTO")
        terminal.type("a question begun")
        terminal.wait_for("a question begun")
        yield terminal


def processes(terminal: Terminal) -> tuple[psutil.Process, psutil.Process]:
    """The parent, and the app itself."""
    shell = psutil.Process(terminal.pid)
    (parent,) = shell.children()
    (child,) = parent.children()
    return parent, child


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def drafts(home: dict[str, str]) -> list[str]:
    database = Path(home["XDG_DATA_HOME"], "specchat", "conversations.db")
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as opened:
        return [text for (text,) in opened.execute("select text from drafts")]


def modes(terminal: Terminal) -> set[str]:
    """What the terminal was left in, of what the app switches on."""
    flags = ("alternate_on", "mouse_any_flag", "mouse_all_flag")
    said = terminal._tmux("display-message", "-p", " ".join(f"#{{{flag}}}" for flag in flags))
    return {flag for flag, on in zip(flags, said.split(), strict=True) if on == "1"}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV])
def test_a_killed_app_leaves_a_terminal_that_works(
    started: Terminal, home: dict[str, str], number: signal.Signals
) -> None:
    wait_until(lambda: "a question begun" in drafts(home))
    assert modes(started)
    _, child = processes(started)
    child.send_signal(number)
    screen = started.wait_for(f"exited with {128 + number}")
    assert "Nothing you wrote is lost." in screen
    assert "Start `specchat` again" in screen
    assert not modes(started)
    started.type("echoed")  # as only a terminal in its usual mode does
    started.wait_for("echoed")
    with Terminal(PROGRAM, folder=ROOT, environment=home) as again:
        again.wait_for("Nothing you wrote is", "a question begun")


def test_an_app_that_loses_the_gpu_starts_again_with_the_question_that_was_not_answered(
    home: dict[str, str], tmp_path: Path
) -> None:
    document = tmp_path / "rent.txt"
    facts = ("The tenant pays the rent on the first.", "The flat has two balconies.")
    document.write_text("\n\n".join(f"{facts[n % 2]} Note {n}." for n in range(200)))
    program = [sys.executable, str(ROOT / "tests" / "e2e" / "lost_gpu_screen.py"), str(document)]
    with Terminal(program, folder=ROOT, environment=home, size=(100, 30)) as terminal:
        terminal.wait_for("ready", "rent.txt")
        before = processes(terminal)
        terminal.type("When does the tenant pay the rent?")
        terminal.press("Enter")
        screen = terminal.wait_for(
            "specchat restarted", "When does the tenant", "^A asks the last", "✓ ready"
        )
        assert screen.count("rent.txt") == 1, "the file is not attached a second time"
        after = processes(terminal)
        assert after[0] == before[0]
        assert after[1] != before[1]
        terminal.press("C-a")
        terminal.wait_for("pays the rent on the first", "▸ Read")
        assert Path(home["XDG_DATA_HOME"], "step").read_text() == "256"
        terminal.press("C-q")
        terminal.wait_for("exited with 0")
        assert not modes(terminal)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_a_signal_to_the_parent_ends_the_app_in_good_order(
    started: Terminal, number: signal.Signals
) -> None:
    parent, child = processes(started)
    parent.send_signal(number)
    screen = started.wait_for(f"exited with {128 + number}")
    assert "lost" not in screen
    assert not child.is_running()
    assert not modes(started)


def test_an_app_without_its_parent_ends(started: Terminal) -> None:
    parent, child = processes(started)
    parent.kill()
    wait_until(lambda: not child.is_running())
    wait_until(lambda: not modes(started))


def test_a_closed_window_ends_both(started: Terminal, home: dict[str, str]) -> None:
    parent, child = processes(started)
    started.close()
    wait_until(lambda: not parent.is_running() and not child.is_running())
    with Terminal(PROGRAM, folder=ROOT, environment=home) as again:
        screen = again.wait_for("a question begun")
        assert "Nothing you wrote" not in screen


class Window(plain.Terminal):
    """A terminal whose only process is the command: what is begun by no shell, or by one that
    passes nothing on."""

    def processes(self) -> tuple[psutil.Process, psutil.Process]:
        """The parent, and the app itself."""
        first = psutil.Process(self.pid)
        every = [first, *first.children(recursive=True)]
        parent, child = [each for each in every if each.cmdline()[1:] == PROGRAM[1:]][:2]
        return parent, child

    def close(self) -> None:
        os.close(self._terminal)
        self._terminal = os.open(os.devnull, os.O_RDONLY)


@pytest.fixture
def environment(home: dict[str, str]) -> dict[str, str]:
    return {**os.environ, **home, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"}


needs_make = pytest.mark.skipif(
    shutil.which("make") is None or not (ROOT / ".venv").exists(), reason="needs make and its .venv"
)


@needs_make
def test_the_closed_window_of_make_run_ends_all_and_frees_the_store(
    environment: dict[str, str],
) -> None:
    """The terminal tells its session's leader alone, and make passes that on to nobody."""
    with Window(MAKE, environment) as window:
        window.wait_for("ready")
        window.write("a question begun ж".encode())
        window.wait_for("ж")  # a word may be drawn in two pieces
        both = window.processes()
        window.close()
        wait_until(lambda: not any(each.is_running() for each in both))
    assert "a question begun ж" in drafts(environment)
    with Store(Path(environment["XDG_DATA_HOME"], "specchat")) as store:
        assert store.read_only is None


def test_after_a_stop_that_nobody_announced_keys_work_and_the_app_can_be_left(
    environment: dict[str, str],
) -> None:
    with Window(PROGRAM, environment) as window:
        window.wait_for("ready")
        parent, child = window.processes()
        child.send_signal(signal.SIGSTOP)
        window.wait_for("\x1b[?1049l")  # whoever is next finds a terminal that works
        wait_until(lambda: parent.status() == psutil.STATUS_STOPPED)
        parent.send_signal(signal.SIGCONT)
        window.wait_for("\x1b[?1049h")
        window.wait_for("ready")
        window.write(b"\x11")
        window.wait_for("\x1b[?1049l")
        wait_until(lambda: not child.is_running())


def test_a_signal_before_the_app_is_up_is_no_fault(environment: dict[str, str]) -> None:
    with Window(PROGRAM, environment) as window:
        shell = psutil.Process(window.pid)
        wait_until(lambda: bool(shell.children()))
        (child,) = shell.children()
        child.terminate()
        window.wait_for("\x1b[?1049l")  # the parent gives the terminal back in any case
        wait_until(lambda: shell.status() == psutil.STATUS_ZOMBIE)
    assert not list(Path(environment["HOME"]).parent.rglob(CRASH_NOTE))
