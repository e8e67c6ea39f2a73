"""Saves a conversation's caches to disk, so that a later start does not read its tokens again.

One folder for each conversation: files of rows, a block of tokens each (`row_blocks.py`), a file in
mlx-lm's own format for each layer that stores no rows, and a manifest that lists them with their
checksums. A block that is in another snapshot, or in the older one, is not written again: its file
gets another name here (a hard link), so it takes its space once, until the last conversation that
holds it is deleted. Files are written and synced first, and the manifest is renamed into place
last; until then the older snapshot counts, and a cancelled save leaves nothing behind. A snapshot
that does not fit, or of which any byte is damaged, is deleted, and the tokens are read again.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import mlx.core as mx
from mlx.utils import tree_flatten

from app.engine.backend import memory
from app.engine.cache.prefill import OnStep
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.cache.row_blocks import Block, blocks_of, restore_rows
from app.engine.cache.snapshot_folder import (
    FOLDER_NAME,
    file_sizes,
    remove_snapshot,
    snapshot_folder,
)
from app.engine.cache.snapshot_manifest import (
    FILE_NAME,
    FORMAT,
    MANIFEST,
    KnownBlocks,
    SnapshotError,
    SnapshotIndex,
    beginnings,
    block_digest,
    parse,
    read_manifest,
    with_checksum,
)
from app.engine.cache.snapshot_parts import contents_of, metadata_of, parts_of, read_part, restore
from app.engine.progress import Cancelled
from app.protocol.reasons import Reason, ReasonCode
from app.util.atomic_files import sync_path
from app.util.daemon_pool import DaemonPool
from app.util.formatting import one_line
from app.util.regular_files import make_private, open_file

READ_BATCH = 8
"""Files that are read at once."""
SYNC_THREADS = 4
"""Files that are checksummed and synced at once."""


class Caches(Protocol):
    """Of one conversation."""

    @property
    def target(self) -> PrefixCache: ...

    @property
    def draft(self) -> PrefixCache | None: ...

    @property
    def nbytes(self) -> int: ...


C = TypeVar("C", bound=Caches)
Wanted = Callable[[str, PrefixCache], int]
"""How many tokens, from the first, are wanted of a model's cache."""


class Snapshots:
    """The snapshots in `folder`, at most `budget` bytes; the least recently used are deleted first.

    `identity` names what the caches depend on: with another one they are worthless.
    """

    def __init__(self, folder: Path, budget: int, identity: dict[str, str]) -> None:
        self._folder, self._budget, self._identity = folder, budget, identity
        self.index = SnapshotIndex(folder, identity)
        with suppress(OSError):
            make_private(folder)
            for conversation in folder.iterdir():
                if FOLDER_NAME.fullmatch(conversation.name):
                    _delete_unlisted(conversation)

    def save(self, conversation: str, cache: Caches) -> Generator[tuple[int, int], None, None]:
        """Writes a snapshot part by part, and yields the number of parts done and their total. If
        closed early, deletes what it wrote. Raises OSError, or RuntimeError where MLX cannot
        write."""
        folder = snapshot_folder(self._folder, conversation)
        # Readable by this user only: it holds the tokens of private documents.
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        _delete_unlisted(folder)
        generation = 1 + max((_generation(f) for f in folder.iterdir()), default=0)
        models = {name: prefix for name, prefix in _by_model(cache) if len(prefix)}
        if cache.nbytes > self._budget:
            models.pop("draft", None)  # it reads faster than the target
        parts = [part for name, prefix in models.items() for part in parts_of(name, prefix)]
        total = len(parts) + 1
        manifest: dict[str, Any] = {name: metadata_of(prefix) for name, prefix in models.items()}
        manifest |= {"format": FORMAT, "identity": self._identity}
        manifest["tokens"] = int(cache.target.cached.sum())
        manifest |= {"conversation": conversation, "beginnings": beginnings(cache.target.ids)}
        written: list[Future[dict[str, Any]]] = []
        known = self.index.blocks()
        pool = DaemonPool(SYNC_THREADS)  # they checksum and sync one while the next is written
        try:
            for part in parts:
                path = folder / f"{generation}-{part.name}.safetensors"
                if _is_gone(path, known):
                    known = self.index.blocks()  # a snapshot was deleted meanwhile
                if (entry := _linked(path, known)) is not None:
                    written.append(pool.submit(dict[str, Any], entry))
                else:
                    contents = _buffers(part.write(path))  # here: MLX's streams are a thread's own
                    written.append(pool.submit(_sync_and_describe, path, contents))
                yield len(written), total
            manifest["files"] = [file.result() for file in written]
            temporary = folder / f"{generation}-manifest.part"
            temporary.write_text(with_checksum(manifest), encoding="utf-8")
            sync_path(temporary)
            os.replace(temporary, folder / MANIFEST)
            sync_path(folder)
        finally:  # done, failed, or cancelled
            pool.close()
            _delete_unlisted(folder)
        self._enforce_budget(folder)
        yield total, total

    def load(
        self,
        conversation: str,
        fresh: Callable[[], C],
        report: Callable[[int], OnStep] = lambda total: lambda done: None,
        wanted: Wanted | None = None,
    ) -> C | None:
        """Loads a snapshot into a `fresh()` cache; None without one. Where fewer tokens are
        `wanted`, a `rewind` to them comes before any other row is loaded. `report` is called with
        the number of tokens, and what it returns with the tokens loaded so far; it may raise
        Cancelled. Raises SnapshotError for an unusable snapshot, after deleting it."""
        folder = snapshot_folder(self._folder, conversation)
        try:
            _delete_unlisted(folder)
            if not os.path.lexists(folder / MANIFEST):
                with suppress(OSError):
                    folder.rmdir()
                return None
            loaded = self._load(folder, fresh(), report, wanted)
        except Cancelled:
            raise
        except Exception as error:
            memory.reraise_device_failure(error)  # then nothing is wrong with the snapshot
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, SnapshotError):
                raise
            # Whatever a damaged file makes json, numpy or MLX raise.
            raise SnapshotError(f"it is damaged ({one_line(error)})") from error
        with suppress(OSError):  # a read-only one is as good
            os.utime(folder / MANIFEST)
        return loaded

    def save_error(self, error: Exception) -> Reason:
        """Why `save` failed."""
        system = error.strerror if isinstance(error, OSError) else None
        cause = {"error": system} if system else memory.cause_of(error)
        return Reason(ReasonCode.SNAPSHOT_FAILED, {**cause, "folder": str(self._folder)})

    def has(self, conversation: str) -> bool:
        """Whether there is a whole snapshot of it, of whatever models."""
        return (snapshot_folder(self._folder, conversation) / MANIFEST).is_file()

    def delete(self, conversation: str) -> None:
        remove_snapshot(self._folder, conversation)

    def _load(
        self, folder: Path, cache: C, report: Callable[[int], OnStep], wanted: Wanted | None
    ) -> C:
        manifest = parse(read_manifest(folder))
        if manifest["identity"] != self._identity:
            raise SnapshotError("it was made with other models")
        on_loaded = report(int(manifest["tokens"]))
        needed: dict[str, list[tuple[Block, dict[str, Any]]]] = {}
        for name, prefix in _by_model(cache):
            files = [file for file in manifest["files"] if file["name"].split("-")[1] == name]
            if not files:
                continue
            of_rows = [file for file in files if block_digest(file["name"]) is not None]
            others = [file for file in files if block_digest(file["name"]) is None]
            restore(prefix, manifest[name], _read_parts(folder, others, lambda _: on_loaded(0)))
            blocks = blocks_of(prefix)
            if [each.digest for each in blocks] != [block_digest(f["name"]) for f in of_rows]:
                raise SnapshotError("its rows are of other tokens")
            if wanted is not None:
                prefix.rewind(wanted(name, prefix))
            pairs = zip(blocks, of_rows, strict=True)
            needed[name] = [each for each in pairs if each[0].start < len(prefix)]
        files = [file for blocks in needed.values() for _, file in blocks]
        tokens = int(cache.target.cached.sum())
        on_loaded = report(tokens)
        rows = iter(_read_parts(folder, files, lambda done: on_loaded(tokens * done // len(files))))
        for name, prefix in _by_model(cache):
            if name in needed:
                restore_rows(prefix, [(block, next(rows)) for block, _ in needed[name]])
        return cache

    def _enforce_budget(self, newest: Path) -> None:
        """Delete the least recently used snapshots until the rest fits; the newest one stays."""
        used: list[tuple[int, Path, dict[tuple[int, int], int]]] = []
        for folder in self._folder.iterdir():
            if FOLDER_NAME.fullmatch(folder.name) and folder.is_dir():
                with suppress(OSError):  # another program is using it
                    manifest = folder / MANIFEST
                    changed = manifest.stat().st_mtime_ns if manifest.exists() else 0
                    used.append((changed, folder, file_sizes(folder)))
        names = Counter(file for _, _, files in used for file in files)
        total = sum({file: size for _, _, files in used for file, size in files.items()}.values())
        for _, folder, files in sorted(used, key=lambda each: each[:2]):
            if total <= self._budget:
                return
            if folder != newest:
                shutil.rmtree(folder, ignore_errors=True)
                names.subtract(files.keys())
                total -= sum(size for file, size in files.items() if not names[file])


def _read_parts(folder: Path, files: Sequence[dict[str, Any]], on_read: OnStep) -> list[Any]:
    """What is in these files, which a manifest describes. Raises SnapshotError, what MLX raises,
    and what `on_read` does."""
    paths = [folder / file["name"] for file in files]
    for path, file in zip(paths, files, strict=True):
        if not path.exists() or path.stat().st_size != file["size"]:
            raise SnapshotError("a part of it is missing")
        if _header_checksum(path) != file["header"]:
            raise SnapshotError("a part of it is damaged")
    parts, checksums = list[Any](), list[Future[int]]()
    with ThreadPoolExecutor() as pool:  # it checksums a batch while the next is read
        for start in range(0, len(paths), READ_BATCH):
            found = [read_part(path) for path in paths[start : start + READ_BATCH]]
            mx.eval([contents_of(part) for part in found])  # all at once, by MLX's own threads
            checksums += [pool.submit(_checksum, _buffers(part)) for part in found]
            parts += found
            on_read(len(parts))
        if [each.result() for each in checksums] != [file["crc32"] for file in files]:
            raise SnapshotError("a part of it is damaged")
    return parts


def _by_model(cache: Caches) -> Iterator[tuple[str, PrefixCache]]:
    yield "target", cache.target
    if cache.draft is not None:
        yield "draft", cache.draft


def _generation(path: Path) -> int:
    ours = FILE_NAME.fullmatch(path.name)
    return int(ours[1]) if ours else 0


def _delete_unlisted(folder: Path) -> None:
    """Delete those of our files that the manifest does not list: older ones, and what a cancelled
    or killed save left."""
    with suppress(OSError):
        ours = [path for path in folder.iterdir() if FILE_NAME.fullmatch(path.name)]
        complete = os.path.lexists(folder / MANIFEST)
        if complete and len({_generation(path) for path in ours}) <= 1:
            return  # reading every manifest at each start would take long
        listed = _listed_files(folder) if complete else set()
        for path in ours:
            if path.name not in listed:
                with suppress(OSError):
                    path.unlink()


def _listed_files(folder: Path) -> set[str]:
    """The files that the manifest lists; none if it is damaged. Raises OSError."""
    with suppress(ValueError, KeyError, TypeError):
        manifest = json.loads(read_manifest(folder).partition("\n")[2])
        return {str(file["name"]) for file in manifest["files"]}
    return set()


def _is_gone(path: Path, known: KnownBlocks) -> bool:
    """Whether the file that could get this name, too, is there no longer."""
    other, _ = known.get(block_digest(path.name) or "", (None, {}))
    return other is not None and not other.exists()


def _linked(path: Path, known: KnownBlocks) -> dict[str, Any] | None:
    """Give a file of rows that another snapshot has this name, too, and return the manifest's entry
    for it. None where there is none, or the disk knows no hard links."""
    other, entry = known.get(block_digest(path.name) or "", (None, {}))
    if other is None:
        return None
    try:
        os.link(other, path)
    except OSError:
        return None
    return entry | {"name": path.name}


def _sync_and_describe(path: Path, contents: list[memoryview]) -> dict[str, Any]:
    """The manifest's entry for a file that was just written, once it is synced. The disk's own
    cache is flushed once for all files, with the manifest."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    checksums = {"header": _header_checksum(path), "crc32": _checksum(contents)}
    return {"name": path.name, "size": path.stat().st_size, **checksums}


def _header_checksum(path: Path) -> int:
    """CRC-32 of what precedes the arrays in a file."""
    with open_file(path) as file:
        length = int.from_bytes(file.read(8), "little")  # of the list of arrays that follows
        file.seek(0)
        return zlib.crc32(file.read(8 + min(length, path.stat().st_size)))


def _buffers(part: Any) -> list[memoryview]:
    """The arrays of a stock cache or of Rows, where they are in memory, and the numbers beside
    them. A view of an array evaluates it."""
    named: Any = sorted(tree_flatten(contents_of(part)))
    leaves = [leaf for _, leaf in named]
    arrays = [mx.contiguous(leaf) for leaf in leaves if isinstance(leaf, mx.array)]
    others = [leaf for leaf in leaves if not isinstance(leaf, mx.array)]
    views = [memoryview(array) for array in arrays]  # type: ignore[arg-type]
    return [*views, memoryview(repr(others).encode())]


def _checksum(contents: list[memoryview]) -> int:
    """CRC-32. Finding damage is enough: whoever can write here can write the manifest, too. SHA-256
    took most of the time of a snapshot."""
    value = 0
    for part in contents:
        value = zlib.crc32(part, value)
    return value
