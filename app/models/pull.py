"""Downloads a model: finds the commit, lists the files, checks the disk space, downloads first the
configuration and then the weights, and publishes them in the cache.

Every step can be interrupted. The next pull continues where each file ends. Partial files are named
by digest, so that only files that changed at the hub are downloaded again.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from threading import Event

import httpx2

from app.models.cache import ModelCache, check_repository
from app.models.check import check_configs, check_model, read_json, shards
from app.models.errors import DownloadError, ModelError, disk_errors
from app.models.hub import Hub, HubSettings, RetryableError
from app.models.manifest import Manifest, ModelFile, file_digest
from app.models.progress import ByteProgress, ProgressMeter
from app.models.unfinished import PartialFile, lock_model
from app.util.atomic_files import make_folder
from app.util.formatting import size
from app.util.weight_files import INDEX, chosen_weights, listed_files, missing_weights

_TICK = 0.2
"""Seconds between progress reports, and between checks for a pause or stop."""
_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)


class Outcome(Enum):
    DOWNLOADED = "fetched"
    UP_TO_DATE = "here"
    """The current commit was already installed."""
    STOPPED = "stopped"
    PAUSED = "paused"


class Pull:
    """One download of a model. `run` blocks; `stop` may be called from any thread."""

    def __init__(
        self,
        cache: ModelCache,
        repository: str,
        settings: HubSettings,
        on_progress: Callable[[ByteProgress], object] = lambda progress: None,
    ) -> None:
        """Raises ModelError if `repository` is not a repository name."""
        self.repository = check_repository(repository)
        self._cache = cache
        self._settings = settings
        self._on_progress = on_progress
        self._folder = cache.download_folder(repository)
        self._meter = ProgressMeter()
        self.progress = self._meter.read()
        """The last report."""
        self._stop = Event()
        self._halt_hashing = Event()

    def stop(self) -> None:
        """End `run` within about half a second. What was downloaded is saved. Safe in signal
        handlers and on other threads."""
        self._stop.set()

    def run(self) -> Outcome:
        """Download what is missing. Raises ModelError, and DownloadError if the download can be
        continued."""
        with disk_errors():
            self._cache.prepare()
        with lock_model(self._cache, self.repository):
            make_folder(self._folder / "parts")
            self._pause_file.unlink(missing_ok=True)
            try:
                return asyncio.run(self._supervised())
            except DownloadError as error:
                parts = (self._folder / "parts").iterdir()
                raise error.with_saved(sum(path.stat().st_size for path in parts)) from None

    @property
    def _pause_file(self) -> Path:
        return self._folder / "pause"

    async def _supervised(self) -> Outcome:
        """Run the download with progress reports until it is done, paused or stopped."""
        work = asyncio.create_task(self._work())
        try:
            while True:
                done, _ = await asyncio.wait({work}, timeout=_TICK)
                self.progress = self._meter.read()
                self._on_progress(self.progress)
                if done:
                    return work.result()
                paused = self._pause_file.exists()
                if paused or self._stop.is_set():
                    work.cancel()
                    try:
                        return await work
                    except asyncio.CancelledError:
                        return Outcome.PAUSED if paused else Outcome.STOPPED
        finally:
            self._halt_hashing.set()

    async def _work(self) -> Outcome:
        async with Hub(self._settings, self._note) as hub:
            self._note("asking the hub")
            commit = await hub.commit(self.repository)
            if self._is_up_to_date(commit):
                shutil.rmtree(self._folder, ignore_errors=True)
                return Outcome.UP_TO_DATE
            files = await hub.files(self.repository, commit)
            manifest = Manifest(self.repository, commit, files)
            manifest, paths = await self._fetch_all(hub, manifest)
        # All files are verified. The rest does not use the network and cannot be cancelled.
        self._inspect(manifest, paths, check_model)
        self._cache.publish(manifest, paths)
        shutil.rmtree(self._folder, ignore_errors=True)
        return Outcome.DOWNLOADED

    def _is_up_to_date(self, commit: str) -> bool:
        installed = self._cache.verified(self.repository, commit)
        return installed is not None and self._cache.commit(self.repository) == commit

    async def _fetch_all(self, hub: Hub, manifest: Manifest) -> tuple[Manifest, dict[str, Path]]:
        """Download and verify all files. Returns them, without weights that are not loaded, and
        their paths by digest."""
        parts = {file.digest: PartialFile(self._folder / "parts", file) for file in manifest.files}
        found = {file: self._cache.copy(manifest, file) for file in manifest.files}
        copies = {file: path for file, path in found.items() if path is not None}
        self._check_space(parts[file.digest] for file in set(manifest.files) - copies.keys())
        manifest.write(self._folder / "manifest.json")
        self._delete_stale_parts(parts)
        reused = await self._intact(copies)
        missing = [
            part for digest, part in parts.items() if digest not in reused and not part.verified
        ]
        done = manifest.size - sum(part.file.size - part.done for part in missing)
        self._meter.start(done, manifest.size)
        self._note("")

        def verified_paths() -> dict[str, Path]:
            return reused | {d: part.verified_path for d, part in parts.items() if part.verified}

        downloader = Downloader(
            hub, manifest, self._settings, self._meter, self._halt_hashing.is_set
        )
        weights = [part for part in missing if part.file.path.endswith(".safetensors")]
        await downloader.run([part for part in missing if part not in weights])
        # Checked before the weights are downloaded, because that may take hours.
        try:
            self._inspect(manifest, verified_paths(), partial(self._check_small, manifest=manifest))
        except ModelError:
            if not any(part.done for part in weights):
                shutil.rmtree(self._folder, ignore_errors=True)
            raise
        loaded = self._without_unlisted(manifest, verified_paths())
        if loaded != manifest:
            manifest = loaded
            manifest.write(self._folder / "manifest.json")
            digests = {file.digest for file in manifest.files}
            weights = [part for part in weights if part.file.digest in digests]
            done = manifest.size - sum(part.file.size - part.done for part in weights)
            self._meter.start(done, manifest.size)
        await downloader.run(weights)
        return manifest, verified_paths()

    @staticmethod
    def _without_unlisted(manifest: Manifest, paths: dict[str, Path]) -> Manifest:
        """The manifest without weight files that the model's index does not list."""
        index = next((file for file in manifest.files if file.path == INDEX), None)
        if index is None:
            return manifest
        listed = listed_files(read_json(paths[index.digest]))
        names = [file.path for file in manifest.files if file.path.endswith(".safetensors")]
        unlisted = set(names) - chosen_weights(names, listed)
        files = tuple(file for file in manifest.files if file.path not in unlisted)
        return replace(manifest, files=files)

    def _check_small(self, folder: Path, manifest: Manifest) -> None:
        """Raise ModelError if the files other than weights show that the model is unusable."""
        check_configs(folder)
        if (folder / INDEX).is_file():
            names = [file.path for file in manifest.files]
            if missing := missing_weights(names, shards(folder)):
                raise ModelError(
                    f"its {INDEX} lists {min(missing)!r}, which is missing", "choose another model"
                )

    def _check_space(self, missing: Iterable[PartialFile]) -> None:
        needed = sum(part.file.size - part.done for part in set(missing))
        free, reserve = shutil.disk_usage(self._cache.folder).free, self._settings.reserve_bytes
        if needed and needed + reserve > free:
            raise DownloadError(
                f"{self.repository} needs {size(needed)}, and {size(reserve)} must stay free, but"
                f" the disk has only {size(free)}",
                "free some space, or set HF_HUB_CACHE to a folder on another disk",
            )

    def _delete_stale_parts(self, parts: dict[str, PartialFile]) -> None:
        """Delete partial files that are not in this commit."""
        for path in (self._folder / "parts").iterdir():
            if path.name.partition(".")[0] not in parts:
                path.unlink(missing_ok=True)

    async def _intact(self, copies: dict[ModelFile, Path]) -> dict[str, Path]:
        """Copies in the cache that are intact, by digest. Copies that another program downloaded
        are hashed."""
        earlier = self._cache.manifests(self.repository)
        trusted = {file.digest for record in earlier for file in record.files}
        intact: dict[str, Path] = {}
        for file, copy in copies.items():
            if file.digest not in trusted:
                self._note(f"checking {file.path}, which is already on disk")
                digest = (copy, file.digest, lambda _: None, self._halt_hashing.is_set)
                if await asyncio.to_thread(file_digest, *digest) != file.digest:
                    continue
            intact[file.digest] = copy
        return intact

    def _inspect(
        self, manifest: Manifest, paths: dict[str, Path], check: Callable[[Path], object]
    ) -> None:
        """Run `check` on a folder that links to the verified files under their names. Raises
        ModelError."""
        # Not in the cache, whose file system may not support symbolic links.
        with tempfile.TemporaryDirectory() as folder:
            for file in manifest.files:
                if file.digest in paths:
                    path = Path(folder, file.path)
                    path.parent.mkdir(exist_ok=True)
                    path.symlink_to(paths[file.digest].resolve())
            try:
                check(Path(folder))
            except ModelError as error:
                problem = error.problem.replace(f"{folder}{os.sep}", "").replace(folder, "it")
                raise ModelError(
                    f"{self.repository} cannot be used, {problem[:1].lower()}{problem[1:]}",
                    "choose another model",
                ) from None

    def _note(self, note: str) -> None:
        self._meter.note = note


# ------------------------------------------------------------------------------ the files


class Downloader:
    """Downloads the files of one commit. `halted` stops the hashing of files, which runs on
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
        self._min_bytes = settings.retry_policy.min_bytes
        self._connections = asyncio.Semaphore(settings.connections)
        self._meter = meter
        self._halted = halted

    async def run(self, parts: Sequence[PartialFile]) -> None:
        """Download and verify all files. Raises DownloadError or ModelError for the first file that
        fails. In that case, and if cancelled, partial files are kept."""
        try:
            async with asyncio.TaskGroup() as group:
                for part in parts:
                    group.create_task(self._download(part))
        except BaseExceptionGroup as several:
            # Tasks that fail together usually fail for the same reason.
            raise several.exceptions[0] from None

    async def _download(self, part: PartialFile) -> None:
        """Download and verify a file; try again if its digest is wrong."""
        with disk_errors():
            part.path.touch()
        for _ in range(2):
            await self._fetch(part)
            if await self._is_intact(part):
                return await asyncio.to_thread(part.mark_verified)
            self._meter.add(-part.done)
            with disk_errors():
                os.truncate(part.path, 0)
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

    async def _fetch(self, part: PartialFile) -> None:
        """Request the missing part of a file until it is complete."""
        furthest = part.done

        def progressed() -> bool:
            nonlocal furthest
            done = part.done
            # Only new bytes count.
            gained = done - furthest >= min(self._min_bytes, part.file.size - furthest)
            furthest = max(furthest, done)
            return gained

        async with self._connections:
            await self._hub.with_retries(lambda: self._request(part), progressed)

    async def _request(self, part: PartialFile) -> None:
        """Send one request for everything that is missing."""
        start, size = part.done, part.file.size
        if start == size:
            return
        async with self._hub.file(
            self._manifest.repository,
            self._manifest.commit,
            part.file.path,
            f"bytes={start}-{size - 1}" if start else None,
        ) as response:
            if response.status_code == 206 and start:
                _check_range(part, response, start)
            elif response.status_code == 200:  # also from servers that do not support ranges
                _check_length(part, response)
                self._meter.add(-start)
                start = 0
            else:
                raise _wrong_size(part)
            await self._receive(part, start, response)

    async def _receive(self, part: PartialFile, start: int, response: httpx2.Response) -> None:
        """Write the body of a response into the file from byte `start` on."""
        done = start
        with disk_errors(), part.path.open("ab") as file:
            file.truncate(start)
            async for chunk in self._hub.chunks(response):
                if done + len(chunk) > part.file.size:
                    raise _wrong_size(part)
                file.write(chunk)
                done += len(chunk)
                self._meter.add(len(chunk))
        if done < part.file.size:
            raise RetryableError("the connection closed early")


def _check_range(part: PartialFile, response: httpx2.Response, start: int) -> None:
    sent = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
    if sent is None or int(sent[1]) != start or int(sent[2]) >= part.file.size:
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
