"""Facts about a model that are measured by running it: speed, cache size, and whether it can be
read sparsely. They are stored for later loads of the same files."""

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
from app.engine.cache.caches import Cache, UnsupportedCache, WindowedCache, positioned_layers
from app.engine.cache.prefill import (
    forward,
    make_positioned_cache,
    make_stock_cache,
    prefill_step,
    set_next_position,
)
from app.engine.cache.sizes import CacheSize
from app.engine.model.rotary import rotary_modules
from app.protocol.reasons import Reason, ReasonCode, reason_from_plain
from app.util.formatting import one_line

WARM_UP_TOKENS = (32, 128, 512)
"""Tokens of the timed steps, until one takes `WARM_UP_SECONDS`."""
WARM_UP_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of a step of one token (`step`), and of each further token (`per_token`)."""

    step: float
    per_token: float

    @classmethod
    def of(cls, model: Any, caches: Any, backend: Backend) -> Speed:
        """Measure a few steps into empty caches. Each runs twice and the faster one counts: the
        first warms up, and other programs may interrupt either."""

        def timed(tokens: int) -> float:
            return min(once(tokens), once(tokens))

        def once(tokens: int) -> float:
            return timed_step(model, make_stock_cache(caches), tokens, backend)

        step, tokens, seconds = timed(1), 1, 0.0
        for tokens in WARM_UP_TOKENS:
            if (seconds := timed(tokens)) >= WARM_UP_SECONDS:
                break
        longer = seconds - step if seconds > 2 * step else seconds / 2
        return cls(step, max(longer / (tokens - 1), 1e-9))


def timed_step(model: Any, cache: Cache, tokens: int, backend: Backend) -> float:
    """Seconds of a prefill step of this many tokens into `cache`."""
    ids = np.zeros(tokens, np.int32)
    started_at = time.perf_counter()
    prefill_step(model, cache, ids, None, backend)
    return time.perf_counter() - started_at


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings about a model whose weights contain no NaN. `has_sinks`: it has attention sinks.
    `speed`: None for a shard. `dense_only`: why it can only be read densely, if `probed`."""

    cache_size: CacheSize
    has_sinks: bool
    speed: Speed | None
    probed: bool = False
    dense_only: Reason | None = None


def findings_record(folder: Path | None, fingerprint: str, backend: Backend) -> MachineRecord:
    """The file for the findings about the model with this fingerprint (no folder: not stored)."""
    return MachineRecord(folder, "model", fingerprint, "cpu" if backend.on_cpu else "gpu")


def plain_findings(findings: Findings) -> dict[str, Any]:
    why = findings.dense_only
    return asdict(findings) | {"dense_only": None if why is None else why.to_plain()}


def parse_findings(stored: Any) -> Findings:
    """Raises any exception if the stored values are implausible."""
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
"""Lengths of the runs of tokens in the probe; there is no gap between the last two."""
_PROBE_TOKENS = sum(_RUNS)
_NAMES = {mx.float32: "float32", mx.float16: "float16", mx.bfloat16: "bfloat16"}
_MULTIPLIERS = (7, 11, 13)
"""Each makes different token ids. Rounding errors vary between texts, above all if they change the
choice of experts; wrong positions show in every text."""
TOLERANCES = {"float32": 0.001, "TF32": 0.01, "float16": 0.03, "bfloat16": 0.13}
"""Relative errors of logits that rounding can explain, by the precision of products. `python -m
tests.engine.rounding FOLDER...` measures them on a CPU, imitating a GPU's rounding. For four random
models of each of 11 architectures, SmolLM2 135M and Gemma 3 270M: the largest error with gaps and
without, and the smallest error if positions are lost or attention depends on the offset.

|          | with gaps | without | wrong |
|----------|-----------|---------|-------|
| float32  |   6.3e-07 | 6.3e-07 |  0.16 |
| TF32     |    0.0018 |  0.0019 |  0.16 |
| float16  |    0.0061 |  0.0074 |  0.16 |
| bfloat16 |      0.11 |   0.061 |  0.16 |
"""
_ROUNDING_FACTOR = 2
"""The error with gaps may be this many times the error without: deep models round more."""


def probe(model: Any, context: int, caches: Any = None, tf32: bool = False) -> Reason | None:
    """Test whether `model` can be read sparsely. Returns why not, or None. `caches` makes its empty
    caches (default: the model). `tf32`: whether float32 matrices are multiplied in TF32.

    Feeds a few tokens with gaps between them, beyond any sliding window and up to the end of the
    context, once in one step and once run by run. Within a run there is no gap, so the model works
    as usual. Logits differ if the architecture learns positions or scales attention by them, or if
    our patches do not reach the model.
    """
    try:
        caches = caches or model
        if (passed := _layers_without_rotation(model, caches)) > 0:
            return Reason(ReasonCode.ROTATION_UNSEEN, {"layers": passed})
        dtype = compute_dtype(model)
        precision = "TF32" if tf32 and dtype == mx.float32 else _NAMES[dtype]
        tolerance = TOLERANCES[precision]
        gapped = probe_error(model, sparse_positions(caches, context), caches, tolerance)
        if gapped > tolerance:  # compare with this model's rounding error without gaps
            plain = np.arange(_PROBE_TOKENS, dtype=np.int32)
            plain_error = probe_error(model, plain, caches)
            tolerance = max(tolerance, _ROUNDING_FACTOR * plain_error)
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
        memory.reraise_device_failure(error)  # not the model's fault
        return Reason(ReasonCode.STEPS_FAIL, {"error": one_line(error)})
    finally:
        gc.collect()
        mx.clear_cache()
    if gapped <= tolerance:
        return None
    return Reason(ReasonCode.GAPS_CHANGE_ANSWERS, {"change": float(gapped)})


def _layers_without_rotation(model: Any, caches: Any) -> int:
    """Number of layers with rotary embeddings, if a step calls MLX's function for none of them:
    then a kernel of their own rotates, which no patch reaches. One call is enough, because some
    architectures use these embeddings in some layers only."""
    calls: list[None] = []
    with mlx_patches.counted_rotations(lambda: calls.append(None)):
        forward(model, make_stock_cache(caches), np.zeros(1, np.int32))
    return 0 if calls else len({layer for layer, *_ in rotary_modules(model)})


def sparse_positions(caches: Any, context: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Ascending positions of the runs in `_RUNS`; the last one ends the context."""
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
    """Relative error of the logits of tokens at `positions` fed in one step compared with run by
    run. Takes the mean of each run after the first, the maximum over the runs, and the minimum over
    the texts; stops at the first text with at most `enough`."""
    errors: list[float] = []
    for multiplier in _MULTIPLIERS:
        ids = ((np.arange(_PROBE_TOKENS) * multiplier + 3) % 97).astype(np.int32)
        together = forward(model, make_positioned_cache(caches), ids, positions)[0]
        alone = mx.concatenate(list(_run_by_run(model, ids, positions, caches)))
        together, alone = together.astype(mx.float32), alone.astype(mx.float32)
        size = mx.maximum(mx.linalg.norm(alone, axis=-1), 1e-6)
        found = np.array(mx.linalg.norm(together - alone, axis=-1) / size)
        runs = np.split(found, np.cumsum(_RUNS)[:-2])[1:]  # the last two count as one
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
