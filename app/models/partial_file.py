"""A file while it is fetched: its bytes, and a journal of which of them are there.

The journal only names bytes that are on the disk, so what it says is true after a crash and after
a power cut; at worst a few megabytes are fetched twice. No loader looks where parts lie. Whole and
verified, a part gets another name, and only such parts are published.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from app.models.errors import disk_error
from app.models.manifest import ModelFile
from app.util.durable import sync

_HEADER = struct.Struct("<8sQQ")
"""Magic, the file's size, the size of a segment. Then, per segment, the bytes it has."""
_DONE = struct.Struct("<Q")
_MAGIC = b"SPCPART1"


@dataclass(slots=True, eq=False)
class Segment:
    """Bytes `start` to `end` of a file, of which the first `done` are there."""

    index: int
    start: int
    end: int
    done: int = 0
    recorded: int = 0
    """How many of them the journal names."""

    @property
    def complete(self) -> bool:
        return self.start + self.done == self.end


class PartialFile:
    """One file being fetched into `folder`. Every method but the constructor raises DownloadError
    for what the disk refuses."""

    def __init__(self, folder: Path, file: ModelFile, segment_bytes: int) -> None:
        self.file = file
        self.segments: list[Segment] = []
        self.mismatches = 0
        self.hashing = False
        self._segment_bytes = segment_bytes
        self._data = folder / file.digest
        self._journal = folder / f"{file.digest}.journal"
        self.verified_path = folder / f"{file.digest}.verified"
        """Where it lies once its digest was right."""
        self._descriptors: tuple[int, int] | None = None
        # Checkpoints run on other threads, and a closed descriptor's number may be another file's.
        self._lock = threading.RLock()

    @property
    def path(self) -> Path:
        return self._data

    @property
    def done(self) -> int:
        """Bytes that are there."""
        return sum(segment.done for segment in self.segments)

    @property
    def complete(self) -> bool:
        return all(segment.complete for segment in self.segments)

    def load(self) -> None:
        """Go on with what an earlier process left, or begin. A model has many files, so none is
        kept open before it is written."""
        with _disk_errors():
            segments = read_journal(self._data, self._journal, self.file.size)
            if segments is None:
                return self.restart()
            self.segments = segments

    def restart(self, whole: bool = False) -> None:
        """Forget every byte. `whole` makes one segment of it, for servers that send no ranges."""
        size = self.file.size
        step = max(size, 1) if whole else self._segment_bytes
        with self._lock, _disk_errors():
            self.close()
            self.hashing = False
            segments = _segments(size, step)
            # Not yet brought to the disk: the first checkpoint does that, and what a power cut
            # mixes up before has the wrong digest.
            self._journal.write_bytes(_HEADER.pack(_MAGIC, size, step) + bytes(8 * len(segments)))
            with self._data.open("wb") as data:
                data.truncate(size)
            self.segments = segments

    def write(self, segment: Segment, chunk: bytes) -> None:
        """Append to a segment. `chunk` must fit into it."""
        offset = segment.start + segment.done
        assert offset + len(chunk) <= segment.end
        with _disk_errors():
            data, _ = self._open()
            view = memoryview(chunk)
            while view:
                written = os.pwrite(data, view, offset)
                view, offset = view[written:], offset + written
        segment.done += len(chunk)

    def rewind(self, segment: Segment) -> None:
        """Forget the bytes of a segment."""
        segment.done = 0
        with self._lock, _disk_errors():
            self._record(segment, 0)

    def checkpoint(self, segment: Segment) -> None:
        """Bring a segment's bytes to the disk, then name them in the journal."""
        done = segment.done
        with self._lock, _disk_errors():
            if self._descriptors is not None and done != segment.recorded:
                sync(self._descriptors[0])
                self._record(segment, done)

    def mark_verified(self) -> None:
        """Its digest is right: from now on it lies at `verified`."""
        with _disk_errors():
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
        place = _HEADER.size + _DONE.size * segment.index
        os.pwrite(self._open()[1], _DONE.pack(done), place)
        segment.recorded = done

    def _is_current(self, segment: Segment) -> bool:
        """Not one from before a restart."""
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


@contextmanager
def _disk_errors() -> Iterator[None]:
    """DownloadError for what the disk refuses."""
    try:
        yield
    except OSError as error:
        raise disk_error(error) from None


def read_journal(data: Path, journal: Path, size: int) -> list[Segment] | None:
    """What a part of `size` bytes has already, or None when that cannot be told."""
    with suppress(OSError, struct.error):
        content = journal.read_bytes()
        magic, total, step = _HEADER.unpack_from(content)
        if (magic, total) != (_MAGIC, size) or step < 1 or data.stat().st_size != size:
            return None
        if len(content) != _HEADER.size + _DONE.size * -(-size // step):
            return None
        segments = _segments(size, step)
        for segment in segments:
            place = _HEADER.size + _DONE.size * segment.index
            (segment.done,) = _DONE.unpack_from(content, place)
            segment.recorded = segment.done
            if segment.done > segment.end - segment.start:
                return None
        return segments
    return None


def fetched_bytes(folder: Path, file: ModelFile) -> int:
    """How many bytes of a file lie in a folder of parts."""
    if (folder / f"{file.digest}.verified").exists():
        return file.size
    data, journal = folder / file.digest, folder / f"{file.digest}.journal"
    return sum(segment.done for segment in read_journal(data, journal, file.size) or ())


def _segments(size: int, step: int) -> list[Segment]:
    starts = range(0, size, step)
    return [Segment(n, start, min(start + step, size)) for n, start in enumerate(starts)]
