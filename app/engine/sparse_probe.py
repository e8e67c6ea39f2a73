"""Finds out whether a model can be read sparsely: a few tokens with gaps between them, in one step
against a step for each run without a gap."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from app.engine import memory, mlx_patches
from app.engine.caches import UnsupportedCache, WindowedCache, positioned_layers
from app.engine.prefill import forward, make_positioned_cache, set_next_position

_RUNS = (4, 3, 3, 1, 1)
"""Tokens in a row; the last two runs have no gap between them."""
_PROBE_TOKENS = sum(_RUNS)
_TOLERANCES = {mx.float32: 1e-3}
_LOW_PRECISION_TOLERANCE = 1e-2
"""Of the logits' size, what is rounding in any case: in float32, and in shorter floats."""
_ROUNDING_FACTOR = 4
"""The error with gaps may be this many times the rounding error without them."""


def probe(model: Any, context: int, caches: Any = None) -> str | None:
    """Why `model` can only be read densely, or None. `caches` makes its empty caches, by default
    the model itself does.

    Feeds a few tokens with gaps between them, past any sliding window and up to the end of the
    context, once in one step and once run by run, the last tokens one by one: in a run there is no
    gap, and the model does what it always does. Architectures that learn positions, or scale
    attention by them, answer differently, and so would a model that the patches do not reach.
    """
    try:
        caches = caches or model
        tolerance = _TOLERANCES.get(compute_dtype(model), _LOW_PRECISION_TOLERANCE)
        gapped = _relative_error(model, _sparse_positions(caches, context), caches)
        if gapped > tolerance:  # more than rounding explains, unless this model rounds a lot
            own = _relative_error(model, np.arange(_PROBE_TOKENS, dtype=np.int32), caches)
            tolerance += _ROUNDING_FACTOR * own
    except UnsupportedCache as error:
        return f"This model is read in full: {error}."
    except (
        mlx_patches.PatchError,
        ValueError,
        TypeError,
        AttributeError,
        IndexError,
        OverflowError,
    ) as error:
        return f"This model is read in full: reading with gaps failed ({one_line(error)})."
    except RuntimeError as error:
        memory.reraise_device_failure(error)  # which says nothing about the model
        return f"This model is read in full: reading several tokens failed ({one_line(error)})."
    finally:
        gc.collect()
        mx.clear_cache()
    if gapped <= tolerance:
        return None
    return f"This model is read in full: with gaps its answers change by {gapped:.0%}."


def _sparse_positions(caches: Any, context: int) -> np.ndarray[Any, np.dtype[np.int32]]:
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


def _relative_error(
    model: Any, positions: np.ndarray[Any, np.dtype[np.int32]], caches: Any
) -> float:
    """Logits of a few tokens fed together against run by run: the worst token's relative error."""
    ids = (np.arange(_PROBE_TOKENS) * 7 + 3).astype(np.int32)
    together = forward(model, make_positioned_cache(caches), ids, positions)[0].astype(mx.float32)
    alone = mx.concatenate(list(_run_by_run(model, ids, positions, caches))).astype(mx.float32)
    size = mx.maximum(mx.linalg.norm(alone, axis=-1), 1e-6)
    return float(np.array((mx.linalg.norm(together - alone, axis=-1) / size).max()))


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


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
