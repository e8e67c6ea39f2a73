"""The workflows run what people run: make targets and files that are there, within a time limit, on
Linux and on macOS."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / ".github" / "workflows").glob("*.yml"))
}
JOBS = {
    f"{workflow}: {name}": job
    for workflow, loaded in WORKFLOWS.items()
    for name, job in loaded["jobs"].items()
}
SETUP = yaml.safe_load((ROOT / ".github/actions/setup/action.yml").read_text(encoding="utf-8"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def runs(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job.get("steps", []) if "run" in step]


def made(job: dict[str, Any]) -> set[str]:
    return {found for line in runs(job) for found in re.findall(r"^make ([a-z-]+)", line)}


def triggers(workflow: str) -> dict[str, Any]:
    """YAML takes the word `on` for a truth value."""
    found: dict[str, Any] = WORKFLOWS[workflow][True]
    return found


def test_every_target_and_script_is_there() -> None:
    assert len(JOBS) >= 10
    for name, job in JOBS.items():
        scripts = {word for line in runs(job) for word in re.findall(r"packaging/\w+\.py", line)}
        assert made(job) or scripts or "uses" in job, name
        assert made(job) <= TARGETS, name
        assert all((ROOT / script).is_file() for script in scripts), name
        local = [each.get("uses", "") for each in (job, *job.get("steps", []))]
        assert all((ROOT / each).exists() for each in local if each.startswith("./")), name


def test_every_job_has_a_time_limit() -> None:
    for name, job in JOBS.items():
        assert "uses" in job or 0 < job["timeout-minutes"] <= 350, name  # GitHub's is 360


def test_what_is_checked_where() -> None:
    makes = {name: made(job) for name, job in JOBS.items() if made(job)}
    assert makes == {
        "benchmarks: test-benchmarks": {"test-benchmarks"},
        "check: lint": {"lint"},
        "check: test": {"test"},
        "mac: engine": {"test"},
        "mac: rest": {"test"},
        "mac: smoke": {"smoke"},
        "release: release": {"lint", "test", "dist", "formula"},
        "slow: test-slow": {"test-slow"},
        "slow: test-slow-mac": {"test-slow"},
    }
    assert json.loads(JOBS["check: mac"]["with"]["systems"]) == ["macos-15", "macos-26"]
    assert json.loads(JOBS["slow: mac"]["with"]["systems"]) == ["macos-14"]


def test_no_quick_test_is_missing_on_macs() -> None:
    (engine,), (rest,) = (
        [line for line in runs(JOBS[f"mac: {name}"]) if line.startswith("make")]
        for name in ("engine", "rest")
    )
    folders = re.findall(r"tests/\w+", engine)
    assert folders == re.findall(r"--ignore=(tests/\w+)", rest)
    assert all((ROOT / folder).is_dir() for folder in folders)
    assert JOBS["mac: engine"]["strategy"]["matrix"]["device"] == ["gpu", "cpu"]


def test_every_job_on_a_mac_first_checks_its_gpu() -> None:
    for name, job in JOBS.items():
        if name.startswith("mac:") or name == "slow: test-slow-mac":
            assert runs(job)[0] == ".venv/bin/python packaging/gpu.py", name


def test_the_slow_tests_run_at_night_and_for_changes_that_quick_ones_try_in_part() -> None:
    for workflow, days in (("slow", "*"), ("benchmarks", "0")):
        found = triggers(workflow)
        assert found["schedule"][0]["cron"].split()[2:] == ["*", "*", days]
        assert found["push"]["paths"] == found["pull_request"]["paths"]
        for path in found["push"]["paths"]:
            assert (ROOT / path.removesuffix("/**")).exists(), path
    parts = {"app/engine/cache/**", "app/engine/model/**", "app/engine/backend/**"}
    assert {*parts, "app/sandbox/**", "app/ui/terminal.py"} == {*triggers("slow")["push"]["paths"]}
    assert {*triggers("benchmarks")["push"]["paths"]} == {"app/engine/**", "benchmarks/**"}


def test_the_environment_is_cached_by_what_it_is_made_from() -> None:
    (cache,) = [step for step in SETUP["runs"]["steps"] if "actions/cache" in step.get("uses", "")]
    assert cache["with"]["path"] == ".venv"
    for part in ("python-version", "requirements.lock", "pyproject.toml", "image", "runner.arch"):
        assert part in cache["with"]["key"]


def test_a_release_has_wheel_source_and_formula() -> None:
    job = JOBS["release: release"]
    assert {"lint", "test", "dist", "formula"} <= made(job)
    assert "--draft" in runs(job)[-1]


def test_nothing_from_outside_is_pasted_into_a_shell() -> None:
    for job in (*JOBS.values(), SETUP["runs"]):
        assert not [line for line in runs(job) if "${{" in line]


@pytest.mark.skipif(shutil.which("actionlint") is None, reason="actionlint is not installed")
def test_actionlint_finds_nothing() -> None:
    done = subprocess.run(["actionlint"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_machine_without_a_gpu_fails_the_check() -> None:
    command = [sys.executable, "packaging/gpu.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if "Device(gpu" in done.stdout:
        assert done.returncode == 0, done.stdout
    else:
        assert done.returncode == 1
        assert "failed: MLX's default device is no GPU" in done.stdout


@pytest.mark.slow
def test_the_smoke_test_passes_with_the_demo_model() -> None:
    done = subprocess.run(
        [sys.executable, "packaging/smoke.py"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = re.findall(r"^([a-z ]+): +\d", done.stdout, re.M)
    assert names == ["doctor", "sparse", "full", "second question", "server", "server again"]
