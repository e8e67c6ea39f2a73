"""Times the phases of a turn, reports their progress, predicts the first token, and checks whether
the turn has to stop. Also the exceptions that end turns and loading early."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum

from app.protocol.cost_model import AttentionWork, CostTerm, Timing
from app.protocol.events import Event, PhaseProgress
from app.protocol.reasons import EngineFailure, FailureKind
from app.protocol.stats import FinishReason, Phase

_WAITING = (Phase.WAIT, Phase.RESTORE, Phase.RETRIEVE)
"""Phases that do not depend on the pair's speed."""
_SPEED_WINDOW = 0.15
"""The speed of a step is measured over this last share of it."""
_PRIOR_SHARE = 0.2
"""Weight of the original prediction for later steps, as a share of their predicted time."""
_ORDER = list(Phase)


class TurnCancelled(Exception):
    """The user stopped the turn, or memory is nearly exhausted (`ended`)."""

    def __init__(self, ended: FinishReason = FinishReason.CANCELLED) -> None:
        super().__init__(ended)
        self.ended = ended


class LoadError(EngineFailure):
    """A model could not be loaded."""


class LoadStopped(LoadError):
    """Another pair was requested."""

    def __init__(self) -> None:
        super().__init__(FailureKind.LOADING_STOPPED)


class TurnError(EngineFailure):
    """The turn cannot be answered."""


class ScoringPart(StrEnum):
    """Parts of Phase.SCORE, which run one after another."""

    QUOTATION = "quotation"
    """The search for the passage to quote."""
    BUILT_IN = "built-in"
    DRAFT = "draft"


@dataclass(frozen=True, slots=True)
class Step:
    """A phase, or one `part` of it, and its predicted seconds."""

    phase: Phase
    seconds: float
    part: ScoringPart | None = None


class Forecast:
    """The predicted steps until the first token, corrected by the speed measured so far."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self._steps = list(steps)
        self._running: int | None = None
        """Index of the running step; None if it was not predicted."""
        self._phase: Phase | None = None
        self._predicted = self._taken = 0.0
        """Predicted and actual seconds of the last part of the running step."""
        self._all_predicted = self._all_taken = 0.0
        """Predicted and actual seconds of everything done."""
        self._done = self._elapsed = 0.0

    def expect(self, phase: Phase, seconds: float) -> None:
        """Replace the prediction of a phase, or add it."""
        for index, step in enumerate(self._steps):
            if step.phase is phase:
                self._steps[index] = replace(step, seconds=seconds)
                return
        place = sum(_ORDER.index(step.phase) < _ORDER.index(phase) for step in self._steps)
        self._steps.insert(place, Step(phase, seconds))

    def start(self, phase: Phase, part: ScoringPart | None) -> None:
        """Record that this step begins, or begins again."""
        self._phase = phase
        places = [i for i, step in enumerate(self._steps) if step.phase is phase]
        named = [i for i in places if part is None or self._steps[i].part in (part, None)]
        self._running = named[0] if named else None
        self._done = self._elapsed = 0.0
        if self._running is not None:
            seconds = self._steps[self._running].seconds
            self._predicted = _SPEED_WINDOW * seconds
            self._taken = self._slowed(self._steps[self._running :]) * self._predicted

    def advance(self, share: float, elapsed: float) -> None:
        """Record that `share` (0..1) of the running step is done after `elapsed` seconds."""
        if self._running is None:
            return
        whole = self._steps[self._running].seconds
        predicted, taken = (share - self._done) * whole, elapsed - self._elapsed
        self._done, self._elapsed = share, elapsed
        if whole > 0:
            fading = math.exp(-max(predicted, 0.0) / (_SPEED_WINDOW * whole))
            self._predicted = fading * self._predicted + predicted
            self._taken = fading * self._taken + taken
            self._all_predicted += predicted
            self._all_taken += taken

    def share_of_phase(self, share: float) -> float:
        """Share (0..1) of the running phase that is done, if `share` of its running part is."""
        if self._running is None:
            return share
        seconds = [s.seconds if s.phase is self._phase else 0.0 for s in self._steps]
        whole = sum(seconds)
        if whole <= 0 or whole == seconds[self._running]:
            return share
        return (sum(seconds[: self._running]) + share * seconds[self._running]) / whole

    def rest(self, share: float, elapsed: float) -> float | None:
        """Seconds until the first token; None if unknown, for example while files are chosen. For a
        step that was not predicted, its measured speed is extrapolated."""
        if self._running is not None:
            now = (1 - share) * self._steps[self._running].seconds
            if self._predicted > 0:
                now *= self._taken / self._predicted
            return now + self._seconds(self._steps[self._running + 1 :])
        order = -1 if self._phase is None else _ORDER.index(self._phase)
        ahead = [step for step in self._steps if _ORDER.index(step.phase) > order]
        if not ahead and (not share or self._phase is Phase.RETRIEVE):
            return None
        from_speed = elapsed / share * (1 - share) if share else 0.0
        return from_speed + self._seconds(ahead)

    def _slowed(self, ahead: Sequence[Step]) -> float:
        """Factor by which these steps will be slower than predicted, judging by those done."""
        prior = _PRIOR_SHARE * sum(step.seconds for step in ahead)
        whole = prior + self._all_predicted
        return (prior + self._all_taken) / whole if whole > 0 else 1.0

    def _seconds(self, ahead: Sequence[Step]) -> float:
        return self._slowed(ahead) * sum(step.seconds for step in ahead)


class TurnClock:
    """Times one turn and tells whether it has to stop.

    `cancelled` and `under_pressure` are polled at step boundaries, `cancelled` also within long
    steps. `under_pressure` may free memory; True means that the turn has to stop for lack of it.
    `sent`: `time.perf_counter()` when the question was sent (default: now). `others_wait` tells
    whether other turns are queued."""

    def __init__(
        self,
        turn: int,
        emit: Callable[[Event], None],
        cancelled: Callable[[], bool],
        sent: float | None = None,
        under_pressure: Callable[[], bool] = lambda: False,
        others_wait: Callable[[], bool] = lambda: False,
    ) -> None:
        self.turn, self.emit = turn, emit
        self._cancelled, self._under_pressure = cancelled, under_pressure
        self.others_wait = others_wait
        now = time.perf_counter()
        self.started_at = now if sent is None else sent
        self.phases = {Phase.WAIT: now - self.started_at}
        self.forecast = Forecast()

    @property
    def waited(self) -> float:
        """Seconds that do not depend on the pair's speed."""
        return sum(self.phases.get(phase, 0.0) for phase in _WAITING)

    def timings(
        self,
        first: float,
        work: dict[CostTerm, AttentionWork],
        by_draft: bool,
        is_scored: bool,
        tokens: int,
    ) -> list[Timing]:
        """Timings up to the `first` token (a `time.perf_counter()`). `work`: tokens read by the
        models. `by_draft`: whether a draft scored. `is_scored`: whether anything did; what
        that costs counts as for a sparse read. `tokens`: length of the prompt."""
        timed = {CostTerm.TARGET: self.phases.get(Phase.PREFILL, 0.0)}
        if by_draft:
            timed[CostTerm.DRAFT] = self.phases.get(Phase.SCORE, 0.0)
        other = first - self.started_at - sum(timed.values()) - self.waited
        other -= self.phases.get(Phase.LOAD, 0.0)
        prefills = [Timing(part, work[part], took) for part, took in timed.items() if part in work]
        rest = CostTerm.SPARSE if is_scored else CostTerm.FULL
        return [*prefills, Timing(rest, AttentionWork(tokens), other)]

    def stop_reason(self) -> FinishReason | None:
        """Why the turn has to stop now, or None."""
        if self._cancelled():
            return FinishReason.CANCELLED
        return FinishReason.MEMORY if self._under_pressure() else None

    def check_cancel(self, within_step: bool = False) -> None:
        """Raise TurnCancelled if the turn has to stop. `within_step`: check only whether the user
        stopped it, because memory is freed only between steps."""
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
        """A callback that reports tokens done of a phase, or of one `part` of it, and calls
        `check_cancel`. `seconds(n)` is proportional to the predicted time of n tokens (default:
        linear)."""
        started_at = time.perf_counter()
        forecast, whole = self.forecast, total if seconds is None else seconds(total)
        forecast.start(phase, part)

        def share(done: int) -> float:
            if done >= total or whole <= 0:
                return float(done >= total)
            return min((done if seconds is None else seconds(done)) / whole, 1.0)

        def show(done: int, elapsed: float) -> None:
            now = share(done)
            phase_share = forecast.share_of_phase(now)
            shown = done if phase_share == now else int(total * phase_share)
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
        """Seconds since the turn began, without `waited`."""
        return time.perf_counter() - self.started_at - self.waited

    @contextmanager
    def timed(self, phase: Phase) -> Iterator[None]:
        started_at = time.perf_counter()
        try:
            yield
        finally:
            self.add(phase, time.perf_counter() - started_at)

    def add(self, phase: Phase, seconds: float) -> None:
        """Add seconds to a phase; it may run twice, before and after a fallback."""
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds
