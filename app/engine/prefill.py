"""Dense and sparse prefill of a cache, in steps that can be cancelled between."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from app.engine import memory, mlx_patches
from app.engine.backend import CPU, GPU, Backend
from app.engine.caches import Cache, StepWatcher, flatten, positioned_layers, to_positioned
from app.engine.memory import LARGEST_STEP, SMALLEST_STEP
from app.engine.positions import Positions

TARGET_STEP_SECONDS = 0.5
"""Seconds that a step should take: what a user waits at most for a cancel, and half that long on
average. Only where a backend's smallest step takes longer, it is that."""

OnStep = Callable[[int], None]
"""Called after each step with the tokens done so far. Raises to cancel."""


def device_backend() -> Backend:
    """That of MLX's default device."""
    return CPU if mx.default_device().type == mx.DeviceType.cpu else GPU


class StepSize:
    """How many tokens to feed at once: a power of two that follows the measured pace, down to the
    smallest step of the `backend` on which the model runs (default: the device's).

    A `fixed` size never changes. Both sizes leave the result the same up to rounding.
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
        """Whether memory is tight."""

    @property
    def tokens(self) -> int:
        size = self._size // 2 if self.under_pressure else self._size
        return max(min(size, self.max_tokens), min(SMALLEST_STEP, self._size))

    def record(self, tokens: int, seconds: float) -> None:
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
    model: Any, cache: Cache, ids: np.ndarray[Any, Any], positions: Positions | None = None
) -> mx.array:
    """Run `ids` (N,) through the model into `cache`; returns lazy logits (1, N, vocabulary).

    With `positions` (N,), ascending, each token sits at its own; the cache must be a sparse one.
    """
    tokens = mx.array(ids)[None]
    if positions is None:
        return model(tokens, cache=cache)  # type: ignore[no-any-return]
    for layer in positioned_layers(cache):
        layer.set_next_positions(positions)
    if int(positions[-1]) - int(positions[0]) == len(positions) - 1:
        # A gapless step needs no seam: the caches' offset says it all.
        return model(tokens, cache=cache)  # type: ignore[no-any-return]
    with mlx_patches.explicit_positions(mx.array(positions)):
        return model(tokens, cache=cache)  # type: ignore[no-any-return]


def prefill_step(
    model: Any,
    cache: Cache,
    ids: np.ndarray[Any, Any],
    positions: Positions | None,
    backend: Backend,
    depth: int | None = None,
) -> None:
    """As `feed`, for the sake of the caches alone, those of the first `depth` layers or of all.

    What no cache needs is not computed: the last layer's attention and what comes after it, the
    output head, layers that read another one's cache.
    """
    with (
        mlx_patches.blocked_attention(backend.query_block),
        mlx_patches.early_exit(StepWatcher(flatten(cache[:depth]))),
    ):
        forward(model, cache, ids, positions)
    mx.eval([c.state for c in cache])


def prefill(
    model: Any,
    cache: Cache,
    ids: np.ndarray[Any, Any],
    positions: Positions | None,
    step: StepSize,
    on_step: OnStep,
    depth: int | None = None,
) -> None:
    """Read `ids` (N,) at `positions` (N,), or from the cache's own offset on when None, into the
    caches of the first `depth` layers, or of all when None.

    Whatever `on_step` raises leaves the cache with what was read until then.
    """
    done = 0
    while done < len(ids):
        begun = time.perf_counter()
        end = min(done + step.tokens, len(ids))
        placed = None if positions is None else positions[done:end]
        prefill_step(model, cache, ids[done:end], placed, step.backend, depth)
        memory.trim_buffer_cache()
        step.record(end - done, time.perf_counter() - begun)
        done = end
        on_step(done)


def set_next_position(cache: Cache, position: int) -> None:
    """Let the next token of every layer go to `position`."""
    for layer in positioned_layers(cache):
        layer.set_next_position(position)
