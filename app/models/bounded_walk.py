"""Walks folders that somebody else keeps: bounded, and never failing."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

MAX_DEPTH, MAX_ENTRIES = 4, 10_000
"""Levels below the first folder, and files and folders looked at in all of them together."""


@dataclass(frozen=True, slots=True)
class Folder:
    """`files` are names, sorted, of whatever is not a folder; links to files are among them."""

    path: Path
    files: tuple[str, ...]


def bounded_walk(top: Path, depth: int = MAX_DEPTH, entries: int = MAX_ENTRIES) -> Iterator[Folder]:
    """`top` and the folders below it, the upper ones first. Each is visited once, also when links
    lead to it. Skips what is hidden and what cannot be read."""
    queue, seen = deque([(top, 0)]), set[tuple[int, int]]()
    while queue and entries > 0:
        path, level = queue.popleft()
        try:
            status = path.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(path) as scan:
                found = sorted(islice(scan, entries), key=lambda entry: entry.name)
        except OSError:
            continue
        entries -= len(found)
        found = [entry for entry in found if not entry.name.startswith(".")]
        folders = [entry.name for entry in found if _is_folder(entry)]
        if level < depth:
            queue.extend((path / name, level + 1) for name in folders)
        names = set(folders)
        yield Folder(path, tuple(entry.name for entry in found if entry.name not in names))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # a link to itself
        return entry.is_dir()
    return False
