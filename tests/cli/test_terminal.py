"""Standard streams that are full, closed, or no longer read: a sentence or silence, never a
traceback, and the exit status that shells expect."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.cli.main import run

COMMANDS = {
    "version": ["--version"],
    "help": ["ask", "--help"],
    "settings": ["settings"],
    "models": ["models", "search"],
    "doctor": ["doctor"],
    "empty": ["models", "list", "--json"],
}


def shell(home: Path, streams: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """The command in a shell that redirects it."""
    program = ["bash", sys.executable, "-m", "app", *arguments]
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f'"$@" {streams}', *program],
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("command", "streams", "why"),
    [
        ("settings", ">/dev/full", "No space left on device"),
        ("help", ">/dev/full", "No space left on device"),
        ("models", ">&-", "Bad file descriptor"),
    ],
)
def test_output_that_cannot_be_written_is_one_sentence(
    home: Path, command: str, streams: str, why: str
) -> None:
    if "full" in streams and not Path("/dev/full").exists():
        pytest.skip("has no /dev/full")
    done = shell(home, streams, COMMANDS[command])
    assert done.stderr == (
        f"specchat: Standard output cannot be written ({why}): redirect it to another file.\n"
    )
    assert done.returncode == 1


@pytest.mark.parametrize("command", ["settings", "version"])
def test_whoever_stops_reading_gets_silence(home: Path, command: str) -> None:
    done = shell(home, "| true", COMMANDS[command])
    assert (done.stderr, done.returncode) == ("", 141)


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full"])
def test_remarks_that_nobody_can_read_stop_nothing(home: Path, streams: str) -> None:
    (home / "config" / "specchat").mkdir(parents=True)
    (home / "config" / "specchat" / "settings.toml").write_text("wrong = [")
    done = shell(home, streams, COMMANDS["settings"])
    assert "[reading]" in done.stdout
    assert done.returncode == 0


def test_names_in_what_the_parser_says_do_not_act(capsys: pytest.CaptureFixture[str]) -> None:
    """A shell puts them in for `folder/*`."""
    assert run(["ask", "-f", "a", "b", "evil\x1b]0;title\x07\nspecchat: gone", "q"]) == 2
    said = capsys.readouterr().err
    assert "evil␛]0;title␇␊specchat" in said
    assert "\x1b" not in said
