"""The trash of removed models. Files are renamed, not copied, on the way there and back."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from uuid import uuid4

from app.models.cache import ModelCache, check_repository, disk_size, not_installed
from app.models.errors import ModelError, disk_errors
from app.models.unfinished import lock_model
from app.util.atomic_files import make_folder, sync_path, write_durably
from app.util.regular_files import read_file


@dataclass(frozen=True, slots=True)
class TrashedModel:
    """A removed model: the `whole` model, or only its older versions (commits). `size` is the
    number of bytes that emptying the trash frees."""

    repository: str
    whole: bool
    when: datetime
    size: int
    folder: Path


def remove(cache: ModelCache, repository: str, older: bool = False) -> TrashedModel:
    """Move a model and its unfinished download to the trash. `older` moves only commits other than
    the current one, and blobs that the current one does not use. Raises ModelError if there is
    nothing to remove, or if another process is using the model."""
    folder = cache.repository_folder(check_repository(repository))
    with disk_errors():
        cache.prepare()
    with lock_model(cache, repository):
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


def _remove_older(cache: ModelCache, repository: str, folder: Path) -> TrashedModel:
    snapshot = cache.snapshot_folder(repository)
    if snapshot is None:
        raise not_installed(repository)
    old, unused = cache.older(repository, snapshot)
    if not old and not unused:
        raise ModelError(f"{repository} has no older versions", "there is nothing to remove")
    entry = _entry(cache, repository, whole=False)
    # Links are moved first, so that no loader finds a snapshot without its blobs.
    for path in (*old, *unused):
        target = entry / "repository" / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(path, target)
    sync_path(snapshot.parent)
    return _read(entry)


def trashed(cache: ModelCache) -> list[TrashedModel]:
    """Models in the trash, newest first."""
    found = []
    with suppress(OSError):
        for entry in (cache.app_folder / "trash").iterdir():
            with suppress(OSError, ValueError, KeyError, TypeError):
                found.append(_read(entry))
    return sorted(found, key=lambda each: each.when, reverse=True)


def restore(cache: ModelCache, repository: str) -> TrashedModel:
    """Restore what was last removed of a model. Raises ModelError if the trash has nothing of it,
    or if the model was installed again."""
    check_repository(repository)
    entry = next((each for each in trashed(cache) if each.repository == repository), None)
    if entry is None:
        raise ModelError(
            f"{repository} is not in the trash", "`specchat models list --trash` lists the trash"
        )
    with lock_model(cache, repository):
        if entry.whole:
            _restore_whole(cache, entry)
        else:
            _restore_older(cache, entry)
        shutil.rmtree(entry.folder, ignore_errors=True)
    return entry


def _restore_whole(cache: ModelCache, entry: TrashedModel) -> None:
    targets = {
        "repository": cache.repository_folder(entry.repository),
        "pull": cache.download_folder(entry.repository),
    }
    if (entry.folder / "repository").exists() and targets["repository"].exists():
        raise ModelError(
            f"{entry.repository} is installed again",
            f"remove it first with `specchat models rm {entry.repository}`",
        )
    for name, target in targets.items():
        path = entry.folder / name
        if path.exists() and not target.exists():
            os.rename(path, target)
            sync_path(target.parent)


def _restore_older(cache: ModelCache, entry: TrashedModel) -> None:
    source, folder = entry.folder / "repository", cache.repository_folder(entry.repository)
    # Blobs are moved first, as when a commit is published.
    for kind in ("blobs", "snapshots"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for path in (source / kind).iterdir() if (source / kind).is_dir() else ():
            target = folder / kind / path.name
            if not os.path.lexists(target):
                os.rename(path, target)
        sync_path(folder / kind)


def empty(cache: ModelCache) -> int:
    """Permanently delete the trash; return the number of bytes freed. Raises ModelError if a file
    cannot be deleted; the rest then stays."""
    freed = 0
    entries = trashed(cache)
    with disk_errors():
        for entry in entries:
            shutil.rmtree(entry.folder)
            freed += entry.size
        # Remains of interrupted moves.
        with suppress(FileNotFoundError):
            for path in (cache.app_folder / "trash").iterdir():
                shutil.rmtree(path, ignore_errors=True)
    return freed


def _entry(cache: ModelCache, repository: str, whole: bool) -> Path:
    """Create a folder in the trash."""
    entry = cache.app_folder / "trash" / uuid4().hex
    make_folder(entry)
    content = {"repository": repository, "whole": whole, "when": datetime.now().astimezone()}
    write_durably(entry / "entry.json", json.dumps(content, default=datetime.isoformat).encode())
    return entry


def _read(entry: Path) -> TrashedModel:
    content = json.loads(read_file(entry / "entry.json"))
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
