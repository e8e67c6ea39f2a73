"""The folder of models that huggingface_hub and mlx-lm look into, and what of it is ours.

    models--ORG--NAME/blobs/DIGEST                the bytes
    models--ORG--NAME/snapshots/COMMIT/PATH       links to them: what a loader opens
    models--ORG--NAME/refs/main                   the commit that counts
    .specchat/                                    parts, records and the trash: no loader looks here

All of it is on one disk, so that a finished file only changes its name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from app.models.check import check_files
from app.models.errors import ModelError
from app.models.manifest import COMMIT, Manifest, read_manifest
from app.util.atomic_files import make_folder, replace_durably, temp_file
from app.util.durable import sync_path

_REPOSITORY = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}", re.ASCII)
_PREFIX = "models--"


def is_repository(name: str) -> bool:
    """Is this of the form `organisation/name`?"""
    # huggingface_hub forbids these two, and in the cache `--` stands for the slash.
    return bool(_REPOSITORY.fullmatch(name)) and "--" not in name and ".." not in name


def check_repository(name: str) -> str:
    """`name`. ModelError when it cannot be a repository's."""
    if not is_repository(name):
        raise ModelError(
            f"{name!r} is no name of a model at the hub",
            "give it as organisation/name, such as mlx-community/Qwen3-0.6B-4bit",
        )
    return name


def folder_name(repository: str) -> str:
    return _PREFIX + repository.replace("/", "--")


def default_cache() -> ModelCache:
    """The one that huggingface_hub uses: HF_HUB_CACHE, or below HF_HOME."""
    from huggingface_hub import constants

    return ModelCache(Path(constants.HF_HUB_CACHE))


@dataclass(frozen=True, slots=True)
class Installed:
    """One model in the cache. `size` in bytes is what all its commits take on the disk, `older`
    what of it only commits other than `commit` use. `fault` says why it cannot be used, if so."""

    repository: str
    commit: str
    folder: Path
    size: int
    older: int
    fault: str | None


@dataclass(frozen=True, slots=True)
class ModelCache:
    """A model cache in `folder`. Nothing is created before something is written."""

    folder: Path

    @property
    def app_folder(self) -> Path:
        """What is specchat's in it."""
        return self.folder / ".specchat"

    def repository_folder(self, name: str) -> Path:
        return self.folder / folder_name(name)

    def download_folder(self, name: str) -> Path:
        """Where an unfinished download of a model lies."""
        return self.app_folder / "pulls" / folder_name(name)

    def lock_path(self, name: str) -> Path:
        """Held by whoever fetches, removes or restores a model. Never removed itself."""
        return self.app_folder / "locks" / f"{folder_name(name)}.lock"

    def manifest_path(self, name: str, commit: str) -> Path:
        """The manifest of what was verified and published."""
        return self.app_folder / "verified" / folder_name(name) / f"{commit}.json"

    def commit(self, name: str) -> str | None:
        """The commit that `main` is at here."""
        with suppress(OSError, UnicodeDecodeError):
            commit = (self.repository_folder(name) / "refs" / "main").read_text("ascii").strip()
            return commit if COMMIT.fullmatch(commit) else None
        return None

    def snapshot_folder(self, name: str) -> Path | None:
        """The folder that a loader opens, if the model is here; it may be incomplete when another
        program left it so."""
        commit = self.commit(name)
        folder = self.repository_folder(name) / "snapshots" / commit if commit else None
        return folder if folder is not None and folder.is_dir() else None

    def names(self) -> list[str]:
        """The repositories of which something is here, in the order of their names."""
        with suppress(OSError):
            found = (path.name for path in self.folder.iterdir() if path.name.startswith(_PREFIX))
            names = (name.removeprefix(_PREFIX).replace("--", "/", 1) for name in found)
            return sorted(filter(is_repository, names), key=str.casefold)
        return []

    def installed(self) -> list[Installed]:
        """Every model whose main commit is here. Reads no weights."""
        return [found for name in self.names() if (found := self.find(name)) is not None]

    def find(self, name: str) -> Installed | None:
        snapshot = self.snapshot_folder(name)
        if snapshot is None:
            return None
        try:
            check_files(snapshot)
            fault = None
        except ModelError as error:
            fault = str(error)
        size = disk_size(self.repository_folder(name))
        used = set(links(snapshot).values())
        unused = [blob for blob in blobs(self.repository_folder(name)) if blob not in used]
        older = sum(map(_size, unused))
        return Installed(name, snapshot.name, snapshot, size, older, fault)

    def verified(self, name: str, commit: str) -> Manifest | None:
        """What was published of a commit, if all of it is still here in its right size."""
        manifest = read_manifest(self.manifest_path(name, commit))
        if manifest is None or manifest.commit != commit:
            return None
        folder = self.repository_folder(name) / "snapshots" / commit
        here = all(_size(folder / file.path) == file.size for file in manifest.files)
        return manifest if here else None

    def publish(self, manifest: Manifest, blobs: dict[str, Path]) -> Path:
        """Make a commit's files findable; returns the snapshot's folder. `blobs` maps digests to
        verified files below `own`; digests not among them must be blobs here already. OSError.

        Bytes first, then the links to them, then the name: whenever this is cut short, there is
        either the old state or the new one, and doing it again goes on.
        """
        repository = self.repository_folder(manifest.repository)
        # The folders of a cache are for whom the user's umask says, as huggingface_hub's are.
        for folder in ("blobs", "snapshots", "refs"):
            (repository / folder).mkdir(parents=True, exist_ok=True)
        for digest, path in blobs.items():
            os.replace(path, repository / "blobs" / digest)
        sync_path(repository / "blobs")
        snapshot = repository / "snapshots" / manifest.commit
        snapshot.mkdir(exist_ok=True)
        # Configuration last: a folder without it is no model to any loader.
        for file in sorted(manifest.files, key=lambda file: file.path == "config.json"):
            path = snapshot / file.path
            path.parent.mkdir(exist_ok=True)
            up = "../" * (2 + file.path.count("/"))
            self._link(f"{up}blobs/{file.digest}", path)
        sync_path(snapshot)
        sync_path(snapshot.parent)
        manifest.write(self.manifest_path(manifest.repository, manifest.commit))
        main = repository / "refs" / "main"
        aside = self.app_folder / f"{uuid4().hex}.part"
        with temp_file(aside) as out:
            out.write(manifest.commit.encode("ascii"))
        replace_durably(aside, main)
        sync_path(self.folder)
        return snapshot

    def _link(self, target: str, path: Path) -> None:
        if path.is_symlink() and os.readlink(path) == target:
            return
        aside = self.app_folder / f"{uuid4().hex}.part"
        os.symlink(target, aside)
        os.replace(aside, path)

    def prepare(self) -> None:
        """Create what is specchat's in it. OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("pulls", "locks", "verified", "trash"):
            make_folder(self.app_folder / name)


def blobs(repository: Path) -> list[Path]:
    """A repository's finished blobs."""
    with suppress(OSError):
        return [path for path in (repository / "blobs").iterdir() if "." not in path.name]
    return []


def links(snapshot: Path) -> dict[Path, Path]:
    """Every file of a snapshot, to the blob that it is a link to, or to itself when it is none."""
    return {path: _blob(path) for path in walk(snapshot)}


def walk(folder: Path) -> Iterator[Path]:
    """Every file and link in a folder, in order; links to folders are not followed."""
    for root, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            yield Path(root) / name


def _blob(path: Path) -> Path:
    """Where one link leads, but not further: a blob may itself be a link into a store that
    huggingface_hub shares between repositories."""
    if not path.is_symlink():
        return path
    return Path(os.path.normpath(path.parent / os.readlink(path)))


def disk_size(folder: Path) -> int:
    """Bytes of the files in it; what is reached over links counts where it lies."""
    total = 0
    for path in walk(folder):
        with suppress(OSError):
            total += path.lstat().st_size if not path.is_symlink() else 0
    return total


def _size(path: Path) -> int:
    """Bytes, following links; -1 when there is nothing."""
    try:
        return path.stat().st_size
    except OSError:
        return -1
