"""The command line as a whole."""

from __future__ import annotations

from importlib.metadata import version

import pytest

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
