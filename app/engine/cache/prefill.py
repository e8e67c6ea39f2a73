"""Dense and sparse prefill of a cache in steps. It can be cancelled between steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from numpy.typing import NDArray

from app.engine.backend import memory, mlx_patches
from app.engine.backend.device import CPU, CUDA, GPU, Backend
from app.engine.cache.caches import (
    Cache,
    StepWatcher,
    attention_layers,
    flatten,
    positioned_layers,
    step_undo,
    to_positioned,
)
from app.engine.cache.positions import Positions
from app.estimate.memory import LARGEST_STEP, LONG_STEPS, SMALLEST_STEP

PART_SECONDS = 0.5
"""Longer steps are split into parts of about this many seconds, to be cancelled between them."""

OnStep = Callable[[int], None]
"""Called after each step with the number of tokens done; raises to cancel."""
StepObserver = Callable[[Any, Positions], Callable[[mx.array], None] | None]
"""Called before a step with the model and the positions of its tokens (n,). Returns a function that
gets the last hidden states (1, n, size), lazily, or None if they are not needed."""
_observer: ContextVar[StepObserver | None] = ContextVar("specchat_steps", default=None)


@contextmanager
def observed_steps(observer: StepObserver) -> Iterator[None]:
    """Within this context, `observer` may read the hidden states of prefill steps with positions.
    The model must have them as the result of its `model`."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def device_backend() -> Backend:
    """The backend of MLX's default device."""
    if mx.default_device().type == mx.DeviceType.cpu:
        return CPU
    return GPU if mx.metal.is_available() else CUDA


class StepSize:
    """The prefill step in tokens: a power of two, adapted to the measured speed within the limits
    of `backend`; constant if `fixed`. Results do not depend on it, up to rounding."""

    def __init__(self, fixed: int | None = None, backend: Backend | None = None) -> None:
        self.backend = backend or device_backend()
        self._size = fixed or self.backend.first_step
        self._adapts = fixed is None
        self._seconds_per_token = 0.0
        self._preferred = 0
        self._max_tokens = self._max_unforced = LARGEST_STEP
        self.under_pressure = False
        """Whether memory is tight; steps are halved then."""

    @property
    def tokens(self) -> int:
        size = self._size // 2 if self.under_pressure else self._size
        return max(min(size, self._max_tokens), min(SMALLEST_STEP, self._size))

    def parts(self, tokens: int) -> int:
        """Number of parts in which a step of this many tokens is evaluated (see `PART_SECONDS`)."""
        return max(math.ceil(self._seconds_per_token * tokens / PART_SECONDS), 1)

    def expect(self, seconds_per_token: float, head_size: int = 0) -> None:
        """Set the predicted speed before the first step (0: unknown). If it allows, steps start at
        the length that is best for this `head_size` (`LONG_STEPS`)."""
        self._seconds_per_token = seconds_per_token
        if not self._adapts or self.backend.on_cpu:
            return
        self._preferred = LONG_STEPS.get(head_size, 0)
        if 0 < seconds_per_token * self._preferred <= self.backend.shrink_above:
            self._size = self._preferred

    def limit(self, max_tokens: int, max_unforced: int) -> None:
        """Limit steps to `max_tokens` by memory; those above `max_unforced` need attention that is
        forced to be fused."""
        self._max_tokens, self._max_unforced = max_tokens, max_unforced

    def forces_fused(self, tokens: int) -> bool:
        """Whether a step of this many tokens needs attention that is forced to be fused."""
        return self.under_pressure or tokens > self._max_unforced

    def record(self, tokens: int, seconds: float) -> None:
        """Adapt the size to a step of this many tokens that took `seconds`."""
        if tokens < self.tokens:
            return
        self._seconds_per_token = seconds / tokens
        if not self._adapts:
            return
        grow_below, shrink_above = self.backend.grow_below, self.backend.shrink_above
        if self._size < self._preferred:
            grow_below = shrink_above / 2.2
        if seconds > shrink_above:
            self._size = max(self.backend.min_step, min(self._size, 2 * tokens) // 2)
        elif seconds < grow_below and tokens == self._size:
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
    """Run token ids (N,) through the model into `cache`. Returns lazy logits (1, N, vocabulary), or
    what else the model computes. Ascending `positions` (N,) place the tokens; they need a
    positioned cache."""
    patch: Any = nullcontext()
    if positions is not None:
        announce(cache, positions)
        if int(positions[-1]) - int(positions[0]) != len(positions) - 1:
            patch = mlx_patches.explicit_positions(mx.array(positions))
        # Without gaps, the caches' offset is enough.
    with patch:
        logits: mx.array = model(mx.array(ids)[None], cache=cache)
        return logits


def announce(cache: Cache, positions: Positions) -> None:
    """Set the positions of the next tokens in every layer."""
    for layer in positioned_layers(cache):
        layer.set_next_positions(positions)


def prefill_step(
    model: Any,
    cache: Cache,
    ids: NDArray[np.int32],
    positions: Positions | None,
    backend: Backend,
    forced: bool = False,
    parts: StepInParts | None = None,
) -> None:
    """Like `forward`, but only fills the caches and returns no logits.

    Skips everything after the last cache update: the last layer's attention and MLP, the output
    head, layers that share another layer's cache. If the step's hidden states are observed, only
    the output head is skipped. `forced`: use fused attention wherever the backend has a kernel for
    it. A step in `parts` can be cancelled between them; the cache is then restored.
    """
    watcher = StepWatcher(flatten(cache))
    should_exit: Callable[[], bool] = watcher
    undo = None
    if parts is not None and (undo := step_undo(cache)) is not None:
        should_exit = parts.watch(watcher)
    observer = _observer.get()
    observe = observer(model, positions) if observer is not None and positions is not None else None
    watch, run = should_exit, model
    if observe is not None:
        watch, run = lambda: should_exit() and False, model.model
    hidden: mx.array | None = None
    try:
        with (
            mlx_patches.forced_attention(backend.forced_head_sizes if forced else frozenset()),
            mlx_patches.blocked_attention(backend.query_block),
            mlx_patches.early_exit(watch),
        ):
            hidden = forward(run, cache, ids, positions)
    except BaseException:
        if undo is not None and parts is not None and parts.stopped:
            undo(len(ids))
        raise
    if observe is not None and hidden is not None:
        observe(hidden)
    mx.eval([c.state for c in cache])


class StepInParts:
    """Evaluates a step a few layers at a time while the model's code builds its graph: the device
    computes one part while the next is built. After each part, `on_part` is called with the share
    (0..1) of layers computed. It raises to cancel; `stopped` is set then."""

    def __init__(self, cache: Cache, parts: int, on_part: Callable[[float], None]) -> None:
        self._layers = flatten(cache)
        self._attentions = attention_layers(cache)
        self._every = max(self._attentions // parts, 1)
        self._on_part = on_part
        self.stopped = False

    def watch(self, watcher: StepWatcher) -> Callable[[], bool]:
        """Wrap `watcher`: each call also evaluates the layers that were built since the last."""
        seen = evaluated = 0
        running: list[Any] = []

        def at_attention() -> bool:
            nonlocal seen, evaluated, running
            is_last, seen = watcher(), seen + 1
            if seen % self._every and not is_last:
                return False
            built = [layer.state for layer in self._layers[evaluated : watcher.updated]]
            mx.async_eval(built)  # type: ignore[no-untyped-call]
            mx.eval(running)
            try:
                self._on_part(evaluated / len(self._layers))
            except BaseException:
                self.stopped = True
                raise
            evaluated, running = watcher.updated, built
            return is_last

        return at_attention


def prefill(
    model: Any,
    cache: Cache,
    ids: NDArray[np.int32],
    positions: Positions | None,
    step: StepSize,
    on_step: OnStep,
    on_part: OnStep | None = None,
    fill: Callable[..., None] = prefill_step,
) -> None:
    """Feed token ids (N,) at `positions` (N,) (None: without gaps) into the caches; `fill` runs a
    step. When `on_step` raises, the steps done stay in the cache.

    `on_part` is called about twice a second within long steps with the number of tokens done,
    interpolated by layers. When it raises, the running step is removed from the cache.
    """
    done = 0
    while done < len(ids):
        started_at = time.perf_counter()
        end = min(done + step.tokens, len(ids))
        chosen, count = None if positions is None else positions[done:end], end - done
        parts = None
        if on_part is not None and step.parts(count) > 1:

            def report(share: float, done: int = done, count: int = count) -> None:
                on_part(done + int(share * count))

            parts = StepInParts(cache, step.parts(count), report)
        forced = step.forces_fused(count)
        fill(model, cache, ids[done:end], chosen, step.backend, forced=forced, parts=parts)
        memory.trim_buffer_cache()
        step.record(count, time.perf_counter() - started_at)
        done = end
        on_step(done)


def set_next_position(cache: Cache, position: int) -> None:
    """Set the position of the next token in every layer."""
    for layer in positioned_layers(cache):
        layer.set_next_position(position)
