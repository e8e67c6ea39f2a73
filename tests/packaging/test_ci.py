"""What CI keeps between runs saves time, and never decides whether a change passes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import slowest_files

RUN = Path(__file__).resolve().parents[2] / ".ci" / "run"
MAKEFILE = """\
.PHONY: lint test system
system:
	@true
lint: .venv/.installed
	@mkdir -p .mypy_cache .ruff_cache
	@echo lint >>$$LOG
	@! test -e .mypy_cache/damaged
test: .venv/.installed
	@.venv/bin/specchat
	@echo test $$SPECCHAT_SLOWEST >>$$LOG
.venv/.installed: pyproject.toml requirements.lock
	@python3 -m venv --without-pip .venv
	@printf '#!$(CURDIR)/.venv/bin/python\\nimport app\\n' >.venv/bin/specchat
	@chmod +x .venv/bin/specchat
	@cd .venv/lib/python*/site-packages && echo '$(CURDIR)' >_specchat.pth
	@test ! -e interrupted
	@touch $@
	@echo build >>$$LOG
"""


class Clones:
    """Clones of a project of four files, each in another folder, and one cache."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache, self.log = folder, folder / "cache", folder / "log"
        self.count = 0

    def clone(self, lock: str = "one==1\n") -> Path:
        self.count += 1
        clone = self.folder / f"clone {self.count}".replace(" ", "-")
        (clone / ".ci").mkdir(parents=True)
        shutil.copy(RUN, clone / ".ci")
        (clone / "app").mkdir()
        where = self.folder / "imported"
        (clone / "app/__init__.py").write_text(f"open({str(where)!r}, 'w').write(__file__)\n")
        (clone / "Makefile").write_text(MAKEFILE)
        (clone / "pyproject.toml").write_text("")
        (clone / "requirements.lock").write_text(lock)
        return clone

    def run(self, clone: Path) -> list[str]:
        """What was done, for a run that passes."""
        self.log.write_text("")
        environment = os.environ | {"SPECCHAT_CI_CACHE": str(self.cache), "LOG": str(self.log)}
        command = ["bash", str(clone / ".ci/run")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/")
        assert done.returncode == 0, done.stdout + done.stderr
        assert (self.folder / "imported").read_text() == str(clone / "app/__init__.py")
        return self.log.read_text().splitlines()

    def kept(self, name: str) -> Path:
        (found,) = self.cache.glob(f"*/{name}.tar")
        return found


BUILT, RESTORED = ["build", "lint", "test 10"], ["lint", "test 10"]


@pytest.fixture
def clones(tmp_path: Path) -> Clones:
    return Clones(tmp_path)


def test_a_clone_in_another_folder_takes_the_environment_of_the_first(clones: Clones) -> None:
    assert clones.run(clones.clone()) == BUILT
    assert clones.run(clones.clone()) == RESTORED
    assert not [*clones.cache.glob("*/*.tar.*")]


@pytest.mark.slow
def test_another_lock_is_another_environment_and_three_are_kept(clones: Clones) -> None:
    for number in range(5):
        assert clones.run(clones.clone(f"one=={number}\n")) == BUILT
    assert len([*clones.cache.iterdir()]) == 3
    assert clones.run(clones.clone("one==4\n")) == RESTORED


@pytest.mark.slow
def test_a_damaged_or_useless_archive_is_not_used(clones: Clones) -> None:
    clones.run(clones.clone())
    venv = clones.kept("venv")
    whole = venv.read_bytes()
    for damaged in (b"", b"no archive" * 100, whole[: len(whole) // 2]):
        venv.write_bytes(damaged)
        assert clones.run(clones.clone()) == BUILT
    clone = clones.clone()
    subprocess.run(["tar", "-xf", str(venv)], cwd=clone, check=True)
    (clone / ".venv/bin/specchat").unlink()
    subprocess.run(["tar", "-cf", str(venv), ".venv"], cwd=clone, check=True)
    assert clones.run(clones.clone()) == BUILT
    assert clones.run(clones.clone()) == RESTORED


@pytest.mark.slow
def test_caches_that_make_a_linter_fail_are_removed(clones: Clones) -> None:
    clone = clones.clone()
    clones.run(clone)
    (clone / ".mypy_cache/damaged").touch()
    folders = [".mypy_cache", ".ruff_cache"]
    subprocess.run(["tar", "-cf", str(clones.kept("lint")), *folders], cwd=clone, check=True)
    assert clones.run(clones.clone()) == ["lint", *RESTORED]
    assert clones.run(clones.clone()) == RESTORED


@pytest.mark.slow
def test_an_interrupted_installation_is_not_kept(clones: Clones) -> None:
    clone = clones.clone()
    (clone / "interrupted").touch()
    with pytest.raises(AssertionError):
        clones.run(clone)
    assert not [*clones.cache.glob("*/*")]
    assert clones.run(clones.clone()) == BUILT


@pytest.mark.slow
def test_without_a_place_for_a_cache_all_is_made(clones: Clones) -> None:
    clones.cache.write_text("a file")
    assert clones.run(clones.clone()) == BUILT
    assert clones.run(clones.clone()) == BUILT


@pytest.mark.slow
def test_an_environment_that_is_there_stays(clones: Clones) -> None:
    clone = clones.clone()
    assert clones.run(clone) == BUILT
    clones.kept("venv").unlink()
    assert clones.run(clone) == RESTORED
    assert not [*clones.cache.glob("*/venv.tar")], "it may hold what its owner added"


def test_the_slowest_files_come_first() -> None:
    def report(name: str, duration: float) -> pytest.TestReport:
        return pytest.TestReport(name, ("", 0, ""), {}, "passed", None, "call", duration=duration)

    reports = [report("a.py::one", 1.0), report("b.py::two", 3.0), report("a.py::three", 0.5)]
    reports += [report("a.py::three", 2.0)]  # its setup
    assert [line.split() for line in slowest_files(reports)] == [
        ["3.5", "s", "2", "a.py"],
        ["3.0", "s", "1", "b.py"],
    ]
