"""Where a conversation's snapshot lies. Knows no MLX, so that one can be removed without it."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

FOLDER = re.compile(r"[0-9a-f]{32}")
"""Names of the folders there that are ours."""


def snapshot_folder(snapshots: Path, conversation: str) -> Path:
    """A folder in `snapshots` for any conversation's name."""
    name = hashlib.sha256(conversation.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return snapshots / name


def remove_snapshot(snapshots: Path, conversation: str) -> None:
    """Remove what is kept of this conversation there, if anything is."""
    shutil.rmtree(snapshot_folder(snapshots, conversation), ignore_errors=True)
