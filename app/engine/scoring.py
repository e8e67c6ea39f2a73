"""Which prompt tokens matter for the question: the draft reads them all and its attention tells.

After SpecPrefill (arXiv 2502.02789), with one addition of ours: beside the lookahead tokens, the
typed question and the generation prompt are observed too. A small draft past its trained length
looks in the right place while it reads the question, but no longer when it has to write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from app.engine import mlx_patches
from app.engine.attention_observer import (
    AttentionObserver,
    Importance,
    ScoringError,
    Unobservable,
    observed_layers,
)
from app.engine.backend import Backend
from app.engine.prefill import OnStep, StepSize, forward, prefill_step
from app.engine.prefix_cache import PrefixCache
from app.engine.score_blocks import MAX_QUERY_ROWS
from app.protocol.options import DEFAULT_TUNING, Blocks, Scoring, Tuning


def score(
    model: Any,
    held: PrefixCache,
    ids: NDArray[np.int32],
    observed_from: int,
    stop_ids: Iterable[int],
    step: StepSize,
    on_step: OnStep,
    on_observed: Callable[[AttentionObserver, int], None],
    tuning: Tuning = DEFAULT_TUNING,
) -> Importance:
    """Importance of each of the prompt's `ids` (M,), as the draft `model` sees it.

    What `held` has of the prompt is not read again, and it holds all of it afterwards. As the
    tuning says, tokens from `observed_from` on (the question and the generation prompt) are
    observed, and greedy tokens after them. `on_step` is called with prompt tokens done,
    `on_observed` with the observations and how many there will be; either raises to cancel.
    """
    total = len(ids)
    observed_from = min(max(observed_from, total - MAX_QUERY_ROWS, 0), total - 1)
    sees_question = tuning.scoring is not Scoring.LOOKAHEAD
    rows = total - observed_from if sees_question else 0
    lookahead = tuning.lookahead if tuning.scoring is not Scoring.QUESTION else 0
    observations = AttentionObserver(total, tuning, step.backend)
    # Writing takes all layers; to be observed, a token needs those up to the last that counts.
    last_layer = observed_layers(len(held.cache), tuning)[1]
    held.use_layers(None if lookahead or last_layer == len(held.cache) else last_layer)
    start = held.rewind(min(held.common_prefix_len(ids), observed_from))
    positions = np.arange(start, observed_from, dtype=np.int32)
    blocks = Blocks(top=tuning.sparse_draft_top)
    with mlx_patches.sparse_attention(blocks if total >= tuning.sparse_draft_from else None):
        held.prefill_at(model, ids, positions, step, lambda done: on_step(start + done))
    held.add_checkpoint()

    read = partial(_forward, model, held, ids[observed_from:], step.backend, lookahead > 0)
    last = observations.observe(rows, held.cache, read) if sees_question else read()
    held.mark_cached(ids, np.arange(observed_from, total, dtype=np.int32))
    on_step(total)
    on_observed(observations, rows + lookahead)
    try:
        if last is not None:
            stops = set(stop_ids)
            _observe_lookahead(
                model, held, last, stops, lookahead, observations, rows, step, on_observed
            )
    finally:
        held.rewind(total)
    if not observations.observed:
        raise ScoringError("the draft wrote nothing that could be observed")
    return observations.importance


def _forward(
    model: Any, held: PrefixCache, ids: NDArray[np.int32], backend: Backend, writes: bool = True
) -> mx.array | None:
    """The model reads `ids` (n,). If it `writes` on, the logits after the last one (1, vocabulary).
    The head then sees the others too: to run the last token alone would take longer."""
    if not writes:
        prefill_step(model, held.cache, ids, None, backend, held.num_layers)
        return None
    with mlx_patches.blocked_attention(backend.query_block):
        logits = forward(model, held.cache, ids)[:, -1]
    mx.eval(logits)
    return logits


def _observe_lookahead(
    model: Any,
    held: PrefixCache,
    logits: mx.array,
    stop_ids: set[int],
    count: int,
    observations: AttentionObserver,
    rows: int,
    step: StepSize,
    on_observed: Callable[[AttentionObserver, int], None],
) -> None:
    """Observe up to `count` greedy tokens after the prompt, stopping at an end-of-text token. They
    are scored together, while the last one is read."""
    for number in range(count):
        token = int(np.array(mx.argmax(logits)))
        ended = token in stop_ids
        if ended and not number:
            return
        ids, left = np.array([token], np.int32), count - 1 - number
        write = partial(_forward, model, held, ids, step.backend)
        held.append(ids)
        try:
            found = observations.observe(
                0 if ended else 1, held.cache, write, not ended and left > 0
            )
        except Unobservable:
            if not rows:
                raise
            return  # a draft that picks keys itself when it writes; the question was observed
        on_observed(observations, rows + count)
        if ended or found is None:
            return
        logits = found
