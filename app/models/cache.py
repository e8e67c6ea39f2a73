"""The model cache of huggingface_hub and mlx-lm, and specchat's folder in it. Finds models by name
and verifies their files.

    models--ORG--NAME/blobs/DIGEST                the file contents
    models--ORG--NAME/snapshots/COMMIT/PATH       links to blobs, which loaders open; the files
                                                  themselves where there are no symbolic links
    models--ORG--NAME/refs/main                   the current commit
    .specchat/                                    downloads and manifests

All of it is on one file system, so that a finished download only needs to be renamed.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from app.models import embedded
from app.models.check import check_files
from app.models.errors import ModelError
from app.models.manifest import (
    COMMIT,
    DIGEST,
    HashingStopped,
    Manifest,
    ModelFile,
    file_digest,
    read_manifest,
)
from app.models.progress import ByteProgress, ProgressMeter
from app.util.atomic_files import make_folder, sync_path, write_durably
from app.util.regular_files import read_file

_REPOSITORY = re.compile(r"[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95}", re.ASCII)
_PREFIX = "models--"


def is_repository(name: str) -> bool:
    """Whether `name` has the form `organisation/name`."""
    # huggingface_hub forbids both, and `--` stands for the slash in the cache.
    return bool(_REPOSITORY.fullmatch(name)) and "--" not in name and ".." not in name


def check_repository(name: str) -> str:
    """Return `name`. Raises ModelError if it is not a repository name."""
    if not is_repository(name):
        raise ModelError(
            f"{name!r} is not a model name",
            "use organisation/name, such as mlx-community/Qwen3.5-4B-MLX-4bit",
        )
    return name


def folder_name(repository: str) -> str:
    return _PREFIX + repository.replace("/", "--")


def default_cache() -> ModelCache:
    """The cache that huggingface_hub uses: HF_HUB_CACHE, or a folder in HF_HOME."""
    from huggingface_hub import constants

    return ModelCache(Path(constants.HF_HUB_CACHE))


@dataclass(frozen=True, slots=True)
class Installed:
    """A model in the cache. `size` is the number of bytes on disk of all commits, `older` that of
    files that only commits other than `commit` use. `fault` is why the model cannot be used, or
    None."""

    repository: str
    commit: str
    folder: Path
    size: int
    older: int
    fault: str | None


@dataclass(frozen=True, slots=True)
class ModelCache:
    """The model cache in `folder`. Folders are created when something is written."""

    folder: Path

    @property
    def app_folder(self) -> Path:
        """specchat's folder in the cache."""
        return self.folder / ".specchat"

    def repository_folder(self, name: str) -> Path:
        return self.folder / folder_name(name)

    def download_folder(self, name: str) -> Path:
        """The folder of an unfinished download."""
        return self.app_folder / "pulls" / folder_name(name)

    def lock_path(self, name: str) -> Path:
        """The lock file for downloading and removing a model. It is never deleted."""
        return self.app_folder / "locks" / f"{folder_name(name)}.lock"

    def manifest_path(self, name: str, commit: str) -> Path:
        """The manifest of a verified and published commit."""
        return self.app_folder / "verified" / folder_name(name) / f"{commit}.json"

    def commit(self, name: str) -> str | None:
        """The commit of `main` in the cache, or None."""
        with suppress(OSError, UnicodeDecodeError):
            main = self.repository_folder(name) / "refs" / "main"
            commit = read_file(main).decode("ascii").strip()
            return commit if COMMIT.fullmatch(commit) else None
        return None

    def snapshot_folder(self, name: str) -> Path | None:
        """The folder that loaders open; None if the model is not installed. It may be incomplete if
        another program wrote it."""
        commit = self.commit(name)
        folder = self.repository_folder(name) / "snapshots" / commit if commit else None
        return folder if folder is not None and folder.is_dir() else None

    def names(self) -> list[str]:
        """All repositories in the cache, sorted by name."""
        with suppress(OSError):
            found = (path.name for path in self.folder.iterdir() if path.name.startswith(_PREFIX))
            names = (name.removeprefix(_PREFIX).replace("--", "/", 1) for name in found)
            return sorted(filter(is_repository, names), key=str.casefold)
        return []

    def installed(self) -> list[Installed]:
        """Every model whose main commit is in the cache. Reads no weights."""
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
        commits, unused = self.older(name, snapshot)
        older = sum(map(disk_size, commits)) + sum(map(_size, unused))
        return Installed(name, snapshot.name, snapshot, size, older, fault)

    def older(self, name: str, snapshot: Path) -> tuple[list[Path], list[Path]]:
        """Snapshots of other commits, and blobs that `snapshot` does not use."""
        used = set(links(snapshot).values())
        unused = [blob for blob in blobs(self.repository_folder(name)) if blob not in used]
        return [path for path in snapshot.parent.iterdir() if path != snapshot], unused

    def verified(self, name: str, commit: str) -> Manifest | None:
        """The manifest of a published commit, if all its files still have the correct size."""
        manifest = read_manifest(self.manifest_path(name, commit))
        if manifest is None or manifest.commit != commit:
            return None
        folder = self.repository_folder(name) / "snapshots" / commit
        complete = all(_size(folder / file.path) == file.size for file in manifest.files)
        return manifest if complete else None

    def copy(self, manifest: Manifest, file: ModelFile) -> Path | None:
        """A file in the cache that may have the content of `file`, judging by name and size."""
        repository = self.repository_folder(manifest.repository)
        paths = [
            repository / "blobs" / file.digest,
            repository / "snapshots" / manifest.commit / file.path,
            *(
                repository / "snapshots" / earlier.commit / each.path
                for earlier in self.manifests(manifest.repository)
                for each in earlier.files
                if each.digest == file.digest
            ),
        ]
        return next((path for path in paths if _size(path) == file.size), None)

    def manifests(self, name: str) -> list[Manifest]:
        """The manifests of all verified commits."""
        folder = self.app_folder / "verified" / folder_name(name)
        found = map(read_manifest, sorted(folder.glob("*.json")))
        return [manifest for manifest in found if manifest is not None]

    def publish(self, manifest: Manifest, verified: dict[str, Path]) -> Path:
        """Move a verified download into the cache; return the snapshot's folder. `verified` has the
        file of each digest, in `app_folder` or already in the cache. Raises OSError.

        Blobs are moved first, then links, then the ref. If this is interrupted, either the old or
        the new state is valid, and this can be repeated.
        """
        repository = self.repository_folder(manifest.repository)
        # Default permissions, as huggingface_hub's folders have.
        for folder in ("blobs", "snapshots", "refs"):
            (repository / folder).mkdir(parents=True, exist_ok=True)
        blobs, contents = repository / "blobs", dict(verified)
        for digest, path in verified.items():
            if path.is_relative_to(self.app_folder):
                contents[digest] = blobs / digest
                os.replace(path, contents[digest])
        sync_path(blobs)
        snapshot = repository / "snapshots" / manifest.commit
        snapshot.mkdir(exist_ok=True)
        # config.json last, because loaders do not use a folder without it.
        for file in sorted(manifest.files, key=lambda file: file.path == "config.json"):
            path = snapshot / file.path
            path.parent.mkdir(exist_ok=True)
            contents[file.digest] = self._place(contents[file.digest], blobs, path)
        sync_path(snapshot)
        sync_path(snapshot.parent)
        manifest.write(self.manifest_path(manifest.repository, manifest.commit))
        main = repository / "refs" / "main"
        write_durably(main, manifest.commit.encode("ascii"), self.app_folder)
        sync_path(self.folder)
        return snapshot

    def _place(self, content: Path, blobs: Path, path: Path) -> Path:
        """Put a file into a snapshot: a link to a blob or, like huggingface_hub, the blob itself on
        a file system without symbolic links. Returns the path of the content."""
        if content == path:
            return path
        aside = self.app_folder / f"{uuid4().hex}.part"
        if content.parent == blobs:
            target = os.path.relpath(content, path.parent)
            if path.is_symlink() and os.readlink(path) == target:
                return content
            try:
                os.symlink(target, aside)
            except OSError:
                os.replace(content, path)
                return path
        else:
            shutil.copyfile(content, aside)
            sync_path(aside)
        os.replace(aside, path)
        return content

    def prepare(self) -> None:
        """Create specchat's folders. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in ("pulls", "locks", "verified"):
            make_folder(self.app_folder / name)


def blobs(repository: Path) -> list[Path]:
    """The finished blobs of a repository."""
    with suppress(OSError):
        return [path for path in (repository / "blobs").iterdir() if "." not in path.name]
    return []


def links(snapshot: Path) -> dict[Path, Path]:
    """Files of a snapshot, mapped to the blobs that they link to, or to themselves."""
    return {path: _blob(path) for path in walk(snapshot)}


def walk(folder: Path) -> Iterator[Path]:
    """All files and links in a folder, sorted. Links to folders are not followed."""
    for root, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            yield Path(root) / name


def _blob(path: Path) -> Path:
    """The target of one link. It is not resolved further, because a blob may be a link into a store
    that huggingface_hub shares between repositories."""
    if not path.is_symlink():
        return path
    return Path(os.path.normpath(path.parent / os.readlink(path)))


def disk_size(folder: Path) -> int:
    """Bytes of the files in a folder, without following links."""
    total = 0
    for path in walk(folder):
        with suppress(OSError):
            total += path.lstat().st_size if not path.is_symlink() else 0
    return total


def _size(path: Path) -> int:
    """Bytes of a file, following links; -1 if it is missing."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def not_installed(repository: str) -> ModelError:
    return ModelError(
        f"{repository} is not installed", "`specchat models list` lists the installed models"
    )


# ------------------------------------------------------------------------------ by name


def resolve_model(name: str, *, draft: bool = False, cache: ModelCache | None = None) -> Path:
    """The folder of a model. `name` is `embedded`, a path, or a repository (`organisation/name`) in
    `cache`, by default the user's.

    `draft` selects the draft of the demo model instead of its target. A folder takes precedence
    over a repository of the same name. Raises ModelError if there is no such model. `check_model`
    checks whether it can be loaded.
    """
    if not name.strip():
        raise ModelError("The name of the model is empty", _NAMES)
    if name == embedded.EMBEDDED:
        return embedded.draft_path() if draft else embedded.target_path()
    folder = _typed_folder(name)
    if folder is not None:
        return folder
    if not is_repository(name):
        raise ModelError(f"There is no model folder {name!r}", _NAMES)
    snapshot = (cache or default_cache()).snapshot_folder(name)
    if snapshot is None:
        raise ModelError(
            f"There is no folder {name!r}, and no installed model of that name",
            f"download it with `specchat models pull {name}`, or use a model's folder",
        )
    return snapshot


_NAMES = "use a model's folder, the name of an installed model, or `embedded`"


def _typed_folder(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            return path.absolute()
        exists = path.exists()
    except (OSError, ValueError, RuntimeError):
        return None
    if exists:
        raise ModelError(
            f"{name!r} is a file, not a model's folder", "use the folder with its config.json"
        )
    return None


# ------------------------------------------------------------------------------ verifying


@dataclass(frozen=True, slots=True)
class VerifyResult:
    """Numbers of files, and a sentence for each fault. `unknown` files have no known digest.
    `completed` is False if verifying was stopped."""

    intact: int
    unknown: int
    faults: tuple[str, ...]
    completed: bool = True


def verify(
    cache: ModelCache,
    repository: str,
    on_progress: Callable[[ByteProgress], object] = lambda progress: None,
    stopped: Callable[[], bool] = lambda: False,
) -> VerifyResult:
    """Hash every file of a model's snapshot, whichever program downloaded it, because a blob's name
    is its digest. After a fault, the next pull checks all files again. Raises ModelError if the
    model is not installed."""
    snapshot = cache.snapshot_folder(check_repository(repository))
    if snapshot is None:
        raise not_installed(repository)
    record = cache.manifest_path(repository, snapshot.name)
    manifest = read_manifest(record)
    expected = {snapshot / file.path: file.digest for file in manifest.files} if manifest else {}
    for path, blob in links(snapshot).items():
        # The name of a blob is its digest; a copied file has none.
        if path not in expected and DIGEST.fullmatch(blob.name):
            expected[path] = blob.name
    sizes = {path: path.stat().st_size for path in expected if path.is_file()}
    meter = ProgressMeter()
    meter.start(0, sum(sizes.values()))
    faults = [f"{path.name!r} is missing" for path in expected if path not in sizes]
    intact = 0

    def on_bytes(count: int) -> None:
        meter.add(count)
        on_progress(meter.read())

    for path in sizes:
        meter.note = f"checking {path.name}"
        try:
            if file_digest(path, expected[path], on_bytes, stopped) == expected[path]:
                intact += 1
            else:
                faults.append(f"{path.name!r} is damaged")
        except HashingStopped:
            return VerifyResult(intact, 0, _sentences(repository, faults), completed=False)
        except OSError as error:
            faults.append(f"{path.name!r} cannot be read ({error.strerror})")
    if faults:
        # Without a manifest, the next pull trusts no file.
        for each in record.parent.glob("*.json"):
            each.unlink(missing_ok=True)
    unknown = sum(path not in expected for path in links(snapshot))
    return VerifyResult(intact, unknown, _sentences(repository, faults))


def _sentences(repository: str, faults: list[str]) -> tuple[str, ...]:
    advice = f"`specchat models pull {repository}` downloads it again"
    return tuple(str(ModelError(fault, advice)) for fault in faults)
