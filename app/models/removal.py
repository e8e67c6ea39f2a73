"""Deletes installed models."""

from __future__ import annotations

import shutil
from pathlib import Path

from app.models.cache import ModelCache, check_repository, disk_size, not_installed
from app.models.errors import ModelError, disk_errors
from app.models.unfinished import lock_model


def removable_size(cache: ModelCache, repository: str, older: bool = False) -> int:
    """Number of bytes that `remove` would free. Raises ModelError if there is nothing to remove."""
    return sum(map(_disk_size, _removable(cache, repository, older)))


def remove(cache: ModelCache, repository: str, older: bool = False) -> int:
    """Delete a model and its unfinished download, and return the number of bytes freed. `older`
    deletes only commits other than the current one, and blobs that the current one does not use.
    If this is interrupted, it can be repeated. Raises ModelError if there is nothing to remove, or
    if another process downloads or removes the model."""
    check_repository(repository)
    with disk_errors():
        cache.prepare()
    with lock_model(cache, repository):
        paths = _removable(cache, repository, older)
        freed = sum(map(_disk_size, paths))
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                # While there are commits, what is left of a model is listed and can be removed.
                if (blobs := path / "blobs").is_dir():
                    shutil.rmtree(blobs)
                shutil.rmtree(path)
            else:
                path.unlink()
    return freed


def _removable(cache: ModelCache, repository: str, older: bool) -> list[Path]:
    """The files and folders to delete: links come before the blobs that they link to."""
    folder = cache.repository_folder(check_repository(repository))
    if not older:
        paths = [path for path in (folder, cache.download_folder(repository)) if path.is_dir()]
        if not paths:
            raise not_installed(repository)
        return paths
    snapshot = cache.snapshot_folder(repository)
    if snapshot is None:
        raise not_installed(repository)
    commits, blobs = cache.older(repository, snapshot)
    if not commits and not blobs:
        raise ModelError(f"{repository} has no older versions", "there is nothing to remove")
    return commits + blobs


def _disk_size(path: Path) -> int:
    return disk_size(path) if path.is_dir() else path.lstat().st_size
