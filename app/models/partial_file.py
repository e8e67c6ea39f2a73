"""A partly downloaded file: its data, and a journal of the bytes that are complete.

The journal only lists bytes that are on the disk, so it is valid after a crash or a power cut; at
worst a few megabytes are downloaded twice. Loaders never see partial files. A complete and verified
file is renamed, and only renamed files are published.
"""

from __future__ import annotations

import os
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.models.errors import disk_errors
from app.models.manifest import ModelFile
from app.util.durable import sync
from app.util.regular_files import read_file

_HEADER = struct.Struct("<8sQQ")
"""Magic, the size of the file, the size of a segment. The bytes done of each segment follow."""
_DONE = struct.Struct("<Q")
_MAGIC = b"SPCPART1"


@dataclass(slots=True, eq=False)
class Segment:
    """Bytes `start` to `end` of a file, of which the first `done` are downloaded."""

    index: int
    start: int
    end: int
    done: int = 0
    recorded: int = 0
    """The bytes done according to the journal."""

    @property
    def complete(self) -> bool:
        return self.start + self.done == self.end


class PartialFile:
    """One file being downloaded into `folder`. All methods except the constructor raise
    DownloadError for disk errors."""

    def __init__(self, folder: Path, file: ModelFile, segment_bytes: int) -> None:
        self.file = file
        self.segments: list[Segment] = []
        self.mismatches = 0
        self.hashing = False
        self._segment_bytes = segment_bytes
        self._data = folder / file.digest
        self._journal = folder / f"{file.digest}.journal"
        self.verified_path = folder / f"{file.digest}.verified"
        """Its path once the digest is verified."""
        self._descriptors: tuple[int, int] | None = None
        # Checkpoints run on other threads, where a closed descriptor's number may be reused.
        self._lock = threading.RLock()

    @property
    def path(self) -> Path:
        return self._data

    @property
    def done(self) -> int:
        """Bytes downloaded."""
        return sum(segment.done for segment in self.segments)

    @property
    def complete(self) -> bool:
        return all(segment.complete for segment in self.segments)

    def load(self) -> None:
        """Resume an earlier download, or start one. Files are opened when they are first written,
        because a model may have many."""
        with disk_errors():
            segments = read_journal(self._data, self._journal, self.file.size)
            if segments is None:
                return self.restart()
            self.segments = segments

    def restart(self, whole: bool = False) -> None:
        """Discard all bytes. `whole` makes it one segment, for servers that send no ranges."""
        size = self.file.size
        step = max(size, 1) if whole else self._segment_bytes
        with self._lock, disk_errors():
            self.close()
            self.hashing = False
            segments = _segments(size, step)
            # Not synced yet: the first checkpoint does that, and data that a power cut damages
            # before has a wrong digest.
            self._journal.write_bytes(_HEADER.pack(_MAGIC, size, step) + bytes(8 * len(segments)))
            with self._data.open("wb") as data:
                data.truncate(size)
            self.segments = segments

    def write(self, segment: Segment, chunk: bytes) -> None:
        """Append to a segment, into which `chunk` must fit."""
        offset = segment.start + segment.done
        assert offset + len(chunk) <= segment.end
        with disk_errors():
            data, _ = self._open()
            view = memoryview(chunk)
            while view:
                written = os.pwrite(data, view, offset)
                view, offset = view[written:], offset + written
        segment.done += len(chunk)

    def rewind(self, segment: Segment) -> None:
        """Discard the bytes of a segment."""
        segment.done = 0
        with self._lock, disk_errors():
            self._record(segment, 0)

    def checkpoint(self, segment: Segment) -> None:
        """Sync a segment's bytes, then record them in the journal."""
        done = segment.done
        with self._lock, disk_errors():
            if self._descriptors is not None and done != segment.recorded:
                sync(self._descriptors[0])
                self._record(segment, done)

    def mark_verified(self) -> None:
        """Rename the file to `verified_path`, after its digest was verified."""
        with disk_errors():
            if self._descriptors is not None:
                sync(self._descriptors[0])
            self.close()
            os.replace(self._data, self.verified_path)
            self._journal.unlink(missing_ok=True)

    def close(self) -> None:
        with self._lock:
            for descriptor in self._descriptors or ():
                os.close(descriptor)
            self._descriptors = None

    def _record(self, segment: Segment, done: int) -> None:
        if not self._is_current(segment):
            return
        offset = _HEADER.size + _DONE.size * segment.index
        os.pwrite(self._open()[1], _DONE.pack(done), offset)
        segment.recorded = done

    def _is_current(self, segment: Segment) -> bool:
        """Whether the segment is not from before a restart."""
        return segment.index < len(self.segments) and self.segments[segment.index] is segment

    def _open(self) -> tuple[int, int]:
        if self._descriptors is None:
            data = os.open(self._data, os.O_RDWR)
            try:
                self._descriptors = data, os.open(self._journal, os.O_RDWR)
            except OSError:
                os.close(data)
                raise
        return self._descriptors


def read_journal(data: Path, journal: Path, size: int) -> list[Segment] | None:
    """The segments of a partial file of `size` bytes, or None when the journal is invalid."""
    with suppress(OSError, struct.error):
        content = read_file(journal)
        magic, total, step = _HEADER.unpack_from(content)
        if (magic, total) != (_MAGIC, size) or step < 1 or data.stat().st_size != size:
            return None
        if len(content) != _HEADER.size + _DONE.size * -(-size // step):
            return None
        segments = _segments(size, step)
        for segment in segments:
            offset = _HEADER.size + _DONE.size * segment.index
            (segment.done,) = _DONE.unpack_from(content, offset)
            segment.recorded = segment.done
            if segment.done > segment.end - segment.start:
                return None
        return segments
    return None


def fetched_bytes(folder: Path, file: ModelFile) -> int:
    """Bytes of a file that a folder of partial files has."""
    if (folder / f"{file.digest}.verified").exists():
        return file.size
    data, journal = folder / file.digest, folder / f"{file.digest}.journal"
    return sum(segment.done for segment in read_journal(data, journal, file.size) or ())


def _segments(size: int, step: int) -> list[Segment]:
    starts = range(0, size, step)
    return [Segment(n, start, min(start + step, size)) for n, start in enumerate(starts)]
