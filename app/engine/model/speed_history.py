"""Speeds of a model on this machine, kept over updates of MLX, so that a slower one is noticed."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from app.engine.backend.device import Backend
from app.engine.backend.machine_record import MachineRecord
from app.engine.cache.prefill import make_stock_cache
from app.engine.model.findings import timed_step
from app.engine.model.loader import LoadedModel

LENGTHS = (512, 2048, 8192)
"""Prompts whose reading is timed, in tokens, unless one is likely to take over `MAX_SECONDS`."""
MAX_SECONDS = 10.0
STEP, WRITTEN = 512, 12
"""Tokens of a step while reading, and steps of one token after the first prompt."""
SLOWER = 0.8
"""Speeds below this share of an earlier one are reported."""
MAX_KEPT = 8


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """Tokens per second of reading prompts of each length, and of writing after the shortest."""

    date: str
    versions: str
    reading: dict[int, float]
    writing: float

    def slower_than(self, earlier: MeasuredSpeed) -> str:
        """What is slower by a fifth or more, as a clause; empty if nothing is."""
        pairs = [
            (f"reading {length:,} tokens", speed, earlier.reading[length])
            for length, speed in self.reading.items()
            if length in earlier.reading
        ]
        pairs.append(("writing", self.writing, earlier.writing))
        return ", ".join(
            f"{what} at {now:,.0f} tokens/s instead of {before:,.0f}"
            for what, now, before in pairs
            if now < SLOWER * before
        )

    def better_of(self, other: MeasuredSpeed) -> MeasuredSpeed:
        """The higher speed of each, with the date of `other`."""
        lengths = self.reading | other.reading
        reading = {
            length: max(each.reading.get(length, 0.0) for each in (self, other))
            for length in lengths
        }
        return replace(other, reading=reading, writing=max(self.writing, other.writing))


def measure(model: LoadedModel, backend: Backend) -> MeasuredSpeed:
    """Read a prompt and write a few tokens, twice; the faster time of each counts."""
    date = datetime.now(UTC).date().isoformat()
    versions = ", ".join(f"{name} {version(name)}" for name in ("mlx", "mlx-lm"))
    once, again = (MeasuredSpeed(date, versions, *_once(model, backend)) for _ in range(2))
    return once.better_of(again)


def _once(model: LoadedModel, backend: Backend) -> tuple[dict[int, float], float]:
    def step(tokens: int) -> float:
        return timed_step(model.model, cache, tokens, backend)

    cache = make_stock_cache(model.caches)
    room = (model.info.context_length or LENGTHS[-1] + WRITTEN) - WRITTEN
    reading, read, seconds, writing = {}, 0, 0.0, 0.0
    for length in [each for each in LENGTHS if each <= room] or [room]:
        while read < length:
            tokens = min(STEP, length - read)
            seconds += step(tokens)
            read += tokens
        reading[length] = length / seconds
        writing = writing or 1 / median(step(1) for _ in range(WRITTEN))
        if seconds > MAX_SECONDS / 4:  # the next length takes four times as long
            break
    return reading, writing


class SpeedHistory:
    """Speeds of the model with this `fingerprint`: the best that each version of MLX reached."""

    def __init__(self, folder: Path, fingerprint: str, backend: Backend) -> None:
        device = "cpu" if backend.on_cpu else "gpu"
        self._record = MachineRecord(folder, "speeds", fingerprint, device, any_version=True)

    def add(self, now: MeasuredSpeed) -> MeasuredSpeed | None:
        """Store a measurement. Return an earlier one than which this is slower by a fifth, of
        several the latest."""
        kept = self._record.read(_parse) or []
        by_versions = {each.versions: each for each in kept}
        same = by_versions.pop(now.versions, now)
        best = [*by_versions.values(), same.better_of(now)][-MAX_KEPT:]
        self._record.write({"speeds": [asdict(each) for each in best]})
        return next((each for each in reversed(kept) if now.slower_than(each)), None)


def _parse(stored: Any) -> list[MeasuredSpeed]:
    return [_parse_one(each) for each in stored["speeds"]]


def _parse_one(each: Any) -> MeasuredSpeed:
    reading = {int(length): float(speed) for length, speed in each["reading"].items()}
    return MeasuredSpeed(str(each["date"]), str(each["versions"]), reading, float(each["writing"]))
