"""Saves a conversation's caches to disk, so that a later start does not read its tokens again.

One folder for each conversation: a file for each layer, in mlx-lm's own format, and a manifest that
lists them with their checksums. Files are written and synced first, and the manifest is renamed
into place last; until then the older snapshot counts, and a cancelled save leaves nothing behind. A
snapshot that does not fit, or of which any byte is damaged, is deleted, and the tokens are read
again.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import ArraysCache, load_prompt_cache, save_prompt_cache

from app.engine import memory
from app.engine.caches import PositionedCache, WindowedCache, flatten
from app.engine.conversation_cache import ConversationCache
from app.engine.positions import PositionRuns
from app.engine.prefill import OnStep
from app.engine.prefix_cache import Checkpoint, PrefixCache
from app.engine.progress import Cancelled
from app.engine.snapshot_folder import FOLDER_NAME, remove_snapshot, snapshot_folder
from app.engine.snapshot_manifest import (
    MANIFEST,
    SnapshotError,
    SnapshotIndex,
    beginnings,
    parse,
    read_manifest,
    with_checksum,
)
from app.util.daemon_pool import DaemonPool
from app.util.durable import sync_path

FORMAT = 7
OLD_FORMATS = (5, 6)
"""Which are still read."""
FILE_NAME = re.compile(r"([0-9]{1,18})-(?:(?:target|draft)-[0-9]+\.safetensors|manifest\.part)")
"""Names of a snapshot's other files. The number tells one save from the next."""
READ_BATCH = 8
"""Files that are read at once."""
SYNC_THREADS = 4
"""Files that are checksummed and synced at once."""


class Snapshots:
    """The snapshots in `folder`, at most `budget` bytes; the least recently used are deleted first.

    `identity` names what the caches depend on: with another one they are worthless.
    """

    def __init__(self, folder: Path, budget: int, identity: dict[str, str]) -> None:
        self._folder, self._budget, self._identity = folder, budget, identity
        self.index = SnapshotIndex(folder, identity)
        with suppress(OSError):
            for conversation in folder.iterdir():
                if FOLDER_NAME.fullmatch(conversation.name):
                    _delete_unlisted(conversation)

    def save(
        self, conversation: str, cache: ConversationCache
    ) -> Generator[tuple[int, int], None, None]:
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
        layers = [(m, i, c) for m, prefix in models.items() for i, c in enumerate(_stored(prefix))]
        total = len(layers) + 1
        manifest: dict[str, Any] = {name: _metadata(prefix) for name, prefix in models.items()}
        manifest |= {"format": FORMAT, "identity": self._identity}
        manifest["tokens"] = int(cache.target.cached.sum())
        manifest |= {"conversation": conversation, "beginnings": beginnings(cache.target.ids)}
        written: list[Future[dict[str, Any]]] = []
        pool = DaemonPool(SYNC_THREADS)  # they checksum and sync one while the next is written
        try:
            for name, index, layer in layers:
                path = folder / f"{generation}-{name}-{index}.safetensors"
                save_prompt_cache(str(path), [layer])
                written.append(pool.submit(_sync_and_describe, path, _buffers(layer)))
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
        fresh: Callable[[], ConversationCache],
        report: Callable[[int], OnStep] = lambda total: lambda done: None,
    ) -> ConversationCache | None:
        """Loads a snapshot into a `fresh()` cache; None without one. `report` is called with the
        number of tokens, and what it returns with the tokens loaded so far; it may raise Cancelled.
        Raises SnapshotError for an unusable snapshot, after deleting it."""
        folder = snapshot_folder(self._folder, conversation)
        try:
            _delete_unlisted(folder)
            if not os.path.lexists(folder / MANIFEST):
                with suppress(OSError):
                    folder.rmdir()
                return None
            loaded = self._load(folder, fresh(), report)
        except Cancelled:
            raise
        except Exception as error:
            memory.reraise_oom(error)  # then nothing is wrong with the snapshot
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, SnapshotError):
                raise
            # Whatever a damaged file makes json, numpy or MLX raise.
            raise SnapshotError(f"it is damaged ({memory.describe_error(error)})") from error
        with suppress(OSError):  # a read-only one is as good
            os.utime(folder / MANIFEST)
        return loaded

    def save_error(self, error: Exception) -> str:
        """One sentence for what `save` raised."""
        if memory.is_oom(error):
            return "Saving the cache failed: memory ran out. A later start reads the tokens again."
        system = error.strerror if isinstance(error, OSError) else None
        why = system or memory.describe_error(error)
        return (
            f"Saving the cache failed ({why}), so a later start reads the tokens again: check that"
            f" '{self._folder}' is writable and has free space."
        )

    def delete(self, conversation: str) -> None:
        remove_snapshot(self._folder, conversation)

    def _load(
        self, folder: Path, cache: ConversationCache, report: Callable[[int], OnStep]
    ) -> ConversationCache:
        manifest = parse(read_manifest(folder))
        if manifest["format"] not in (*OLD_FORMATS, FORMAT):
            raise SnapshotError("another version of specchat wrote it")
        if manifest["identity"] != self._identity:
            raise SnapshotError("it was made with other models")
        files = manifest["files"]
        paths = [folder / file["name"] for file in files]
        for path, file in zip(paths, files, strict=True):
            if not path.exists() or path.stat().st_size != file["size"]:
                raise SnapshotError("a part of it is missing")
            if _header_checksum(path) != file["header"]:
                raise SnapshotError("a part of it is damaged")
        models, tokens = dict(_by_model(cache)), int(manifest["tokens"])
        stored: dict[str, list[Any]] = {name: [] for name in models}
        on_loaded, checksums = report(tokens), list[Future[int]]()
        with ThreadPoolExecutor() as pool:  # it checksums a batch while the next is read
            for start in range(0, len(paths), READ_BATCH):
                batch = paths[start : start + READ_BATCH]
                layers = [load_prompt_cache(str(path))[0] for path in batch]
                mx.eval([layer.state for layer in layers])  # all at once, by MLX's own threads
                checksums += [pool.submit(_checksum, _buffers(layer)) for layer in layers]
                for path, layer in zip(batch, layers, strict=True):
                    stored[path.name.split("-")[1]].append(layer)
                on_loaded(tokens * len(checksums) // len(paths))
            if [each.result() for each in checksums] != [file["crc32"] for file in files]:
                raise SnapshotError("a part of it is damaged")
        for name, layers in stored.items():
            if layers:
                _restore(models[name], manifest[name], layers)
        return cache

    def _enforce_budget(self, newest: Path) -> None:
        """Delete the least recently used snapshots until the rest fits; the newest one stays."""
        used = []
        for folder in self._folder.iterdir():
            if not FOLDER_NAME.fullmatch(folder.name):
                continue
            with suppress(OSError):  # not a folder, or another program is using it
                manifest = folder / MANIFEST
                size = sum(f.lstat().st_size for f in folder.iterdir())
                used.append((manifest.stat().st_mtime_ns if manifest.exists() else 0, size, folder))
        total = sum(size for _, size, _ in used)
        for _, size, folder in sorted(used):
            if total <= self._budget:
                return
            if folder != newest:
                shutil.rmtree(folder, ignore_errors=True)
                total -= size


# ------------------------------------------------------------------------------ the caches


def _by_model(cache: ConversationCache) -> Iterator[tuple[str, PrefixCache]]:
    yield "target", cache.target
    if cache.draft is not None:
        yield "draft", cache.draft


def _metadata(prefix: PrefixCache) -> dict[str, Any]:
    """What the manifest says about one model's caches, other than their arrays."""
    return {
        "dense_prefix_len": prefix.dense_prefix_len,
        "num_layers": prefix.num_layers,
        "layers": [_layer_metadata(c) for c in flatten(prefix.cache)],
        "checkpoints": [
            {
                "position": checkpoint.position,
                "states": {str(i): _layer_metadata(c) for i, c in checkpoint.states.items()},
            }
            for checkpoint in prefix.checkpoints
        ],
    }


def _layer_metadata(cache: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"kind": type(cache).__name__}
    if isinstance(cache, PositionedCache):
        metadata["runs"] = cache.positions.runs
    if isinstance(cache, WindowedCache):
        metadata |= {"retain_all": cache.retain_all, "evicted_below": cache.evicted_below}
    return metadata


def _stored(prefix: PrefixCache) -> Iterator[Any]:
    """Stock caches: the tokens, the layers, then the checkpoints' layers."""
    tokens = ArraysCache(3)
    tokens[0], tokens[1] = mx.array(prefix.ids), mx.array(prefix.cached.astype(np.uint8))
    tokens[2] = mx.array(prefix.reads)
    yield tokens
    copies = [cache for point in prefix.checkpoints for cache in point.states.values()]
    for cache in [*flatten(prefix.cache), *copies]:
        yield cache.inner if isinstance(cache, PositionedCache) else cache


def _restore(prefix: PrefixCache, metadata: dict[str, Any], stored: list[Any]) -> None:
    """Fills an empty `prefix`. Raises SnapshotError when metadata and caches do not agree."""
    tokens, *rest = stored
    inner, layers = iter(rest), flatten(prefix.cache)
    positions: dict[object, PositionRuns] = {}
    for cache, about in zip(layers, metadata["layers"], strict=True):
        _restore_layer(cache, about, next(inner), positions)
    prefix.ids = np.array(tokens[0], dtype=np.int32)
    prefix.cached = np.array(tokens[1]).astype(bool)
    prefix.absent = np.zeros(len(prefix.ids), bool)
    known = tokens[2] if len(tokens.cache) > 2 else None  # not in older formats
    prefix.reads = np.array(known) if known is not None else prefix.new_reads()
    prefix.dense_prefix_len = int(metadata["dense_prefix_len"])
    prefix.num_layers = metadata.get("num_layers")
    for checkpoint in metadata["checkpoints"]:
        states = {int(index): _empty_like(layers[int(index)]) for index in checkpoint["states"]}
        for state, about in zip(states.values(), checkpoint["states"].values(), strict=True):
            _restore_layer(state, about, next(inner), positions)
        prefix.checkpoints.append(Checkpoint(int(checkpoint["position"]), states))
    prefix.record_states()


def _empty_like(cache: Any) -> Any:
    """An empty cache of the same kind."""
    if isinstance(cache, WindowedCache):
        return WindowedCache(cache.window)
    if isinstance(cache, PositionedCache):
        return PositionedCache()
    return copy.copy(cache)


def _restore_layer(
    cache: Any, metadata: dict[str, Any], stored: Any, positions: dict[object, PositionRuns]
) -> None:
    """`positions` are those of earlier layers: layers with equal ones share one object."""
    if type(cache).__name__ != metadata["kind"]:
        raise SnapshotError("its layers are of other kinds")
    if not isinstance(cache, PositionedCache):
        cache.__dict__.update(stored.__dict__)
        return
    cache.inner = stored
    runs = tuple((start, end) for start, end in metadata["runs"])
    cache.positions = positions.setdefault(runs, PositionRuns(runs))
    if isinstance(cache, WindowedCache):
        cache.retain_all = bool(metadata["retain_all"])
        cache.evicted_below = int(metadata["evicted_below"])


# ------------------------------------------------------------------------------ the files


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
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")  # of the list of arrays that follows
        file.seek(0)
        return zlib.crc32(file.read(8 + min(length, path.stat().st_size)))


def _buffers(cache: Any) -> list[memoryview]:
    """A stock cache's arrays, where they are in memory, and the numbers beside them. A view of an
    array evaluates it."""
    named: Any = tree_flatten(cache.state)
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
