"""The files of one commit of a model that are downloaded, with their digests."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from app.models.errors import ModelError
from app.util.atomic_files import make_folder, write_durably
from app.util.regular_files import open_file, read_file

COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
DIGEST = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_PATH = re.compile(r"(?:[\w+-][\w.+-]*/)?[\w+-][\w.+-]*", re.ASCII)
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file of a commit. `size` is in bytes. `digest` is hexadecimal: the SHA-256 of files in LFS
    (64 digits), or git's SHA-1 of other files (40 digits)."""

    path: str
    size: int
    digest: str

    def __post_init__(self) -> None:
        """Raises ValueError if the path, size or digest is impossible."""
        if not (_PATH.fullmatch(self.path) and DIGEST.fullmatch(self.digest) and self.size >= 0):
            raise ValueError(self.path)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files of `repository` at `commit` that are downloaded."""

    repository: str
    commit: str
    files: tuple[ModelFile, ...]

    @property
    def size(self) -> int:
        """Total bytes. Files with the same content count once."""
        return sum({file.digest: file.size for file in self.files}.values())

    def write(self, path: Path) -> None:
        """Replace the file at `path` durably. Raises OSError."""
        make_folder(path.parent)
        files = [{"path": f.path, "size": f.size, "digest": f.digest} for f in self.files]
        content = {"repository": self.repository, "commit": self.commit, "files": files}
        write_durably(path, json.dumps(content, indent=1).encode())


def read_manifest(path: Path) -> Manifest | None:
    """Read the manifest at `path`; None if it is missing or invalid."""
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
    """Compute the digest of a file, of the same kind as `expected`. `on_bytes` is called with the
    size of each block. Takes about a second per gigabyte. Raises OSError, and HashingStopped if
    `stopped` returns true."""
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


# --------------------------------------------------------------------------- the hub's list
# The list is not trusted: every path in it is checked here before it is used.


MAX_FILES = 10_000
_DOWNLOADED = re.compile(
    r"[\w+-][\w.+-]*\.json|model[\w.+-]*\.safetensors|[\w+-][\w.+-]*\.jinja"
    r"|additional_chat_templates/[\w+-][\w.+-]*\.jinja|1_Pooling/config\.json"
    r"|tokenizer\.model|[\w+-][\w.+-]*\.tiktoken|tiktoken\.model|merges\.txt|vocab\.txt",
    re.ASCII,
)
_CODE = frozenset({".py", ".pyc", ".pyo", ".pyd", ".so", ".dylib", ".dll", ".ipynb"})
_PICKLES = frozenset(
    {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz", ".dill", ".pt2"}
)


def files_to_download(repository: str, entries: list[Any]) -> tuple[ModelFile, ...]:
    """The files to download, sorted by name: JSON, safetensors, tokenizer and templates.

    `entries` is the hub's list of all files. Pickles beside the weights are not downloaded. Raises
    ModelError if the model contains code or is not a complete text model, or if the list is
    inconsistent.
    """
    if len(entries) > MAX_FILES:
        raise too_many_files(repository)
    files: dict[str, ModelFile] = {}
    folded: set[str] = set()
    pickled = ""
    for entry in entries:
        path, is_file = _check_entry(repository, entry)
        if not is_file:
            continue
        _refuse_code(repository, path)
        if PurePosixPath(path).suffix.lower() in _PICKLES:
            pickled = path
        if not _DOWNLOADED.fullmatch(path):
            continue
        if path.casefold() in folded:
            raise _invalid_list(repository, f"it names {path!r} twice")
        folded.add(path.casefold())
        files[path] = _listed_file(repository, path, entry)
    for name in ("config.json", "tokenizer.json"):
        if name not in files:
            raise _unusable(repository, name)
    if not any(name.endswith(".safetensors") for name in files):
        if pickled:
            raise ModelError(
                f"{repository} has its weights only as pickles, which may contain code",
                "choose a copy of the model with safetensors, such as one of mlx-community",
            )
        raise _unusable(repository, "weights in model*.safetensors files")
    return tuple(files[name] for name in sorted(files))


def _check_entry(repository: str, entry: Any) -> tuple[str, bool]:
    """An entry's path, and whether it is a file. Raises ModelError for unsafe paths."""
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
        raise _invalid_list(repository, "an entry has no name")
    path: str = entry["path"]
    parts = path.split("/")
    if (
        not path
        or len(path) > 1024
        or "\\" in path
        or any(ord(character) < 32 for character in path)
        or any(part in ("", ".", "..") for part in parts)
    ):
        shown = path if len(path) < 80 else f"{path[:80]}…"
        raise _invalid_list(repository, f"{shown!r} is not a valid path")
    return path, entry.get("type") == "file"


def _refuse_code(repository: str, path: str) -> None:
    if PurePosixPath(path).suffix.lower() in _CODE:
        raise ModelError(
            f"{repository} contains code ({path!r}), and specchat never runs code from a model",
            "choose a model that mlx-lm supports without it, such as one of mlx-community",
        )


def _listed_file(repository: str, path: str, entry: dict[str, Any]) -> ModelFile:
    size, digest, lfs = entry.get("size"), entry.get("oid"), entry.get("lfs")
    if lfs is not None:
        if not isinstance(lfs, dict):
            raise _invalid_list(repository, f"{path!r} has no digest")
        size, digest = lfs.get("size"), str(lfs.get("oid")).removeprefix("sha256:")
    # The length of a digest indicates its kind, so it must match.
    length = 40 if lfs is None else 64
    if type(size) is not int or not isinstance(digest, str) or len(digest) != length:
        raise _invalid_list(repository, f"{path!r} has no size or no digest")
    try:
        return ModelFile(path, size, digest)
    except ValueError:
        raise _invalid_list(repository, f"{path!r} has no size or no digest") from None


def too_many_files(repository: str) -> ModelError:
    return ModelError(
        f"{repository} is not a model: it has more than {MAX_FILES:,} files",
        "check its name",
    )


def _unusable(repository: str, what: str) -> ModelError:
    return ModelError(
        f"{repository} is not a text model in mlx-lm's format: it has no {what}",
        "choose one that was converted for MLX, such as one of mlx-community",
    )


def _invalid_list(repository: str, why: str) -> ModelError:
    return ModelError(
        f"The hub's list of {repository} is invalid ({why})",
        "try again, and choose another model if it happens again",
    )
