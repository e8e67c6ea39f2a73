"""Folders and size limits of snapshots. Does not import MLX, so that commands can use it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

FOLDER_NAME = re.compile(r"[0-9a-f]{32}")
"""Names of snapshot folders."""
MAX_ON_DISK, MIN_ON_DISK = 20_000_000_000, 500_000_000
TIMES_WEIGHTS = 20
"""Limit for small models, whose caches are large compared with the weights (158 MB for 9,600 tokens
of a 16 MB model) and which read tokens faster than a snapshot loads."""
SHARE_OF_DISK = 0.1
"""Share of the free disk space, including the space of the snapshots."""


def disk_limit(requested: int, snapshots: Path, weights: int) -> int:
    """Maximum bytes of all snapshots: `requested`, or if that is 0, a default for a pair with this
    many bytes of `weights` and for the free disk space."""
    if requested:
        return requested
    default = min(max(TIMES_WEIGHTS * weights, MIN_ON_DISK), MAX_ON_DISK)
    existing = next((path for path in (snapshots, *snapshots.parents) if path.exists()), None)
    if existing is None:
        return default
    available = shutil.disk_usage(existing).free + folder_bytes(snapshots)
    return min(default, int(SHARE_OF_DISK * available))


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder; 0 if it does not exist."""
    return sum(file_sizes(folder).values())


def file_sizes(folder: Path) -> dict[tuple[int, int], int]:
    """Bytes of the files below a folder by (device, inode), so that hard links count once."""
    found = {}
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # deleted meanwhile
                about = os.lstat(os.path.join(path, name))
                found[about.st_dev, about.st_ino] = about.st_size
    return found


def snapshot_folder(snapshots: Path, conversation: str) -> Path:
    """The folder in `snapshots` for a conversation."""
    name = hashlib.sha256(conversation.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return snapshots / name


def remove_snapshot(snapshots: Path, conversation: str) -> None:
    """Remove a conversation's snapshot and this machine's shards of it."""
    for folder in (snapshots, *parts_folders(own_parts(snapshots))):
        shutil.rmtree(snapshot_folder(folder, conversation), ignore_errors=True)


def remove_other_snapshots(snapshots: Path, conversations: Iterable[str]) -> None:
    """Remove the snapshots and shards of all other conversations."""
    staying = {snapshot_folder(snapshots, each).name for each in conversations}
    for folder in (snapshots, *parts_folders(own_parts(snapshots))):
        keep_only(folder, staying)


def keep_only(snapshots: Path, names: Collection[str]) -> None:
    """Remove all snapshot folders except those with these names."""
    with suppress(OSError):
        for folder in snapshots.iterdir():
            if FOLDER_NAME.fullmatch(folder.name) and folder.name not in names:
                shutil.rmtree(folder, ignore_errors=True)


def folder_names(snapshots: Path) -> list[str]:
    """Names of the snapshot folders in `snapshots`."""
    with suppress(OSError):
        return [each.name for each in snapshots.iterdir() if FOLDER_NAME.fullmatch(each.name)]
    return []


def own_parts(snapshots: Path) -> Path:
    """Folder of this machine's shards of snapshots of its own sharded targets."""
    return snapshots.parent / "shards" / "own"


def parts_folders(parts: Path) -> list[Path]:
    """The folders in `parts`: one for each (number of machines, rank)."""
    with suppress(OSError):
        return [each for each in parts.iterdir() if each.is_dir()]
    return []
