"""The command line as a whole: its options, what it imports, and its streams."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from app.cli import run_app
from app.cli.main import commands, parser, run
from app.cli.status import BAD_INPUT
from tests.tables import slow, table


def test_the_version_is_an_answer_and_goes_to_standard_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["--version"])
    assert ended.value.code == 0
    said = capsys.readouterr()
    assert said.out == f"specchat {version('specchat')}\n"
    assert said.err == ""


@table("command", ["ask q", "doctor", "eval", "bench", "models fit NAME"])
def test_models_named_before_the_command_were_replaced_by_those_of_the_settings(
    command: str,
) -> None:
    options = parser().parse_args(["--target", "T", "--draft", "D", *command.split()])
    assert (options.target, options.draft) == ("T", "D")
    assert parser().parse_args(command.split()).target is None


def test_a_commands_own_models_win() -> None:
    said = ["--target", "T", "--kv-bits", "8", "ask", "--target", "U", "--kv-bits", "4", "q"]
    options = parser().parse_args(said)
    assert (options.target, options.draft, options.kv_bits) == ("U", None, "4")


@table(
    "line, paths",
    [
        ("README.md", ["README.md"]),
        (".", ["."]),
        ("--target T docs README.md --draft D", ["docs", "README.md"]),
        ("./ask", ["./ask"]),
        ("docs --kv-bits 4 missing.md", ["docs", "missing.md"]),
    ],
)
def test_paths_instead_of_a_command_are_for_the_app(
    line: str, paths: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("docs", "ask"):
        (tmp_path / name).touch()
    options = parser().parse_args(line.split())
    assert (options.command, options.paths) == (None, paths)
    assert parser().parse_args(["ask", "q"]).paths == []


@table(
    "line, told",
    [
        ("missing.md", "There is no file or folder 'missing.md'"),
        (". docs/missing", "There is no file or folder 'docs/missing'"),
        ("sevre --port 1", "neither a command nor a file or folder here: use `specchat serve`"),
        ("--target T zzz", "here: name a file or a folder, or see `specchat --help`"),
    ],
)
def test_what_is_neither_a_path_nor_a_command_is_one_sentence(
    line: str,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(line.split()) == BAD_INPUT
    said = capsys.readouterr().err
    assert told in said
    assert said.count("\n") == 1


WRITTEN = {"--length", "--keep", "--memory", "--tune", "--ablate"}
"""Options whose numbers are read by the command, because they are lists or have units."""
WRONG = ("", "x", "-1", "nan", "-inf", "1e999", "9" * 30, "0x10", "\uff17 \x1b[2J")


def numeric_options() -> Iterator[tuple[str, ...]]:
    """The words before the value of each option that takes a number, of every command."""

    def walk(command: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        needed: tuple[str, ...] = ()
        for action in command._actions:
            if isinstance(action, argparse._SubParsersAction):
                for name, each in action.choices.items():
                    yield from walk(each, (*words, name))
            elif not action.option_strings and action.nargs not in ("?", "*"):
                needed += ("embedded",)
            elif action.option_strings and action.required:
                needed += (action.option_strings[0], "x")
        if words == ("doctor",):
            needed += ("--stress",)
        for action in command._actions:
            numeric = action.type not in (None, Path) or {*action.option_strings} & WRITTEN
            if action.option_strings and numeric:
                yield *words, *needed, action.option_strings[-1]

    top = parser()
    for name in commands():
        top.declare(name)
    return walk(top, ())


@table("words", numeric_options())
def test_a_number_out_of_range_is_one_sentence(
    home: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong in WRONG:
        assert run([*words[:-1], f"{words[-1]}={wrong}"]) == 2, wrong
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.startswith("specchat: ")
        assert told.err.endswith(".\n")
        assert told.err[:-1].isprintable(), "one line, and no control characters"


def test_numeric_options_of_every_kind_are_tried() -> None:
    options = {f"{words[0]} {words[-1]}" for words in numeric_options()}
    assert len(options) > 20
    assert {"serve --port", "worker --port", "ask --keep", "doctor --runs", "eval --n"} <= options


@table("words", ["eval --n", "ask", "models nothing", "serve --nothing"])
def test_what_the_parser_refuses_is_one_sentence(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == 2
    told = capsys.readouterr().err
    assert told.startswith("specchat: ")
    assert told.count("\n") == 1
    assert "--help` lists all options.\n" in told


LATER = {
    "the parent": (
        "import app.__main__, app.cli.main, app.cli.terminal, app.cli.run_app",
        [
            *("app.settings", "app.cli.logs", "app.paths"),
            *("dataclasses", "logging", "tempfile", "textual"),
        ],
    ),
    "the help": (
        "from app.cli.main import parser; parser().format_help()",
        ["app.protocol", "app.engine", "app.models", "app.cli.settings", "dataclasses", "textual"],
    ),
    "the app": (
        "import app.ui.app, app.cli.run_app, app.engine.engine, app.extras.serve.inner_server\n"
        "import app.extras.hosts.spreading, app.extras.hosts.hostfile",
        [
            "mlx",
            "mlx_lm",
            "numpy",
            "transformers",
            "tokenizers",
            "fastapi",
            "uvicorn",
            "pypdfium2",
            "huggingface_hub",
            *("app.models.fit", "app.models.formats"),
        ],
    ),
}


@pytest.mark.parametrize("who", LATER)
def test_what_is_slow_to_import_is_imported_after_the_first_frame(who: str) -> None:
    imports, later = LATER[who]
    code = f"{imports}\nimport sys\nprint(*(each for each in {later} if each in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("name", ["dumb", "unknown"])
def test_a_terminal_without_a_screen_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(run_app, "supervise", lambda: pytest.fail("the app was started"))
    monkeypatch.setenv("TERM", name)
    assert run([]) == 2
    assert "needs a terminal that can draw a screen" in capsys.readouterr().err


@table(
    "environment, named",
    [
        ({}, ""),
        ({"LANG": "en_GB.UTF-8"}, ""),
        ({"LC_CTYPE": "UTF-8"}, ""),
        ({"LANG": "de_DE.utf8@euro"}, ""),
        ({"LC_ALL": "C.UTF-8", "LANG": "C"}, ""),
        ({"LC_CTYPE": "C.UTF-8"}, ""),
        ({"LC_CTYPE": "en_GB.UTF-8", "LANG": "C"}, ""),
        ({"LC_ALL": "C", "LANG": "en_GB.UTF-8"}, "LC_ALL=C"),
        ({"LC_ALL": "POSIX"}, "LC_ALL=POSIX"),
        ({"LANG": "C"}, "LANG=C"),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, "LANG=C"),
        ({"LC_ALL": "", "LANG": "de_DE.ISO-8859-1"}, "LANG=de_DE.ISO-8859-1"),
        ({"LC_CTYPE": "ja_JP.eucJP", "LANG": "en_GB.UTF-8"}, "LC_CTYPE=ja_JP.eucJP"),
    ],
)
def test_a_locale_without_utf8_is_said(environment: dict[str, str], named: str) -> None:
    sentence = run_app.without_utf8(environment)
    assert sentence.isascii()
    assert sentence.partition(" does")[0] == (named and f"The locale ({named})")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("HF_ENDPOINT", f"https://{each}") for each in ("x:99999", "x:abc", "[::1")),
        ("HF_HUB_DOWNLOAD_TIMEOUT", "soon"),
    ],
)
def test_a_variable_that_the_hub_library_cannot_parse(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    assert run(["models", "list"]) == 2
    refused = capsys.readouterr().err
    assert refused.startswith(f"specchat: {name} cannot be used (")
    assert refused.count("\n") == 1


TYPED = {
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
        slow("help", ">/dev/full", "No space left on device"),
        ("models", ">&-", "Bad file descriptor"),
    ],
)
def test_output_that_cannot_be_written_is_one_sentence(
    home: Path, command: str, streams: str, why: str
) -> None:
    if "full" in streams and not Path("/dev/full").exists():
        pytest.skip("has no /dev/full")
    done = shell(home, streams, TYPED[command])
    assert done.stderr == (
        f"specchat: Standard output cannot be written ({why}): redirect it to another file.\n"
    )
    assert done.returncode == 1


@pytest.mark.parametrize("command", ["settings", "version"])
def test_whoever_stops_reading_gets_silence(home: Path, command: str) -> None:
    done = shell(home, "| true", TYPED[command])
    assert (done.stderr, done.returncode) == ("", 141)


@pytest.mark.parametrize("streams", ["2>&-", "2>/dev/full"])
def test_remarks_that_nobody_can_read_stop_nothing(home: Path, streams: str) -> None:
    (home / "config" / "specchat").mkdir(parents=True)
    (home / "config" / "specchat" / "settings.toml").write_text("wrong = [")
    done = shell(home, streams, TYPED["settings"])
    assert "[reading]" in done.stdout
    assert done.returncode == 0


def test_names_in_what_the_parser_says_do_not_act(capsys: pytest.CaptureFixture[str]) -> None:
    """A shell puts them in for `folder/*`."""
    assert run(["ask", "-f", "a", "b", "evil\x1b]0;title\x07\nspecchat: gone", "q"]) == 2
    said = capsys.readouterr().err
    assert "evil␛]0;title␇␊specchat" in said
    assert "\x1b" not in said
