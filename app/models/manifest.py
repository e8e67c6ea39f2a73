"""The list of files of one commit of a model, and their digests."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.util.atomic_files import make_folder, write_durably
from app.util.regular_files import open_file, read_file

COMMIT = re.compile(r"[0-9a-f]{40}")
_GIT, _SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")
_PATH = re.compile(r"(?:[\w+-][\w.+-]*/)?[\w+-][\w.+-]*", re.ASCII)
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One file of a commit. `size` in bytes; `digest` is the SHA-256 in hexadecimal for files in
    LFS (64 digits), and git's SHA-1 of the blob for others (40 digits)."""

    path: str
    size: int
    digest: str

    def __post_init__(self) -> None:
        """ValueError when the path, size or digest is impossible."""
        known = _SHA256.fullmatch(self.digest) or _GIT.fullmatch(self.digest)
        if not (_PATH.fullmatch(self.path) and known and self.size >= 0):
            raise ValueError(self.path)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of `repository` at `commit` that are downloaded."""

    repository: str
    commit: str
    files: tuple[ModelFile, ...]

    @property
    def size(self) -> int:
        """Bytes; files with the same content count once."""
        return sum({file.digest: file.size for file in self.files}.values())

    def write(self, path: Path) -> None:
        """Replace the file at `path` durably. OSError."""
        make_folder(path.parent)
        files = [{"path": f.path, "size": f.size, "digest": f.digest} for f in self.files]
        content = {"repository": self.repository, "commit": self.commit, "files": files}
        write_durably(path, json.dumps(content, indent=1).encode())


def read_manifest(path: Path) -> Manifest | None:
    """The manifest at `path`; None when it is missing or invalid."""
    try:
        content = json.loads(read_file(path))
        files = tuple(ModelFile(f["path"], int(f["size"]), f["digest"]) for f in content["files"])
        if not COMMIT.fullmatch(content["commit"]):
            return None
        return Manifest(str(content["repository"]), content["commit"], files)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


class HashingStopped(Exception):
    """Hashing was cancelled."""


def file_digest(
    path: Path,
    expected: str,
    on_bytes: Callable[[int], object] = lambda count: None,
    stopped: Callable[[], bool] = lambda: False,
) -> str:
    """The digest of a file, of the same kind as `expected`. `on_bytes` is called with the size of
    each block read. OSError; HashingStopped when `stopped` returns true. A second per gigabyte."""
    with open_file(path) as file:
        if _SHA256.fullmatch(expected):
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
