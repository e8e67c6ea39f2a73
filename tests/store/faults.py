"""What the tests of faults share: what is in the store, and ways to damage its files."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

OLD = ["Who pays?", "The tenant."]
"""In the backup."""
NEW = ["Since the backup"]
DATABASE, JOURNAL, INDEX = "conversations.db", "conversations.db-wal", "conversations.db-shm"
BACKUP = "backup.db"
DAY = datetime(2030, 1, 1, tzinfo=UTC)
SENTENCE = re.compile(r"[A-Z][^\n]*[^.\n]\.")


Damage = Callable[[Path], None]


def write(name: str, data: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(data) and None


def cut(name: str, length: int) -> Damage:
    return lambda folder: os.truncate(folder / name, length)


def cut_by(name: str, length: int) -> Damage:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size - length)


def remove(*names: str) -> Damage:
    def damage(folder: Path) -> None:
        for name in names:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def flip(name: str, *offsets: int) -> Damage:
    def damage(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        for offset in offsets:
            data[offset] ^= 0x10
        (folder / name).write_bytes(data)

    return damage


def both(*damages: Damage) -> Damage:
    def damage(folder: Path) -> None:
        for each in damages:
            each(folder)

    return damage


def sql(*statements: str) -> Damage:
    def damage(folder: Path) -> None:
        with closing(sqlite3.connect(folder / DATABASE)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    return damage


def assert_whole(database: Path) -> None:
    """By SQLite's own checks, of everything."""
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        connection.execute("INSERT INTO message_text(message_text) VALUES ('integrity-check')")
