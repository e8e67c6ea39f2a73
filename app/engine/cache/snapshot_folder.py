"""Where snapshots are stored, and how large they may get. Without MLX, so that the command line can
count and remove them."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

FOLDER_NAME = re.compile(r"[0-9a-f]{32}")
"""Names of our folders there."""
MAX_ON_DISK, MIN_ON_DISK = 20_000_000_000, 500_000_000
TIMES_WEIGHTS = 20
"""A small model reads tokens faster than its cache loads, and its cache is many times its weights:
158 MB for the 9,600 tokens of the GPL, for a model of 16 MB."""
SHARE_OF_DISK = 0.1
"""Of what is free, together with the snapshots."""


def disk_limit(requested: int, snapshots: Path, weights: int) -> int:
    """The most bytes that snapshots may take: `requested`, or, where that is 0, what suits a pair
    with this many bytes of `weights`, and the disk."""
    if requested:
        return requested
    default = min(max(TIMES_WEIGHTS * weights, MIN_ON_DISK), MAX_ON_DISK)
    existing = next((path for path in (snapshots, *snapshots.parents) if path.exists()), None)
    if existing is None:
        return default
    available = shutil.disk_usage(existing).free + folder_bytes(snapshots)
    return min(default, int(SHARE_OF_DISK * available))


def folder_bytes(folder: Path) -> int:
    """Bytes of every file below a folder, leftovers too; 0 if it does not exist."""
    return sum(file_sizes(folder).values())


def file_sizes(folder: Path) -> dict[tuple[int, int], int]:
    """The files below a folder, by device and number there, and their bytes. Files of several
    names, as snapshots share them, are there once."""
    found = {}
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # deleted meanwhile
                about = os.lstat(os.path.join(path, name))
                found[about.st_dev, about.st_ino] = about.st_size
    return found


def snapshot_folder(snapshots: Path, conversation: str) -> Path:
    """A folder in `snapshots` for any conversation's name."""
    name = hashlib.sha256(conversation.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return snapshots / name


def remove_snapshot(snapshots: Path, conversation: str) -> None:
    """Remove a conversation's snapshot, and this machine's part of one that is spread, if there are
    any."""
    for folder in (snapshots, *parts_folders(own_parts(snapshots))):
        shutil.rmtree(snapshot_folder(folder, conversation), ignore_errors=True)


def remove_other_snapshots(snapshots: Path, conversations: Iterable[str]) -> None:
    """The same for all but these conversations."""
    staying = {snapshot_folder(snapshots, each).name for each in conversations}
    for folder in (snapshots, *parts_folders(own_parts(snapshots))):
        keep_only(folder, staying)


def keep_only(snapshots: Path, names: Collection[str]) -> None:
    """Remove the snapshots in all folders but those of these names."""
    with suppress(OSError):
        for folder in snapshots.iterdir():
            if FOLDER_NAME.fullmatch(folder.name) and folder.name not in names:
                shutil.rmtree(folder, ignore_errors=True)


def folder_names(snapshots: Path) -> list[str]:
    """Of the snapshots in a folder, whatever models they are of."""
    with suppress(OSError):
        return [each.name for each in snapshots.iterdir() if FOLDER_NAME.fullmatch(each.name)]
    return []


def own_parts(snapshots: Path) -> Path:
    """Where this machine's parts are of what it has spread over several: beside its snapshots."""
    return snapshots.parent / "shards" / "own"


def parts_folders(parts: Path) -> list[Path]:
    """One for each number of machines and each place among them."""
    with suppress(OSError):
        return [each for each in parts.iterdir() if each.is_dir()]
    return []
