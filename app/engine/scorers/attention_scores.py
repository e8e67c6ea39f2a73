"""Observes a model's attention while it runs: how much each prompt token is attended to.

Scores are float32 whatever the model's dtype: the keys of some models share a component so large
that in half precision their differences are lost, or they overflow. A layer is processed in blocks
of heads and of queries, so that its memory does not grow with the prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from app.engine.backend import mlx_patches
from app.engine.backend.device import Backend
from app.engine.cache.caches import Cache, StepWatcher, flatten
from app.protocol.memory_model import block_shape
from app.protocol.options import Tuning

Importance = NDArray[np.float32]
T = TypeVar("T")

Softmax = Callable[[mx.array, "mx.array | None"], mx.array]
Visible = NDArray[np.int32] | mx.array
"""For each row the index of the last key that it sees, or a mask (1 or heads, rows, M)."""


class ScoringError(RuntimeError):
    """The draft cannot score; the turn reads densely instead."""


class Unobservable(ScoringError):
    """No attention of a step could be observed."""

    def __init__(self) -> None:
        super().__init__("its attention cannot be observed")


class AttentionObserver:
    """Collects importance (M,) over the prompt's M tokens while a model runs.

    Per observation (a query token) and per layer whose keys span the prompt: softmax over the
    prompt's keys, mean pool, then the maximum over heads and layers. `importance` is the mean over
    observations. Only the running maximum (observations, M) is stored, never two layers' scores.
    """

    def __init__(self, prompt_tokens: int, tuning: Tuning, backend: Backend) -> None:
        self.prompt_tokens = prompt_tokens
        self.observed = 0
        self._scored = 0
        self._tuning = tuning
        self._total = mx.zeros((prompt_tokens,), mx.float32)
        self._running: list[mx.array] = []
        """The maximum so far of each block of rows."""
        self._in_flight: list[mx.array] = []
        """At most two blocks: one is computed while the next one is prepared."""
        self._waiting: list[list[tuple[mx.array, Visible]]] = []
        """For each layer, the queries that are not scored yet, and what they see."""
        self._rows = self._layer_count = 0
        self._defers = False
        self._before_first: StepWatcher | None = None
        self._through_last: StepWatcher | None = None
        self._softmax: Softmax = _numpy_softmax if backend.on_cpu else _softmax
        self._mean_pool = _make_mean_pool(prompt_tokens, tuning.pool)

    def observe(self, rows: int, cache: Cache, run: Callable[[], T], defer: bool = False) -> T:
        """Observe the last `rows` tokens of the step that `run` runs and evaluates on `cache`.
        Returns what `run` returns. Raises Unobservable when no layer could be observed, and
        ScoringError when scores are not finite.

        Deferred rows are scored with those of the next step that does not `defer`: then all of a
        layer's keys are read once for all of them. Until then only their queries are stored."""
        self._rows, self._layer_count, self._defers = rows, 0, defer
        first, end = observed_layers(len(cache), self._tuning)
        self._before_first = StepWatcher(flatten(cache[first : first + 1])) if first else None
        self._through_last = (
            StepWatcher(flatten(cache[end : end + 1])) if end < len(cache) else None
        )
        with mlx_patches.observed_attention(self._on_attention):
            result = run()
        if not self._layer_count:
            raise Unobservable
        self.observed += rows
        if defer:
            mx.eval([layer[-1][0] for layer in self._waiting])
        else:
            self._finish_rows()
        return result

    @property
    def importance(self) -> Importance:
        """Mean over the observations scored so far, float32 (M,)."""
        return np.array(self._total / max(self._scored, 1), dtype=np.float32)

    def _finish_rows(self) -> None:
        for block in self._running:
            self._total = self._total + block.sum(axis=0)
        finite = mx.isfinite(self._total).all()
        mx.eval(self._total, finite)
        self._running, self._in_flight, self._waiting = [], [], []
        self._scored = self.observed
        if not finite.item():
            raise ScoringError("the draft's scores are not finite numbers")

    def _on_attention(
        self,
        q: mx.array,
        k: mx.array,
        scale: float,
        mask: mx.array | str | None,
        sinks: mx.array | None,
    ) -> None:
        total, queries = k.shape[2], q.shape[2]
        if total < self.prompt_tokens or queries < self._rows:
            return  # a sliding window, or a layer that does not run over the prompt
        if self._before_first and not self._before_first():
            return
        if self._through_last and self._through_last():
            return
        index, self._layer_count = self._layer_count, self._layer_count + 1
        if index == len(self._waiting):
            self._waiting.append([])
        rows = slice(queries - self._rows, queries)
        waiting = self._waiting[index]
        waiting.append((q[0, :, rows], _visible_keys(mask, rows, total, self.prompt_tokens)))
        if self._defers:
            return
        scaled = mx.concatenate([q for q, _ in waiting], axis=1).astype(mx.float32) * scale
        self._score(scaled, k[0, :, : self.prompt_tokens], _concatenated(waiting), sinks)

    def _score(self, q: mx.array, keys: mx.array, visible: Visible, sinks: mx.array | None) -> None:
        """Queries (Hq, n, D), float32 and scaled, on keys (Hk, M, D)."""
        (kv_heads, _, width), rows = keys.shape, q.shape[1]
        group, half = q.shape[0] // kv_heads, self._tuning.pool // 2
        heads, size = block_shape(kv_heads, group, rows, width)
        if self._running:  # blocks of rows are those of the first layer
            size = self._running[0].shape[0]
        first_layer = not self._running
        for head in range(0, kv_heads, heads):
            part = slice(head * group, (head + heads) * group)
            part_sinks = None if sinks is None else sinks[part].astype(mx.float32)[:, None, None]
            # Longer by what the pool reaches past either end.
            padded = mx.pad(keys[head : head + heads], [(0, 0), (half, half), (0, 0)])
            padded = padded.astype(mx.float32).swapaxes(-1, -2)
            for block, start in enumerate(range(0, rows, size)):
                block_rows = slice(start, min(start + size, rows))
                scores = _scores(q[part, block_rows], padded)
                scores = _mask_scores(scores, _slice_of(visible, part, block_rows), half)
                found = self._mean_pool(self._softmax(scores, part_sinks))
                if head or not first_layer:
                    found = mx.maximum(self._running[block], found)
                self._running[block : block + 1] = [found]
                self._start_block(found)

    def _start_block(self, block: mx.array) -> None:
        """Start computing it, and wait for the one before it: so there is always work, and never
        more than two blocks in memory."""
        mx.async_eval(block)  # type: ignore[no-untyped-call]
        self._in_flight.append(block)
        if len(self._in_flight) > 1:
            mx.eval(self._in_flight.pop(0))


def observed_layers(count: int, tuning: Tuning) -> tuple[int, int]:
    """The first observed one of `count` layers, and one past the last."""
    end = max(round(tuning.layers * count), 1)
    return min(round(tuning.skip_layers * count), end - 1), end


def _visible_keys(mask: mx.array | str | None, rows: slice, total: int, tokens: int) -> Visible:
    """What those rows of a step over `total` keys see of a prompt of this many tokens."""
    if isinstance(mask, mx.array):
        return mask.reshape(-1, *mask.shape[-2:])[:, rows, :tokens]
    if mask == "causal":
        last = np.arange(total - rows.stop + rows.start, total, dtype=np.int32)
        return np.minimum(last, tokens - 1)
    return np.full(rows.stop - rows.start, tokens - 1, np.int32)


def _concatenated(waiting: list[tuple[mx.array, Visible]]) -> Visible:
    """A layer has the same kind of mask in every step."""
    masks = [visible for _, visible in waiting if isinstance(visible, mx.array)]
    if masks:
        return mx.concatenate(masks, axis=1)
    return np.concatenate([last for _, last in waiting if not isinstance(last, mx.array)])


def _slice_of(visible: Visible, heads: slice, rows: slice) -> Visible:
    if not isinstance(visible, mx.array):
        return visible[rows]
    return visible[heads if visible.shape[0] > 1 else slice(None), rows]


def _scores(q: mx.array, keys: mx.array) -> mx.array:
    """q (Hq, n, D), keys (Hk, D, M) -> (Hq, n, M), without repeating keys for GQA."""
    heads, rows, width = q.shape
    grouped = q.reshape(keys.shape[0], -1, width)
    return (grouped @ keys).reshape(heads, rows, -1)


def _mask_scores(scores: mx.array, visible: Visible, half: int) -> mx.array:
    """Hide keys that are not visible, and `half` columns at either end. In place, where possible:
    every row sees most of a prompt."""
    end = scores.shape[-1] - half
    if isinstance(visible, mx.array):
        first, last = 0, mx.array(end - half - 1)
        added = mx.where(visible, 0.0, -mx.inf) if visible.dtype == mx.bool_ else visible
        scores = scores.at[..., half:end].add(added.astype(mx.float32))
    else:
        first, last = int(visible.min()) + 1, mx.array(visible)[:, None]
    if half:
        scores[..., :half] = -mx.inf
    if first < end:
        hidden = mx.where(mx.arange(first, end) <= last, 0.0, -mx.inf)
        scores = scores.at[..., half + first :].add(hidden)
    return scores


def _softmax(scores: mx.array, sinks: mx.array | None) -> mx.array:
    if sinks is None:
        return mx.softmax(scores, axis=-1)
    norm = mx.logaddexp(mx.logsumexp(scores, axis=-1, keepdims=True), sinks)
    return mx.exp(scores - norm)


def _numpy_softmax(scores: mx.array, sinks: mx.array | None) -> mx.array:
    """The same in NumPy. On a CPU, where MLX's exponential is not vectorised, it takes a sixth of
    the time (measured)."""
    weights = np.array(scores)
    highest = weights.max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):  # a row that sees nothing is found at the end
        weights -= highest
    np.exp(weights, out=weights)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total += np.exp(np.array(sinks) - highest)
    weights /= total
    return mx.array(weights)


def _make_mean_pool(length: int, width: int) -> Callable[[mx.array], mx.array]:
    """A function of probabilities (heads, rows, length + width - 1), zero at both ends: the mean
    over `width` (odd) neighbours, at the edges over those that exist, then the maximum over heads,
    (rows, length). Compiled, the sum reads its input once."""
    half, indices = width // 2, np.arange(length)
    counts = np.minimum(indices, half) + np.minimum(length - 1 - indices, half) + 1
    neighbours = mx.array(counts.astype(np.float32))

    @mx.compile
    def pooled(padded: mx.array) -> mx.array:
        sums = [padded[..., at : at + length] for at in range(width)]
        while len(sums) > 1:
            odd = sums[-1:] if len(sums) % 2 else []
            sums = [a + b for a, b in zip(sums[::2], sums[1::2], strict=False)] + odd
        return sums[0].max(axis=0) / neighbours

    return pooled
