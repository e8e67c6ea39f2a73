"""A repository may be hostile: nothing of it is run, and nothing of it keeps us waiting."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from app.ingest import git
from app.ingest.git import GitList, git_files, repository
from app.ingest.limits import ReadBudget, ReadLimits
from app.ingest.records import ReadCancelled
from tests.ingest.helpers import folder, intake, names, written
from tests.ingest.test_ignore import run_git

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    top = folder(tmp_path / "repo", **{"a": "a", ".gitignore": "b", "b": "b", "sub/c": "c"})
    run_git(top, "init", "-q")
    run_git(top, "add", "a")
    return top


def listed(top: Path, limits: ReadLimits | None = None) -> list[str] | None:
    return git_files(top, top, limits or ReadLimits(), ReadBudget())


@pytest.fixture
def trap(tmp_path: Path) -> tuple[Path, Path]:
    """A program, and the file that is there once it was run."""
    sprung = tmp_path / "sprung"
    program = written(tmp_path / "trap", f"#!/bin/sh\ntouch '{sprung}'\n")
    program.chmod(0o755)
    return program, sprung


SETTINGS = (
    *("core.fsmonitor", "core.sshCommand", "core.pager", "core.editor", "core.gitProxy"),
    *("diff.external", "filter.x.clean", "filter.x.smudge", "filter.x.process", "alias.ls-files"),
    *(
        "credential.helper",
        "core.askPass",
        "core.alternateRefsCommand",
        "uploadpack.packObjectsHook",
    ),
)


def test_no_setting_of_a_repository_runs_anything(repo: Path, trap: tuple[Path, Path]) -> None:
    program, sprung = trap
    for setting in SETTINGS:
        run_git(repo, "config", setting, str(program))
    run_git(repo, "config", "core.hooksPath", str(program.parent))
    run_git(repo, "config", "include.path", str(program))
    for name in ("post-index-change", "fsmonitor-watchman", "pre-commit", "post-checkout"):
        shutil.copy(program, repo / ".git" / "hooks" / name)
    written(repo / ".gitattributes", "* filter=x diff=x\n")
    assert names(intake(repo)) == [".gitattributes", ".gitignore", "a", "sub/c"]
    assert not sprung.exists()


def test_the_trap_springs_where_git_sees_the_settings(repo: Path, trap: tuple[Path, Path]) -> None:
    program, sprung = trap
    run_git(repo, "config", "core.fsmonitor", str(program))
    run_git(repo, "ls-files", "-o")
    assert sprung.exists()


def test_no_variable_of_the_surroundings_leads_elsewhere(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_CONFIG", "GIT_TRACE"):
        monkeypatch.setenv(name, str(tmp_path / "nowhere"))
    assert listed(repo) is not None
    assert not (tmp_path / "nowhere").exists()


def test_a_git_in_the_folder_we_stand_in_is_not_run(
    repo: Path, trap: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, sprung = trap
    shutil.copy(program, repo / "git")
    monkeypatch.chdir(repo)
    for path in (".", "", f".{os.pathsep}{os.environ['PATH']}"):
        monkeypatch.setenv("PATH", path)
        intake(repo)
    assert not sprung.exists()


def replaced(name: str, make: Callable[[Path], object]) -> Callable[[Path], None]:
    def damage(repo: Path) -> None:
        path = repo / name
        if path.is_dir():
            path.rename(repo.parent / "other")
        else:
            path.unlink(missing_ok=True)
        make(path)

    return damage


DAMAGES = {
    "a damaged index": replaced(
        ".git/index", lambda path: written(path, b"DIRC\0\0\0\2\xff\xff\xff\xff" + b"x" * 100)
    ),
    "an index that is a FIFO": replaced(".git/index", os.mkfifo),
    "an index that is a link": replaced(".git/index", lambda path: path.symlink_to("/dev/zero")),
    "rules that are a FIFO": replaced("sub/.gitignore", os.mkfifo),
    "exclude that is a FIFO": replaced(".git/info/exclude", os.mkfifo),
    "broken settings": replaced(".git/config", lambda path: written(path, b"\0[[[")),
    ".git is a file": replaced(".git", lambda path: written(path, "gitdir: /proc/self/root\n")),
    ".git is a link": replaced(".git", lambda path: path.symlink_to(path.parent.parent / "other")),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_broken_repository_is_read_by_its_rules(repo: Path, case: str) -> None:
    DAMAGES[case](repo)
    start = time.monotonic()
    taken = intake(repo, ReadLimits(git_seconds=0.5))
    assert time.monotonic() - start < 5
    assert names(taken) == [".gitignore", "a", "sub/c"]


def test_the_list_leads_nowhere(repo: Path) -> None:
    listing = GitList("", ["../secret", "/etc/passwd", ".git/config", "a", "sub/../../x", "link/x"])
    (repo / "link").symlink_to(repo.parent)
    assert listing.ignores("b", False)
    assert not listing.ignores("a", False)
    # Only what the walk finds is asked for; the list never adds anything.
    assert names(intake(repo)) == [".gitignore", "a", "sub/c"]


def test_accents_are_compared_as_they_are_meant() -> None:
    listing = GitList("", ["Gr\u00f6\u00dfe/a"])
    assert not listing.ignores("Gro\u0308\u00dfe/a", False)
    assert not listing.ignores("Gro\u0308\u00dfe", True)


@pytest.fixture
def slow_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = written(
        tmp_path / "bin" / "git", f"#!{sys.executable}\nimport time; time.sleep(60)\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(git, "_git", lambda: str(program))
    return program


@pytest.mark.usefixtures("slow_git")
def test_a_git_that_is_not_done_in_time(repo: Path) -> None:
    start = time.monotonic()
    assert listed(repo, ReadLimits(git_seconds=0.2)) is None
    assert time.monotonic() - start < 5
    with pytest.raises(ReadCancelled):
        git_files(repo, repo, ReadLimits(), ReadBudget(cancelled=lambda: True))


def test_a_git_that_fails_floods_or_is_missing(
    repo: Path, slow_git: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_git.write_text("#!/bin/sh\nexit 1\n")
    assert listed(repo) is None
    slow_git.write_text("#!/bin/sh\nexec cat /dev/zero\n")
    monkeypatch.setattr(git, "_MAX_BYTES", 1000)
    assert listed(repo) is None
    slow_git.unlink()
    assert listed(repo) is None


def test_a_repository_of_another_user_above_is_not_asked(
    repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert repository(repo / "sub") == repo
    if os.geteuid() == 0:
        os.chown(repo / "sub", 12345, -1)
        assert repository(repo / "sub") is None
    assert repository(repo / "missing") is None
