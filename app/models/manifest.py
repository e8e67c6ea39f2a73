"""Which files make up one commit of a model, and how each is recognised."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from app.util.atomic_files import make_folder, replace_durably, temp_file

COMMIT = re.compile(r"[0-9a-f]{40}")
_GIT, _SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")
_PATH = re.compile(r"(?:[\w+-][\w.+-]*/)?[\w+-][\w.+-]*", re.ASCII)
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a commit. `size` in bytes; `digest` is the SHA-256 of the content in hexadecimal
    for a file of LFS (64 digits), and git's SHA-1 of a blob for another one (40 digits)."""

    path: str
    size: int
    digest: str

    def __post_init__(self) -> None:
        """ValueError when this cannot be a file's place, size and digest."""
        known = _SHA256.fullmatch(self.digest) or _GIT.fullmatch(self.digest)
        if not (_PATH.fullmatch(self.path) and known and self.size >= 0):
            raise ValueError(self.path)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of `repository` at `commit` that are fetched."""

    repository: str
    commit: str
    files: tuple[ModelFile, ...]

    @property
    def size(self) -> int:
        """Bytes; what two files share counts once."""
        return sum({file.digest: file.size for file in self.files}.values())

    def write(self, path: Path) -> None:
        """Durably, in one step. OSError."""
        make_folder(path.parent)
        files = [{"path": f.path, "size": f.size, "digest": f.digest} for f in self.files]
        content = {"repository": self.repository, "commit": self.commit, "files": files}
        aside = path.parent / f"{uuid4().hex}.part"
        with temp_file(aside) as out:
            out.write(json.dumps(content, indent=1).encode())
        replace_durably(aside, path)


def read_manifest(path: Path) -> Manifest | None:
    """What was written there; None when there is nothing, or something else."""
    try:
        content = json.loads(path.read_bytes())
        files = tuple(ModelFile(f["path"], int(f["size"]), f["digest"]) for f in content["files"])
        if not COMMIT.fullmatch(content["commit"]):
            return None
        return Manifest(str(content["repository"]), content["commit"], files)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


class HashingStopped(Exception):
    """Hashing was asked to stop."""


def file_digest(
    path: Path,
    like: str,
    on_bytes: Callable[[int], object] = lambda count: None,
    stopped: Callable[[], bool] = lambda: False,
) -> str:
    """The digest of a file, of the kind that `like` is. `on_bytes` is told of every piece read.
    OSError; Interrupted when `stopped` says so. About a second per gigabyte."""
    with path.open("rb") as file:
        if _SHA256.fullmatch(like):
            state = hashlib.sha256()
        else:
            size = file.seek(0, 2)
            file.seek(0)
            state = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        while block := file.read(_BLOCK):
            if stopped():
                raise HashingStopped
            state.update(block)
            on_bytes(len(block))
    return state.hexdigest()
