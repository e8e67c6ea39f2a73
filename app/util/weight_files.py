"""Which safetensors files of a folder are a model's weights."""

from __future__ import annotations

import json
from collections.abc import Collection, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.util.regular_files import read_file

INDEX, WHOLE = "model.safetensors.index.json", "model.safetensors"
_HEAD = "model-mtp"
"""Beginning of the names of files with an MTP head, which indexes do not list."""


def listed_files(index: Any) -> set[str]:
    """The files that an index lists; none if it is invalid."""
    found = index.get("weight_map") if isinstance(index, dict) else None
    return {str(name) for name in found.values()} if isinstance(found, dict) else set()


def chosen_weights(present: Collection[str], listed: Set[str]) -> set[str]:
    """The weight files to load of those `present`, given those that an index lists. A converted
    model often has the index of its source, which lists none of its files, or a few that
    remained where a whole file is now. With more of them, the others are missing."""
    found = listed & set(present)
    if not found:
        return set(present)
    if WHOLE in present and 2 * len(found) <= len(listed):
        listed = {WHOLE}
    return {name for name in present if name in listed or name.startswith(_HEAD)}


def missing_weights(present: Collection[str], listed: Set[str]) -> set[str]:
    """Weight files that an index lists and that are missing, unless it is another model's."""
    return set(listed) - set(present) if listed & chosen_weights(present, listed) else set()


def weight_files(folder: Path) -> list[Path]:
    """The files in `folder` that are loaded, sorted; all of them if the index cannot be read."""
    listed: set[str] = set()
    with suppress(OSError, ValueError, RecursionError):
        listed = listed_files(json.loads(read_file(folder / INDEX)))
    names = [path.name for path in folder.glob("model*.safetensors")]
    return sorted(folder / name for name in chosen_weights(names, listed))
