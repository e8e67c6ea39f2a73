"""git's own list of a repository's files: what is tracked, and what is not ignored.

The repository may be hostile. Its configuration can name programs that git runs (core.fsmonitor,
say), so git never sees it: it is given an empty repository of ours, with the other one's index and
its files. The list only says what to leave out; what is opened, and how, is decided elsewhere.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import tempfile
import unicodedata
from pathlib import Path

from app.ingest.budget import ReadBudget
from app.ingest.ignore import IgnoreRules
from app.ingest.limits import Limits
from app.ingest.process import run_bounded

_KEPT_ENVIRONMENT = ("PATH", "HOME", "XDG_CONFIG_HOME", "TMPDIR")
_SETTINGS = ("core.fsmonitor=false", "core.untrackedCache=false", "core.hooksPath=/dev/null")
_MOST_BYTES = 64 * 1024 * 1024
_MOST_INDEX_BYTES = 256 * 1024 * 1024
# Without these, macOS's git is a stand-in that opens a window offering to install them.
_MAC_TOOLS = ("/Library/Developer/CommandLineTools", "/Applications/Xcode.app")


class GitList:
    """Everything is left out that git does not list."""

    def __init__(self, prefix: str, listed: list[str]) -> None:
        """`prefix`: the path, from the top of the walk, of the folder that `listed` begins at."""
        self._prefix = len(prefix)
        self._paths = {_composed(path.rstrip("/")) for path in listed}
        self._folders: set[str] = set()
        for path in self._paths:
            while (path := path.rpartition("/")[0]) and path not in self._folders:
                self._folders.add(path)

    def in_folder(self, folder: int, path: str) -> IgnoreRules:
        return self

    def ignores(self, path: str, is_folder: bool) -> bool:
        path = _composed(path[self._prefix :])
        # A folder that is listed like a file is a repository of its own.
        return path not in self._paths and not (is_folder and path in self._folders)


def _composed(path: str) -> str:
    """macOS writes accents in two ways, and git's index may hold the other one."""
    return path if path.isascii() else unicodedata.normalize("NFC", path)


def repository(folder: Path) -> Path | None:
    """The repository that `folder`, resolved, lies in: the nearest folder with a `.git`, as far
    up as folders belong to the same user and file system."""
    try:
        own = folder.stat()
        for place in (folder, *folder.parents):
            here = place.stat()
            if (here.st_uid, here.st_dev) != (own.st_uid, own.st_dev):
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


def git_files(top: Path, folder: Path, limits: Limits, watch: ReadBudget) -> list[str] | None:
    """The paths, from `folder` on, of what git does not ignore in a folder of the repository
    `top`; a repository inside it as one path. None when git is not there, is not done in
    `limits.git_seconds`, or cannot read the index. Raises what `watch.check` raises."""
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
        environment = _environment(Path(ours), top)
        done = run_bounded(
            command,
            limits.git_seconds,
            _MOST_BYTES,
            watch,
            folder=str(top),
            environment=environment,
        )
    if done is None or done[0] != 0:
        return None
    skip = len(inside) + 1 if inside else 0
    return [os.fsdecode(path)[skip:] for path in done[1].split(b"\0") if path]


def _git() -> str | None:
    git = shutil.which("git")
    if git is None or not os.path.isabs(git):
        return None  # found through a '.' in PATH, it may be anybody's
    if sys.platform == "darwin" and git == "/usr/bin/git":
        return git if any(map(os.path.isdir, _MAC_TOOLS)) else None
    return git


def _make_empty_repository(folder: Path) -> None:
    for name in ("objects", "refs"):
        (folder / name).mkdir()
    (folder / "HEAD").write_text("ref: refs/heads/none\n")
    (folder / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = false\n")


def _environment(ours: Path, top: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    kept |= {
        "GIT_DIR": str(ours),
        "GIT_WORK_TREE": str(top),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }
    index = top / ".git" / "index"
    # A `.git` that is a file (a submodule, a linked worktree) leads elsewhere: all is untracked.
    if _is_file(index, _MOST_INDEX_BYTES):
        kept["GIT_INDEX_FILE"] = str(index)
    return kept


def _is_file(path: Path, most: int) -> bool:
    try:
        info = path.lstat()
        return stat.S_ISREG(info.st_mode) and info.st_size <= most
    except OSError:
        return False
