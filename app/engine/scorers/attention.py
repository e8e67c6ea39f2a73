"""Scores prompt tokens by the draft's attention to them while it reads the question and writes the
first tokens of an answer.

After SpecPrefill (arXiv 2502.02789), with one addition of ours: the typed question and the
generation prompt are observed, not only the tokens that the draft writes. A small draft past its
trained length attends to the right tokens while it reads the question, but no longer when it
writes.

Scores are float32 whatever the model's dtype: the keys of some models share a component so large
that in half precision their differences are lost, or they overflow. A layer is processed in blocks
of heads and of queries, so that its memory does not grow with the prompt.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from app.engine.backend import mlx_patches
from app.engine.backend.device import Backend
from app.engine.cache.prefill import OnStep, StepSize, forward
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.model.prompt import Prompt
from app.engine.progress import ScoringPart
from app.engine.scorers.scorer import (
    Importance,
    ScoringContext,
    ScoringError,
    show_importance,
)
from app.estimate.memory import MAX_QUERY_ROWS, block_shape
from app.estimate.work import SPARSE_DRAFT_FROM, scoring_work
from app.protocol.cost_model import AttentionWork
from app.protocol.options import Blocks
from app.protocol.stats import Phase

LOOKAHEAD = 8
"""Tokens that the draft writes, greedily, to be observed."""
POOL = 13
"""Tokens over which attention is averaged: an odd number."""
DRAFT_BLOCKS = Blocks()

T = TypeVar("T")
Softmax = Callable[[mx.array, "mx.array | None"], mx.array]
Visible = NDArray[np.int32] | mx.array
"""For each row the index of the last key that it sees, or a mask (1 or heads, rows, M)."""
OnObserved = Callable[["AttentionObserver", int], None]
"""Called with the observer and the expected number of observations. Raises to cancel."""


class Unobservable(ScoringError):
    """No attention of a step could be observed."""

    def __init__(self) -> None:
        super().__init__("its attention cannot be observed")


@dataclass(frozen=True, slots=True)
class AttentionScorer:
    """Scores by the draft's attention. Prompts are in the draft's own tokens."""

    parts: ClassVar[tuple[ScoringPart, ...]] = (ScoringPart.DRAFT,)

    def score(self, prompt: Prompt, context: ScoringContext) -> Importance:
        draft, cache, clock = context.pair.draft, context.draft_cache, context.clock
        if draft is None or cache is None:
            raise ScoringError("no draft model is loaded")
        # The question decides, also for an answer that is continued.
        ids = prompt.ids[: len(prompt.ids) - prompt.answer_prefix_len]
        total = len(ids)
        context.draft_work = work = draft_work(cache, prompt)
        new = total - cache.common_prefix_len(ids)
        seconds = None
        if context.draft_cost is not None:
            seconds = context.draft_cost.seconds_until(work, work.cached)
        fits = context.memory.ensure_scoring(draft, new, total)
        eligible = ~prompt.pinned[:total]
        report_prefill = clock.report(Phase.SCORE, total, ScoringPart.DRAFT, seconds)
        started_at, prefilled_at = time.perf_counter(), 0.0
        report_lookahead: Callable[[int], None] | None = None

        def on_step(done: int) -> None:
            report_prefill(done)
            if done < total:
                context.memory.check_step(draft, done, fits)

        def on_observed(observer: AttentionObserver, expected: int) -> None:
            nonlocal report_lookahead, prefilled_at
            if report_lookahead is None:
                prefilled_at = time.perf_counter()
                report_lookahead = clock.report(Phase.LOOKAHEAD, expected)
            show_importance(clock, observer.importance * eligible, observer.observed, expected)
            report_lookahead(observer.observed)

        try:
            with cache.reserved((new + LOOKAHEAD) * fits):
                importance = score_by_attention(
                    draft.model,
                    cache,
                    ids,
                    prompt.question_start,
                    context.pair.draft_stop_ids,
                    draft.step,
                    on_step,
                    on_observed,
                    partial(report_prefill, within_step=True),
                )
            return np.pad(importance, (0, prompt.answer_prefix_len))
        finally:
            if not context.keeps_draft_cache:
                cache.clear()  # no later turn needs it, and the target needs the memory
            context.memory.end_scoring()
            ended_at = time.perf_counter()
            prefilled_at = prefilled_at or ended_at
            clock.add(Phase.SCORE, prefilled_at - started_at)
            clock.add(Phase.LOOKAHEAD, ended_at - prefilled_at)


def draft_work(cache: PrefixCache, prompt: Prompt) -> AttentionWork:
    """What the draft reads to score a prompt of its own tokens: always the question, because it is
    observed."""
    total = len(prompt.ids) - prompt.answer_prefix_len
    shared = min(cache.common_prefix_len(prompt.ids), prompt.question_start, total - 1)
    start = cache.rewind_target(shared)
    return scoring_work(total - start, start)


def score_by_attention(
    model: Any,
    prefix: PrefixCache,
    ids: NDArray[np.int32],
    observed_from: int,
    stop_ids: Iterable[int],
    step: StepSize,
    on_step: OnStep,
    on_observed: OnObserved,
    on_part: OnStep | None = None,
    lookahead: int = LOOKAHEAD,
    pool: int = POOL,
    blocks: Blocks = DRAFT_BLOCKS,
    blocks_from: int = SPARSE_DRAFT_FROM,
) -> Importance:
    """Importance of each of the prompt's `ids` (M,), according to the draft `model`.

    Cached tokens in `prefix` are not read again; afterwards it holds the whole prompt. Tokens from
    `observed_from` on (the question and the generation prompt) are observed, and `lookahead` greedy
    tokens after them. A prompt of `blocks_from` tokens or more is read with block-sparse attention.
    Raises ScoringError.
    """
    total = len(ids)
    observed_from = min(max(observed_from, total - MAX_QUERY_ROWS, 0), total - 1)
    rows = total - observed_from
    observer = AttentionObserver(total, step.backend, pool)
    start = prefix.rewind(min(prefix.common_prefix_len(ids), observed_from))
    positions = np.arange(start, observed_from, dtype=np.int32)
    with mlx_patches.sparse_attention(blocks if total >= blocks_from else None):
        count_on = None if on_part is None else lambda done: on_part(start + done)
        prefix.prefill_at(model, ids, positions, step, lambda done: on_step(start + done), count_on)
    prefix.add_checkpoint()

    run = partial(_forward, model, prefix, step.backend)
    logits = observer.observe(rows, partial(run, ids[observed_from:]))
    prefix.mark_cached(ids, np.arange(observed_from, total, dtype=np.int32))
    on_step(total)
    on_observed(observer, rows + lookahead)
    try:
        _observe_lookahead(run, prefix, logits, set(stop_ids), lookahead, observer, on_observed)
    finally:
        prefix.rewind(total)
    return observer.importance


def _forward(model: Any, prefix: PrefixCache, backend: Backend, ids: NDArray[np.int32]) -> mx.array:
    """Run `ids` (n,) through the model. Returns the logits after the last one (1, vocabulary). The
    head also computes the others: to run the last token alone would take longer."""
    with mlx_patches.blocked_attention(backend.query_block):
        logits = forward(model, prefix.cache, ids)[:, -1]
    mx.eval(logits)
    return logits


def _observe_lookahead(
    run: Callable[[NDArray[np.int32]], mx.array],
    prefix: PrefixCache,
    logits: mx.array,
    stop_ids: set[int],
    count: int,
    observer: AttentionObserver,
    on_observed: OnObserved,
) -> None:
    """Observe up to `count` greedy tokens after the prompt, stopping at an end-of-text token. They
    are scored together, while the last one is read."""
    rows = observer.observed
    for number in range(count):
        token = int(np.array(mx.argmax(logits)))
        ended = token in stop_ids
        if ended and not number:
            return
        ids, left = np.array([token], np.int32), count - 1 - number
        prefix.append(ids)
        try:
            logits = observer.observe(0 if ended else 1, partial(run, ids), not ended and left > 0)
        except Unobservable:
            return  # a draft that selects keys itself when it writes; the question was observed
        on_observed(observer, rows + count)
        if ended:
            return


class AttentionObserver:
    """Collects importance (M,) over the prompt's M tokens while a model runs.

    Per observation (a query token) and per layer whose keys span the prompt: softmax over the
    prompt's keys, mean pool, then the maximum over heads and layers. `importance` is the mean over
    observations. Only the running maximum (observations, M) is stored, never two layers' scores.
    """

    def __init__(self, prompt_tokens: int, backend: Backend, pool: int = POOL) -> None:
        self.prompt_tokens = prompt_tokens
        self.observed = 0
        self._scored = 0
        self._pool = pool
        self._total = mx.zeros((prompt_tokens,), mx.float32)
        self._running: list[mx.array] = []
        """The maximum so far of each block of rows."""
        self._in_flight: list[mx.array] = []
        """At most two blocks: one is computed while the next one is prepared."""
        self._waiting: list[list[tuple[mx.array, Visible]]] = []
        """For each layer, the queries that are not scored yet, and what they see."""
        self._rows = self._layer_count = 0
        self._defers = False
        self._softmax: Softmax = _numpy_softmax if backend.on_cpu else _softmax
        self._mean_pool = _make_mean_pool(prompt_tokens, pool)

    def observe(self, rows: int, run: Callable[[], T], defer: bool = False) -> T:
        """Observe the last `rows` tokens of the step that `run` runs and evaluates. Returns what
        `run` returns. Raises Unobservable when no layer could be observed, and ScoringError when
        scores are not finite.

        Deferred rows are scored with those of the next step that does not `defer`: then all of a
        layer's keys are read once for all of them. Until then only their queries are stored."""
        self._rows, self._layer_count, self._defers = rows, 0, defer
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
        group, half = q.shape[0] // kv_heads, self._pool // 2
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
