"""The script for the first Mac runs anywhere, and says what fails instead of failing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import first_mac
import pytest
from first_mac import CHECKS, Models, result

from tests.tables import table

QUICK = ("system", "forced attention", "memory", "fsync", "terminal")


@table("name", QUICK)
def test_a_check_says_something_here(name: str) -> None:
    lines = [*CHECKS[name](Models(tokens=64))]
    assert lines
    assert all(lines)
    assert not any("failed" in line for line in lines)


def test_a_check_that_fails_or_hangs_is_a_line() -> None:
    (failed,) = result("sparse probe", Models(target="no/such-model"))
    assert re.fullmatch("failed: .*no/such-model.*", failed)
    assert result("doctor", Models(), 0.01) == ["failed: no end within 0 s"]


def test_a_check_that_crashes_is_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "crash.py"
    script.write_text("import os\nprint('begun', flush=True)\nos.abort()\n")
    monkeypatch.setattr(first_mac, "__file__", str(script))
    assert result("steps", Models()) == ["begun", "failed: ended by SIGABRT"]


@pytest.mark.slow
def test_the_whole_block_has_a_line_for_each_check() -> None:
    command = [sys.executable, str(first_mac.ROOT / "packaging" / "first_mac.py")]
    ended = subprocess.run([*command, "--tokens", "1024"], capture_output=True, text=True)
    assert ended.returncode == 0
    assert not ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == lines[-1] == "```"
    for name in CHECKS:
        assert sum(line.startswith(f"{name}:") for line in lines) == 1
    assert "failed" not in ended.stdout
    assert re.search(r"sparse: \d+\.\d\d s, [\d,]+ of [\d,]+ tokens read", ended.stdout)
    assert re.search(r"tokens/s in steps: \d+ of \d+", ended.stdout)
