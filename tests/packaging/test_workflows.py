"""The workflows run what people run: make targets that are there, on Linux and on macOS."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = {p.stem: p for p in sorted((ROOT / ".github" / "workflows").glob("*.yml"))}
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def jobs(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(WORKFLOWS[name].read_text(encoding="utf-8"))["jobs"]
    return loaded


def runs(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def made(job: dict[str, Any]) -> set[str]:
    return {found for line in runs(job) for found in re.findall(r"^make ([a-z-]+)", line)}


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_target_is_in_the_makefile(name: str) -> None:
    for job in jobs(name).values():
        assert made(job)
        assert made(job) <= TARGETS


def test_what_is_checked_where() -> None:
    checks = jobs("check")
    assert {name: made(job) for name, job in checks.items()} == {
        "lint": {"lint"},
        "test": {"test"},
        "test-slow": {"test-slow"},
    }
    for name in ("test", "test-slow"):
        systems = [each.split("-")[0] for each in checks[name]["strategy"]["matrix"]["os"]]
        assert systems == ["ubuntu", "macos"]
    assert "schedule" in checks["test-slow"]["if"]


def test_a_release_has_wheel_source_and_formula() -> None:
    (job,) = jobs("release").values()
    assert {"lint", "test", "dist", "formula"} <= made(job)
    assert "--draft" in runs(job)[-1]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_nothing_from_outside_is_pasted_into_a_shell(name: str) -> None:
    assert not [line for job in jobs(name).values() for line in runs(job) if "${{" in line]
