"""Times a model pair on request: on a few hundred and a few thousand random tokens, whose cache is
dropped.

These are ordinary turns, so that what is timed is what a user waits for; a command stops a run at
the next step boundary."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from app.engine.backend import memory
from app.engine.memory.conversation_cache import ConversationCache
from app.engine.memory.manager import prefill_need, scoring_need
from app.engine.model.loader import ModelPair
from app.engine.model.prompt import Prompt
from app.engine.progress import TurnClock
from app.engine.turn.turn import Turn
from app.protocol.commands import Ask
from app.protocol.cost_model import Timing
from app.protocol.events import Event, Finished
from app.protocol.options import Mode, Sampling
from app.protocol.prompt import Message, Role, Segment, SegmentKind
from app.protocol.stats import FinishReason

_QUESTION_TOKENS = 32
"""Tokens at the end that count as typed."""
_RUNS = (
    (Mode.SPARSE, 256),
    (Mode.SPARSE, 1_024),
    (Mode.SPARSE, 4_096),
    (Mode.FULL, 4_096),
)
"""Three lengths of both models, for three unknowns. The first run also compiles, but counts
little."""
_KEEP_RATIO = 0.4
_MIN_VOCAB = 64
"""A vocabulary size that every model has."""


class Calibration:
    """`stop` is polled at every step boundary."""

    def __init__(self, pair: ModelPair, stop: Callable[[], bool]) -> None:
        self._pair, self._stop = pair, stop
        self._runs = iter(self._planned_runs())
        self._next = next(self._runs, None)

    @property
    def _vocab_size(self) -> int:
        """The smaller vocabulary."""
        models = (self._pair.target, self._pair.draft)
        return min(
            (model.vocab_size for model in models if model and model.vocab_size), default=_MIN_VOCAB
        )

    @property
    def finished(self) -> bool:
        return self._next is None

    def step(self) -> list[Timing]:
        """The timings of one run; none if it was stopped, and then the next call repeats it."""
        if self._next is None or not self._fits(self._next[1]):
            self._next = None
            return []
        timings = self._time(*self._next)
        if timings:
            self._next = next(self._runs, None)
        return timings

    def _planned_runs(self) -> Iterator[tuple[Mode, int]]:
        sparsely = self._pair.dense_only is None
        for mode, tokens in _RUNS:
            if mode is Mode.SPARSE and not sparsely:
                continue
            most = self._pair.target.info.context_length or tokens
            yield mode, min(tokens, most - 2)

    def _fits(self, tokens: int) -> bool:
        """Without evicting anything."""
        target, draft = self._pair.target, self._pair.draft
        needs = [prefill_need(target, tokens, tokens)]
        if draft is not None:
            needs.append(scoring_need(draft, tokens, tokens))
        loaded = all(need.model.is_loaded for need in needs)
        if not loaded or sum(need.preferred for need in needs) > memory.free():
            return False
        return needs[0].preferred <= target.free_memory()

    def _time(self, mode: Mode, tokens: int) -> list[Timing]:
        pair = replace(self._pair, prompts=_RandomPrompts(tokens, self._vocab_size))
        ended: list[Event] = []
        ask = Ask((Message(Role.USER, ""),), mode, _KEEP_RATIO, Sampling(max_tokens=1))
        progress = TurnClock(0, ended.append, self._stop)
        turn = Turn(pair, ask, ConversationCache(pair), progress)
        turn.run()
        last = ended[-1]
        stopped = not isinstance(last, Finished) or last.finish_reason not in (
            FinishReason.STOP,
            FinishReason.LENGTH,
        )
        return [] if stopped else turn.timings


class _RandomPrompts:
    """Stands in for a prompt builder."""

    def __init__(self, tokens: int, rows: int) -> None:
        self._ids = np.random.default_rng(0).integers(0, rows, tokens).astype(np.int32)

    def count(self, documents: object, check: object = None) -> list[int]:
        raise NotImplementedError

    def build(
        self,
        messages: tuple[Message, ...],
        check: object = None,
        thinking: bool = True,
        values: object = None,
    ) -> Prompt:
        total = len(self._ids)
        typed = max(0, total - _QUESTION_TOKENS)
        segments = (
            Segment(SegmentKind.DOCUMENT, 0, typed, 0, 0),
            Segment(SegmentKind.QUESTION, typed, total, 0),
        )
        return Prompt(self._ids, segments, {(0, 0): np.arange(typed + 1, dtype=np.int64)})
