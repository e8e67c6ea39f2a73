"""Checks SQLite's write-ahead log (WAL) and its index by reading the files.

After a crash, SQLite applies the frames before the first invalid one, up to the last commit among
them. It does not report the rest, and overwrites it later. This module finds what SQLite would
skip: frames after the damage, and, if the index survived (a crash of the program, not of the
machine), commits whose frames are missing from the WAL. Formats: sqlite.org/walformat.html.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

from app.util.regular_files import open_file

_HEADER, _FRAME = 32, 24
"""Bytes of the WAL's header, and of each frame's header."""
MAX_BYTES = 1 << 26
"""SQLite's limit is a few MB; of a larger file only the header is checked, to save time."""


class WalState(Enum):
    INTACT = auto()
    """Also without a WAL, or if only its last write is incomplete."""
    PARTIAL = auto()
    """Something committed cannot be read, and SQLite uses what came before."""
    UNUSABLE = auto()
    """SQLite ignores it, or would apply frames older than what the database already has."""


def examine(database: Path) -> WalState:
    """Raises OSError."""
    data = _read(database.with_name(database.name + "-wal"), MAX_BYTES)
    index = _Index.read(database.with_name(database.name + "-shm"))
    if not data:
        lost = index is not None and index.copied < index.frames
        return WalState.PARTIAL if lost else WalState.INTACT
    if not _is_header_valid(data[:_HEADER]):
        return WalState.UNUSABLE
    if len(data) == MAX_BYTES:
        return WalState.INTACT
    committed, skipped = _frames(data)
    if index is None or index.salts != data[16:24]:
        return WalState.PARTIAL if skipped else WalState.INTACT
    if committed >= index.frames:
        return WalState.INTACT
    return WalState.PARTIAL if committed >= index.copied else WalState.UNUSABLE


@dataclass(frozen=True, slots=True)
class _Index:
    """Of the frames up to the last commit, `copied` are in the database already."""

    frames: int
    copied: int
    salts: bytes

    @staticmethod
    def read(path: Path) -> _Index | None:
        """None if it is missing or invalid. It is in the machine's own byte order."""
        data = _read(path, 100)
        if len(data) < 100 or data[:48] != data[48:96]:
            return None
        words = struct.unpack("=10I", data[:40])
        if struct.unpack("=2I", data[40:48]) != _checksum(words, (0, 0)):
            return None
        frames, (copied,) = words[4], struct.unpack("=I", data[96:])
        return _Index(frames, copied, data[32:40])


def _is_header_valid(header: bytes) -> bool:
    if len(header) < _HEADER:
        return False
    magic, version = struct.unpack(">II", header[:8])
    if magic & ~1 != 0x377F0682 or version != 3007000:
        return False
    return header[24:] == struct.pack(">II", *_checksum(_words(header, header[:24]), (0, 0)))


def _frames(data: bytes) -> tuple[int, bool]:
    """How many frames SQLite applies, and whether there is a commit at or after the first invalid
    one. What an earlier use of the file left behind has other salts."""
    page = int.from_bytes(data[8:12], "big")
    sums = struct.unpack(">2I", data[24:32])
    right, number, committed = True, 0, 0
    for start in range(_HEADER, len(data) - _FRAME - page + 1, _FRAME + page):
        head, number = data[start : start + _FRAME], number + 1
        if head[8:16] != data[16:24]:
            right = False
            continue
        if right:
            covered = head[:8] + data[start + _FRAME : start + _FRAME + page]
            sums = _checksum(_words(data, covered), sums)
            right = head[16:24] == struct.pack(">2I", *sums)
        commits = head[4:8] != bytes(4)
        if commits and not right:
            return committed, True
        committed = number if commits else committed
    return committed, False


def _words(data: bytes, part: bytes) -> tuple[int, ...]:
    """The last bit of the WAL's magic number is the byte order of its checksums."""
    return struct.unpack(f"{'>' if data[3] & 1 else '<'}{len(part) // 4}I", part)


def _checksum(words: tuple[int, ...], sums: tuple[int, ...]) -> tuple[int, int]:
    """The format's own checksum, continued from `sums`."""
    first, second = sums
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second


def _read(path: Path, most: int) -> bytes:
    try:
        with open_file(path) as file:
            return file.read(most)
    except FileNotFoundError:
        return b""
