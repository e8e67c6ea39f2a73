"""How many tokens to propose: as many as make the answer faster on this machine, often none.

A step that verifies n tokens costs more than a plain one, and gives back as many as are accepted.
Both are measured while answers are written, so the first proposals are short.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median

import numpy as np

SIZES = (2, 4, 8, 16)
"""Tokens of a verified step: the last one, and what is proposed after it."""
LENGTHS = (2, 3, 5, 9)
"""Copies after matches from these lengths on are of one kind each."""
DRAFTED = len(LENGTHS)
"""The kind of what a draft model wrote."""
FIRST_GUESS = (0.3, 0.5, 0.75, 0.85, 0.6)
"""How likely a proposed token is right, by kind, until that is known."""
GUESS_WEIGHT = 6.0
"""Proposed tokens that the guess counts for."""
MEMORY = 0.97
"""What a measured share still counts after another step."""
SLOPE = 0.1
"""How much more a step costs with each token, until two sizes were measured: part of a plain step.
What a step of two tokens costs in addition says little of that: much of it does not grow."""
RECENT, ENOUGH, GUESSES = 7, 2, 2
"""Steps of one size that count; how many have to be measured; and how many of the draft's costs are
a guess at first."""
STALE = 256
"""Steps after which what one size costs is unknown again: another program may have been busy."""
COPY_RETRY, DRAFT_RETRY = 64, 256
"""After this many times that nothing was proposed, one token is, to learn."""
NEEDED, SURE = 2, 5
"""Plain steps of an answer from which on something is proposed, and from which on their rate is
said."""
MARGIN = 1.05
"""Expected to be at least this much faster."""


@dataclass(slots=True)
class _Share:
    """How many of the proposed tokens of one kind were right: at first a guess."""

    right: float
    tried: float = GUESS_WEIGHT

    @property
    def value(self) -> float:
        return self.right / self.tried

    def record(self, right: int, tried: int) -> None:
        self.right = MEMORY * self.right + right
        self.tried = MEMORY * self.tried + tried


@dataclass(frozen=True, slots=True)
class Proposal:
    """To propose `count` tokens: the answer is expected to be `gain` times as fast."""

    gain: float
    count: int


NOTHING = Proposal(MARGIN, 0)
"""What is not expected to be faster by the margin is not proposed."""


@dataclass(slots=True)
class Gate:
    """What the steps of a loaded model cost, and how often proposals were right."""

    _plain: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Seconds of this answer's last steps of one token: after a longer prompt they take longer."""
    _costs: dict[int, deque[float]] = field(default_factory=dict)
    """What the last steps of each size took, in plain steps. Not of the first of SIZES."""
    _measured_at: dict[int, int] = field(default_factory=dict)
    """By size, in the order of steps."""
    _steps: int = 0
    _shares: list[_Share] = field(
        default_factory=lambda: [_Share(guess * GUESS_WEIGHT) for guess in FIRST_GUESS]
    )
    _draft_costs: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Of the draft's last tokens, in plain steps."""
    _refused: dict[int, int] = field(default_factory=lambda: {DRAFTED: 0, 0: 0})

    @property
    def plain_rate(self) -> float:
        """This answer's tokens a second one at a time; 0 if too few were written so."""
        return 1 / median(self._plain) if len(self._plain) >= SURE else 0.0

    def begin(self) -> None:
        """Another answer."""
        self._plain.clear()

    def choose(self, kind: int, available: int) -> Proposal:
        """How many of `available` tokens of this kind to propose."""
        best = NOTHING
        if len(self._plain) < NEEDED or not available:
            return best
        share = self._shares[kind].value
        each = self.draft_cost if kind == DRAFTED else 0.0
        # A size is tried once half of it was measured, so that learning costs little.
        for size in (size for size in SIZES if size <= 2 * max(self._known, default=1)):
            count = min(size - 1, available)
            gain = (1 + expected(share, count)) / (self.cost(count + 1) + each * count)
            if gain > best.gain:
                best = Proposal(gain, count)
        return best

    def wants_to_learn(self, kind: int) -> bool:
        """Whether to propose one token of a kind of which `choose` takes none: now and then."""
        counter, every = (kind, DRAFT_RETRY) if kind == DRAFTED else (0, COPY_RETRY)
        self._refused[counter] += 1
        return len(self._plain) >= NEEDED and self._refused[counter] % every == 0

    @property
    def draft_cost(self) -> float:
        """Of a token that the draft writes, in plain steps."""
        return median(self._draft_costs) if self._draft_costs else 0.0

    def guess_draft_cost(self, plain_steps: float) -> None:
        """What a token of the draft costs, until that was measured."""
        if not self._draft_costs:
            self._draft_costs.extend([plain_steps] * GUESSES)

    def cost(self, tokens: int) -> float:
        """Of a step of this many tokens, in plain steps."""
        known = sorted({1: 1.0, **self._known}.items())
        larger, above = known[-1]
        if tokens < larger:
            sizes, costs = zip(*known, strict=True)
            return float(np.interp(tokens, sizes, costs))
        slope = SLOPE
        if len(known) > 2:
            smaller, below = known[-2]
            slope = max((above - below) / (larger - smaller), 0.0)
        return above + slope * (tokens - larger)

    @property
    def _known(self) -> dict[int, float]:
        """What steps of those SIZES cost that were measured often enough, and not long ago."""
        return {
            size: _typical(costs)
            for size, costs in self._costs.items()
            if len(costs) >= ENOUGH and not self._is_stale(size)
        }

    def _is_stale(self, size: int) -> bool:
        return self._steps - self._measured_at[size] > STALE

    def record_plain(self, seconds: float) -> None:
        self._steps += 1
        self._plain.append(seconds)

    def record_drafted(self, tokens: int, seconds: float) -> None:
        """The draft wrote `tokens`."""
        if self._plain:
            self._draft_costs.append(seconds / tokens / _typical(self._plain))

    def record_verified(self, kind: int, tokens: int, right: int, seconds: float) -> None:
        """A step of `tokens`, of which all but the first were proposed, and `right` of those
        right."""
        self._steps += 1
        self._shares[kind].record(right, min(right + 1, tokens - 1))
        if not self._plain:
            return
        size = next(each for each in SIZES if each >= tokens)
        if size not in self._costs or self._is_stale(size):
            self._costs[size] = deque(maxlen=RECENT)  # the first may compile something
        else:
            self._costs[size].append(seconds / _typical(self._plain))
        self._measured_at[size] = self._steps


def _typical(values: Collection[float]) -> float:
    """The lower quartile: on a busy machine many steps take longer, and none takes less."""
    return sorted(values)[len(values) // 4]


def expected(share: float, count: int) -> float:
    """How many of `count` tokens are accepted if each is right with this probability: up to the
    first that is not."""
    return count if share >= 1 else share * (1 - share**count) / (1 - share)


def kind_of_copy(match_length: int) -> int:
    """By how many tokens are the same before it."""
    return max(i for i, shortest in enumerate(LENGTHS) if match_length >= shortest)
