"""Downloads files in parallel segments, and verifies their digests."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Event

import httpx2

from app.models.errors import DownloadError, disk_errors
from app.models.hub import Hub
from app.models.manifest import Manifest, file_digest
from app.models.partial_file import PartialFile, Segment
from app.models.progress import ProgressMeter
from app.models.retry import RetryableError, RetryPolicy

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How much is downloaded at once, and how often it is saved. After a crash, up to `connections`
    times `checkpoint_bytes` are downloaded again."""

    connections: int = 4
    segment_bytes: int = 64 << 20
    checkpoint_bytes: int = 2 << 20


class Downloader:
    """Downloads the files of one commit."""

    def __init__(
        self,
        hub: Hub,
        manifest: Manifest,
        concurrency: Concurrency,
        policy: RetryPolicy,
        meter: ProgressMeter,
    ) -> None:
        self._hub = hub
        self._manifest = manifest
        self._concurrency = concurrency
        self._policy = policy
        self._meter = meter
        self._queue: deque[tuple[PartialFile, Segment]] = deque()
        self._halted = Event()

    async def run(self, parts: Iterable[PartialFile]) -> None:
        """Return when all files are verified. Raises DownloadError or ModelError for the first that
        fails. Then, and on cancellation, all files keep what was downloaded."""
        parts = list(parts)
        try:
            complete = [part for part in parts if part.complete]
            self._queue.extend((p, s) for p in parts for s in p.segments if not s.complete)
            async with asyncio.TaskGroup() as group:
                for part in complete:
                    group.create_task(self._finish(part))
                for _ in range(self._concurrency.connections):
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
        """Verify the digest. A file with a wrong digest is downloaded a second time."""
        part.hashing = True
        path, expected = part.path, part.file.digest
        self._meter.note = f"checking {part.file.path}"
        with disk_errors():
            digest = await asyncio.to_thread(
                file_digest, path, expected, lambda _: None, self._halted.is_set
            )
        self._meter.note = ""
        if digest == expected:
            return part.mark_verified()
        part.mismatches += 1
        self._restart(part)
        if part.mismatches > 1:
            raise DownloadError(
                f"{part.file.path!r} had a wrong digest twice",
                "pull again later; if it happens again, the file is damaged at the hub",
            )
        await self._work()

    def _restart(self, part: PartialFile, whole: bool = False) -> None:
        self._meter.add(-part.done)
        part.restart(whole)
        self._queue.extendleft((part, segment) for segment in reversed(part.segments))

    async def _fetch(self, part: PartialFile, segment: Segment) -> None:
        """Request the segment until it is complete, or its file was restarted."""
        failures, furthest = 0, segment.done
        while not segment.complete and segment in part.segments:
            try:
                await self._request(part, segment)
            except RetryableError as retry:
                # Only new bytes count as progress.
                if segment.done >= furthest + min(self._policy.min_bytes, segment.end - furthest):
                    failures = 0
                furthest = max(furthest, segment.done)
                failures += 1
                await self._hub.backoff(retry, failures)

    async def _request(self, part: PartialFile, segment: Segment) -> None:
        """Send one request. Returns early when the file was restarted meanwhile."""
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
                raise _wrong_size(part)
            await self._receive(part, segment, response)

    async def _receive(
        self, part: PartialFile, segment: Segment, response: httpx2.Response
    ) -> None:
        try:
            async for chunk in self._policy.with_stall_timeout(response.aiter_raw()):
                if segment not in part.segments:
                    return
                if segment.start + segment.done + len(chunk) > segment.end:
                    raise _wrong_size(part)
                part.write(segment, chunk)
                self._meter.add(len(chunk))
                if segment.done - segment.recorded >= self._concurrency.checkpoint_bytes:
                    await asyncio.to_thread(part.checkpoint, segment)
        finally:
            # Also when cancelled, so that nothing is downloaded twice.
            if segment in part.segments:
                part.checkpoint(segment)
        if not segment.complete:
            raise RetryableError("the connection closed early")


def _check_range(part: PartialFile, response: httpx2.Response, first: int, last: int) -> None:
    sent = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    if sent is None or int(sent[1]) != first or int(sent[2]) > last:
        raise RetryableError("the server sent the wrong range")
    if sent[3] != "*" and int(sent[3]) != part.file.size:
        raise _wrong_size(part)


def _check_length(part: PartialFile, response: httpx2.Response) -> None:
    length = response.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length[:19]) != part.file.size:
        raise _wrong_size(part)


def _wrong_size(part: PartialFile) -> DownloadError:
    return DownloadError(
        f"{part.file.path!r} does not have the {part.file.size:,} bytes that the hub lists",
        "pull again; if it happens again, choose another model",
    )


def _first(several: BaseExceptionGroup) -> BaseException:
    """The first error: tasks that fail together mostly do so for the same reason."""
    error: BaseException = several
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
