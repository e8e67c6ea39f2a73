"""What is known of how long a loaded pair takes: fitted from its turns, and from timing it while
nothing else is to be done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from app.engine.calibration import Calibration
from app.engine.cost_store import Stopwatch
from app.engine.loader import Pair
from app.protocol.cost_model import UNKNOWN_COSTS, Costs, Timing
from app.protocol.events import CostsUpdated, Event


class PairCosts:
    """Belongs to one loaded pair. All of it runs on the engine's thread; `hurried` says whether
    something else is to be done. Costs are stored in `folder`; without one they are not, and the
    pair is timed only when asked."""

    def __init__(
        self,
        pair: Pair,
        folder: Path | None,
        emit: Callable[[Event], None],
        hurried: Callable[[], bool],
    ) -> None:
        self._pair, self._emit, self._hurried = pair, emit, hurried
        self._stopwatch = Stopwatch(pair, folder)
        self._calibration: Calibration | None = None
        if folder is not None:
            self._calibration = Calibration(pair, self.costs, hurried)

    @property
    def costs(self) -> Costs:
        return self._stopwatch.costs

    @property
    def untimed(self) -> bool:
        """Whether the pair is still to be timed."""
        return self._calibration is not None

    def learn(self, clocked: list[Timing]) -> None:
        """Fit the costs to what was timed, and report them."""
        if clocked:
            self._stopwatch.note(clocked)
            self.report()

    def report(self, asked: bool = False) -> None:
        self._emit(CostsUpdated(self.costs, asked))

    def time_once(self) -> None:
        """Time one reading of an untimed pair. What it raises ends the timing."""
        calibration, self._calibration = self._calibration, None
        assert calibration is not None
        clocked = calibration.step()
        if not calibration.over:
            self._calibration = calibration
        self.learn(clocked)

    def measure(self) -> None:
        """Time the pair from the start, until something else is to be done."""
        calibration = Calibration(self._pair, UNKNOWN_COSTS, self._hurried)
        while not calibration.over and not self._hurried():
            self._stopwatch.note(calibration.step())
