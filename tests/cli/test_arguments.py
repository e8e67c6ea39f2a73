"""The command line as a whole."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from app.cli.arguments import parser
from app.cli.exit_codes import BAD_INPUT
from app.cli.main import run


def test_the_version_is_an_answer_and_goes_to_standard_output(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["--version"])
    assert ended.value.code == 0
    said = capsys.readouterr()
    assert said.out == f"specchat {version('specchat')}\n"
    assert said.err == ""


@pytest.mark.parametrize("command", ["ask q", "doctor", "eval", "bench ttft", "models fit NAME"])
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


@pytest.mark.parametrize(
    ("line", "paths"),
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


@pytest.mark.parametrize(
    ("line", "told"),
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


OLD_FLAGS = {"ask --despite-memory q": "ask --skip-memory-check q"}


@pytest.mark.parametrize("old", OLD_FLAGS)
def test_old_flags_still_work(old: str) -> None:
    assert parser().parse_args(old.split()) == parser().parse_args(OLD_FLAGS[old].split())
