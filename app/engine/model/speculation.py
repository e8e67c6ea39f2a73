"""Decides how many draft tokens to propose: as many as make decoding fastest, often none.

A step that verifies n tokens costs more than a plain step, and yields the accepted tokens. Cost and
acceptance are measured while answers are written, so the first proposals are short. With recurrent
layers, a rejection costs more: the next step feeds the accepted tokens again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from statistics import median

import numpy as np

SIZES = (2, 4, 8, 16)
"""Sizes of verified steps in tokens: the last token plus the proposed ones."""
LENGTHS = (2, 3, 5, 9)
"""Copies are grouped into kinds 0 to 3 by the minimum length of their match."""
DRAFTED, PREDICTED = len(LENGTHS), len(LENGTHS) + 1
"""The kinds of tokens proposed by a draft model, and by the target's MTP head."""
MAX_PREDICTED = 3
"""Maximum number of tokens that an MTP head proposes at once."""
FIRST_GUESS = (0.3, 0.5, 0.75, 0.85, 0.6, 0.6)
"""Initial acceptance rate of a proposed token, by kind."""
GUESS_WEIGHT = 6.0
"""Weight of the initial guess, in proposed tokens."""
DECAY = 0.97
"""Factor by which the weight of earlier measurements falls with each step."""
SLOPE = 0.1
"""Cost of each further token, in plain steps, until two sizes are measured. One step of two tokens
does not predict it, because most of its extra cost is fixed."""
RECENT, MIN_MEASURED, GUESSES = 7, 2, 2
"""Number of last steps of a size that count; minimum measured; number of initial draft guesses."""
STALE_AFTER = 256
"""A size's cost is unknown again after this many steps: the machine's load may have changed."""
COPY_RETRY, DRAFT_RETRY = 64, 256
"""After this many refusals, one token is proposed anyway, to measure again."""
MIN_PLAIN_STEPS, MIN_RATE_STEPS = 2, 5
"""Plain steps of an answer needed before proposing, and before reporting their rate."""
MARGIN = 1.05
"""Minimum expected speedup of a proposal."""


@dataclass(slots=True)
class _Share:
    """Acceptance rate of the proposed tokens of one kind."""

    right: float
    tried: float = GUESS_WEIGHT

    @property
    def value(self) -> float:
        return self.right / self.tried

    def record(self, right: int, tried: int) -> None:
        self.right = DECAY * self.right + right
        self.tried = DECAY * self.tried + tried


@dataclass(frozen=True, slots=True)
class Proposal:
    """Propose `count` tokens, with an expected speedup of `gain`."""

    gain: float
    count: int


NOTHING = Proposal(MARGIN, 0)
"""A proposal must beat this one."""


@dataclass(slots=True)
class Gate:
    """Measured step costs and acceptance rates of a loaded model."""

    slope: float = SLOPE
    """Cost of a further token with recurrent layers, as `SLOPE`. Measured while loading: on a CPU,
    such layers run token by token, and trying that out would be expensive."""
    _plain: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    """Seconds of this answer's last plain steps; they depend on the prompt's length."""
    _costs: dict[int, deque[float]] = field(default_factory=dict)
    """By size: costs of the last verified steps, in plain steps, without the first one."""
    _measured_at: dict[int, int] = field(default_factory=dict)
    """By size: `_steps` at the last measurement."""
    _steps: int = 0
    _shares: list[_Share] = field(
        default_factory=lambda: [_Share(guess * GUESS_WEIGHT) for guess in FIRST_GUESS]
    )
    _draft_costs: dict[int, deque[float]] = field(
        default_factory=lambda: {kind: deque(maxlen=RECENT) for kind in (DRAFTED, PREDICTED)}
    )
    """By kind: costs of the last drafted tokens, in plain steps."""
    _refused: dict[int, int] = field(default_factory=lambda: {DRAFTED: 0, PREDICTED: 0, 0: 0})
    _feeds_again: bool = False
    """Whether accepted tokens are fed again after a rejection."""

    @property
    def plain_rate(self) -> float:
        """Plain steps per second in this answer; 0 before `MIN_RATE_STEPS`."""
        return 1 / median(self._plain) if len(self._plain) >= MIN_RATE_STEPS else 0.0

    def begin(self, feeds_again: bool = False) -> None:
        """Start another answer. `feeds_again`: after a rejection, the next step feeds the accepted
        tokens again."""
        self._feeds_again = feeds_again
        self._plain.clear()

    def choose(self, kind: int, available: int) -> Proposal:
        """How many of the `available` tokens of this kind to propose."""
        best = NOTHING
        if len(self._plain) < MIN_PLAIN_STEPS or not available:
            return best
        share, draft_cost = self._shares[kind].value, self.draft_cost(kind)
        # An MTP head proposes so few tokens that each number of them is worth considering.
        sizes = range(2, available + 2) if kind == PREDICTED else SIZES
        # Try a size only after half of it was measured, so that learning is cheap.
        for size in (size for size in sizes if size <= 2 * max(self._known, default=1)):
            count = min(size - 1, available)
            cost = self.cost(count + 1) + draft_cost * count + self._rejection_cost(share, count)
            gain = (1 + expected(share, count)) / cost
            if gain > best.gain:
                best = Proposal(gain, count)
        return best

    def wants_to_learn(self, kind: int) -> bool:
        """Whether to propose one token of a refused kind anyway; counts the refusals."""
        counter, every = (kind, DRAFT_RETRY) if kind >= DRAFTED else (0, COPY_RETRY)
        every *= 4 if self._feeds_again else 1  # because a rejection costs twice as much or more
        self._refused[counter] += 1
        return len(self._plain) >= MIN_PLAIN_STEPS and self._refused[counter] % every == 0

    def draft_cost(self, kind: int) -> float:
        """Median cost of drafting a token of this kind, in plain steps; 0 for copies."""
        costs = self._draft_costs.get(kind)
        return median(costs) if costs else 0.0

    def guess_draft_cost(self, kind: int, plain_steps: float) -> None:
        """Set the cost of drafting a token until it is measured."""
        if not self._draft_costs[kind]:
            self._draft_costs[kind].extend([plain_steps] * GUESSES)

    def cost(self, tokens: int) -> float:
        """Cost of a step of this many tokens, in plain steps."""
        known = sorted({1: 1.0, **self._known}.items())
        larger, above = known[-1]
        if tokens < larger:
            sizes, costs = zip(*known, strict=True)
            return float(np.interp(tokens, sizes, costs))
        slope = self.slope if self._feeds_again else SLOPE
        if len(known) > 2:
            smaller, below = known[-2]
            slope = max((above - below) / (larger - smaller), 0.0)
        return above + slope * (tokens - larger)

    def _rejection_cost(self, share: float, count: int) -> float:
        """Expected cost of feeding accepted tokens again, in plain steps, after `count` proposed
        tokens of which each is right with probability `share`."""
        if not self._feeds_again:
            return 0.0
        # If `right` tokens are accepted, the next step has them, the one before and the next one.
        extra = (share**right * (self.cost(right + 2) - 1) for right in range(count))
        return (1 - share) * sum(extra)

    @property
    def _known(self) -> dict[int, float]:
        """Costs of the sizes that were measured often enough and recently, in plain steps."""
        return {
            size: _lower_quartile(costs)
            for size, costs in self._costs.items()
            if len(costs) >= MIN_MEASURED and not self._is_stale(size)
        }

    def _is_stale(self, size: int) -> bool:
        return self._steps - self._measured_at[size] > STALE_AFTER

    def record_plain(self, seconds: float) -> None:
        self._steps += 1
        self._plain.append(seconds)

    def record_drafted(self, kind: int, tokens: int, seconds: float) -> None:
        """Record that drafting `tokens` of this kind took `seconds`."""
        if self._plain:
            self._draft_costs[kind].append(seconds / tokens / _lower_quartile(self._plain))

    def record_verified(
        self, kind: int, tokens: int, right: int, seconds: float, again: int = 0
    ) -> None:
        """Record a step of `tokens`: the first is the last token of the answer, the others were
        proposed, and the first `right` of them accepted. `again`: number of accepted tokens that
        the step fed again before these."""
        self._steps += 1
        self._shares[kind].record(right, min(right + 1, tokens - 1))
        if not self._plain or again + tokens > SIZES[-1]:
            return
        size = next(each for each in SIZES if each >= again + tokens)
        if size not in self._costs or self._is_stale(size):
            self._costs[size] = deque(maxlen=RECENT)  # skip the first one: it may compile
        else:
            self._costs[size].append(seconds / _lower_quartile(self._plain))
        self._measured_at[size] = self._steps


def _lower_quartile(values: Collection[float]) -> float:
    """The lower quartile: on a busy machine many steps are slower, but none is faster."""
    return sorted(values)[len(values) // 4]


def expected(share: float, count: int) -> float:
    """Expected number of accepted tokens out of `count`, if each is right with probability `share`:
    tokens after the first wrong one are rejected."""
    return count if share >= 1 else share * (1 - share**count) / (1 - share)


def kind_of_copy(match_length: int) -> int:
    """The kind of a copy after a match of this length (see `LENGTHS`)."""
    return max(i for i, shortest in enumerate(LENGTHS) if match_length >= shortest)
