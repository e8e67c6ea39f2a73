"""How soon a message would be answered: by the clock of answers that this pair gave here, and by
nothing else. Where none of them is of the kind, nothing is foretold."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from app.engine.messages import DEFAULT_TUNING, Mode, Phase, Reading, Statistics

LEAST = 256
"""Tokens: of a shorter reading the time says more of its beginning than of its pace."""
MOST_TIMES = 8
"""A reading that is longer than all that were seen by more than this is not foretold: what a token
costs grows with what stands before it."""
REMEMBERED = 50
_KEPT_WAITING = (Phase.WAIT, Phase.RESTORE)
"""What another message need not wait for."""


@dataclass(frozen=True, slots=True)
class NextMessage:
    """What is known of it, in tokens: `typed` is always read, of `attached` a part may be left out.
    `last` are the figures of the answer before it, whose reading the engine still has."""

    mode: Mode
    keep: float
    typed: int
    attached: int
    last: Statistics | None = None

    @property
    def new(self) -> int:
        return self.typed + self.attached

    @property
    def reading(self) -> Reading:
        """As the planner will decide, unless the question's own words ask for every token."""
        if self.mode is Mode.FULL or not (self.attached or self.last):
            return Reading.DENSE
        few = self._left_out + self.new < DEFAULT_TUNING.dense_below
        return Reading.DENSE if self.mode is Mode.AUTO and few else Reading.SPARSE

    @property
    def reads(self) -> int:
        """How many tokens the target reads of what is new; in full, also what was left out before,
        up from where the first of it stood."""
        if self.reading is Reading.DENSE:
            again = self.last.prompt_tokens if self.last and self._left_out else 0
            return self.new + again
        return self.typed + math.ceil(self.keep * self.attached)

    @property
    def recalls(self) -> int:
        """How many of those that were left out before it asks for, at least."""
        if self.last is None or self.reading is Reading.DENSE:
            return 0
        return min(_recalls(self.keep, self.last.eligible_tokens), self._left_out)

    @property
    def _left_out(self) -> int:
        return 0 if self.last is None else self.last.prompt_tokens - self.last.kept_tokens


def _recalls(keep: float, eligible: int) -> int:
    return math.ceil(DEFAULT_TUNING.recall_share * keep * eligible)


@dataclass
class _Clocked:
    """Readings that were timed: tokens and seconds, the newest last."""

    seen: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def note(self, tokens: int, seconds: float) -> None:
        if tokens >= LEAST and seconds > 0:
            self.seen.append((tokens, seconds))

    def seconds(self, tokens: int) -> float | None:
        """By the one that is nearest in length."""
        if not self.seen or tokens > MOST_TIMES * max(self.seen)[0]:
            return None
        near = min(reversed(self.seen), key=lambda each: abs(math.log(each[0] / max(tokens, 1))))
        return tokens * near[1] / near[0]


class Pace:
    """Of one pair on this machine."""

    def __init__(self) -> None:
        self._scored, self._read = _Clocked(), _Clocked()
        self._besides: dict[Reading, float] = {}
        """What the last answer took that is neither's reading, until the first word."""
        self._recalling: float | None = None
        """How many tokens were read for each that was to be recalled: some models read what stands
        behind it again, up to all of it."""

    def note(self, statistics: Statistics) -> None:
        """An answer was given so."""
        if statistics.fallback is not None or not statistics.ttft:
            return
        seconds = {part.phase: part.seconds for part in statistics.phases}
        scoring, prefill = seconds.get(Phase.SCORE, 0.0), seconds.get(Phase.PREFILL, 0.0)
        self._read.note(statistics.kept_tokens - statistics.reused_tokens, prefill)
        if recalled := statistics.recalled_tokens:
            expected = _recalls(statistics.keep, statistics.eligible_tokens)
            self._recalling = recalled / max(1, expected)
        elif not statistics.reused_tokens:
            self._scored.note(statistics.prompt_tokens, scoring)
        waited = sum(seconds.get(phase, 0.0) for phase in _KEPT_WAITING)
        besides = statistics.ttft - scoring - prefill - waited
        self._besides[statistics.reading] = max(0.0, besides)

    def seconds(self, message: NextMessage) -> float | None:
        """Until the first word; None when nothing like it was clocked."""
        if message.recalls and self._recalling is None:
            return None
        reads = message.reads + math.ceil(message.recalls * (self._recalling or 0.0))
        parts = [self._read.seconds(reads), self._besides.get(message.reading)]
        if message.reading is Reading.SPARSE:
            parts.append(self._scored.seconds(message.new))
        known = [part for part in parts if part is not None]
        return sum(known) if len(known) == len(parts) else None
