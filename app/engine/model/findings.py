"""What loading a model finds out about it by running it: its speed, the size of its cache, and
whether it can be read sparsely. It is remembered for later loads of the same files."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from app.engine.backend import memory, mlx_patches
from app.engine.backend.device import Backend
from app.engine.backend.machine_record import MachineRecord
from app.engine.cache.caches import UnsupportedCache, WindowedCache, positioned_layers
from app.engine.cache.prefill import (
    forward,
    make_positioned_cache,
    make_stock_cache,
    prefill_step,
    set_next_position,
)
from app.engine.cache.sizes import CacheSize
from app.protocol.reasons import Reason, ReasonCode, reason_from_plain
from app.util.formatting import one_line

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


_RUNS = (4, 3, 3, 1, 1)
"""Tokens in a row; the last two runs have no gap between them."""
_PROBE_TOKENS = sum(_RUNS)
_NAMES = {mx.float32: "float32", mx.float16: "float16", mx.bfloat16: "bfloat16"}
_MULTIPLIERS = (7, 11, 13)
"""Each makes other token ids. Rounding differs from text to text, above all where it chooses other
experts; wrong positions show in every text."""
TOLERANCES = {"float32": 0.001, "TF32": 0.01, "float16": 0.03, "bfloat16": 0.13}
"""Relative errors of logits up to which rounding explains them, by the precision of products.
`python -m tests.engine.rounding FOLDER...` measures them on a CPU, on which it imitates how a GPU
rounds. With four random models of each of 11 architectures, SmolLM2 135M and Gemma 3 270M: the
largest error with gaps and without, and the smallest where positions are lost or attention depends
on the offset.

|          | with gaps | without | wrong |
|----------|-----------|---------|-------|
| float32  |   6.3e-07 | 6.3e-07 |  0.16 |
| TF32     |    0.0018 |  0.0019 |  0.16 |
| float16  |    0.0061 |  0.0074 |  0.16 |
| bfloat16 |      0.11 |   0.061 |  0.16 |
"""
_ROUNDING_FACTOR = 2
"""The error with gaps may be this many times the error without them: deep models round more."""


def probe(model: Any, context: int, caches: Any = None, tf32: bool = False) -> Reason | None:
    """Why `model` can only be read densely, or None. `caches` makes its empty caches, by default
    the model itself does. `tf32` says whether float32 matrices are multiplied in TF32.

    Feeds a few tokens with gaps between them, past any sliding window and up to the end of the
    context, once in one step and once run by run, the last tokens one by one: in a run there is no
    gap, and the model does what it always does. Architectures that learn positions, or scale
    attention by them, answer differently, and so would a model that the patches do not reach.
    """
    try:
        caches = caches or model
        dtype = compute_dtype(model)
        precision = "TF32" if tf32 and dtype == mx.float32 else _NAMES[dtype]
        tolerance = TOLERANCES[precision]
        gapped = probe_error(model, sparse_positions(caches, context), caches, tolerance)
        if gapped > tolerance:  # more than rounding explains, unless this model rounds a lot
            plain = np.arange(_PROBE_TOKENS, dtype=np.int32)
            own = probe_error(model, plain, caches)
            tolerance = max(tolerance, _ROUNDING_FACTOR * own)
    except UnsupportedCache as error:
        return Reason(ReasonCode.UNSUPPORTED_CACHE, {"error": str(error)})
    except (
        mlx_patches.PatchError,
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
        OverflowError,
    ) as error:
        return Reason(ReasonCode.GAPS_FAIL, {"error": one_line(error)})
    except RuntimeError as error:
        memory.reraise_device_failure(error)  # which says nothing about the model
        return Reason(ReasonCode.STEPS_FAIL, {"error": one_line(error)})
    finally:
        gc.collect()
        mx.clear_cache()
    if gapped <= tolerance:
        return None
    return Reason(ReasonCode.GAPS_CHANGE_ANSWERS, {"change": float(gapped)})


def sparse_positions(caches: Any, context: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Ascending positions in the runs of _RUNS, the last of which ends the context."""
    windows = [
        c.window
        for c in positioned_layers(make_positioned_cache(caches))
        if isinstance(c, WindowedCache)
    ]
    far = 64 + max(windows, default=0)
    runs = [range(4), range(20, 23), range(far, far + 3)]
    last = max(context, 4 * far) - 2
    runs.append(range(last, last + 2))
    return np.array([p for run in runs for p in run], np.int32)


def probe_error(
    model: Any,
    positions: np.ndarray[Any, np.dtype[np.int32]],
    caches: Any,
    enough: float = 0.0,
) -> float:
    """Logits of a few tokens at `positions` fed together against run by run: the mean relative
    error of the run after the first for which it is largest, in the text for which that is
    smallest, or in the first for which it is not more than `enough`."""
    errors: list[float] = []
    for multiplier in _MULTIPLIERS:
        ids = ((np.arange(_PROBE_TOKENS) * multiplier + 3) % 97).astype(np.int32)
        together = forward(model, make_positioned_cache(caches), ids, positions)[0]
        alone = mx.concatenate(list(_run_by_run(model, ids, positions, caches)))
        together, alone = together.astype(mx.float32), alone.astype(mx.float32)
        size = mx.maximum(mx.linalg.norm(alone, axis=-1), 1e-6)
        found = np.array(mx.linalg.norm(together - alone, axis=-1) / size)
        runs = np.split(found, np.cumsum(_RUNS)[:-2])[1:]  # the last two are one here
        errors.append(max(float(run.mean()) for run in runs))
        if errors[-1] <= enough:
            break
    return min(errors)


def _run_by_run(
    model: Any,
    ids: np.ndarray[Any, np.dtype[np.int32]],
    positions: np.ndarray[Any, np.dtype[np.int32]],
    caches: Any,
) -> Iterator[mx.array]:
    cache = make_positioned_cache(caches)
    first = 0
    for count in _RUNS:
        set_next_position(cache, int(positions[first]))
        logits = forward(model, cache, ids[first : first + count])[0]
        mx.eval(logits, [c.state for c in cache])
        yield logits
        first += count


def compute_dtype(model: Any) -> mx.Dtype:
    return next(a.dtype for a in weight_arrays(model) if mx.issubdtype(a.dtype, mx.floating))


def weight_arrays(model: Any) -> list[mx.array]:
    flat: list[tuple[str, Any]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    return [array for _, array in flat]
