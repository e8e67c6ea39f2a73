"""Which prompt tokens matter for the question: the draft reads them all and its attention tells.

After SpecPrefill (arXiv 2502.02789), with one addition of ours: beside the lookahead tokens, the
typed question and the generation prompt are observed too. A small draft past its trained length
looks in the right place while it reads the question, but no longer when it has to write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from app.engine import seams
from app.engine.blocks import Blocks
from app.engine.caches import Cache, Fed, flat
from app.engine.held import Held
from app.engine.prefill import OnStep, StepSize, feed, fill, in_blocks
from app.engine.tuning import DEFAULT_TUNING, Scoring, Tuning

MOST_OBSERVED = 128
"""Of a long question, its last tokens are observed."""

Importance = NDArray[np.float32]
T = TypeVar("T")


class ScoringError(RuntimeError):
    """The draft cannot score; the turn reads densely instead."""


class Observations:
    """Collects importance (M,) over the prompt's M tokens while a model runs.

    Per observation (a query token) and per layer whose keys span the prompt: softmax over the
    prompt's keys, mean pool, then the maximum over heads and layers. `importance` is the mean over
    observations. Only a running maximum (observations, M) is held, never two layers' scores; a
    layer is worked on in blocks of an eighth of its observations. `pool` is the width of the mean
    pool in tokens, odd.
    """

    def __init__(self, prompt_tokens: int, tuning: Tuning) -> None:
        self.prompt_tokens = prompt_tokens
        self.observed = 0
        self._tuning = tuning
        self._total = mx.zeros((prompt_tokens,), mx.float32)
        self._running: list[mx.array] = []
        self._rows = 0
        self._from: Fed | None = None
        self._to: Fed | None = None

    def watch(self, rows: int, cache: Cache, run: Callable[[], T]) -> T:
        """Let `run` run and evaluate a step of the model on `cache`, and observe its last `rows`
        tokens. Returns what `run` did. Raises ScoringError when no layer could be seen."""
        self._rows, self._running = rows, []
        first, end = _layers(len(cache), self._tuning)
        self._from = Fed(flat(cache[first : first + 1])) if first else None
        self._to = Fed(flat(cache[end : end + 1])) if end < len(cache) else None
        with seams.observed_attention(self._layer):
            result = run()
        if not self._running:
            raise ScoringError("its attention cannot be observed")
        for block in self._running:
            self._total = self._total + block.sum(axis=0)
            mx.eval(self._total)
        self.observed += rows
        self._running = []
        return result

    @property
    def importance(self) -> Importance:
        """Mean over the observations so far, float32 (M,)."""
        return np.array(self._total / max(self.observed, 1), dtype=np.float32)

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
        if (self._from and not self._from()) or (self._to and self._to()):
            return  # a layer that does not count
        keys = k[0, :, : self.prompt_tokens].swapaxes(-1, -2)
        size = max(1, -(-self._rows // 8))
        first_layer = not self._running
        queries = q.shape[2]
        for block, start in enumerate(range(queries - self._rows, queries, size)):
            rows = slice(start, min(start + size, queries))
            scores = _scores(q[0, :, rows], keys, scale)
            scores = _masked(scores, mask, rows, queries, total)
            probabilities = _probabilities(scores, sinks)
            importance = _pooled(probabilities, self._tuning.pool).max(axis=0)
            if not first_layer:
                importance = mx.maximum(self._running[block], importance)
            mx.eval(importance)
            self._running[block : block + 1] = [importance]


def _layers(count: int, tuning: Tuning) -> tuple[int, int]:
    """Of `count` layers the first that is observed, and one past the last."""
    end = max(round(tuning.layers * count), 1)
    return min(round(tuning.skip_layers * count), end - 1), end


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


def _pooled(x: mx.array, width: int) -> mx.array:
    """Mean over `width` (odd) neighbours along the last axis; at the edges over those there are.

    Sums of 1, 2, 4, ... neighbours by doubling: few additions, and none of a cumulative sum's
    rounding.
    """
    half, length = width // 2, x.shape[-1]
    doubled = mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(half, half)])
    total, at = mx.zeros_like(x), 0
    for bit in range(width.bit_length()):
        size = 1 << bit
        if width & size:
            total = total + doubled[..., at : at + length]
            at += size
        doubled = doubled[..., :-size] + doubled[..., size:]
    places = np.arange(length)
    counts = np.minimum(places, half) + np.minimum(length - 1 - places, half) + 1
    return total / mx.array(counts.astype(np.float32))


def score(
    model: Any,
    held: Held,
    ids: NDArray[np.int32],
    observed_from: int,
    stop_ids: Iterable[int],
    step: StepSize,
    on_step: OnStep,
    on_observed: Callable[[Observations, int], None],
    tuning: Tuning = DEFAULT_TUNING,
) -> Importance:
    """Importance of each of the prompt's `ids` (M,), as the draft `model` sees it.

    What `held` has of the prompt is not read again, and it holds all of it afterwards. As the
    tuning says, tokens from `observed_from` on (the question and the generation prompt) are
    observed, and greedy tokens after them. `on_step` is called with prompt tokens done,
    `on_observed` with the observations and how many there will be; either raises to cancel.
    """
    total = len(ids)
    observed_from = min(max(observed_from, total - MOST_OBSERVED, 0), total - 1)
    sees_question = tuning.scoring is not Scoring.LOOKAHEAD
    rows = total - observed_from if sees_question else 0
    lookahead = tuning.lookahead if tuning.scoring is not Scoring.QUESTION else 0
    observations = Observations(total, tuning)
    # Writing takes all layers; to be observed, a token needs those up to the last that counts.
    last_layer = _layers(len(held.cache), tuning)[1]
    held.read_to(None if lookahead or last_layer == len(held.cache) else last_layer)
    start = held.rewind(min(held.shared(ids), observed_from))
    positions = np.arange(start, observed_from, dtype=np.int32)
    blocks = Blocks(top=tuning.sparse_draft_top)
    with seams.sparse_attention(blocks if total >= tuning.sparse_draft_from else None):
        held.take_in(model, ids, positions, step, lambda done: on_step(start + done))
    held.mark_border()

    read = partial(_run, model, held, ids[observed_from:], lookahead > 0)
    last = observations.watch(rows, held.cache, read) if sees_question else read()
    held.note(ids, np.arange(observed_from, total, dtype=np.int32))
    on_step(total)
    on_observed(observations, rows + lookahead)
    try:
        _look_ahead(model, held, last, set(stop_ids), lookahead, observations, rows, on_observed)
    finally:
        held.rewind(total)
    return observations.importance


def _run(model: Any, held: Held, ids: NDArray[np.int32], writes: bool) -> mx.array | None:
    """The model reads `ids` (n,). If it `writes` on, the logits after the last one (1, vocabulary).
    The head then sees the others too: to run the last token alone would take longer."""
    if not writes:
        fill(model, held.cache, ids, depth=held.depth)
        return None
    with in_blocks():
        logits = feed(model, held.cache, ids)[:, -1]
    mx.eval(logits)
    return logits


def _look_ahead(
    model: Any,
    held: Held,
    last: mx.array | None,
    stop_ids: set[int],
    count: int,
    observations: Observations,
    rows: int,
    on_observed: Callable[[Observations, int], None],
) -> None:
    """Observe up to `count` greedy tokens after the prompt, stopping at an end-of-text token."""
    logits = last
    for left in reversed(range(count)):
        assert logits is not None, "all but the last are read to write on"
        token = int(np.array(mx.argmax(logits)))
        if token in stop_ids:
            return
        ids = np.array([token], np.int32)

        write = partial(_run, model, held, ids, left > 0)
        held.follow(ids)
        try:
            logits = observations.watch(1, held.cache, write)
        except ScoringError:
            if not rows:
                raise
            return  # a draft that picks keys itself when it writes; the question was observed
        on_observed(observations, rows + count)
