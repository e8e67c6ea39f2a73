"""A folder for damaged database files: nothing in it is overwritten, and old files are deleted.

Files that were moved together have the same number in front of their names.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

from app.store.integrity import database_files, file_size
from app.util.atomic_files import make_folder, replace_durably, temp_file
from app.util.durable import sync_path
from app.util.regular_files import open_file

MAX_AGE_DAYS = 180
"""After this, files are deleted."""
MAX_BYTES = 2**30
"""Total size, in bytes, above which the oldest are deleted; the newest stays."""
_NAME = re.compile(r"(\d+)-conversations\.db(-wal|-shm)?")


def move(database: Path, folder: Path, now: datetime, wal_only: bool = False) -> Path:
    """Move a damaged database and its WAL, or only the WAL, into `folder`, without empty files.
    Returns the new path of the first part. Raises OSError."""
    make_folder(folder)
    moved = [part for part in database_files(database) if file_size(part)]
    if wal_only:
        moved = [part for part in moved if part != database]
    number = _free_number(database, folder)
    # The WAL first: after a crash here, the next start must not find it beside another database.
    for part in reversed(moved):
        os.utime(part, (now.timestamp(), now.timestamp()))
        part.rename(folder / f"{number}-{part.name}")
    sync_path(folder)
    sync_path(database.parent)
    return folder / f"{number}-{moved[0].name}"


def copy_wal(database: Path, folder: Path, now: datetime) -> Path:
    """Copy the WAL before SQLite recovers what it can from it. Raises OSError."""
    make_folder(folder)
    journal = database_files(database)[1]
    path = folder / f"{_free_number(database, folder)}-{journal.name}"
    unfinished = path.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    with open_file(journal) as source, temp_file(unfinished) as copy:
        os.fchmod(copy.fileno(), 0o600)
        shutil.copyfileobj(source, copy)
    os.utime(unfinished, (now.timestamp(), now.timestamp()))
    replace_durably(unfinished, path)
    return path


def purge(folder: Path, now: datetime) -> list[str]:
    """Delete files that are too old, or take too much space. Returns a sentence for each deletion.
    Raises OSError."""
    times = _by_number(folder)
    total = sum(file_size(path) for paths in times.values() for path in paths)
    sentences = []
    for number, paths in sorted(times.items()):
        since = datetime.fromtimestamp(max(path.stat().st_mtime for path in paths), UTC)
        if now - since > timedelta(days=MAX_AGE_DAYS):
            why = f"after {MAX_AGE_DAYS} days"
        elif total > MAX_BYTES and number != max(times):
            why = f"because such files took more than {MAX_BYTES / 2**20:,.0f} MB"
        else:
            continue
        for path in paths:
            total -= file_size(path)
            path.unlink()
        sentences.append(
            f"The damaged conversations file that was set aside on {since:%Y-%m-%d} was deleted"
            f" {why}."
        )
    return sentences


def is_empty(folder: Path) -> bool:
    """Whether there are no damaged files."""
    return not _by_number(folder)


def _by_number(folder: Path) -> dict[int, list[Path]]:
    """The files by their numbers."""
    times = defaultdict(list)
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _NAME.fullmatch(path.name):
            times[int(match[1])].append(path)
    return times


def _free_number(database: Path, folder: Path) -> int:
    number = 1
    while any((folder / f"{number}-{part.name}").exists() for part in database_files(database)):
        number += 1
    return number
