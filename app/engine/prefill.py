"""Dense and sparse prefill of a cache, in steps between which it can be cancelled."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray

from app.engine import memory, mlx_patches
from app.engine.backend import CPU, GPU, Backend
from app.engine.caches import Cache, StepWatcher, flatten, positioned_layers, to_positioned
from app.engine.positions import Positions
from app.protocol.memory_model import LARGEST_STEP, SMALLEST_STEP

TARGET_STEP_SECONDS = 0.5
"""The longest wait for a cancel; the average one is half of it. Longer only where a backend's
smallest step takes longer."""

OnStep = Callable[[int], None]
"""Called after each step with the number of tokens done. Raises to cancel."""


def device_backend() -> Backend:
    """That of MLX's default device."""
    return CPU if mx.default_device().type == mx.DeviceType.cpu else GPU


class StepSize:
    """How many tokens to feed at once: a power of two that follows the measured speed, down to the
    smallest step of the `backend` on which the model runs (default: the device's).

    A `fixed` size never changes. The size does not change results, up to rounding.
    """

    def __init__(
        self, fixed: int | None = None, first: int = 256, backend: Backend | None = None
    ) -> None:
        self.backend = backend or device_backend()
        self._size = fixed or first
        self._adapts = fixed is None
        self.max_tokens = LARGEST_STEP
        """What the memory for one step allows."""
        self.under_pressure = False
        """Whether memory is tight: then steps are half as large."""

    @property
    def tokens(self) -> int:
        size = self._size // 2 if self.under_pressure else self._size
        return max(min(size, self.max_tokens), min(SMALLEST_STEP, self._size))

    def record(self, tokens: int, seconds: float) -> None:
        """A step of this many tokens took this long."""
        if not self._adapts or tokens < self.tokens:
            return
        if seconds > 1.5 * TARGET_STEP_SECONDS:
            self._size = max(self.backend.min_step, min(self._size, 2 * tokens) // 2)
        elif seconds < TARGET_STEP_SECONDS / 3 and tokens == self._size:
            self._size = min(LARGEST_STEP, self._size * 2)


def make_positioned_cache(model: Any) -> Cache:
    """An empty position-aware cache for `model`. Raises UnsupportedCache."""
    return to_positioned(make_prompt_cache(model))


def make_stock_cache(model: Any) -> Cache:
    """mlx-lm's own empty cache for `model`."""
    cache: Cache = make_prompt_cache(model)
    return cache


def forward(
    model: Any, cache: Cache, ids: NDArray[np.int32], positions: Positions | None = None
) -> mx.array:
    """Run `ids` (N,) through the model into `cache`; returns lazy logits (1, N, vocabulary).

    With ascending `positions` (N,) each token gets its own; the cache must be a positioned one.
    """
    patch: Any = nullcontext()
    if positions is not None:
        _announce(cache, positions)
        if int(positions[-1]) - int(positions[0]) != len(positions) - 1:
            patch = mlx_patches.explicit_positions(mx.array(positions))
        # Otherwise there are no gaps, and the caches' offset is enough.
    with patch:
        logits: mx.array = model(mx.array(ids)[None], cache=cache)
        return logits


def _announce(cache: Cache, positions: Positions) -> None:
    for layer in positioned_layers(cache):
        layer.set_next_positions(positions)


def prefill_step(
    model: Any,
    cache: Cache,
    ids: NDArray[np.int32],
    positions: Positions | None,
    backend: Backend,
    num_layers: int | None = None,
    whole: bool = False,
) -> None:
    """Like `forward`, but only to fill the caches of the first `num_layers` layers, or of all.

    What no cache needs is not computed: the last layer's attention and what follows it, the output
    head, layers that share another one's cache. With `whole` the model's code runs to its end.
    """
    if (fill := getattr(model, "fill", None)) is not None:  # other processes do it
        if positions is not None:
            _announce(cache, positions)
        fill(cache, ids)
        return
    with (
        mlx_patches.blocked_attention(backend.query_block),
        nullcontext()
        if whole
        else mlx_patches.early_exit(StepWatcher(flatten(cache[:num_layers]))),
    ):
        forward(model, cache, ids, positions)
    mx.eval([c.state for c in cache])


def prefill(
    model: Any,
    cache: Cache,
    ids: NDArray[np.int32],
    positions: Positions | None,
    step: StepSize,
    on_step: OnStep,
    num_layers: int | None = None,
) -> None:
    """Read `ids` (N,) at `positions` (N,), or without a gap when None, into the caches of the first
    `num_layers` layers, or of all. When `on_step` raises, the steps done stay in the cache."""
    done = 0
    while done < len(ids):
        started_at = time.perf_counter()
        end = min(done + step.tokens, len(ids))
        chosen = None if positions is None else positions[done:end]
        prefill_step(model, cache, ids[done:end], chosen, step.backend, num_layers)
        memory.trim_buffer_cache()
        step.record(end - done, time.perf_counter() - started_at)
        done = end
        on_step(done)


def set_next_position(cache: Cache, position: int) -> None:
    """Put the next token of every layer at `position`."""
    for layer in positioned_layers(cache):
        layer.set_next_position(position)
