"""What loading a model finds out about it by running it, remembered for later loads of the same
files."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.backend.device import Backend
from app.engine.backend.machine_record import MachineRecord
from app.engine.cache.prefill import make_stock_cache, prefill_step
from app.engine.cache.sizes import CacheSize
from app.protocol.reasons import Reason, reason_from_plain

WARM_UP_TOKENS = (32, 128, 512)
"""Of the steps that are timed, until one takes WARM_UP_SECONDS."""
WARM_UP_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of a step of one token, and of each further token of a longer step."""

    step: float
    per_token: float

    @classmethod
    def of(cls, model: Any, caches: Any, backend: Backend) -> Speed:
        """Measured on a few steps into empty caches: each one twice, and the faster one counts,
        because the first one warms up and other programs may interrupt either."""

        def timed(tokens: int) -> float:
            return min(once(tokens), once(tokens))

        def once(tokens: int) -> float:
            cache, ids = make_stock_cache(caches), np.zeros(tokens, np.int32)
            started_at = time.perf_counter()
            prefill_step(model, cache, ids, None, backend)
            return time.perf_counter() - started_at

        step, tokens, seconds = timed(1), 1, 0.0
        for tokens in WARM_UP_TOKENS:
            if (seconds := timed(tokens)) >= WARM_UP_SECONDS:
                break
        longer = seconds - step if seconds > 2 * step else seconds / 2
        return cls(step, max(longer / (tokens - 1), 1e-9))


@dataclass(frozen=True, slots=True)
class Findings:
    """Its weights are numbers. `has_sinks`: its attention has sinks; `speed`: None for a shard,
    whose machines must all run the same steps; `dense_only`: why it can only be read densely, as
    far as it was `probed`."""

    cache_size: CacheSize
    has_sinks: bool
    speed: Speed | None
    probed: bool = False
    dense_only: Reason | None = None


def findings_record(folder: Path | None, fingerprint: str, backend: Backend) -> MachineRecord:
    """For the findings of the model with this fingerprint; without a folder nothing is
    remembered."""
    return MachineRecord(folder, "model", fingerprint, "cpu" if backend.on_cpu else "gpu")


def plain_findings(findings: Findings) -> dict[str, Any]:
    why = findings.dense_only
    return asdict(findings) | {"dense_only": None if why is None else why.to_plain()}


def parse_findings(stored: Any) -> Findings:
    """Raises an exception if that is implausible."""
    size = CacheSize(**{name: float(value) for name, value in stored["cache_size"].items()})
    speed = Speed(**{name: float(value) for name, value in stored["speed"].items()})
    if not all(0 <= each < math.inf for each in asdict(size).values()):
        raise ValueError("not a plausible size")
    if not all(0 < each < 1e6 for each in asdict(speed).values()):
        raise ValueError("not a plausible speed")
    probed, has_sinks, why = stored["probed"], stored["has_sinks"], stored["dense_only"]
    if not isinstance(probed, bool) or not isinstance(has_sinks, bool):
        raise TypeError("not findings")
    dense_only = None if why is None else reason_from_plain(why)
    if why is not None and dense_only is None:
        raise ValueError("not a known reason")
    return Findings(size, has_sinks, speed, probed, dense_only)
