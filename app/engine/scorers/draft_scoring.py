"""Scores which prompt tokens matter for the question, by the draft's attention to them.

After SpecPrefill (arXiv 2502.02789), with one addition of ours: the typed question and the
generation prompt are observed, not only the lookahead tokens. A small draft past its trained length
attends to the right tokens while it reads the question, but no longer when it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from app.engine.backend import mlx_patches
from app.engine.backend.device import Backend
from app.engine.cache.prefill import OnStep, StepSize, forward, prefill_step
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.model.prompt import Prompt
from app.engine.scorers.attention_scores import (
    AttentionObserver,
    Importance,
    ScoringError,
    Unobservable,
    observed_layers,
)
from app.protocol.cost_model import AttentionWork, scoring_work
from app.protocol.memory_model import MAX_QUERY_ROWS
from app.protocol.options import DEFAULT_TUNING, Blocks, Scoring, Tuning

OnObserved = Callable[[AttentionObserver, int], None]
"""Called with the observer and the expected number of observations. Raises to cancel."""


def score(
    model: Any,
    prefix: PrefixCache,
    ids: NDArray[np.int32],
    observed_from: int,
    stop_ids: Iterable[int],
    step: StepSize,
    on_step: OnStep,
    on_observed: OnObserved,
    tuning: Tuning = DEFAULT_TUNING,
    on_part: OnStep | None = None,
) -> Importance:
    """Importance of each of the prompt's `ids` (M,), according to the draft `model`.

    Cached tokens in `prefix` are not read again; afterwards it holds the whole prompt. As the
    tuning says, tokens from `observed_from` on (the question and the generation prompt) are
    observed, and greedy tokens after them.
    """
    total = len(ids)
    observed_from = min(max(observed_from, total - MAX_QUERY_ROWS, 0), total - 1)
    observes_question = tuning.scoring is not Scoring.LOOKAHEAD
    rows = total - observed_from if observes_question else 0
    lookahead = tuning.lookahead if tuning.scoring is not Scoring.QUESTION else 0
    observer = AttentionObserver(total, tuning, step.backend)
    # To write takes all layers; to be observed, those up to the last observed one.
    num_layers = observed_layers(len(prefix.cache), tuning)[1]
    prefix.use_layers(None if lookahead or num_layers == len(prefix.cache) else num_layers)
    start = prefix.rewind(min(prefix.common_prefix_len(ids), observed_from))
    positions = np.arange(start, observed_from, dtype=np.int32)
    blocks = Blocks(top=tuning.sparse_draft_top)
    with mlx_patches.sparse_attention(blocks if total >= tuning.sparse_draft_from else None):
        count_on = None if on_part is None else lambda done: on_part(start + done)
        prefix.prefill_at(model, ids, positions, step, lambda done: on_step(start + done), count_on)
    prefix.add_checkpoint()

    run = partial(_forward, model, prefix, ids[observed_from:], step.backend, lookahead > 0)
    logits = observer.observe(rows, prefix.cache, run) if observes_question else run()
    prefix.mark_cached(ids, np.arange(observed_from, total, dtype=np.int32))
    on_step(total)
    on_observed(observer, rows + lookahead)
    try:
        if logits is not None:
            forward_token = partial(_forward, model, prefix, backend=step.backend)
            _observe_lookahead(
                forward_token, prefix, logits, set(stop_ids), lookahead, observer, rows, on_observed
            )
    finally:
        prefix.rewind(total)
    if not observer.observed:
        raise ScoringError("the draft wrote nothing that could be observed")
    return observer.importance


def _forward(
    model: Any,
    prefix: PrefixCache,
    ids: NDArray[np.int32],
    backend: Backend,
    needs_logits: bool = True,
) -> mx.array | None:
    """Run `ids` (n,) through the model. Returns the logits after the last one (1, vocabulary) if
    needed. The head then computes the others too: to run the last token alone would take longer."""
    if not needs_logits:
        prefill_step(model, prefix.cache, ids, None, backend, prefix.num_layers)
        return None
    with mlx_patches.blocked_attention(backend.query_block):
        logits = forward(model, prefix.cache, ids)[:, -1]
    mx.eval(logits)
    return logits


def _observe_lookahead(
    forward_token: Callable[[NDArray[np.int32]], mx.array | None],
    prefix: PrefixCache,
    logits: mx.array,
    stop_ids: set[int],
    count: int,
    observer: AttentionObserver,
    rows: int,
    on_observed: OnObserved,
) -> None:
    """Observe up to `count` greedy tokens after the prompt, stopping at an end-of-text token. They
    are scored together, while the last one is read."""
    for number in range(count):
        token = int(np.array(mx.argmax(logits)))
        ended = token in stop_ids
        if ended and not number:
            return
        ids, left = np.array([token], np.int32), count - 1 - number
        run = partial(forward_token, ids)
        prefix.append(ids)
        try:
            found = observer.observe(0 if ended else 1, prefix.cache, run, not ended and left > 0)
        except Unobservable:
            if not rows:
                raise
            return  # a draft that selects keys itself when it writes; the question was observed
        on_observed(observer, rows + count)
        if ended or found is None:
            return
        logits = found


def draft_work(cache: PrefixCache, prompt: Prompt, tuning: Tuning) -> AttentionWork:
    """What the draft reads to score a prompt: always the question, because it is observed."""
    prompt = prompt.draft_prompt
    total = len(prompt.ids) - prompt.answer_prefix_len
    shared = min(cache.common_prefix_len(prompt.ids), prompt.question_start, total - 1)
    start = cache.rewind_target(shared)
    return scoring_work(total - start, start, tuning)
