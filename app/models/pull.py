"""Downloads a model: finds the commit, lists the files, checks the disk, downloads the
configuration and then the weights, and publishes them in the cache.

Every step can be interrupted, and the next pull continues. Partial files are named by their digest,
so that only what changed at the hub is downloaded again.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import ssl
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path
from threading import Event

from app.models.cache import ModelCache, check_repository
from app.models.check import INDEX, check_configs, check_model, shards
from app.models.download import Concurrency, Downloader
from app.models.errors import DownloadError, ModelError, disk_errors
from app.models.file_filter import files_to_download
from app.models.hub import Hub, hub_client
from app.models.manifest import Manifest, ModelFile, file_digest
from app.models.partial_file import PartialFile, fetched_bytes
from app.models.progress import Progress, ProgressMeter
from app.models.retry import RetryPolicy
from app.models.unfinished import lock_model
from app.util.atomic_files import make_folder
from app.util.formatting import size
from app.util.regular_files import open_descriptor

_TICK = 0.2
"""Seconds between two progress reports, and between two checks for a pause or a stop."""


class Outcome(Enum):
    DOWNLOADED = "fetched"
    UP_TO_DATE = "here"
    """The current commit was already installed."""
    STOPPED = "stopped"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class HubSettings:
    """How to reach the hub, and how to download. `reserve_bytes` stay free on the disk; `tls`
    replaces the system's certificates."""

    endpoint: str
    token: str | None = field(default=None, repr=False)
    retry_policy: RetryPolicy = field(default_factory=RetryPolicy)
    concurrency: Concurrency = field(default_factory=Concurrency)
    reserve_bytes: int = 2 << 30
    tls: ssl.SSLContext | None = None
    free_bytes: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free


def default_hub_settings() -> HubSettings:
    """The endpoint (HF_ENDPOINT) and token of huggingface_hub. ModelError when it is set to offline
    mode, or its token cannot be read."""
    from huggingface_hub import constants, get_token

    if constants.is_offline_mode():
        raise ModelError("HF_HUB_OFFLINE is set, so nothing can be downloaded", "unset it")
    token = None
    if not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
        try:
            _require_file(Path(constants.HF_TOKEN_PATH))
            token = get_token()
        except Exception:
            # Its message might quote the token.
            raise ModelError(
                "The stored token cannot be read", "log in again with `hf auth login`"
            ) from None
    return HubSettings(constants.ENDPOINT, token)


def _require_file(path: Path) -> None:
    """OSError where a pipe, which the library would wait for, is in the place of a file."""
    with suppress(FileNotFoundError, NotADirectoryError):
        os.close(open_descriptor(path))


class Pull:
    """One download of a model. `run` blocks; `stop` may be called from any thread."""

    def __init__(
        self,
        cache: ModelCache,
        repository: str,
        settings: HubSettings,
        on_progress: Callable[[Progress], object] = lambda progress: None,
    ) -> None:
        """ModelError when `repository` is not a repository name."""
        self.repository = check_repository(repository)
        self._cache = cache
        self._settings = settings
        self._on_progress = on_progress
        self._folder = cache.download_folder(repository)
        self._meter = ProgressMeter()
        self.progress = self._meter.read()
        """The last report."""
        self._reused: dict[str, Path] = {}
        self._stop = Event()
        self._halt_hashing = Event()

    def stop(self) -> None:
        """End `run` within about half a second; what was downloaded is saved. Safe in signal
        handlers and from other threads."""
        self._stop.set()

    def run(self) -> Outcome:
        """Download what is missing. Raises ModelError, and DownloadError when it can be
        continued."""
        with disk_errors():
            self._cache.prepare()
        with lock_model(self._cache, self.repository):
            make_folder(self._folder / "parts")
            self._pause_file.unlink(missing_ok=True)
            return asyncio.run(self._supervised())

    @property
    def _pause_file(self) -> Path:
        return self._folder / "pause"

    async def _supervised(self) -> Outcome:
        """Run the download with progress reports until it is done, paused or stopped."""
        work = asyncio.create_task(self._work())
        while True:
            done, _ = await asyncio.wait({work}, timeout=_TICK)
            self.progress = self._meter.read()
            self._on_progress(self.progress)
            if done:
                return work.result()
            paused = self._pause_file.exists()
            if paused or self._stop.is_set():
                self._halt_hashing.set()
                work.cancel()
                try:
                    return await work
                except asyncio.CancelledError:
                    return Outcome.PAUSED if paused else Outcome.STOPPED

    async def _work(self) -> Outcome:
        policy = self._settings.retry_policy
        async with hub_client(policy, self._settings.tls) as connections:
            hub = Hub(connections, self._settings.endpoint, self._settings.token, policy)
            hub.on_wait = self._note
            self._note("asking the hub")
            commit = await hub.commit(self.repository)
            if self._is_up_to_date(commit):
                shutil.rmtree(self._folder, ignore_errors=True)
                return Outcome.UP_TO_DATE
            files = files_to_download(self.repository, await hub.tree(self.repository, commit))
            manifest = Manifest(self.repository, commit, files)
            await self._fetch_all(hub, manifest)
        # All files are verified. From here on, nothing uses the network or can be cancelled.
        paths = self._verified_paths(manifest)
        self._inspect(manifest, paths, check_model)
        self._cache.publish(manifest, paths)
        shutil.rmtree(self._folder, ignore_errors=True)
        return Outcome.DOWNLOADED

    def _is_up_to_date(self, commit: str) -> bool:
        installed = self._cache.verified(self.repository, commit)
        return installed is not None and self._cache.commit(self.repository) == commit

    async def _fetch_all(self, hub: Hub, manifest: Manifest) -> None:
        self._check_space(manifest)
        manifest.write(self._folder / "manifest.json")
        self._delete_stale_parts(manifest)
        await self._reuse_blobs(manifest)
        parts = self._parts(manifest)
        done = manifest.size - sum(part.file.size - part.done for part in parts)
        self._meter.start(done, manifest.size)
        self._note("")
        work = (hub, manifest, self._settings.concurrency, self._settings.retry_policy, self._meter)
        weights = [part for part in parts if part.file.path.endswith(".safetensors")]
        await Downloader(*work).run(part for part in parts if part not in weights)
        # Before the weights, because those may take hours.
        try:
            check = partial(self._check_small, manifest=manifest)
            self._inspect(manifest, self._verified_paths(manifest), check)
        except ModelError:
            if not any(part.done for part in weights):
                shutil.rmtree(self._folder, ignore_errors=True)
            raise
        await Downloader(*work).run(weights)

    def _check_small(self, folder: Path, manifest: Manifest) -> None:
        """ModelError when the files without the weights already show that the model is unusable."""
        check_configs(folder)
        if (folder / INDEX).is_file():
            missing = shards(folder) - {file.path for file in manifest.files}
            if missing:
                raise ModelError(
                    f"its {INDEX} lists {min(missing)!r}, which is missing", "choose another model"
                )

    def _check_space(self, manifest: Manifest) -> None:
        needed = 0
        for file in {file.digest: file for file in manifest.files}.values():
            if self._in_cache(manifest, file) is None:
                needed += file.size - fetched_bytes(self._folder / "parts", file)
        free, reserve = self._settings.free_bytes(self._cache.folder), self._settings.reserve_bytes
        if needed and needed + reserve > free:
            raise DownloadError(
                f"{self.repository} needs {size(needed)}, and {size(reserve)} must stay free, but"
                f" the disk has only {size(free)}",
                "free some space, or set HF_HUB_CACHE to a folder on another disk",
            )

    def _in_cache(self, manifest: Manifest, file: ModelFile) -> Path | None:
        """A file of the same name or content, of the right size."""
        for path in self._cache.copies(manifest, file):
            if path.exists() and path.stat().st_size == file.size:
                return path
        return None

    def _delete_stale_parts(self, manifest: Manifest) -> None:
        """Delete partial files that are not in this commit."""
        current = {file.digest for file in manifest.files}
        for path in (self._folder / "parts").iterdir():
            if path.name.partition(".")[0] not in current:
                path.unlink(missing_ok=True)

    async def _reuse_blobs(self, manifest: Manifest) -> None:
        """Use files that are in the cache, after checking their digests if another program
        downloaded them."""
        earlier = self._cache.manifests(self.repository)
        trusted = {file.digest for record in earlier for file in record.files}
        for file in manifest.files:
            blob = self._in_cache(manifest, file)
            if blob is None:
                continue
            if file.digest not in trusted:
                self._note(f"checking {file.path}, which is already on disk")
                digest = (blob, file.digest, lambda _: None, self._halt_hashing.is_set)
                if await asyncio.to_thread(file_digest, *digest) != file.digest:
                    continue
            self._reused[file.digest] = blob

    def _parts(self, manifest: Manifest) -> list[PartialFile]:
        """The files that are not complete, each content once."""
        parts: dict[str, PartialFile] = {}
        for file in manifest.files:
            part = PartialFile(
                self._folder / "parts", file, self._settings.concurrency.segment_bytes
            )
            if file.digest not in self._reused and not part.verified_path.exists():
                parts.setdefault(file.digest, part)
        for part in parts.values():
            part.load()
        return list(parts.values())

    def _verified_paths(self, manifest: Manifest) -> dict[str, Path]:
        """The path of each digest whose file is verified."""
        parts = self._folder / "parts"
        return self._reused | {
            file.digest: verified
            for file in manifest.files
            if (verified := parts / f"{file.digest}.verified").exists()
        }

    def _inspect(
        self, manifest: Manifest, paths: dict[str, Path], check: Callable[[Path], object]
    ) -> None:
        """Run `check` on a folder that links to the verified files under their names. Raises
        ModelError."""
        # Not in the cache, whose file system may have no symbolic links.
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
