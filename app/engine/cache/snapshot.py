"""Saves a conversation's caches to disk, so that its tokens need not be read again after a restart.

Each conversation has a folder for each target that has read it, with files of rows (one per block
of tokens), a file in mlx-lm's format for each layer without rows, and a manifest with the checksums
of them all. A block that another snapshot already contains is hard-linked, so it takes space once,
until the last snapshot that contains it is deleted. The manifest is renamed into place after all
files are synced; until then the older snapshot is valid, and a cancelled save leaves nothing
behind. A snapshot that is damaged is deleted, and its tokens are read again.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import shutil
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten
from mlx_lm.models.cache import ArraysCache, load_prompt_cache, save_prompt_cache
from numpy.typing import NDArray

from app.engine.backend import memory
from app.engine.cache.caches import (
    PositionedCache,
    WindowedCache,
    flatten,
    row_layers,
    store_of,
    stores_rows,
)
from app.engine.cache.positions import PositionRuns
from app.engine.cache.prefill import OnStep
from app.engine.cache.prefix_cache import Checkpoint, PrefixCache
from app.engine.cache.shared_rows import positions_of, rows_of
from app.engine.cache.snapshot_folder import (
    FOLDER_NAME,
    file_sizes,
    remove_snapshot,
    snapshot_folder,
)
from app.engine.progress import TurnCancelled
from app.protocol.reasons import Reason, ReasonCode
from app.util.atomic_files import sync_path
from app.util.daemon_pool import DaemonPool
from app.util.formatting import one_line
from app.util.regular_files import NotRegular, make_private, open_file, read_text

BLOCK = 1024
"""Tokens per block. Conversations share whole blocks only."""
Rows = list[Any]
"""(keys, values) of each layer that stores rows, in the order of the tokens; () for empty ones."""


class Block(NamedTuple):
    """The tokens from `start` up to `end`. The digest covers the forward that read each of them, so
    blocks with equal digests hold equal rows and can share a file."""

    digest: str
    start: int
    end: int


def blocks_of(prefix: PrefixCache) -> list[Block]:
    """The blocks that contain cached tokens."""
    layers = [store_of(layer) for layer in row_layers(prefix.cache)]
    about = [(type(s).__name__, getattr(s, "bits", 0), getattr(s, "group_size", 0)) for s in layers]
    reads = np.where(prefix.cached, prefix.reads, 0)
    found = []
    for start in range(0, len(prefix), BLOCK) if layers else ():
        end = min(start + BLOCK, len(prefix))
        if prefix.cached[start:end].any():
            digest = hashlib.sha256(repr((about, start, end)).encode())
            digest.update(prefix.cached[start:end].tobytes() + reads[start:end].tobytes())
            found.append(Block(digest.hexdigest()[:32], start, end))
    return found


def block_rows(prefix: PrefixCache, block: Block) -> Rows:
    """The rows of a block. `prefix` must hold all of its rows."""
    found: Rows = []
    for layer in row_layers(prefix.cache):
        positions = positions_of(layer)
        entries = np.flatnonzero((positions >= block.start) & (positions < block.end))
        ordered = entries[np.argsort(positions[entries])]
        if len(ordered) == 0:
            found.append(())
        elif (np.diff(ordered) == 1).all():
            found.append(_slice(store_of(layer), int(ordered[0]), int(ordered[-1]) + 1))
        else:
            found.append(rows_of(layer, ordered))
    return found


def _slice(store: Any, start: int, end: int) -> Any:
    """The entries from `start` up to `end`; twice as fast as `rows_of`."""

    def part(array: mx.array) -> mx.array:
        return mx.contiguous(array[..., start:end, :])

    return tree_map(part, (store.keys, store.values))


def restore_rows(prefix: PrefixCache, blocks: Sequence[tuple[Block, Rows]]) -> None:
    """Put rows into the layers of `prefix`, whose positions are known and whose rows are absent.
    `blocks` cover its tokens in order; the last one may contain more. Consumes the Rows, to free
    them early. Raises ValueError if they do not match."""
    for index, layer in enumerate(row_layers(prefix.cache)):
        store, parts = store_of(layer), list[Any]()
        for block, rows in blocks:
            if index < len(rows) and rows[index]:
                wanted = int(np.count_nonzero(prefix.cached[block.start : block.end]))
                parts.append(_first(rows[index], wanted, exactly=block.end <= len(prefix)))
                rows[index] = ()
        if not parts:
            if store.offset:
                raise ValueError(f"no rows of {store.offset} tokens")
            continue
        joined: Any = tree_map(lambda *each: mx.concatenate(list(each), axis=2), *parts)
        named: Any = tree_flatten(joined)
        store.keys, store.values = joined
        if (count := int(named[0][1].shape[2])) != len(positions_of(layer)):
            raise ValueError(f"{count} rows of {len(positions_of(layer))} tokens")
        if isinstance(layer, PositionedCache) and not layer.positions.ascending:
            places = np.argsort(np.argsort(layer.positions.array()))
            store.keys, store.values = rows_of(layer, places)
        mx.eval(store.keys, store.values)
    prefix.absent = np.zeros(len(prefix), bool)


def _first(rows: Any, count: int, exactly: bool) -> Any:
    """The rows of the first `count` tokens. Raises ValueError if there are fewer, or, with
    `exactly`, more."""

    def part(array: mx.array) -> mx.array:
        if array.shape[2] < count or (exactly and array.shape[2] > count):
            raise ValueError(f"{array.shape[2]} rows of {count} tokens")
        return array[..., :count, :]

    return tree_map(part, rows)


FORMAT = 10
MANIFEST = "manifest.json"
BEGINNING_STEP = 256
"""Tokens between two digests in `beginnings`."""


FILE_NAME = re.compile(
    r"([0-9]{1,18})-(?:(?:target|draft)-(?:[0-9]+|rows-([0-9a-f]{32}))\.safetensors|manifest\.part)"
)
"""Names of a snapshot's files other than the manifest. The number counts the saves."""


KnownBlocks = dict[str, tuple[Path, dict[str, Any]]]
"""By block digest: the file of rows and its entry in a manifest."""


# ----------------------------------------------------------------------------- the manifest


class SnapshotError(ValueError):
    """Why a snapshot cannot be used; a clause."""


class OtherModels(SnapshotError):
    """There are only snapshots of other targets."""


def with_checksum(manifest: dict[str, Any]) -> str:
    """The text of a manifest file: a line with its checksum, then the JSON."""
    text = json.dumps(manifest, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest() + "\n" + text


def parse(written: str) -> dict[str, Any]:
    """Parse the text of a manifest file. Raises SnapshotError, or what json raises."""
    checksum, _, text = written.partition("\n")
    if hashlib.sha256(text.encode()).hexdigest() != checksum:
        raise SnapshotError("its list of contents is damaged")
    manifest: dict[str, Any] = json.loads(text)
    if manifest["format"] != FORMAT:
        raise SnapshotError("another version of specchat wrote it")
    return manifest


def read_manifest(folder: Path) -> str:
    """Raises OSError, UnicodeDecodeError, or SnapshotError if it is not a regular file."""
    try:
        return read_text(folder / MANIFEST)
    except NotRegular:
        raise SnapshotError("its list of contents is not a file") from None


def block_digest(name: str) -> str | None:
    """The block digest in the name of a file of rows; None for other files."""
    ours = FILE_NAME.fullmatch(name)
    return ours[2] if ours else None


def beginnings(ids: NDArray[np.int32]) -> list[str]:
    """Digests of the first 256 tokens, the first 512, and so on, to find snapshots with a common
    prefix."""
    digest, found = hashlib.sha256(), []
    for end in range(BEGINNING_STEP, len(ids) + 1, BEGINNING_STEP):
        digest.update(ids[end - BEGINNING_STEP : end].tobytes())
        found.append(digest.hexdigest()[:16])
    return found


def shared_beginning(one: Sequence[str], other: Sequence[str]) -> int:
    """Minimum length of the common prefix of two conversations with these `beginnings`, in
    tokens."""
    same = takewhile(lambda each: each[0] == each[1], zip(one, other, strict=False))
    return BEGINNING_STEP * sum(1 for _ in same)


class _Known(NamedTuple):
    """The parts of a manifest that are used for searching."""

    conversation: str
    beginnings: list[str]
    dense_prefix_len: int
    files: list[dict[str, Any]]


class SnapshotIndex:
    """Finds prefixes and blocks in the snapshots in `folder` that belong to the same target."""

    def __init__(self, folder: Path, identity: dict[str, str]) -> None:
        self._folder, self._identity = folder, identity
        self._manifests: dict[Path, tuple[int, _Known | None]] = {}
        """By folder: the manifest's modification time (ns) and contents; None for snapshots that
        are damaged."""

    def find_longest(self, ids: NDArray[np.int32], dense: bool) -> tuple[str, int]:
        """The conversation whose snapshot has the longest common prefix with `ids`, and its length
        in tokens, if `dense` without gaps; ("", 0) if there is none."""
        wanted, best = beginnings(ids), ("", 0)
        for _, known in self._all():
            length = shared_beginning(wanted, known.beginnings)
            length = min(length, known.dense_prefix_len) if dense else length
            best = max(best, (known.conversation, length), key=lambda each: each[1])
        return best

    def blocks(self) -> KnownBlocks:
        return {
            digest: (folder / file["name"], file)
            for folder, known in self._all()
            for file in known.files
            if (digest := block_digest(file["name"])) is not None
        }

    def _all(self) -> Iterator[tuple[Path, _Known]]:
        for conversation in _entries(self._folder):
            folder = conversation / _target_name(self._identity)
            with suppress(OSError):  # no snapshot, or deleted meanwhile
                changed = (folder / MANIFEST).stat().st_mtime_ns
                if self._manifests.get(folder, (None, None))[0] != changed:
                    self._manifests[folder] = changed, self._read(folder)
                if (known := self._manifests[folder][1]) is not None:
                    yield folder, known

    def _read(self, folder: Path) -> _Known | None:
        """The manifest in `folder`; None if it is damaged (`load` handles that)."""
        with suppress(Exception):
            manifest = parse(read_manifest(folder))
            dense = manifest["target"]["dense_prefix_len"]
            found = manifest["conversation"], manifest["beginnings"], dense, manifest["files"]
            return _Known(*found)
        return None


# ----------------------------------------------------------------------- files of one model


def metadata_of(prefix: PrefixCache) -> dict[str, Any]:
    """The manifest's entry for one model's cache: everything but the arrays."""
    return {
        "dense_prefix_len": prefix.dense_prefix_len,
        "layers": [_layer_metadata(c) for c in flatten(prefix.cache)],
        "checkpoints": [
            {
                "position": checkpoint.position,
                "lasting": checkpoint.lasting,
                "states": {str(i): _layer_metadata(c) for i, c in checkpoint.states.items()},
            }
            for checkpoint in _saved_checkpoints(prefix)
        ],
    }


def _saved_checkpoints(prefix: PrefixCache) -> list[Checkpoint]:
    """The lasting checkpoints and the last one. Every save writes their states."""
    points = prefix.checkpoints
    return [point for point in points if point.lasting or point is points[-1]]


def _layer_metadata(cache: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"kind": type(cache).__name__}
    if stores_rows(cache):
        metadata["entries"] = store_of(cache).offset
    if isinstance(cache, PositionedCache):
        metadata["runs"] = cache.positions.runs
    if isinstance(cache, WindowedCache):
        metadata |= {"retain_all": cache.retain_all, "evicted_below": cache.evicted_below}
    return metadata


class SnapshotPart(NamedTuple):
    """A file of a snapshot: its name without number and extension, and a function that writes it
    to a path and returns the contents."""

    name: str
    write: Callable[[Path], Any]


def parts_of(model: str, prefix: PrefixCache) -> Iterator[SnapshotPart]:
    """The files of one model's cache: layers without rows (see below), then blocks of rows."""
    for index, layer in enumerate(_layers_without_rows(prefix)):
        yield SnapshotPart(f"{model}-{index}", partial(_write_layer, layer))
    for block in blocks_of(prefix):
        yield SnapshotPart(f"{model}-rows-{block.digest}", partial(_write_rows, prefix, block))


def _layers_without_rows(prefix: PrefixCache) -> Iterator[Any]:
    """Stock caches of the token ids, of the layers without rows, and of the checkpoints."""
    tokens = ArraysCache(3)
    tokens[0], tokens[1] = mx.array(prefix.ids), mx.array(prefix.cached.astype(np.uint8))
    tokens[2] = mx.array(prefix.reads)
    yield tokens
    layers = [cache for cache in flatten(prefix.cache) if not stores_rows(cache)]
    copies = [cache for point in _saved_checkpoints(prefix) for cache in point.states.values()]
    for cache in [*layers, *copies]:
        yield cache.inner if isinstance(cache, PositionedCache) else cache


def _write_layer(layer: Any, path: Path) -> Any:
    save_prompt_cache(str(path), [layer])
    return layer


def _write_rows(prefix: PrefixCache, block: Block, path: Path) -> Any:
    rows = block_rows(prefix, block)
    named: Any = tree_flatten(rows)
    mx.save_safetensors(str(path), dict(named))
    return rows


def read_part(path: Path) -> Any:
    """Read a file lazily: a stock cache, or the Rows of a block."""
    if block_digest(path.name) is None:
        return load_prompt_cache(str(path))[0]
    arrays: Any = mx.load(str(path))
    return tree_unflatten(list(arrays.items()))


def restore(prefix: PrefixCache, metadata: dict[str, Any], stored: list[Any]) -> None:
    """Fill an empty `prefix`, with all rows absent. Raises SnapshotError if metadata and caches do
    not match."""
    tokens, *rest = stored
    inner, layers = iter(rest), flatten(prefix.cache)
    positions: dict[object, PositionRuns] = {}
    for cache, about in zip(layers, metadata["layers"], strict=True):
        _restore_layer(cache, about, inner, positions)
    prefix.ids = np.array(tokens[0], dtype=np.int32)
    prefix.cached = np.array(tokens[1]).astype(bool)
    prefix.absent = prefix.cached.copy()
    prefix.reads = np.array(tokens[2])
    prefix.dense_prefix_len = int(metadata["dense_prefix_len"])
    for checkpoint in metadata["checkpoints"]:
        states = {int(index): _empty_like(layers[int(index)]) for index in checkpoint["states"]}
        for state, about in zip(states.values(), checkpoint["states"].values(), strict=True):
            _restore_layer(state, about, inner, positions)
        position, lasting = int(checkpoint["position"]), bool(checkpoint["lasting"])
        prefix.checkpoints.append(Checkpoint(position, states, lasting))
    prefix.record_states()


def _empty_like(cache: Any) -> Any:
    if isinstance(cache, WindowedCache):
        return WindowedCache(cache.window)
    if isinstance(cache, PositionedCache):
        return PositionedCache()
    return copy.copy(cache)


def _restore_layer(
    cache: Any,
    metadata: dict[str, Any],
    stored: Iterator[Any],
    positions: dict[object, PositionRuns],
) -> None:
    """Restore a layer, from the next item of `stored` unless it stores rows. `positions` collects
    the positions of all layers, so that layers with equal ones share an object."""
    if type(cache).__name__ != metadata["kind"]:
        raise SnapshotError("its layers are of other kinds")
    if stores_rows(cache):
        store_of(cache).offset = int(metadata["entries"])
    else:
        store = cache.inner if isinstance(cache, PositionedCache) else cache
        store.__dict__.update(next(stored).__dict__)
    if not isinstance(cache, PositionedCache):
        return
    runs = tuple((start, end) for start, end in metadata["runs"])
    cache.positions = positions.setdefault(runs, PositionRuns(runs))
    if isinstance(cache, WindowedCache):
        cache.retain_all = bool(metadata["retain_all"])
        cache.evicted_below = int(metadata["evicted_below"])


def contents_of(part: Any) -> Any:
    """The arrays and numbers of a stock cache or of Rows."""
    return part if isinstance(part, list) else part.state


READ_BATCH = 8
"""Files that are read in parallel."""
SYNC_THREADS = 4
"""Files that are checksummed and synced in parallel."""


# ----------------------------------------------------------------------- saving and loading


class Caches(Protocol):
    """The caches of one conversation, as `ConversationCache` has them."""

    @property
    def target(self) -> PrefixCache: ...

    @property
    def draft(self) -> PrefixCache | None: ...

    @property
    def nbytes(self) -> int: ...


C = TypeVar("C", bound=Caches)
Wanted = Callable[[str, PrefixCache], int]
"""(model's name, its cache) -> number of leading tokens to load."""


class Snapshots:
    """The snapshots in `folder`, at most `budget` bytes; the least recently used are deleted first.

    `identity` has the models' fingerprints. Snapshots of another target are kept for it; of those
    made with another draft only the target's part is used.
    """

    def __init__(self, folder: Path, budget: int, identity: dict[str, str]) -> None:
        self._folder, self._budget, self._identity = folder, budget, identity
        self.index = SnapshotIndex(folder, identity)
        with suppress(OSError):
            make_private(folder)
            for each in _model_folders(folder):
                _delete_unlisted(each)

    def save(self, conversation: str, cache: Caches) -> Generator[tuple[int, int], None, None]:
        """Write a snapshot file by file; yields (files done, total). If closed early, deletes what
        it wrote. Raises OSError, or RuntimeError from MLX."""
        folder = self.folder_of(conversation)
        # Readable by this user only: it holds the tokens of private documents.
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        _delete_unlisted(folder)
        generation = 1 + max((_generation(f) for f in folder.iterdir()), default=0)
        models = {name: prefix for name, prefix in _by_model(cache) if len(prefix)}
        if cache.nbytes > self._budget:
            models.pop("draft", None)  # the draft re-reads faster than the target
        parts = [part for name, prefix in models.items() for part in parts_of(name, prefix)]
        total = len(parts) + 1
        manifest: dict[str, Any] = {name: metadata_of(prefix) for name, prefix in models.items()}
        manifest |= {"format": FORMAT, "identity": self._identity}
        manifest["tokens"] = int(cache.target.cached.sum())
        manifest |= {"conversation": conversation, "beginnings": beginnings(cache.target.ids)}
        written: list[Future[dict[str, Any]]] = []
        known = self.index.blocks()
        pool = DaemonPool(SYNC_THREADS)  # checksums and syncs a file while the next is written
        try:
            for part in parts:
                path = folder / f"{generation}-{part.name}.safetensors"
                if _is_gone(path, known):
                    known = self.index.blocks()  # a snapshot was deleted meanwhile
                if (entry := _linked(path, known)) is not None:
                    written.append(pool.submit(dict[str, Any], entry))
                else:
                    contents = _buffers(part.write(path))  # on this thread: streams are per thread
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
        """Load a snapshot into a `fresh()` cache; None if there is none. With `wanted`, the cache
        is first rewound to that many tokens, and no other rows are loaded. `report(total)` returns
        a callback for the tokens loaded so far, which may raise TurnCancelled. Deletes a damaged
        snapshot and raises SnapshotError, also if there are only snapshots of other targets."""
        folder = self.folder_of(conversation)
        try:
            _delete_unlisted(folder)
            if not os.path.lexists(folder / MANIFEST):
                with suppress(OSError):
                    folder.rmdir()
                    folder.parent.rmdir()
                if any((each / MANIFEST).exists() for each in _entries(folder.parent)):
                    raise OtherModels("it was made with other models or other versions")
                return None
            loaded = self._load(folder, fresh(), report, wanted)
        except (TurnCancelled, OtherModels):
            raise
        except Exception as error:
            memory.reraise_device_failure(error)  # the snapshot itself is good then
            _remove(folder)
            if isinstance(error, SnapshotError):
                raise
            # A damaged file can make json, numpy or MLX raise anything.
            raise SnapshotError(f"it is damaged ({one_line(error)})") from error
        with suppress(OSError):  # the folder may be read-only
            os.utime(folder / MANIFEST)
        return loaded

    def save_error(self, error: Exception) -> Reason:
        """The reason to report for an error that `save` raised."""
        system = error.strerror if isinstance(error, OSError) else None
        cause = {"error": system} if system else memory.cause_of(error)
        return Reason(ReasonCode.SNAPSHOT_FAILED, {**cause, "folder": str(self._folder)})

    def has(self, conversation: str) -> bool:
        """Whether there is a complete snapshot of this target."""
        return (self.folder_of(conversation) / MANIFEST).is_file()

    def delete(self, conversation: str) -> None:
        """Delete a conversation's snapshots, those of other targets, too."""
        remove_snapshot(self._folder, conversation)

    def discard(self, conversation: str) -> None:
        """Delete a conversation's snapshot of this target."""
        _remove(self.folder_of(conversation))

    def folder_of(self, conversation: str) -> Path:
        """The folder of a conversation's snapshot of this target."""
        return snapshot_folder(self._folder, conversation) / _target_name(self._identity)

    def _load(
        self, folder: Path, cache: C, report: Callable[[int], OnStep], wanted: Wanted | None
    ) -> C:
        manifest = parse(read_manifest(folder))
        identity = manifest["identity"]
        on_loaded = report(int(manifest["tokens"]))
        needed: dict[str, list[tuple[Block, dict[str, Any]]]] = {}
        for name, prefix in _by_model(cache):
            files = [file for file in manifest["files"] if file["name"].split("-")[1] == name]
            if not files or identity.get(name) != self._identity.get(name):
                continue
            row_files = [file for file in files if block_digest(file["name"]) is not None]
            others = [file for file in files if block_digest(file["name"]) is None]
            restore(prefix, manifest[name], _read_parts(folder, others, lambda _: on_loaded(0)))
            blocks = blocks_of(prefix)
            if [each.digest for each in blocks] != [block_digest(f["name"]) for f in row_files]:
                raise SnapshotError("its rows are of other tokens")
            if wanted is not None:
                prefix.rewind(wanted(name, prefix))
            pairs = zip(blocks, row_files, strict=True)
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
        """Delete the least recently used snapshots until the rest fits; `newest` always stays."""
        used: list[tuple[int, Path, dict[tuple[int, int], int]]] = []
        for folder in _model_folders(self._folder):
            with suppress(OSError):  # another process may delete it
                manifest = folder / MANIFEST
                changed = manifest.stat().st_mtime_ns if manifest.exists() else 0
                used.append((changed, folder, file_sizes(folder)))
        names = Counter(file for _, _, files in used for file in files)
        total = sum({file: size for _, _, files in used for file, size in files.items()}.values())
        for _, folder, files in sorted(used, key=lambda each: each[:2]):
            if total <= self._budget:
                return
            if folder != newest:
                _remove(folder)
                names.subtract(files.keys())
                total -= sum(size for file, size in files.items() if not names[file])


def _target_name(identity: dict[str, str]) -> str:
    return hashlib.sha256(identity["target"].encode()).hexdigest()[:32]


def _model_folders(snapshots: Path) -> Iterator[Path]:
    """The folders of all snapshots in `snapshots`."""
    for conversation in _entries(snapshots):
        yield from (each for each in _entries(conversation) if each.is_dir())


def _remove(folder: Path) -> None:
    """Remove a snapshot's folder, and that of its conversation if it is empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()


def _entries(folder: Path) -> list[Path]:
    """The entries of a folder with the names of our folders."""
    with suppress(OSError):
        return [each for each in folder.iterdir() if FOLDER_NAME.fullmatch(each.name)]
    return []


def _read_parts(folder: Path, files: Sequence[dict[str, Any]], on_read: OnStep) -> list[Any]:
    """Read and verify these files, given as entries of a manifest. Raises SnapshotError, what MLX
    raises, and what `on_read` raises."""
    paths = [folder / file["name"] for file in files]
    for path, file in zip(paths, files, strict=True):
        if not path.exists() or path.stat().st_size != file["size"]:
            raise SnapshotError("a part of it is missing")
        if _header_checksum(path) != file["header"]:
            raise SnapshotError("a part of it is damaged")
    parts, checksums = list[Any](), list[Future[int]]()
    with ThreadPoolExecutor() as pool:  # checksums a batch while the next is read
        for start in range(0, len(paths), READ_BATCH):
            found = [read_part(path) for path in paths[start : start + READ_BATCH]]
            mx.eval([contents_of(part) for part in found])  # MLX reads them in parallel
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
    """Delete our files that the manifest does not list: those of earlier, cancelled or killed
    saves."""
    with suppress(OSError):
        ours = [path for path in folder.iterdir() if FILE_NAME.fullmatch(path.name)]
        complete = os.path.lexists(folder / MANIFEST)
        if complete and len({_generation(path) for path in ours}) <= 1:
            return  # parsing every manifest at each start would be slow
        listed = _listed_files(folder) if complete else set()
        for path in ours:
            if path.name not in listed:
                with suppress(OSError):
                    path.unlink()


def _listed_files(folder: Path) -> set[str]:
    """The file names in the manifest; none if it is damaged. Raises OSError."""
    with suppress(ValueError, KeyError, TypeError):
        manifest = json.loads(read_manifest(folder).partition("\n")[2])
        return {str(file["name"]) for file in manifest["files"]}
    return set()


def _is_gone(path: Path, known: KnownBlocks) -> bool:
    """Whether the known file with the same block was deleted meanwhile."""
    other, _ = known.get(block_digest(path.name) or "", (None, {}))
    return other is not None and not other.exists()


def _linked(path: Path, known: KnownBlocks) -> dict[str, Any] | None:
    """Hard-link `path` to the known file with the same block and return its manifest entry. None
    if there is none or the file system has no hard links."""
    other, entry = known.get(block_digest(path.name) or "", (None, {}))
    if other is None:
        return None
    try:
        os.link(other, path)
    except OSError:
        return None
    return entry | {"name": path.name}


def _sync_and_describe(path: Path, contents: list[memoryview]) -> dict[str, Any]:
    """Sync a file that was just written and return its manifest entry. The drive's cache is flushed
    once for all files, with the manifest."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    checksums = {"header": _header_checksum(path), "crc32": _checksum(contents)}
    return {"name": path.name, "size": path.stat().st_size, **checksums}


def _header_checksum(path: Path) -> int:
    """CRC-32 of the header of a safetensors file, which precedes the arrays."""
    with open_file(path) as file:
        length = int.from_bytes(file.read(8), "little")
        file.seek(0)
        return zlib.crc32(file.read(8 + min(length, path.stat().st_size)))


def _buffers(part: Any) -> list[memoryview]:
    """Views of the arrays of a stock cache or of Rows, then the repr of its numbers. Taking a view
    evaluates the array."""
    named: Any = sorted(tree_flatten(contents_of(part)))
    leaves = [leaf for _, leaf in named]
    arrays = [mx.contiguous(leaf) for leaf in leaves if isinstance(leaf, mx.array)]
    others = [leaf for leaf in leaves if not isinstance(leaf, mx.array)]
    views = [memoryview(array) for array in arrays]  # type: ignore[arg-type]
    return [*views, memoryview(repr(others).encode())]


def _checksum(contents: list[memoryview]) -> int:
    """CRC-32 of the buffers. It only has to detect damage: whoever can change a file can change the
    manifest too. SHA-256 took most of the time of a save."""
    value = 0
    for part in contents:
        value = zlib.crc32(part, value)
    return value
