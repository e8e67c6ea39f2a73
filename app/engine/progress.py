"""The clock of a turn: how long phases took, their progress, and whether the turn has to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from app.protocol.commands import Ask
from app.protocol.cost_model import AttentionWork, CostTerm, Timing
from app.protocol.events import Event, Finished, PhaseProgress
from app.protocol.stats import FinishReason, Phase, merge_statistics

_WAITING = (Phase.WAIT, Phase.RESTORE, Phase.RETRIEVE)
"""Say nothing about the pair's speed."""
_PRIOR_WEIGHT = 0.25
"""Share of a phase after which its prediction and its measured speed count the same."""


class Cancelled(Exception):
    """The user stopped the turn, or memory is nearly used up."""

    def __init__(self, ended: FinishReason = FinishReason.CANCELLED) -> None:
        super().__init__(ended)
        self.ended = ended


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Where a turn was when another machine was lost: what continues it, and how it ends if it is
    cancelled there."""

    rest: Ask
    cancelled: Finished


class TurnClock:
    """`cancelled` and `under_pressure` are polled at every step boundary; the latter may free
    memory, and tells whether the turn has to stop for lack of it. The turn was `sent` at that time
    of `time.perf_counter`, or now."""

    def __init__(
        self,
        turn: int,
        emit: Callable[[Event], None],
        cancelled: Callable[[], bool],
        sent: float | None = None,
        under_pressure: Callable[[], bool] = lambda: False,
    ) -> None:
        self.turn, self.emit = turn, emit
        self._cancelled, self._under_pressure = cancelled, under_pressure
        now = time.perf_counter()
        self.started_at = now if sent is None else sent
        self.phases = {Phase.WAIT: now - self.started_at}
        self._expected: dict[Phase, tuple[Callable[[int], float], int]] = {}
        self._slowdown = 1.0
        self.interrupted: Interrupted | None = None
        """If another machine was lost. The timings then say nothing about the pair."""

    def whole(self, finished: Finished) -> Finished:
        """The end of the turn, with what was written before another machine was lost."""
        if self.interrupted is None:
            return finished
        before = self.interrupted.cancelled
        if not finished.generated_ids:  # it ended before it could go on
            finished = replace(finished, text=before.text, generated_ids=before.generated_ids)
        first = before.statistics
        if first is not None and not first.generated_tokens:
            first = None
        return replace(finished, statistics=merge_statistics(first, finished.statistics))

    @property
    def waited(self) -> float:
        """Seconds that say nothing about the pair's speed."""
        return sum(self.phases.get(phase, 0.0) for phase in _WAITING)

    def timings(
        self,
        first: float,
        work: dict[CostTerm, AttentionWork],
        scored: bool,
        sparse: bool,
        tokens: int,
    ) -> list[Timing]:
        """What took how long until the `first` token came. `work` is what the models read, `scored`
        says whether a draft did, and `tokens` is the length of the prompt."""
        timed = {CostTerm.TARGET: self.phases.get(Phase.PREFILL, 0.0)}
        if scored:
            timed[CostTerm.DRAFT] = self.phases.get(Phase.SCORE, 0.0)
        other = first - self.started_at - sum(timed.values()) - self.waited
        other -= self.phases.get(Phase.LOAD, 0.0)
        prefills = [Timing(part, work[part], took) for part, took in timed.items() if part in work]
        rest = CostTerm.SPARSE if sparse else CostTerm.FULL
        return [*prefills, Timing(rest, AttentionWork(tokens), other)]

    def stop_reason(self) -> FinishReason | None:
        """Why the turn has to stop now, or None."""
        if self._cancelled():
            return FinishReason.CANCELLED
        return FinishReason.MEMORY if self._under_pressure() else None

    def check_cancel(self) -> None:
        if (ended := self.stop_reason()) is not None:
            raise Cancelled(ended)

    def report(self, phase: Phase, total: int) -> Callable[[int], None]:
        """A callback that reports tokens done and raises Cancelled at a step boundary."""
        started_at = time.perf_counter()
        expected = self._eta(phase, 0, total, 0.0)
        self.emit(PhaseProgress(self.turn, phase, 0, total, 0.0, expected))

        def report(done: int) -> None:
            elapsed = time.perf_counter() - started_at
            eta = self._eta(phase, done, total, elapsed)
            self.emit(PhaseProgress(self.turn, phase, done, total, elapsed, eta))
            self.check_cancel()

        return report

    def expect(self, phase: Phase, seconds: Callable[[int], float], total: int) -> None:
        """Predict a phase of `total` tokens: `done` of them take `seconds(done)`."""
        self._expected[phase] = seconds, total

    def _eta(self, phase: Phase, done: int, total: int, elapsed: float) -> float | None:
        """The predicted rest, corrected by the measured speed; without predictions, from that speed
        alone."""
        if not self._expected:
            return elapsed / done * (total - done) if done else None
        rest = 0.0
        if phase in self._expected:
            seconds = self._expected[phase][0]
            so_far, whole = seconds(done), seconds(total)
            if so_far > 0:
                doubt = _PRIOR_WEIGHT * whole
                self._slowdown = (elapsed + doubt) / (so_far + doubt)
            rest = whole - so_far
            if done >= total:
                del self._expected[phase]
        order = list(Phase)
        later = [
            expected(most)
            for each, (expected, most) in self._expected.items()
            if order.index(each) > order.index(phase)
        ]
        return max(0.0, self._slowdown * (rest + sum(later)))

    @contextmanager
    def timed(self, phase: Phase) -> Iterator[None]:
        started_at = time.perf_counter()
        try:
            yield
        finally:
            self.add(phase, time.perf_counter() - started_at)

    def add(self, phase: Phase, seconds: float) -> None:
        """A phase that ran twice, before and after a fallback, took the sum."""
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds
