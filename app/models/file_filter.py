"""Chooses which files of a model to download, or rejects the model.

The hub's list is untrusted: every path in it is checked here before it is used.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Any

from app.models.errors import ModelError
from app.models.manifest import ModelFile

MAX_FILES = 10_000
_DOWNLOADED = re.compile(
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
    """The files to download, sorted by name: JSON, safetensors, tokenizer and templates.

    `entries` are the hub's list of all files. ModelError when the model contains code or pickles,
    is not a complete text model, or when the list is inconsistent.
    """
    if len(entries) > MAX_FILES:
        raise too_many_files(repository)
    files: dict[str, ModelFile] = {}
    folded: set[str] = set()
    for entry in entries:
        path, is_file = _check_entry(repository, entry)
        if not is_file:
            continue
        _refuse_code(repository, path)
        if not _DOWNLOADED.fullmatch(path):
            continue
        if path.casefold() in folded:
            raise _invalid_list(repository, f"it names {path!r} twice")
        folded.add(path.casefold())
        files[path] = _file(repository, path, entry)
    for name in ("config.json", "tokenizer.json"):
        if name not in files:
            raise _unusable(repository, name)
    if not any(name.endswith(".safetensors") for name in files):
        raise _unusable(repository, "weights in model*.safetensors files")
    return tuple(files[name] for name in sorted(files))


def _check_entry(repository: str, entry: Any) -> tuple[str, bool]:
    """An entry's path, and whether it is a file. ModelError for unsafe paths."""
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
    suffix = PurePosixPath(path).suffix.lower()
    if suffix in _CODE:
        raise ModelError(
            f"{repository} contains code ({path!r}), and specchat never runs code from a model",
            "choose a model that mlx-lm supports without it, such as one of mlx-community",
        )
    if suffix in _PICKLES:
        raise ModelError(
            f"{repository} contains {path!r}, a pickle, which may contain code",
            "choose a copy of the model with safetensors only, such as one of mlx-community",
        )


def _file(repository: str, path: str, entry: dict[str, Any]) -> ModelFile:
    size, digest, lfs = entry.get("size"), entry.get("oid"), entry.get("lfs")
    if lfs is not None:
        if not isinstance(lfs, dict):
            raise _invalid_list(repository, f"{path!r} has no digest")
        size, digest = lfs.get("size"), str(lfs.get("oid")).removeprefix("sha256:")
    # The length of the digest says which kind it is; the kinds must not be mixed up.
    length = 40 if lfs is None else 64
    if type(size) is not int or not isinstance(digest, str) or len(digest) != length:
        raise _invalid_list(repository, f"{path!r} has no size or no digest")
    try:
        return ModelFile(path, size, digest)
    except ValueError:
        raise _invalid_list(repository, f"{path!r} has no size or no digest") from None


def too_many_files(repository: str) -> ModelError:
    return ModelError(
        f"{repository} has more than {MAX_FILES:,} files, more than any model",
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
