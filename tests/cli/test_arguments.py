"""The command line as a whole."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from app.cli.arguments import parser
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


OLD_FLAGS = {"ask --despite-memory q": "ask --skip-memory-check q"}


@pytest.mark.parametrize("old", OLD_FLAGS)
def test_old_flags_still_work(old: str) -> None:
    assert parser().parse_args(old.split()) == parser().parse_args(OLD_FLAGS[old].split())
