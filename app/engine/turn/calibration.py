"""Times a model pair on request, with turns on up to 4,096 random tokens.

These are ordinary turns, so they measure what a user waits for; their caches are dropped. A pending
command stops a run at the next step boundary."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from app.engine.backend import memory
from app.engine.memory.conversation_cache import ConversationCache
from app.engine.memory.manager import MemoryManager, prefill_need, scoring_need
from app.engine.model.loader import ModelPair
from app.engine.model.prompt import Prompt
from app.engine.progress import TurnClock
from app.engine.turn.context import OneConversation, TurnContext
from app.engine.turn.turn import run_turn
from app.protocol.commands import Ask
from app.protocol.cost_model import Timing
from app.protocol.options import Mode, Sampling
from app.protocol.prompt import Message, Role, Segment, SegmentKind

_QUESTION_TOKENS = 32
"""Length of the question in tokens."""
_RUNS = (
    (Mode.SPARSE, 256),
    (Mode.SPARSE, 1_024),
    (Mode.SPARSE, 4_096),
    (Mode.FULL, 4_096),
)
"""Three lengths, because the cost of each model has three unknowns. The first run includes
compilation, but has little weight."""
_KEEP_RATIO = 0.4
_MIN_VOCAB = 64
"""Vocabulary size assumed if a model's is unknown."""


def calibrate(pair: ModelPair, stop: Callable[[], bool]) -> Iterator[tuple[Timing, ...]]:
    """Yield the timings of each run. Ends early if a run does not fit into memory or `stop`, polled
    at step boundaries, returns True."""
    for mode, tokens in _RUNS:
        if mode is Mode.SPARSE and pair.dense_only is not None:
            continue
        tokens = min(tokens, (pair.target.info.context_length or tokens) - 2)
        if stop() or not _fits(pair, tokens):
            return
        yield _time(pair, mode, tokens, stop)


def _fits(pair: ModelPair, tokens: int) -> bool:
    """Whether a run fits into memory without evicting anything."""
    needs = [prefill_need(pair.target, tokens, tokens)]
    if pair.draft is not None:
        needs.append(scoring_need(pair.draft, tokens, tokens))
    loaded = all(need.model.is_loaded for need in needs)
    if not loaded or sum(need.preferred for need in needs) > memory.free():
        return False
    return needs[0].preferred <= pair.target.free_memory()


def _time(pair: ModelPair, mode: Mode, tokens: int, stop: Callable[[], bool]) -> tuple[Timing, ...]:
    """The timings of one run; empty if it was stopped."""
    models = [model for model in (pair.target, pair.draft) if model is not None]
    sizes = [model.vocab_size for model in models if model.vocab_size]
    prompt = _random_prompt(tokens, min(sizes, default=_MIN_VOCAB))
    ask = Ask((Message(Role.USER, ""),), mode, _KEEP_RATIO, Sampling(max_tokens=1))
    clock = TurnClock(0, lambda event: None, stop)
    caches = OneConversation(ConversationCache(pair))
    context = TurnContext(pair, clock, caches, MemoryManager(pair, clock.emit))
    measured = run_turn(ask, context, prompt)
    return () if stop() else measured.timings


def _random_prompt(tokens: int, rows: int) -> Prompt:
    """A document of random token ids below `rows`, and a question."""
    typed = max(0, tokens - _QUESTION_TOKENS)
    segments = (
        Segment(SegmentKind.DOCUMENT, 0, typed, 0, 0),
        Segment(SegmentKind.QUESTION, typed, tokens, 0),
    )
    ids = np.random.default_rng(0).integers(0, rows, tokens).astype(np.int32)
    return Prompt(ids, segments, {(0, 0): np.arange(typed + 1, dtype=np.int64)})
