"""A conversation's caches on disk, so that a later start need not read again.

One folder for each conversation: a file for each layer, in mlx-lm's own format, and a manifest that
names them with their checksums. Files are written aside and synced, the manifest is renamed into
place last; until then the older snapshot is the one that counts, and a save that is given up leaves
nothing. A snapshot that does not fit, or cannot be trusted in every byte, is thrown away, and the
tokens are read again.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import shutil
import stat
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
from app.util.daemon_pool import DaemonPool
from app.util.durable import sync_path

FORMAT = 5
MANIFEST = "manifest.json"
FILE_NAME = re.compile(r"([0-9]{1,18})-(?:(?:target|draft)-[0-9]+\.safetensors|manifest\.part)")
"""Names of a snapshot's other files. The number tells one save from the next."""
READ_BATCH = 8
"""Files that are read at once."""
SYNC_THREADS = 4
"""Files that are summed and synced at once."""


class SnapshotError(ValueError):
    """Why a snapshot cannot be used; a clause."""


class Snapshots:
    """The snapshots in `folder`, at most `budget` bytes of them; the least recently used go first.

    `identity` names what the caches depend on: another one makes them worthless.
    """

    def __init__(self, folder: Path, budget: int, identity: dict[str, str]) -> None:
        self._folder, self._budget, self._identity = folder, budget, identity
        with suppress(OSError):
            for conversation in folder.iterdir():
                if FOLDER_NAME.fullmatch(conversation.name):
                    _delete_unlisted(conversation)

    def save(
        self, conversation: str, remembered: ConversationCache
    ) -> Generator[tuple[int, int], None, None]:
        """Writes a snapshot; stops after every part of it, and says how many of how many are done.
        Closed before the end, it deletes what it has written. Raises OSError, or RuntimeError where
        MLX cannot write."""
        folder = snapshot_folder(self._folder, conversation)
        # For this user alone: the tokens of private documents lie in it.
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        _delete_unlisted(folder)
        generation = 1 + max((_generation(f) for f in folder.iterdir()), default=0)
        parts = {part: held for part, held in _prefix_caches(remembered) if len(held)}
        if remembered.nbytes > self._budget:
            parts.pop("draft", None)  # it reads everything again sooner than the target
        caches = [
            (p, i, c) for p, held in parts.items() for i, c in enumerate(_caches_to_store(held))
        ]
        total = len(caches) + 1
        manifest: dict[str, Any] = {part: _metadata(held) for part, held in parts.items()}
        manifest |= {"format": FORMAT, "identity": self._identity}
        manifest["tokens"] = int(remembered.target.cached.sum())
        written: list[Future[dict[str, Any]]] = []
        pool = DaemonPool(SYNC_THREADS)  # one is summed and synced while the next is written
        try:
            for part, index, cache in caches:
                path = folder / f"{generation}-{part}-{index}.safetensors"
                save_prompt_cache(str(path), [cache])
                written.append(pool.submit(_sync_and_describe, path, _buffers(cache)))
                yield len(written), total
            manifest["files"] = [file.result() for file in written]
            _write_durably(
                folder / f"{generation}-manifest.part", folder / MANIFEST, with_checksum(manifest)
            )
        finally:  # done, failed, or given up
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
        """What a snapshot holds, in a `fresh()` one; None without a snapshot. `report` is told how
        many tokens there are, and what it returns is told how many of them have come; it may raise
        Cancelled. Raises SnapshotError when there is one that is of no use; it is gone then."""
        folder = snapshot_folder(self._folder, conversation)
        try:
            _delete_unlisted(folder)
            if not os.path.lexists(folder / MANIFEST):
                with suppress(OSError):
                    folder.rmdir()
                return None
            loaded = self._read(folder, fresh(), report)
        except Cancelled:
            raise
        except Exception as error:
            memory.reraise_oom(error)  # the snapshot is as good as it was
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, SnapshotError):
                raise
            # Whatever a damaged file makes json, numpy or MLX raise.
            raise SnapshotError(f"it is damaged ({memory.describe_error(error)})") from error
        with suppress(OSError):  # one that can only be read is as good
            os.utime(folder / MANIFEST)
        return loaded

    def save_error(self, error: Exception) -> str:
        """One sentence for what `save` raised."""
        if memory.is_oom(error):
            return "What was read cannot be saved: memory ran out. A later start reads it again."
        system = error.strerror if isinstance(error, OSError) else None
        why = system or memory.describe_error(error)
        return (
            f"What was read cannot be saved ({why}), so a later start reads it again: see that"
            f" '{self._folder}' is writable and has room."
        )

    def delete(self, conversation: str) -> None:
        remove_snapshot(self._folder, conversation)

    def _read(
        self, folder: Path, remembered: ConversationCache, report: Callable[[int], OnStep]
    ) -> ConversationCache:
        seal, _, text = _read_manifest(folder).partition("\n")
        manifest = json.loads(text)
        if with_checksum(manifest).partition("\n")[0] != seal:
            raise SnapshotError("its list of contents is damaged")
        if manifest["format"] != FORMAT:
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
        parts, tokens = dict(_prefix_caches(remembered)), int(manifest["tokens"])
        stored: dict[str, list[Any]] = {part: [] for part in parts}
        come, sums = report(tokens), list[Future[int]]()
        with ThreadPoolExecutor() as pool:  # some are summed while the next are read
            for start in range(0, len(paths), READ_BATCH):
                some = paths[start : start + READ_BATCH]
                caches = [load_prompt_cache(str(path))[0] for path in some]
                mx.eval([cache.state for cache in caches])  # all at once, by MLX's own threads
                sums += [pool.submit(_checksum, _buffers(cache)) for cache in caches]
                for path, cache in zip(some, caches, strict=True):
                    stored[path.name.split("-")[1]].append(cache)
                come(tokens * len(sums) // len(paths))
            if [found.result() for found in sums] != [file["crc32"] for file in files]:
                raise SnapshotError("a part of it is damaged")
        for part, caches in stored.items():
            if caches:
                _restore(parts[part], manifest[part], caches)
        return remembered

    def _enforce_budget(self, newest: Path) -> None:
        """Delete what was not used for longest until the rest fits; the newest one stays."""
        used = []
        for folder in self._folder.iterdir():
            if not FOLDER_NAME.fullmatch(folder.name):
                continue
            with suppress(OSError):  # no folder, or another program is at it
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


def with_checksum(manifest: dict[str, Any]) -> str:
    """What is written of a manifest: its checksum, and itself."""
    text = json.dumps(manifest, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest() + "\n" + text


def _prefix_caches(remembered: ConversationCache) -> Iterator[tuple[str, PrefixCache]]:
    yield "target", remembered.target
    if remembered.draft is not None:
        yield "draft", remembered.draft


def _metadata(held: PrefixCache) -> dict[str, Any]:
    """What the manifest says of one model's caches besides their arrays."""
    return {
        "exact": held.dense_prefix_len,
        "depth": held.num_layers,
        "layers": [_layer_metadata(c) for c in flatten(held.cache)],
        "borders": [
            {
                "position": b.position,
                "states": {str(i): _layer_metadata(c) for i, c in b.states.items()},
            }
            for b in held.checkpoints
        ],
    }


def _layer_metadata(cache: Any) -> dict[str, Any]:
    described: dict[str, Any] = {"kind": type(cache).__name__}
    if isinstance(cache, PositionedCache):
        described["runs"] = cache.positions.runs
    if isinstance(cache, WindowedCache):
        described |= {"retains": cache.retain_all, "lost": cache.evicted_below}
    return described


def _caches_to_store(held: PrefixCache) -> Iterator[Any]:
    """Stock caches: tokens, layers, then the borders' layers."""
    tokens = ArraysCache(2)
    tokens[0], tokens[1] = mx.array(held.ids), mx.array(held.cached.astype(np.uint8))
    yield tokens
    for cache in flatten(held.cache):
        yield cache.inner if isinstance(cache, PositionedCache) else cache
    for border in held.checkpoints:
        for cache in border.states.values():
            yield cache.inner if isinstance(cache, PositionedCache) else cache


def _restore(held: PrefixCache, described: dict[str, Any], stored: list[Any]) -> None:
    """Fills an empty `held`. Raises SnapshotError when the parts do not agree."""
    tokens, *rest = stored
    layers, kinds = iter(rest), flatten(held.cache)
    positions: dict[object, PositionRuns] = {}
    for cache, about in zip(kinds, described["layers"], strict=True):
        _restore_layer(cache, about, next(layers), positions)
    held.ids = np.array(tokens[0], dtype=np.int32)
    held.cached = np.array(tokens[1]).astype(bool)
    held.dense_prefix_len, held.num_layers = int(described["exact"]), described.get("depth")
    for border in described["borders"]:
        states = {int(index): _empty_like(kinds[int(index)]) for index in border["states"]}
        for state, about in zip(states.values(), border["states"].values(), strict=True):
            _restore_layer(state, about, next(layers), positions)
        held.checkpoints.append(Checkpoint(int(border["position"]), states))
    held.record_states()


def _empty_like(cache: Any) -> Any:
    """An empty cache of the same kind."""
    if isinstance(cache, WindowedCache):
        return WindowedCache(cache.window)
    if isinstance(cache, PositionedCache):
        return PositionedCache()
    return copy.copy(cache)


def _restore_layer(
    cache: Any, about: dict[str, Any], stored: Any, positions: dict[object, PositionRuns]
) -> None:
    """`positions` are those of the layers before: equal ones are the same."""
    if type(cache).__name__ != about["kind"]:
        raise SnapshotError("its layers are of other kinds")
    if not isinstance(cache, PositionedCache):
        cache.__dict__.update(stored.__dict__)
        return
    cache.inner = stored
    runs = tuple((start, end) for start, end in about["runs"])
    cache.positions = positions.setdefault(runs, PositionRuns(runs))
    if isinstance(cache, WindowedCache):
        cache.retain_all, cache.evicted_below = bool(about["retains"]), int(about["lost"])


def _generation(path: Path) -> int:
    ours = FILE_NAME.fullmatch(path.name)
    return int(ours[1]) if ours else 0


def _read_manifest(folder: Path) -> str:
    """Raises OSError, or SnapshotError where it is no file: a pipe would never end."""
    descriptor = os.open(folder / MANIFEST, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SnapshotError("its list of contents is no file")
    with open(descriptor, encoding="utf-8") as file:
        return file.read()


def _delete_unlisted(folder: Path) -> None:
    """Delete those of our files that the manifest does not name: older ones, and what a save left
    that was given up or killed."""
    with suppress(OSError):
        ours = [path for path in folder.iterdir() if FILE_NAME.fullmatch(path.name)]
        complete = os.path.lexists(folder / MANIFEST)
        if complete and len({_generation(path) for path in ours}) <= 1:
            return  # to read every manifest at each start would take long
        named = _listed_files(folder) if complete else set()
        for path in ours:
            if path.name not in named:
                with suppress(OSError):
                    path.unlink()


def _listed_files(folder: Path) -> set[str]:
    """The files that the manifest names; none where it is damaged. Raises OSError."""
    with suppress(ValueError, KeyError, TypeError):
        manifest = json.loads(_read_manifest(folder).partition("\n")[2])
        return {str(file["name"]) for file in manifest["files"]}
    return set()


def _sync_and_describe(path: Path, contents: list[memoryview]) -> dict[str, Any]:
    """What the manifest says of a file that was just written, once the disk has it. That it is
    more than in the disk's own cache is asked for once for all of them, with the manifest."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    sums = {"header": _header_checksum(path), "crc32": _checksum(contents)}
    return {"name": path.name, "size": path.stat().st_size, **sums}


def _header_checksum(path: Path) -> int:
    """CRC-32 of what stands before the arrays in a file."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")  # of the list of arrays that follows
        file.seek(0)
        return zlib.crc32(file.read(8 + min(length, path.stat().st_size)))


def _buffers(cache: Any) -> list[memoryview]:
    """What a stock cache holds: its arrays where they lie in memory, and the numbers beside them. A
    view of an array evaluates it."""
    named: Any = tree_flatten(cache.state)
    leaves = [leaf for _, leaf in named]
    arrays = [mx.contiguous(leaf) for leaf in leaves if isinstance(leaf, mx.array)]
    others = [leaf for leaf in leaves if not isinstance(leaf, mx.array)]
    views = [memoryview(array) for array in arrays]  # type: ignore[arg-type]
    return [*views, memoryview(repr(others).encode())]


def _checksum(contents: list[memoryview]) -> int:
    """CRC-32. It finds damage, which is all that is asked of it: whoever can write here can write
    the manifest, too. SHA-256 took most of the time of a snapshot."""
    value = 0
    for part in contents:
        value = zlib.crc32(part, value)
    return value


def _write_durably(aside: Path, path: Path, text: str) -> None:
    aside.write_text(text, encoding="utf-8")
    sync_path(aside)
    os.replace(aside, path)
    sync_path(path.parent)
