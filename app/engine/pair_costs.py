"""What is known of how long a loaded pair takes: fitted from its turns, and from timing it while
nothing else is to be done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from app.engine.calibration import Calibration
from app.engine.cost_store import CostStore
from app.engine.loader import ModelPair
from app.protocol.cost_model import UNKNOWN_COSTS, Costs, Timing
from app.protocol.events import CostsUpdated, Event


class PairCosts:
    """Belongs to one loaded pair. All of it runs on the engine's thread; `hurried` says whether
    something else is to be done. Costs are stored in `folder`; without one they are not, and the
    pair is timed only when asked."""

    def __init__(
        self,
        pair: ModelPair,
        folder: Path | None,
        emit: Callable[[Event], None],
        interrupted: Callable[[], bool],
    ) -> None:
        self._pair, self._emit, self._interrupted = pair, emit, interrupted
        self._store = CostStore(pair, folder)
        self._calibration: Calibration | None = None
        if folder is not None:
            self._calibration = Calibration(pair, self.costs, interrupted)

    @property
    def costs(self) -> Costs:
        return self._store.costs

    @property
    def needs_calibration(self) -> bool:
        """Whether the pair is still to be timed."""
        return self._calibration is not None

    def learn(self, clocked: list[Timing]) -> None:
        """Fit the costs to what was timed, and report them."""
        if clocked:
            self._store.add(clocked)
            self.report()

    def report(self, requested: bool = False) -> None:
        self._emit(CostsUpdated(self.costs, requested))

    def calibrate_once(self) -> None:
        """Time one reading of an untimed pair. What it raises ends the timing."""
        calibration, self._calibration = self._calibration, None
        assert calibration is not None
        clocked = calibration.step()
        if not calibration.finished:
            self._calibration = calibration
        self.learn(clocked)

    def calibrate_now(self) -> None:
        """Time the pair from the start, until something else is to be done."""
        calibration = Calibration(self._pair, UNKNOWN_COSTS, self._interrupted)
        while not calibration.finished and not self._interrupted():
            self._store.add(calibration.step())
