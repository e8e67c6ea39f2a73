"""Times a pair that was never timed here, while nothing else is to be done: it answers to a few
hundred and a few thousand tokens drawn by lot, and what it read is thrown away.

They are turns like others, so that what is timed is what a user waits for; a command ends one at
its next step border.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from app.engine import memory, memory_estimates
from app.engine.conversation_cache import ConversationCache
from app.engine.loader import Pair
from app.engine.progress import Progress
from app.engine.prompt import Prompt
from app.engine.turn import Turn
from app.protocol.commands import Ask
from app.protocol.cost_model import Costs, Timing
from app.protocol.events import Event, Finished
from app.protocol.options import Mode, Sampling, Tuning
from app.protocol.prompt import Message, Role, Segment, SegmentKind
from app.protocol.stats import FinishReason

_QUESTION = 32
"""Tokens at the end that count as typed."""
_READINGS = (
    (Mode.SPARSE, 256),
    (Mode.SPARSE, 1_024),
    (Mode.SPARSE, 4_096),
    (Mode.FULL, 4_096),
)
"""Three lengths of both models, for as many unknowns. The first reading also compiles: it counts
little beside the others."""
_KEEP = 0.4
_FEW = 64
"""Tokens that any model knows."""


class Calibration:
    """`stop` is asked at every step border."""

    def __init__(self, pair: Pair, known: Costs, stop: Callable[[], bool]) -> None:
        self._pair, self._known, self._stop = pair, known, stop
        self._due = iter(self._readings())
        self._next = next(self._due, None)

    @property
    def _rows(self) -> int:
        """How many tokens both models know, at least."""
        models = (self._pair.target, self._pair.draft)
        return min((model.rows for model in models if model and model.rows), default=_FEW)

    @property
    def over(self) -> bool:
        return self._next is None

    def step(self) -> list[Timing]:
        """One reading; nothing, and the same once more the next time, when it was stopped."""
        if self._next is None or not self._fits(self._next[1]):
            self._next = None
            return []
        clocked = self._timed(*self._next)
        if clocked:
            self._next = next(self._due, None)
        return clocked

    def _readings(self) -> Iterator[tuple[Mode, int]]:
        sparsely = self._pair.draft is not None and self._pair.dense_only is None
        if self._known.target and (self._known.draft or not sparsely):
            return
        for mode, tokens in _READINGS:
            if mode is Mode.SPARSE and not sparsely:
                continue
            most = self._pair.target.info.context_length or tokens
            yield mode, min(tokens, most - 2)

    def _fits(self, tokens: int) -> bool:
        """Without giving up anything for it."""
        target, draft = self._pair.target, self._pair.draft
        wanted = [memory_estimates.reading(target, tokens, tokens)]
        if draft is not None:
            wanted.append(memory_estimates.scoring(draft, tokens, tokens))
        here = all(need.model.here for need in wanted)
        return here and sum(need.usual for need in wanted) <= memory.free()

    def _timed(self, mode: Mode, tokens: int) -> list[Timing]:
        pair = replace(self._pair, prompts=_Drawn(tokens, self._rows))
        ended: list[Event] = []
        ask = Ask(0, (Message(Role.USER, ""),), mode, _KEEP, Sampling(max_tokens=1), Tuning())
        progress = Progress(ask.turn, ended.append, self._stop)
        turn = Turn(pair, ask, ConversationCache(pair), progress)
        turn.run()
        last = ended[-1]
        stopped = not isinstance(last, Finished) or last.finish_reason not in (
            FinishReason.STOP,
            FinishReason.LENGTH,
        )
        return [] if stopped else turn.clocked


class _Drawn:
    """Stands in for a prompt builder."""

    def __init__(self, tokens: int, rows: int) -> None:
        self._ids = np.random.default_rng(0).integers(0, rows, tokens).astype(np.int32)

    def build(self, messages: tuple[Message, ...], check: object = None) -> Prompt:
        total = len(self._ids)
        typed = max(0, total - _QUESTION)
        segments = (
            Segment(SegmentKind.DOCUMENT, 0, typed, 0, 0),
            Segment(SegmentKind.QUESTION, typed, total, 0),
        )
        return Prompt(self._ids, segments, {(0, 0): np.arange(typed + 1, dtype=np.int64)})
