"""Which prompt tokens matter for the question: the draft reads them all and its attention tells.

After SpecPrefill (arXiv 2502.02789), with one addition of ours: beside the lookahead tokens, the
typed question and the generation prompt are observed too. A small draft past its trained length
looks in the right place while it reads the question, but no longer when it has to write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from app.engine import seams
from app.engine.caches import Cache
from app.engine.prefill import OnStep, StepSize, dense_cache, feed, prefill

LOOKAHEAD = 8
POOL_WIDTH = 13
MOST_OBSERVED = 128
"""Of a long question, its last tokens are observed."""

Importance = NDArray[np.float32]


class ScoringError(RuntimeError):
    """The draft cannot score; the turn reads densely instead."""


class Observations:
    """Collects importance (M,) over the prompt's M tokens while a model runs.

    Per observation (a query token) and per layer whose keys span the prompt: softmax over the
    prompt's keys, mean pool, then the maximum over heads and layers. `importance` is the mean over
    observations. Only a running maximum (observations, M) is held, never two layers' scores; a
    layer is worked on in blocks of an eighth of its observations.
    """

    def __init__(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.observed = 0
        self._sum = mx.zeros((prompt_tokens,), mx.float32)
        self._running: list[mx.array] = []
        self._rows = 0

    def watch(self, rows: int, run: Callable[[], mx.array]) -> mx.array:
        """Run a step of the model and observe its last `rows` tokens. Returns what `run` did,
        evaluated. Raises ScoringError when no layer could be seen."""
        self._rows, self._running = rows, []
        with seams.observed_attention(self._layer):
            result = run()
            mx.eval(result)
        if not self._running:
            raise ScoringError("its attention cannot be observed")
        for block in self._running:
            self._sum = self._sum + block.sum(axis=0)
            mx.eval(self._sum)
        self.observed += rows
        self._running = []
        return result

    @property
    def importance(self) -> Importance:
        """Mean over the observations so far, float32 (M,)."""
        return np.array(self._sum / max(self.observed, 1), dtype=np.float32)

    def _layer(
        self,
        q: mx.array,
        k: mx.array,
        scale: float,
        mask: mx.array | str | None,
        sinks: mx.array | None,
    ) -> None:
        total = k.shape[2]
        if total < self.prompt_tokens or q.shape[2] < self._rows:
            return  # a sliding window, or a layer that does not run over the prompt
        keys = k[0, :, : self.prompt_tokens].swapaxes(-1, -2)
        size = max(1, -(-self._rows // 8))
        first_layer = not self._running
        queries = q.shape[2]
        for block, start in enumerate(range(queries - self._rows, queries, size)):
            rows = slice(start, min(start + size, queries))
            scores = _scores(q[0, :, rows], keys, scale)
            scores = _masked(scores, mask, rows, queries, total)
            importance = _pooled(_probabilities(scores, sinks)).max(axis=0)
            if not first_layer:
                importance = mx.maximum(self._running[block], importance)
            mx.eval(importance)
            self._running[block : block + 1] = [importance]


def _scores(q: mx.array, keys: mx.array, scale: float) -> mx.array:
    """q (Hq, n, D), keys (Hk, D, M) -> float32 (Hq, n, M), without repeating keys for GQA."""
    heads, rows, width = q.shape
    grouped = q.reshape(keys.shape[0], -1, width)
    return (grouped @ keys).astype(mx.float32).reshape(heads, rows, -1) * scale


def _masked(
    scores: mx.array, mask: mx.array | str | None, rows: slice, queries: int, total: int
) -> mx.array:
    width = scores.shape[-1]
    if isinstance(mask, mx.array):
        part = mask.reshape(-1, *mask.shape[-2:])[:, rows, :width]
        return mx.where(part, scores, -mx.inf) if part.dtype == mx.bool_ else scores + part
    if mask == "causal":
        at = mx.arange(total - queries + rows.start, total - queries + rows.stop)
        return mx.where(mx.arange(width)[None] <= at[:, None], scores, -mx.inf)
    return scores


def _probabilities(scores: mx.array, sinks: mx.array | None) -> mx.array:
    if sinks is None:
        return mx.softmax(scores, axis=-1)
    sink = sinks.astype(mx.float32)[:, None, None]
    norm = mx.logaddexp(mx.logsumexp(scores, axis=-1, keepdims=True), sink)
    return mx.exp(scores - norm)


def _pooled(x: mx.array) -> mx.array:
    """Mean over POOL_WIDTH neighbours along the last axis; at the edges over those there are.

    Sums of 13 = 8 + 4 + 1 by doubling: five additions, and none of a cumulative sum's rounding.
    """
    half = POOL_WIDTH // 2
    length = x.shape[-1]
    padded = mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)])
    two = padded[..., :-1] + padded[..., 1:]
    four = two[..., :-2] + two[..., 2:]
    eight = four[..., :-4] + four[..., 4:]
    total = eight[..., :length] + four[..., 8 : 8 + length] + padded[..., 12 : 12 + length]
    at = np.arange(length)
    counts = np.minimum(at, half) + np.minimum(length - 1 - at, half) + 1
    return total / mx.array(counts.astype(np.float32))


def score(
    model: Any,
    ids: NDArray[np.int32],
    observed_from: int,
    stop_ids: Iterable[int],
    step: StepSize,
    on_step: OnStep,
    on_observed: Callable[[Observations, int], None],
    lookahead: int = LOOKAHEAD,
) -> Importance:
    """Importance of each of the prompt's `ids` (M,), as the draft `model` sees it.

    Tokens from `observed_from` on (the question and the generation prompt) are observed, and
    `lookahead` greedy tokens after them. `on_step` is called with prompt tokens done,
    `on_observed` with the observations and how many there will be; either raises to cancel.
    """
    total = len(ids)
    observed_from = min(max(observed_from, total - MOST_OBSERVED, 0), total - 1)
    rows = total - observed_from
    cache = dense_cache(model)
    observations = Observations(total)
    prefill(model, cache, ids[:observed_from], None, step, on_step)
    last = observations.watch(rows, lambda: feed(model, cache, ids[observed_from:])[:, -1])
    on_step(total)
    on_observed(observations, rows + lookahead)
    _look_ahead(model, cache, last, set(stop_ids), lookahead, observations, rows, on_observed)
    return observations.importance


def _look_ahead(
    model: Any,
    cache: Cache,
    last: mx.array,
    stop_ids: set[int],
    count: int,
    observations: Observations,
    rows: int,
    on_observed: Callable[[Observations, int], None],
) -> None:
    """Observe up to `count` greedy tokens after the prompt, stopping at an end-of-text token."""
    logits = last
    for _ in range(count):
        token = int(np.array(mx.argmax(logits)))
        if token in stop_ids:
            return
        ids = np.array([token], np.int32)
        try:
            logits = observations.watch(1, lambda ids=ids: feed(model, cache, ids)[:, -1])  # type: ignore[misc]
        except ScoringError:
            return  # a draft that picks keys itself when it writes; the question was observed
        on_observed(observations, rows + count)
