"""Removed models, until the trash is emptied. Each step is one rename, so nothing is copied."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from app.models.cache import ModelCache, blobs, check_repository, disk_size, links
from app.models.errors import ModelError, disk_error
from app.models.unfinished import lock_model
from app.util.atomic_files import make_folder, replace_durably, temp_file
from app.util.durable import sync_path


@dataclass(frozen=True, slots=True)
class TrashedModel:
    """A removed model, `whole` or only its older commits. `size` in bytes is what emptying the
    trash frees."""

    repository: str
    whole: bool
    when: datetime
    size: int
    folder: Path


def remove(cache: ModelCache, repository: str, older: bool = False) -> TrashedModel:
    """Move a model to the trash, with an unfinished download of it. `older` moves only commits
    other than the one in use, and of the blobs those that no commit left uses. ModelError when
    there is nothing to remove, or another process is busy with it."""
    folder = cache.repository_folder(check_repository(repository))
    try:
        cache.prepare()
        lock = lock_model(cache, repository)
        try:
            if older:
                return _remove_older(cache, repository, folder)
            if not folder.is_dir() and not cache.download_folder(repository).is_dir():
                raise not_installed(repository)
            entry = _entry(cache, repository, whole=True)
            for path, name in ((folder, "repository"), (cache.download_folder(repository), "pull")):
                if path.is_dir():
                    os.rename(path, entry / name)
                    sync_path(path.parent)
            sync_path(entry)
            return _read(entry)
        finally:
            lock.release()
    except OSError as error:
        raise disk_error(error) from None


def _remove_older(cache: ModelCache, repository: str, folder: Path) -> TrashedModel:
    snapshot = cache.snapshot_folder(repository)
    if snapshot is None:
        raise not_installed(repository)
    old = [path for path in snapshot.parent.iterdir() if path != snapshot]
    used = set(links(snapshot).values())
    unused = [blob for blob in blobs(folder) if blob not in used]
    if not old and not unused:
        raise ModelError(f"{repository} has no older commits here", "nothing is to be done")
    entry = _entry(cache, repository, whole=False)
    # Links first: no loader may find a snapshot whose bytes have gone.
    for path in (*old, *unused):
        place = entry / "repository" / path.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        os.rename(path, place)
    sync_path(snapshot.parent)
    return _read(entry)


def trashed(cache: ModelCache) -> list[TrashedModel]:
    """What is in the trash, the newest first."""
    found = []
    with suppress(OSError):
        for entry in (cache.app_folder / "trash").iterdir():
            with suppress(OSError, ValueError, KeyError, TypeError):
                found.append(_read(entry))
    return sorted(found, key=lambda each: each.when, reverse=True)


def restore(cache: ModelCache, repository: str) -> TrashedModel:
    """Bring back what was removed last of a model. ModelError when that is nothing, or when the
    model is here again."""
    check_repository(repository)
    entry = next((each for each in trashed(cache) if each.repository == repository), None)
    if entry is None:
        raise ModelError(
            f"{repository} is not in the trash", "`specchat models list --trash` shows what is"
        )
    try:
        lock = lock_model(cache, repository)
        try:
            if entry.whole:
                _restore_whole(cache, entry)
            else:
                _restore_older(cache, entry)
        finally:
            lock.release()
        shutil.rmtree(entry.folder, ignore_errors=True)
    except OSError as error:
        raise disk_error(error) from None
    return entry


def _restore_whole(cache: ModelCache, entry: TrashedModel) -> None:
    places = {
        "repository": cache.repository_folder(entry.repository),
        "pull": cache.download_folder(entry.repository),
    }
    if (entry.folder / "repository").exists() and places["repository"].exists():
        raise ModelError(
            f"{entry.repository} is here again",
            f"remove it first with `specchat models rm {entry.repository}`, or keep it",
        )
    for name, place in places.items():
        path = entry.folder / name
        if path.exists() and not place.exists():
            os.rename(path, place)
            sync_path(place.parent)


def _restore_older(cache: ModelCache, entry: TrashedModel) -> None:
    source, folder = entry.folder / "repository", cache.repository_folder(entry.repository)
    # Bytes first, as when a commit is published.
    for kind in ("blobs", "snapshots"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for path in (source / kind).iterdir() if (source / kind).is_dir() else ():
            place = folder / kind / path.name
            if not os.path.lexists(place):
                os.rename(path, place)
        sync_path(folder / kind)


def empty(cache: ModelCache) -> int:
    """Delete what is in the trash, for good; returns the bytes that were freed. ModelError when
    the disk refuses; then the rest is still there."""
    freed = 0
    entries = trashed(cache)
    try:
        for entry in entries:
            shutil.rmtree(entry.folder)
            freed += entry.size
        # Whatever was being moved when a process ended, without an entry to show for it.
        with suppress(FileNotFoundError):
            for path in (cache.app_folder / "trash").iterdir():
                shutil.rmtree(path, ignore_errors=True)
    except OSError as error:
        raise disk_error(error) from None
    return freed


def not_installed(repository: str) -> ModelError:
    return ModelError(
        f"{repository} is not in the model cache", "`specchat models list` shows what is"
    )


def _entry(cache: ModelCache, repository: str, whole: bool) -> Path:
    """A new place in the trash."""
    entry = cache.app_folder / "trash" / uuid4().hex
    make_folder(entry)
    content = {"repository": repository, "whole": whole, "when": datetime.now().astimezone()}
    aside = entry / "entry.part"
    with temp_file(aside) as out:
        out.write(json.dumps(content, default=datetime.isoformat).encode())
    replace_durably(aside, entry / "entry.json")
    return entry


def _read(entry: Path) -> TrashedModel:
    content = json.loads((entry / "entry.json").read_bytes())
    when = datetime.fromisoformat(content["when"])
    if not any((entry / name).exists() for name in ("repository", "pull")):
        raise ValueError("nothing was moved here")
    return TrashedModel(
        check_repository(content["repository"]),
        bool(content["whole"]),
        when,
        disk_size(entry),
        entry,
    )
