"""From the hub's list of a model's files to those that are fetched, or a refusal.

The list is not trusted: nothing in it becomes a path before it was looked at here.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from app.models.errors import ModelError
from app.models.manifest import ModelFile

MAX_FILES = 10_000
_WANTED = re.compile(
    r"[\w+-][\w.+-]*\.json|model[\w.+-]*\.safetensors|[\w+-][\w.+-]*\.jinja"
    r"|additional_chat_templates/[\w+-][\w.+-]*\.jinja"
    r"|tokenizer\.model|[\w+-][\w.+-]*\.tiktoken|tiktoken\.model|merges\.txt|vocab\.txt",
    re.ASCII,
)
_CODE = frozenset({".py", ".pyc", ".pyo", ".pyd", ".so", ".dylib", ".dll", ".ipynb"})
_PICKLES = frozenset(
    {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz", ".dill", ".pt2"}
)


def files_to_download(repository: str, entries: list[Any]) -> tuple[ModelFile, ...]:
    """The files to fetch, in the order of their names: JSON, safetensors, tokenizer and templates.

    `entries` are those of the hub's recursive tree. ModelError when the model brings code or
    pickles, when it is no whole text model, or when the list cannot be true.
    """
    if len(entries) > MAX_FILES:
        raise too_many_files(repository)
    files: dict[str, ModelFile] = {}
    folded: set[str] = set()
    for entry in entries:
        path, is_file = _checked(repository, entry)
        if not is_file:
            continue
        _refuse_code(repository, path)
        if not _WANTED.fullmatch(path):
            continue
        if path.casefold() in folded:
            raise _untrue(repository, f"it names {path!r} twice")
        folded.add(path.casefold())
        files[path] = _file(repository, path, entry)
    for name in ("config.json", "tokenizer.json"):
        if name not in files:
            raise _unusable(repository, name)
    if not any(name.endswith(".safetensors") for name in files):
        raise _unusable(repository, "weights in model*.safetensors files")
    return tuple(files[name] for name in sorted(files))


def _checked(repository: str, entry: Any) -> tuple[str, bool]:
    """An entry's path and whether it is a file. ModelError when the path leads elsewhere."""
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
        raise _untrue(repository, "an entry has no name")
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
        raise _untrue(repository, f"{shown!r} is no name of a file in it")
    return path, entry.get("type") == "file"


def _refuse_code(repository: str, path: str) -> None:
    suffix = PurePosixPath(path).suffix.lower()
    if suffix in _CODE:
        raise ModelError(
            f"{repository} brings code ({path!r}), and specchat runs no code that comes with a"
            " model",
            "take a model that mlx-lm supports itself, such as one of mlx-community",
        )
    if suffix in _PICKLES:
        raise ModelError(
            f"{repository} brings {path!r}, a kind of file that can hold code (a pickle)",
            "take a copy of the model that has safetensors only, such as one of mlx-community",
        )


def _file(repository: str, path: str, entry: dict[str, Any]) -> ModelFile:
    size, digest, lfs = entry.get("size"), entry.get("oid"), entry.get("lfs")
    if lfs is not None:
        if not isinstance(lfs, dict):
            raise _untrue(repository, f"{path!r} has no digest")
        size, digest = lfs.get("size"), str(lfs.get("oid")).removeprefix("sha256:")
    # What the digest is, is told by its length: the two may not stand in for each other.
    right = 40 if lfs is None else 64
    if type(size) is not int or not isinstance(digest, str) or len(digest) != right:
        raise _untrue(repository, f"{path!r} has no size or no digest")
    try:
        return ModelFile(path, size, digest)
    except ValueError:
        raise _untrue(repository, f"{path!r} has no size or no digest") from None


def too_many_files(repository: str) -> ModelError:
    return ModelError(
        f"{repository} lists more than {MAX_FILES:,} files, which no model needs",
        "check its name",
    )


def _unusable(repository: str, what: str) -> ModelError:
    return ModelError(
        f"{repository} is no text model in mlx-lm's format, it has no {what}",
        "take one that was converted for MLX, such as one of mlx-community",
    )


def _untrue(repository: str, why: str) -> ModelError:
    return ModelError(
        f"The hub's list of {repository} cannot be right, {why}",
        "try again, and take another model if it stays so",
    )
