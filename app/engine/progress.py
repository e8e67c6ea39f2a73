"""The clock of a turn: how long phases took, their progress, when the first word is expected, and
whether the turn has to stop. And how turns and loading can end early."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum

from app.protocol.commands import Ask
from app.protocol.cost_model import AttentionWork, CostTerm, Timing
from app.protocol.events import Event, Finished, PhaseProgress
from app.protocol.reasons import EngineFailure, FailureKind
from app.protocol.stats import FinishReason, Phase, merge_statistics

_WAITING = (Phase.WAIT, Phase.RESTORE, Phase.RETRIEVE)
"""Say nothing about the pair's speed."""
_SPEED_WINDOW = 0.15
"""Share of a step over which its own speed is measured."""
_DOUBT = 0.2
"""Share of the steps ahead: what was done counts for them once it is longer than this."""
_ORDER = list(Phase)


class TurnCancelled(Exception):
    """The user stopped the turn, or memory is nearly used up."""

    def __init__(self, ended: FinishReason = FinishReason.CANCELLED) -> None:
        super().__init__(ended)
        self.ended = ended


class LoadError(EngineFailure):
    """A model could not be loaded."""


class LoadStopped(LoadError):
    """Another pair was requested."""

    def __init__(self) -> None:
        super().__init__(FailureKind.LOADING_STOPPED)


class ShardsLost(EngineFailure):
    """A process that holds a part of the target is gone, or has failed."""


class TurnError(EngineFailure):
    """The turn cannot be answered."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """Where a turn was when another machine was lost: what continues it, and how it ends if it is
    cancelled there."""

    rest: Ask
    cancelled: Finished


class ScoringPart(StrEnum):
    """What scores one after another in Phase.SCORE."""

    QUOTATION = "quotation"
    """The sentence to quote is looked for."""
    BUILT_IN = "built-in"
    DRAFT = "draft"


@dataclass(frozen=True, slots=True)
class Step:
    """A phase, or one `part` of it, and how many seconds it is predicted to take."""

    phase: Phase
    seconds: float
    part: ScoringPart | None = None


class Forecast:
    """The predicted steps up to the first word, and how the machine's speed compares with the
    prediction.

    Steps belong to the turn: one that ends early, or never comes, leaves those behind it in place.
    """

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self._steps = list(steps)
        self._at: int | None = None
        """The step that runs; None if it was not predicted."""
        self._phase: Phase | None = None
        self._predicted = self._taken = 0.0
        """Seconds of the last part of the running step: their ratio is how slow it is."""
        self._all_predicted = self._all_taken = 0.0
        """The same of everything that was done."""
        self._done = self._elapsed = 0.0

    def expect(self, phase: Phase, seconds: float) -> None:
        """A better prediction of this phase."""
        for index, step in enumerate(self._steps):
            if step.phase is phase:
                self._steps[index] = replace(step, seconds=seconds)
                return
        place = sum(_ORDER.index(step.phase) < _ORDER.index(phase) for step in self._steps)
        self._steps.insert(place, Step(phase, seconds))

    def start(self, phase: Phase, part: ScoringPart | None) -> None:
        """This step begins, or begins again."""
        self._phase = phase
        places = [i for i, step in enumerate(self._steps) if step.phase is phase]
        named = [i for i in places if part is None or self._steps[i].part in (part, None)]
        self._at = named[0] if named else None
        self._done = self._elapsed = 0.0
        if self._at is not None:
            seconds = self._steps[self._at].seconds
            self._predicted = _SPEED_WINDOW * seconds
            self._taken = self._slowed(self._steps[self._at :]) * self._predicted

    def advance(self, share: float, elapsed: float) -> None:
        """`share` (0..1) of the running step is done, `elapsed` seconds after it began."""
        if self._at is None:
            return
        whole = self._steps[self._at].seconds
        predicted, taken = (share - self._done) * whole, elapsed - self._elapsed
        self._done, self._elapsed = share, elapsed
        if whole > 0:
            fading = math.exp(-max(predicted, 0.0) / (_SPEED_WINDOW * whole))
            self._predicted = fading * self._predicted + predicted
            self._taken = fading * self._taken + taken
            self._all_predicted += predicted
            self._all_taken += taken

    def share_of_phase(self, share: float) -> float:
        """How much of the running phase is done, all its parts together, with `share` of the step
        that runs."""
        if self._at is None:
            return share
        seconds = [s.seconds if s.phase is self._phase else 0.0 for s in self._steps]
        whole = sum(seconds)
        if whole <= 0 or whole == seconds[self._at]:
            return share
        return (sum(seconds[: self._at]) + share * seconds[self._at]) / whole

    def rest(self, share: float, elapsed: float) -> float | None:
        """Seconds until the first word; None if nothing is known, as while files are chosen. A step
        that was not predicted takes as long as its own speed says."""
        if self._at is not None:
            now = (1 - share) * self._steps[self._at].seconds
            if self._predicted > 0:
                now *= self._taken / self._predicted
            return now + self._seconds(self._steps[self._at + 1 :])
        order = -1 if self._phase is None else _ORDER.index(self._phase)
        ahead = [step for step in self._steps if _ORDER.index(step.phase) > order]
        if not ahead and (not share or self._phase is Phase.RETRIEVE):
            return None
        own = elapsed / share * (1 - share) if share else 0.0
        return own + self._seconds(ahead)

    def _slowed(self, ahead: Sequence[Step]) -> float:
        """By what factor these steps will be slower than predicted, as what was done was."""
        doubt = _DOUBT * sum(step.seconds for step in ahead)
        whole = doubt + self._all_predicted
        return (doubt + self._all_taken) / whole if whole > 0 else 1.0

    def _seconds(self, ahead: Sequence[Step]) -> float:
        return self._slowed(ahead) * sum(step.seconds for step in ahead)


class TurnClock:
    """`cancelled` and `under_pressure` are polled at every step boundary, the first also within
    long steps. The latter may free memory, and tells whether the turn has to stop for lack of it.
    The turn was `sent` at that time of `time.perf_counter`, or now."""

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
        self.forecast = Forecast()
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

    def check_cancel(self, within_step: bool = False) -> None:
        """Raise TurnCancelled if the turn has to stop; `within_step` only if the user stopped it:
        memory is freed between steps."""
        if within_step and not self._cancelled():
            return
        if (ended := self.stop_reason()) is not None:
            raise TurnCancelled(ended)

    def report(
        self,
        phase: Phase,
        total: int,
        part: ScoringPart | None = None,
        seconds: Callable[[int], float] | None = None,
    ) -> Callable[..., None]:
        """A callback that reports tokens done of a phase, or of one `part` of it, and raises
        TurnCancelled as `check_cancel` does. `seconds` predicts what a number of tokens takes, up
        to a factor; by default, each takes the same."""
        started_at = time.perf_counter()
        forecast, whole = self.forecast, total if seconds is None else seconds(total)
        forecast.start(phase, part)

        def share(done: int) -> float:
            if done >= total or whole <= 0:
                return float(done >= total)
            return min((done if seconds is None else seconds(done)) / whole, 1.0)

        def show(done: int, elapsed: float) -> None:
            now = share(done)
            of_phase = forecast.share_of_phase(now)
            shown = done if of_phase == now else int(total * of_phase)
            eta = forecast.rest(now, elapsed)
            self.emit(PhaseProgress(self.turn, phase, shown, total, elapsed, eta))

        def report(done: int, within_step: bool = False) -> None:
            elapsed = time.perf_counter() - started_at
            forecast.advance(share(done), elapsed)
            show(done, elapsed)
            self.check_cancel(within_step)

        show(0, 0.0)
        return report

    @property
    def seconds_spent(self) -> float:
        """Since the turn began, without waiting."""
        return time.perf_counter() - self.started_at - self.waited

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
