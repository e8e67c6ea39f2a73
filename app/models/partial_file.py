"""What has arrived of a file that is being downloaded.

It is on the disk under the name of its digest, with a journal of the bytes that are complete. The
journal only lists bytes that are on the disk, so it is valid after a crash or a power cut; at worst
a few megabytes are downloaded twice. Loaders never see partial files: a complete and verified file
is renamed, and only renamed files are published.
"""

from __future__ import annotations

import os
import threading
from array import array
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from app.models.errors import disk_errors
from app.models.manifest import ModelFile
from app.util.atomic_files import sync_path
from app.util.regular_files import read_file


@dataclass(slots=True, eq=False)
class Segment:
    """Bytes `start` to `end` of a file, of which the first `done` have arrived."""

    start: int
    end: int
    done: int = 0

    @property
    def complete(self) -> bool:
        return self.start + self.done == self.end


class PartialFile:
    """What has arrived of one file in `folder`. The constructor writes nothing; all other methods
    raise DownloadError for disk errors."""

    def __init__(self, folder: Path, file: ModelFile, segment_bytes: int = 64 << 20) -> None:
        self.file = file
        self.path = folder / file.digest
        self.verified_path = folder / f"{file.digest}.verified"
        """Its path once the digest is verified."""
        self.verified = self.verified_path.exists()
        self.unsaved = 0
        """Bytes written since the last checkpoint."""
        self._journal = folder / f"{file.digest}.journal"
        self._segment_bytes = segment_bytes
        self.segments = self._saved()
        """Those of an earlier download; none before `prepare` if there was no such."""
        # Checkpoints run on other threads.
        self._lock = threading.Lock()

    @property
    def done(self) -> int:
        """Bytes that have arrived."""
        if self.verified:
            return self.file.size
        return sum(segment.done for segment in self.segments)

    def prepare(self) -> None:
        """Create the file at its full size, and the segments, if they are not there."""
        with disk_errors(), self.path.open("ab") as data:
            data.truncate(self.file.size)
        self.segments = self.segments or _segments(self.file.size, self._segment_bytes)

    def restart(self) -> None:
        """Discard all bytes."""
        self._replace_segments(_segments(self.file.size, self._segment_bytes))

    def become_whole(self, segment: Segment) -> None:
        """Discard all bytes, and make `segment` the only one, for servers that send no ranges."""
        self._replace_segments([])
        segment.start, segment.end, segment.done = 0, self.file.size, 0
        self.segments = [segment]

    def write(self, segment: Segment, chunk: bytes) -> None:
        """Append to a segment, into which `chunk` must fit."""
        offset = segment.start + segment.done
        assert offset + len(chunk) <= segment.end
        with disk_errors():
            # Not kept open, because a model may have more files than a process may open.
            descriptor = os.open(self.path, os.O_WRONLY)
            try:
                view = memoryview(chunk)
                while view:
                    written = os.pwrite(descriptor, view, offset)
                    view, offset = view[written:], offset + written
            finally:
                os.close(descriptor)
        segment.done += len(chunk)
        self.unsaved += len(chunk)

    def checkpoint(self) -> None:
        """Sync the bytes that were written, then record them in the journal. Safe on any thread."""
        self.unsaved = 0
        with self._lock, disk_errors():
            if self.verified:
                return
            numbers = array("Q", (self._step, *(segment.done for segment in self.segments)))
            sync_path(self.path)
            # Written in place: a crash after truncating it would lose the journal.
            descriptor = os.open(self._journal, os.O_WRONLY | os.O_CREAT, 0o600)
            try:
                os.pwrite(descriptor, numbers.tobytes(), 0)
            finally:
                os.close(descriptor)

    def mark_verified(self) -> None:
        """Rename the file to `verified_path`, after its digest was verified."""
        with self._lock, disk_errors():
            sync_path(self.path)
            os.replace(self.path, self.verified_path)
            self._journal.unlink(missing_ok=True)
            self.verified = True

    @property
    def _step(self) -> int:
        return self.segments[0].end if self.segments else 1

    def _replace_segments(self, segments: list[Segment]) -> None:
        with self._lock, disk_errors():
            self._journal.unlink(missing_ok=True)
            self.segments = segments

    def _saved(self) -> list[Segment]:
        """The segments according to the journal; none when it is missing or invalid."""
        with suppress(OSError, ValueError):
            step, *done = array("Q", read_file(self._journal))
            size = self.path.stat().st_size
            if size == self.file.size and step and len(done) == -(-size // step):
                segments = _segments(size, step)
                for segment, count in zip(segments, done, strict=True):
                    segment.done = count
                if all(segment.start + segment.done <= segment.end for segment in segments):
                    return segments
        return []


def _segments(size: int, step: int) -> list[Segment]:
    return [Segment(start, min(start + step, size)) for start in range(0, size, step)]
