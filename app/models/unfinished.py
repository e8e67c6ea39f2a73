"""Unfinished downloads: partial files, and the lock of each model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from app.models.cache import ModelCache, check_repository
from app.models.errors import ModelError, disk_errors
from app.models.manifest import Manifest, ModelFile, read_manifest
from app.util.atomic_files import Lock, sync_path

_LOCK_SECONDS = 0.15
"""Seconds to wait for the lock, which `is_running` holds for a moment."""


class PartialFile:
    """The downloaded beginning of a file, in `folder`, named by the file's digest. A verified file
    is renamed. Only verified files are published, so loaders never see partial ones."""

    def __init__(self, folder: Path, file: ModelFile) -> None:
        self.file = file
        self.path = folder / file.digest
        self.verified_path = folder / f"{file.digest}.verified"
        """Path of the file once its digest is verified."""

    @property
    def verified(self) -> bool:
        return self.verified_path.exists()

    @property
    def done(self) -> int:
        """Bytes downloaded so far."""
        if self.verified:
            return self.file.size
        with suppress(OSError):
            size = self.path.stat().st_size
            return size if size <= self.file.size else 0
        return 0

    def mark_verified(self) -> None:
        """Rename the file to `verified_path` after its digest was verified. Raises
        DownloadError."""
        with disk_errors():
            sync_path(self.path)
            os.replace(self.path, self.verified_path)


@dataclass(frozen=True, slots=True)
class UnfinishedDownload:
    """An unfinished download: bytes downloaded, total bytes, and whether a process is downloading
    it now."""

    repository: str
    done: int
    total: int
    running: bool


@contextmanager
def lock_model(cache: ModelCache, repository: str) -> Iterator[None]:
    """Hold the lock of a model during the block. Raises ModelError if another process holds it. An
    OSError in the block becomes a DownloadError."""
    with disk_errors():
        try:
            lock = Lock(cache.lock_path(repository), _LOCK_SECONDS)
        except BlockingIOError:
            raise ModelError(
                f"Another specchat is using {repository}",
                f"wait for it, or stop a download with `specchat models pause {repository}`",
            ) from None
        try:
            yield
        finally:
            lock.release()


def is_running(cache: ModelCache, repository: str) -> bool:
    """Whether a process is downloading or removing this model."""
    if not cache.lock_path(repository).exists():
        return False
    try:
        Lock(cache.lock_path(repository)).release()
    except BlockingIOError:
        return True
    except OSError:
        # A lock file that cannot be opened cannot be held.
        pass
    return False


def unfinished(cache: ModelCache) -> list[UnfinishedDownload]:
    """All unfinished downloads."""
    found = []
    with suppress(OSError):
        for folder in sorted((cache.app_folder / "pulls").iterdir()):
            manifest = read_manifest(folder / "manifest.json")
            if manifest is not None and cache.download_folder(manifest.repository) == folder:
                done = _done(cache, manifest)
                running = is_running(cache, manifest.repository)
                found.append(UnfinishedDownload(manifest.repository, done, manifest.size, running))
    return found


def pause(cache: ModelCache, repository: str) -> None:
    """Ask the process that downloads this model to stop. What it downloaded is saved. Raises
    ModelError if there is no such process."""
    check_repository(repository)
    if not (cache.download_folder(repository).is_dir() and is_running(cache, repository)):
        raise ModelError(
            f"No download of {repository} is running", "`specchat models list` shows all downloads"
        )
    with disk_errors():
        (cache.download_folder(repository) / "pause").touch(0o600)


def _done(cache: ModelCache, manifest: Manifest) -> int:
    parts = cache.download_folder(manifest.repository) / "parts"
    files = {file.digest: file for file in manifest.files}.values()
    return sum(
        file.size if cache.copy(manifest, file) else PartialFile(parts, file).done for file in files
    )


def discard(cache: ModelCache, repository: str) -> None:
    """Delete an unfinished download. An installed earlier commit of the model stays. Raises
    ModelError if there is no such download, or if a process is using it."""
    folder = cache.download_folder(check_repository(repository))
    if not folder.is_dir():
        raise ModelError(
            f"There is no unfinished download of {repository}",
            "`specchat models list` shows all downloads",
        )
    with lock_model(cache, repository):
        shutil.rmtree(folder)
