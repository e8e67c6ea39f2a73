"""Downloads that were begun: how far each is, who is at it, and the lock that only one holds."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass

from app.models.cache import Cache, check_repository
from app.models.errors import ModelError, disk_error
from app.models.manifest import Manifest, ModelFile, read_manifest
from app.models.partial_file import fetched_bytes
from app.util.atomic_files import Lock

_PATIENCE = 0.15
"""Seconds: `is_running` holds the lock for an instant."""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A download that was begun: bytes that are here of all, and whether a process is at it."""

    repository: str
    done: int
    total: int
    running: bool


def hold(cache: Cache, repository: str) -> Lock:
    """The lock of one model. ModelError when another process has it; OSError."""
    try:
        return Lock(cache.lock(repository), _PATIENCE)
    except BlockingIOError:
        pass
    raise ModelError(
        f"Another specchat is busy with {repository}",
        f"wait for it, or stop a download with `specchat models pause {repository}`",
    )


def is_running(cache: Cache, repository: str) -> bool:
    """Is a process fetching, removing or restoring this model?"""
    if not cache.lock(repository).exists():
        return False
    try:
        Lock(cache.lock(repository)).release()
    except BlockingIOError:
        return True
    except OSError:
        # Nobody can hold what cannot be opened.
        pass
    return False


def unfinished(cache: Cache) -> list[Unfinished]:
    """The downloads that were begun and are not done."""
    found = []
    with suppress(OSError):
        for folder in sorted((cache.own / "pulls").iterdir()):
            manifest = read_manifest(folder / "manifest.json")
            if manifest is not None and cache.pull(manifest.repository) == folder:
                done = _done(cache, manifest)
                running = is_running(cache, manifest.repository)
                found.append(Unfinished(manifest.repository, done, manifest.size, running))
    return found


def pause(cache: Cache, repository: str) -> None:
    """Ask the process that fetches this model to stop and keep what it has. ModelError when there
    is none."""
    check_repository(repository)
    if not (cache.pull(repository).is_dir() and is_running(cache, repository)):
        raise ModelError(
            f"No download of {repository} is running", "`specchat models list` shows what is"
        )
    try:
        os.close(os.open(cache.pull(repository) / "pause", os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError as error:
        raise disk_error(error) from None


def _done(cache: Cache, manifest: Manifest) -> int:
    parts = cache.pull(manifest.repository) / "parts"
    blobs = cache.repository(manifest.repository) / "blobs"
    files: dict[str, ModelFile] = {file.digest: file for file in manifest.files}
    return sum(
        file.size if (blobs / digest).exists() else fetched_bytes(parts, file)
        for digest, file in files.items()
    )


def discard(cache: Cache, repository: str) -> None:
    """Delete what was fetched of a download that is not done. The model itself, if an earlier
    commit of it is here, stays. ModelError when there is no such download, or a process is at
    it."""
    folder = cache.pull(check_repository(repository))
    if not folder.is_dir():
        raise ModelError(
            f"There is no unfinished download of {repository}",
            "`specchat models list` shows what there is",
        )
    try:
        lock = hold(cache, repository)
        try:
            shutil.rmtree(folder)
        finally:
            lock.release()
    except OSError as error:
        raise disk_error(error) from None
