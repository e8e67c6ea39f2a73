"""Downloads that were begun: how far each is, who is at it, and the lock that only one holds."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass

from app.models.cache import ModelCache, check_repository
from app.models.errors import ModelError, disk_error
from app.models.manifest import Manifest, ModelFile, read_manifest
from app.models.partial_file import fetched_bytes
from app.util.atomic_files import Lock

_PATIENCE = 0.15
"""Seconds: `is_running` holds the lock for an instant."""


@dataclass(frozen=True, slots=True)
class UnfinishedDownload:
    """A download that was begun: bytes that are here of all, and whether a process is at it."""

    repository: str
    done: int
    total: int
    running: bool


def lock_model(cache: ModelCache, repository: str) -> Lock:
    """The lock of one model. ModelError when another process has it; OSError."""
    try:
        return Lock(cache.lock_path(repository), _PATIENCE)
    except BlockingIOError:
        pass
    raise ModelError(
        f"Another specchat is busy with {repository}",
        f"wait for it, or stop a download with `specchat models pause {repository}`",
    )


def is_running(cache: ModelCache, repository: str) -> bool:
    """Is a process fetching, removing or restoring this model?"""
    if not cache.lock_path(repository).exists():
        return False
    try:
        Lock(cache.lock_path(repository)).release()
    except BlockingIOError:
        return True
    except OSError:
        # Nobody can hold what cannot be opened.
        pass
    return False


def unfinished(cache: ModelCache) -> list[UnfinishedDownload]:
    """The downloads that were begun and are not done."""
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
    """Ask the process that fetches this model to stop and keep what it has. ModelError when there
    is none."""
    check_repository(repository)
    if not (cache.download_folder(repository).is_dir() and is_running(cache, repository)):
        raise ModelError(
            f"No download of {repository} is running", "`specchat models list` shows what is"
        )
    try:
        os.close(
            os.open(cache.download_folder(repository) / "pause", os.O_CREAT | os.O_WRONLY, 0o600)
        )
    except OSError as error:
        raise disk_error(error) from None


def _done(cache: ModelCache, manifest: Manifest) -> int:
    parts = cache.download_folder(manifest.repository) / "parts"
    blobs = cache.repository_folder(manifest.repository) / "blobs"
    files: dict[str, ModelFile] = {file.digest: file for file in manifest.files}
    return sum(
        file.size if (blobs / digest).exists() else fetched_bytes(parts, file)
        for digest, file in files.items()
    )


def discard(cache: ModelCache, repository: str) -> None:
    """Delete what was fetched of a download that is not done. The model itself, if an earlier
    commit of it is here, stays. ModelError when there is no such download, or a process is at
    it."""
    folder = cache.download_folder(check_repository(repository))
    if not folder.is_dir():
        raise ModelError(
            f"There is no unfinished download of {repository}",
            "`specchat models list` shows what there is",
        )
    try:
        lock = lock_model(cache, repository)
        try:
            shutil.rmtree(folder)
        finally:
            lock.release()
    except OSError as error:
        raise disk_error(error) from None
