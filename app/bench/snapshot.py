"""`specchat bench snapshot`: how fast a conversation's cache is saved and loaded, beside the disk.

A conversation of random numbers. In each run, one after the other: a plain file of the same size is
written beside the one of before and brought to the disk (fsync); the snapshot is saved, which does
the same and sums every byte; then both are read into new memory, after the system was asked to
forget what it holds of their files. The disk's own rate is that of the plain file. Where the system
cannot be asked, on a Mac, both are read from its memory.

Before each of the four, as much memory as it takes is touched and given back: a virtual machine
fetches memory that nothing has touched yet from its host, which can take longer than the disk.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from app.bench.median_range import spread
from app.bench.shapes import SMALL, random_pair
from app.bench.token_turn import loaded, paired
from app.engine import blas
from app.util.durable import sync

if TYPE_CHECKING:
    from app.engine.conversation_cache import ConversationCache
    from app.engine.loader import ModelPair

BLOCK = 1 << 22
PAGE, MEMORY = 4096, 3
"""Bytes of a page, and how many times the size of what is measured is touched before: the caches,
and what the system holds of the files."""
AIM, SHARE = 1.0, 0.8
"""GB a second, or of the disk's own rate."""


@dataclass(frozen=True, slots=True)
class Run:
    """GB a second."""

    save: float
    load: float
    disk_write: float
    disk_read: float


def snapshot(size: int, runs: int, as_json: bool, out: TextIO) -> int:
    """Measure with about `size` bytes and print medians; returns the exit status."""
    blas.load_openblas()
    pair, remembered = _conversation(size)
    with tempfile.TemporaryDirectory() as folder:
        measured = [_run(Path(folder), pair, remembered) for _ in range(runs + 1)][1:]
    from app.bench.machine import machine

    report = _json if as_json else _table
    out.write(report(remembered.nbytes, measured, machine()))
    return 0


def _conversation(size: int) -> tuple[ModelPair, ConversationCache]:
    import mlx.core as mx

    from app.engine.caches import positioned_layers
    from app.engine.conversation_cache import ConversationCache

    pair = paired([loaded(model, {}, 1) for model in random_pair(SMALL)], np.zeros(1, np.int32))
    remembered = ConversationCache(pair)
    heads, width, every = 4, 64, positioned_layers(remembered.target.cache)
    positions = np.arange(size // (2 * 4 * heads * width * len(every)), dtype=np.int32)
    for layer in every:
        keys, values = (mx.random.normal((1, heads, len(positions), width)) for _ in range(2))
        layer.set_next_positions(positions)
        layer.update_and_fetch(keys, values)
    remembered.target.mark_cached(positions, positions)
    remembered.target.eval()
    return pair, remembered


def _run(folder: Path, pair: ModelPair, remembered: ConversationCache) -> Run:
    from app.engine.conversation_cache import ConversationCache
    from app.engine.snapshot import Snapshots

    plain, held = folder / "plain", remembered.nbytes
    snapshots = Snapshots(folder / "snapshots", 1 << 62, {"target": "random"})

    def load() -> None:
        if snapshots.load("bench", lambda: ConversationCache(pair)) is None:
            raise RuntimeError("the snapshot was not found")

    disk_write = _rate(held, partial(_write, plain, os.urandom(BLOCK), held))
    save = _rate(held, lambda: list(snapshots.save("bench", remembered)))
    _forget([plain, *(folder / "snapshots").rglob("*.safetensors")])
    return Run(
        save=save,
        load=_rate(held, load),
        disk_write=disk_write,
        disk_read=_rate(held, partial(_read, plain, held)),
    )


def _rate(size: int, action: Callable[[], object]) -> float:
    """GB a second, in memory that was touched before."""
    np.empty(MEMORY * size, dtype=np.uint8)[::PAGE] = 1
    begun = time.perf_counter()
    action()
    return size / 1e9 / (time.perf_counter() - begun)


def _write(path: Path, block: bytes, size: int) -> None:
    aside = path.with_suffix(".new")
    with aside.open("wb", buffering=0) as file:
        for _ in range(0, size, len(block)):
            file.write(block)
        sync(file.fileno())
    aside.replace(path)


def _read(path: Path, size: int) -> None:
    into = np.empty(size, dtype=np.uint8).data
    with path.open("rb", buffering=0) as file:
        while into and (come := file.readinto(into[:BLOCK])):
            into = into[come:]


def _forget(paths: Iterable[Path]) -> None:
    """What the system holds of these files; they are on the disk."""
    if not hasattr(os, "posix_fadvise"):
        return
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def met(rate: float, disk: float) -> bool:
    return rate >= AIM or rate >= SHARE * disk


def _table(size: int, runs: list[Run], described: str) -> str:
    lines = [f"{size / 1e6:,.0f} MB, medians of {len(runs)}, GB a second", described, ""]
    for name in ("save", "disk_write", "load", "disk_read"):
        lines.append(f"{name.replace('_', ' '):<12}{spread(getattr(r, name) for r in runs).text()}")
    lines.append(f"{'save / disk':<12}{spread(r.save / r.disk_write for r in runs).text()}")
    lines.append(f"{'load / disk':<12}{spread(r.load / r.disk_read for r in runs).text()}")
    return "\n".join(lines) + "\n"


def _json(size: int, runs: list[Run], described: str) -> str:
    figures = {
        "machine": described,
        "bytes": size,
        "save": spread(r.save for r in runs),
        "load": spread(r.load for r in runs),
        "disk_write": spread(r.disk_write for r in runs),
        "disk_read": spread(r.disk_read for r in runs),
        "runs": [asdict(run) for run in runs],
    }
    return json.dumps(figures) + "\n"
