"""Asks git for a repository's files: tracked files, and untracked files that are not ignored.

The repository is not trusted: its configuration can name programs for git to run, such as
core.fsmonitor. So git runs in a new, empty repository, with the index and files of the other one.
The list only determines what to skip. Files are opened elsewhere.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
import unicodedata
from pathlib import Path

from app.ingest.ignore import IgnoreRules
from app.ingest.limits import ReadBudget, ReadLimits
from app.ingest.process import ProcessLimits, run_bounded

_PASSED_VARIABLES = ("PATH", "HOME", "XDG_CONFIG_HOME", "TMPDIR")
_SETTINGS = ("core.fsmonitor=false", "core.untrackedCache=false", "core.hooksPath=/dev/null")
_MAX_BYTES = 64 * 1024 * 1024
_MAX_INDEX_BYTES = 256 * 1024 * 1024
# Without one of these, macOS's git is a stub that asks the user to install them.
_MAC_TOOLS = ("/Library/Developer/CommandLineTools", "/Applications/Xcode.app")


class GitList(IgnoreRules):
    """Rules that ignore everything that git does not list."""

    def __init__(self, prefix: str, listed: list[str]) -> None:
        """`listed` are paths in the folder `prefix`, which is relative to the top of the walk."""
        self._prefix = len(prefix)
        self._paths = {_composed(path.rstrip("/")) for path in listed}
        self._folders: set[str] = set()
        for path in self._paths:
            while (path := path.rpartition("/")[0]) and path not in self._folders:
                self._folders.add(path)

    def ignores(self, path: str, is_folder: bool) -> bool:
        path = _composed(path[self._prefix :])
        # A folder in the list is a nested repository.
        return path not in self._paths and not (is_folder and path in self._folders)


def _composed(path: str) -> str:
    """Normalise a path to NFC, because macOS may return accents decomposed, unlike git's index."""
    return path if path.isascii() else unicodedata.normalize("NFC", path)


def repository(folder: Path) -> Path | None:
    """The repository that contains `folder` (resolved): the nearest parent with a `.git`, within
    the same owner and file system."""
    try:
        start = folder.stat()
        for place in (folder, *folder.parents):
            status = place.stat()
            if (status.st_uid, status.st_dev) != (start.st_uid, start.st_dev):
                return None
            try:
                mode = (place / ".git").lstat().st_mode
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(mode) or stat.S_ISREG(mode):
                return place
    except OSError:
        pass
    return None


def git_files(top: Path, folder: Path, limits: ReadLimits, budget: ReadBudget) -> list[str] | None:
    """Paths, relative to `folder`, of the files in a folder of the repository `top` that git does
    not ignore. A nested repository is one path. None if git is not installed, takes longer than
    `limits.git_seconds`, or cannot read the index. Raises what `budget.check` raises."""
    git = _git()
    if git is None:
        return None
    inside = "/".join(folder.relative_to(top).parts)
    command = [git, "--literal-pathspecs"]
    for setting in _SETTINGS:
        command += ["-c", setting]
    command += ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    exclude = top / ".git" / "info" / "exclude"
    if _is_file(exclude, 1024 * 1024):
        command += ["--exclude-from", str(exclude)]
    command += ["--", inside or "."]
    with tempfile.TemporaryDirectory(prefix="specchat-") as ours:
        _make_empty_repository(Path(ours))
        status, listed = run_bounded(
            command,
            ProcessLimits(limits.git_seconds, _MAX_BYTES),
            budget,
            cwd=top,
            env=_environment(Path(ours), top),
        )
    if status != 0:
        return None
    skip = len(inside) + 1 if inside else 0
    return [os.fsdecode(path)[skip:] for path in listed.split(b"\0") if path]


def _git() -> str | None:
    git = shutil.which("git")
    if git is None or not os.path.isabs(git):
        return None  # a relative entry in PATH, which may be any program
    if sys.platform == "darwin" and git == "/usr/bin/git":
        return git if any(map(os.path.isdir, _MAC_TOOLS)) else None
    return git


def _make_empty_repository(folder: Path) -> None:
    for name in ("objects", "refs"):
        (folder / name).mkdir()
    (folder / "HEAD").write_text("ref: refs/heads/none\n")
    (folder / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = false\n")


def _environment(ours: Path, top: Path) -> dict[str, str]:
    variables = {name: os.environ[name] for name in _PASSED_VARIABLES if name in os.environ}
    variables |= {
        "GIT_DIR": str(ours),
        "GIT_WORK_TREE": str(top),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    index = top / ".git" / "index"
    # If `.git` is a file (a submodule or linked worktree), everything counts as untracked.
    if _is_file(index, _MAX_INDEX_BYTES):
        variables["GIT_INDEX_FILE"] = str(index)
    return variables


def _is_file(path: Path, max_bytes: int) -> bool:
    try:
        info = path.lstat()
        return stat.S_ISREG(info.st_mode) and info.st_size <= max_bytes
    except OSError:
        return False
