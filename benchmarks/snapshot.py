"""Speed of saving and loading a conversation's cache, compared with the disk.

The cache has random values. In each run, a plain file of the same size is written and flushed
(fsync), and the snapshot is saved, which also computes checksums. Then both are read after the
system was asked to drop them from its page cache; on a Mac, which cannot do that, they are read
from the page cache. The disk's rate is that of the plain file.

Before each measurement, enough memory is touched and released: in a virtual machine, fetching
untouched memory from the host can take longer than the disk.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from app.util.atomic_files import sync
from benchmarks.harness import Bench, Column, Goal, Options, Progress, Result, Row, Run, columns
from benchmarks.shapes import SMALL, random_pair
from benchmarks.token_turn import loaded, model_pair

if TYPE_CHECKING:
    from app.engine.memory.conversation_cache import ConversationCache
    from app.engine.model.loader import ModelPair

BLOCK = 1 << 22
PAGE, TOUCHED = 4096, 3
"""Bytes of a page, and memory to touch first, as a multiple of the measured size: for the caches
and the system's page cache."""
MIN_RATE, MIN_SHARE = 1.0, 0.8
"""Goal: minimum GB per second, or minimum share of the disk's rate."""
DISK = {"save": "disk write", "load": "disk read"}


def measure(options: Options, progress: Progress) -> Iterator[Row]:
    pair, cache = _conversation(options.megabytes * 10**6)
    megabytes = cache.nbytes / 1e6
    with tempfile.TemporaryDirectory() as folder:
        runs = progress.repeat(f"{megabytes:,.0f} MB", partial(_run, Path(folder), pair, cache))
    for name in ("save", "disk write", "load", "disk read"):
        rows: list[Run] = [{"rate": run[name]} for run in runs]
        if name in DISK:
            rows = [{"rate": run[name], "share": run[name] / run[DISK[name]]} for run in runs]
        yield Row({"operation": name, "megabytes": megabytes}, rows)


def _conversation(size: int) -> tuple[ModelPair, ConversationCache]:
    import mlx.core as mx

    from app.engine.cache.caches import positioned_layers
    from app.engine.memory.conversation_cache import ConversationCache

    models = [loaded(model, {}, 1) for model in random_pair(SMALL)]
    pair = model_pair(models)
    cache = ConversationCache(pair)
    heads, width, layers = 4, 64, positioned_layers(cache.target.cache)
    positions = np.arange(size // (2 * 4 * heads * width * len(layers)), dtype=np.int32)
    for layer in layers:
        keys, values = (mx.random.normal((1, heads, len(positions), width)) for _ in range(2))
        layer.set_next_positions(positions)
        layer.update_and_fetch(keys, values)
    cache.target.mark_cached(positions, positions)
    cache.target.eval()
    return pair, cache


def _run(folder: Path, pair: ModelPair, cache: ConversationCache) -> Run:
    """Rates in GB per second by operation."""
    from app.engine.cache.prefix_cache import next_read
    from app.engine.cache.snapshot import Snapshots
    from app.engine.memory.conversation_cache import ConversationCache

    plain, size = folder / "plain", cache.nbytes
    snapshots = Snapshots(folder / "snapshots", 1 << 62, {"target": "random"})

    def load() -> None:
        if snapshots.load("bench", lambda: ConversationCache(pair)) is None:
            raise RuntimeError("the snapshot was not found")

    disk_write = _rate(size, partial(_write, plain, os.urandom(BLOCK), size))
    cache.target.reads[:] = next_read()  # otherwise existing files would be linked
    save = _rate(size, lambda: list(snapshots.save("bench", cache)))
    _drop_page_cache([plain, *(folder / "snapshots").rglob("*.safetensors")])
    load_rate = _rate(size, load)
    disk_read = _rate(size, partial(_read, plain, size))
    return {"save": save, "disk write": disk_write, "load": load_rate, "disk read": disk_read}


def _rate(size: int, action: Callable[[], object]) -> float:
    """GB per second, with memory that was touched before."""
    np.empty(TOUCHED * size, dtype=np.uint8)[::PAGE] = 1
    started = time.perf_counter()
    action()
    return size / 1e9 / (time.perf_counter() - started)


def _write(path: Path, block: bytes, size: int) -> None:
    temporary = path.with_suffix(".new")
    with temporary.open("wb", buffering=0) as file:
        for _ in range(0, size, len(block)):
            file.write(block)
        sync(file.fileno())
    temporary.replace(path)


def _read(path: Path, size: int) -> None:
    into = np.empty(size, dtype=np.uint8).data
    with path.open("rb", buffering=0) as file:
        while into and (count := file.readinto(into[:BLOCK])):
            into = into[count:]


def _drop_page_cache(paths: Iterable[Path]) -> None:
    """Ask the system to drop flushed files from its page cache."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def about(result: Result) -> str:
    return (
        f"A conversation's cache of {result.rows[0]['megabytes']:,.0f} MB, beside a plain file of"
        " the same size: written with fsync, and read after the system dropped it from its page"
        " cache."
    )


def goals(result: Result) -> Iterator[Goal]:
    rates = {row["operation"]: row.median("rate") for row in result.rows}
    for name, disk in DISK.items():
        rate, disk_rate = rates[name], rates[disk]
        measured = f"{rate:.2f} GB/s, {rate / disk_rate:.2f} of the disk's {disk_rate:.2f}"
        met = rate >= MIN_RATE or rate >= MIN_SHARE * disk_rate
        yield Goal(f"{name} at least 1 GB/s, or 0.8 of the disk's own rate", measured, met)


BENCH = Bench(
    "snapshot",
    "time to save and load a conversation's cache",
    "Snapshots",
    measure,
    about,
    columns(
        Column("", "operation"),
        Column("GB a second", "rate", spread=True),
        Column("of the disk's rate", "share", spread=True),
    ),
    goals,
    quick_args="--megabytes 20 --runs 1",
    flags={"megabytes": "300", "runs": "5"},
)
