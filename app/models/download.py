"""Fetches files in parallel segments until each is whole and its digest is right."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Event

import httpx2

from app.models.errors import DownloadError, disk_error
from app.models.hub import Hub
from app.models.manifest import Manifest, file_digest
from app.models.partial_file import PartialFile, Segment
from app.models.progress import ProgressMeter
from app.models.retry import RetryableError, RetryPolicy

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How much is fetched at once, and how often it is secured. Sizes in bytes: what may be
    fetched twice after a kill is `connections` times `checkpoint`."""

    connections: int = 4
    segment_bytes: int = 64 << 20
    checkpoint_bytes: int = 2 << 20


class Downloader:
    """Brings the parts of one commit here."""

    def __init__(
        self,
        hub: Hub,
        manifest: Manifest,
        effort: Concurrency,
        patience: RetryPolicy,
        meter: ProgressMeter,
    ) -> None:
        self._hub = hub
        self._manifest = manifest
        self._effort = effort
        self._patience = patience
        self._meter = meter
        self._queue: deque[tuple[PartialFile, Segment]] = deque()
        self._halted = Event()

    async def run(self, parts: Iterable[PartialFile]) -> None:
        """Return when all parts are verified. Raises DownloadError or ModelError for the first
        that cannot be; the others then keep what they have, as they do when this is cancelled."""
        parts = list(parts)
        try:
            whole = [part for part in parts if part.complete]
            self._queue.extend((p, s) for p in parts for s in p.segments if not s.complete)
            async with asyncio.TaskGroup() as group:
                for part in whole:
                    group.create_task(self._finish(part))
                for _ in range(self._effort.connections):
                    group.create_task(self._work())
        except BaseExceptionGroup as several:
            raise _first(several) from None
        finally:
            self._halted.set()
            for part in parts:
                part.close()

    async def _work(self) -> None:
        while self._queue:
            part, segment = self._queue.popleft()
            await self._fetch(part, segment)
            if part.complete and not part.hashing:
                await self._finish(part)

    async def _finish(self, part: PartialFile) -> None:
        """Compare the digest. A wrong one is fetched once more, from the first byte."""
        part.hashing = True
        path, wanted = part.path, part.file.digest
        self._meter.note = f"checking {part.file.path}"
        try:
            found = await asyncio.to_thread(
                file_digest, path, wanted, lambda _: None, self._halted.is_set
            )
        except OSError as error:
            raise disk_error(error) from None
        self._meter.note = ""
        if found == wanted:
            return part.mark_verified()
        part.mismatches += 1
        self._restart(part)
        if part.mismatches > 1:
            raise DownloadError(
                f"{part.file.path!r} arrived altered twice",
                "pull again later; if it stays so, the file is damaged at the hub",
            )
        await self._work()

    def _restart(self, part: PartialFile, whole: bool = False) -> None:
        self._meter.add(-part.done)
        part.restart(whole)
        self._queue.extendleft((part, segment) for segment in reversed(part.segments))

    async def _fetch(self, part: PartialFile, segment: Segment) -> None:
        """Until the segment is whole, or the part was begun anew."""
        failures, most = 0, segment.done
        while not segment.complete and segment in part.segments:
            try:
                await self._request(part, segment)
            except RetryableError as retry:
                # Fetching the same bytes again and again is no progress.
                if segment.done >= most + min(self._patience.min_bytes, segment.end - most):
                    failures = 0
                most = max(most, segment.done)
                failures += 1
                await self._hub.backoff(retry, failures)

    async def _request(self, part: PartialFile, segment: Segment) -> None:
        """One request. Returns early when the part was begun anew meanwhile."""
        first, last = segment.start + segment.done, segment.end - 1
        alone = len(part.segments) == 1
        ranged = not (alone and segment.done == 0)
        async with self._hub.file(
            self._manifest.repository,
            self._manifest.commit,
            part.file.path,
            f"bytes={first}-{last}" if ranged else None,
        ) as response:
            if segment not in part.segments:
                return
            if response.status_code == 206 and ranged:
                _check_range(part, response, first, last)
            elif response.status_code == 200:
                _check_length(part, response)
                if not alone:
                    return self._restart(part, whole=True)
                self._meter.add(-segment.done)
                part.rewind(segment)
            else:
                raise _other_size(part)
            await self._receive(part, segment, response)

    async def _receive(
        self, part: PartialFile, segment: Segment, response: httpx2.Response
    ) -> None:
        try:
            async for chunk in self._patience.with_stall_timeout(response.aiter_raw()):
                if segment not in part.segments:
                    return
                if segment.start + segment.done + len(chunk) > segment.end:
                    raise _other_size(part)
                part.write(segment, chunk)
                self._meter.add(len(chunk))
                if segment.done - segment.recorded >= self._effort.checkpoint_bytes:
                    await asyncio.to_thread(part.checkpoint, segment)
        finally:
            # Also when cancelled: what came is kept.
            if segment in part.segments:
                part.checkpoint(segment)
        if not segment.complete:
            raise RetryableError("the connection ended early")


def _check_range(part: PartialFile, response: httpx2.Response, first: int, last: int) -> None:
    told = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    if told is None or int(told[1]) != first or int(told[2]) > last:
        raise RetryableError("the server sent other bytes than it was asked for")
    if told[3] != "*" and int(told[3]) != part.file.size:
        raise _other_size(part)


def _check_length(part: PartialFile, response: httpx2.Response) -> None:
    length = response.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:19]) != part.file.size:
        raise _other_size(part)


def _other_size(part: PartialFile) -> DownloadError:
    return DownloadError(
        f"{part.file.path!r} is not as long as the hub's list says, {part.file.size:,} bytes",
        "pull again, and take another model if it stays so",
    )


def _first(several: BaseExceptionGroup) -> BaseException:
    """The error to report: tasks that fail at the same time mostly do so for the same reason."""
    error: BaseException = several
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
