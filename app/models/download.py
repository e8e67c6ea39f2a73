"""Downloads the files of a commit in parallel segments, and verifies their digests."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence

import httpx2

from app.models.errors import DownloadError, disk_errors
from app.models.hub import Hub, HubSettings, RetryableError
from app.models.manifest import Manifest, file_digest
from app.models.partial_file import PartialFile, Segment
from app.models.progress import ProgressMeter

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)


class Downloader:
    """Downloads the files of one commit. `halted` ends the hashing of files, which runs on
    threads."""

    def __init__(
        self,
        hub: Hub,
        manifest: Manifest,
        settings: HubSettings,
        meter: ProgressMeter,
        halted: Callable[[], bool],
    ) -> None:
        self._hub = hub
        self._manifest = manifest
        self._concurrency = settings.concurrency
        self._min_bytes = settings.retry_policy.min_bytes
        self._connections = asyncio.Semaphore(settings.concurrency.connections)
        self._meter = meter
        self._halted = halted

    async def run(self, parts: Sequence[PartialFile]) -> None:
        """Return when all files are verified. Raises DownloadError or ModelError for the first that
        fails. Then, and on cancellation, all files keep what was downloaded."""
        try:
            async with asyncio.TaskGroup() as group:
                for part in parts:
                    group.create_task(self._download(part))
        except BaseExceptionGroup as several:
            raise _first(several) from None
        finally:
            for part in parts:
                if part.unsaved:
                    part.checkpoint()

    async def _download(self, part: PartialFile) -> None:
        """Download and verify a file, a second time if its digest is wrong."""
        part.prepare()
        for _ in range(2):
            async with asyncio.TaskGroup() as group:
                for segment in part.segments:
                    group.create_task(self._fetch(part, segment))
            if await self._is_intact(part):
                return await asyncio.to_thread(part.mark_verified)
            self._meter.add(-part.done)
            part.restart()
        raise DownloadError(
            f"{part.file.path!r} had a wrong digest twice",
            "pull again later; if it happens again, the file is damaged at the hub",
        )

    async def _is_intact(self, part: PartialFile) -> bool:
        self._meter.note = f"checking {part.file.path}"
        with disk_errors():
            digest = await asyncio.to_thread(
                file_digest, part.path, part.file.digest, lambda _: None, self._halted
            )
        self._meter.note = ""
        return digest == part.file.digest

    async def _fetch(self, part: PartialFile, segment: Segment) -> None:
        """Request a segment until it is complete, or part of another one."""
        furthest = segment.done

        def progressed() -> bool:
            nonlocal furthest
            # Only new bytes count.
            gained = segment.done - furthest >= min(self._min_bytes, segment.end - furthest)
            furthest = max(furthest, segment.done)
            return gained

        async with self._connections:
            await self._hub.with_retries(lambda: self._request(part, segment), progressed)

    async def _request(self, part: PartialFile, segment: Segment) -> None:
        """Send one request. Returns early when another one made its segment the whole file."""
        if segment.complete or segment not in part.segments:
            return
        first, last = segment.start + segment.done, segment.end - 1
        ranged = (first, last) != (0, part.file.size - 1)
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
                self._meter.add(-part.done)
                part.become_whole(segment)
            else:
                raise _wrong_size(part)
            await self._receive(part, segment, response)

    async def _receive(
        self, part: PartialFile, segment: Segment, response: httpx2.Response
    ) -> None:
        async def write(chunk: bytes) -> bool:
            if segment not in part.segments:
                return False
            if segment.start + segment.done + len(chunk) > segment.end:
                raise _wrong_size(part)
            part.write(segment, chunk)
            self._meter.add(len(chunk))
            if part.unsaved >= self._concurrency.checkpoint_bytes:
                await asyncio.to_thread(part.checkpoint)
            return True

        await self._hub.receive(response, write)
        if segment in part.segments and not segment.complete:
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
