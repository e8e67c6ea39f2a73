"""Where conversations' snapshots lie, how large they are and may be. Knows no MLX, so that one can
be removed, and all be counted, without it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

FOLDER_NAME = re.compile(r"[0-9a-f]{32}")
"""Names of the folders there that are ours."""
MAX_ON_DISK, MIN_ON_DISK = 20_000_000_000, 500_000_000
TIMES_WEIGHTS = 20
"""What a small model has read is read again sooner than it is loaded, and its cache is still many
times its weights: 158 MB for the 9,600 tokens of the GPL, of a model of 16 MB."""
SHARE_OF_DISK = 0.1
"""Of what is free, with what snapshots hold already."""


def disk_limit(requested: int, snapshots: Path, weights: int) -> int:
    """The most bytes that snapshots may take: as many as are `wanted`, or, where that is 0, what
    suits a pair of so many bytes of `weights` and the disk that the folder is on."""
    if requested:
        return requested
    default = min(max(TIMES_WEIGHTS * weights, MIN_ON_DISK), MAX_ON_DISK)
    there = next((path for path in (snapshots, *snapshots.parents) if path.exists()), None)
    if there is None:
        return default
    room = shutil.disk_usage(there).free + folder_bytes(snapshots)
    return min(default, int(SHARE_OF_DISK * room))


def folder_bytes(folder: Path) -> int:
    """Bytes of every file below a folder, leftovers too; 0 where there is none."""
    found = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # gone by now
                found += os.lstat(os.path.join(path, name)).st_size
    return found


def snapshot_folder(snapshots: Path, conversation: str) -> Path:
    """A folder in `snapshots` for any conversation's name."""
    name = hashlib.sha256(conversation.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return snapshots / name


def remove_snapshot(snapshots: Path, conversation: str) -> None:
    """Remove what is kept of this conversation there, if anything is."""
    shutil.rmtree(snapshot_folder(snapshots, conversation), ignore_errors=True)
