"""The costs of the loaded model pair: fitted to its turns, and to calibration runs while the engine
is idle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from app.engine.calibration import Calibration
from app.engine.cost_store import CostStore
from app.engine.loader import ModelPair
from app.protocol.cost_model import UNKNOWN_COSTS, Costs, Timing
from app.protocol.events import CostsUpdated, Event


class PairCosts:
    """For one loaded model pair; runs on the engine thread. `interrupted` tells whether a command
    is waiting. Timings are stored in `folder`; without one they are not, and the pair is calibrated
    only on request."""

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
    def usual_confidence(self) -> float | None:
        """The median confidence of the pair's last answers, 0..1; None after too few of them."""
        return self._store.usual_confidence

    @property
    def needs_calibration(self) -> bool:
        """Whether the pair was never timed."""
        return self._calibration is not None

    def learn(self, timings: list[Timing], confidence: float | None = None) -> None:
        """Fit the costs to new timings, and report them; `confidence` is that of an answer."""
        if timings or confidence is not None:
            self._store.add(timings, () if confidence is None else (confidence,))
            self.report()

    def report(self, requested: bool = False) -> None:
        self._emit(CostsUpdated(self.costs, requested))

    def calibrate_once(self) -> None:
        """Time one calibration run. An exception ends the calibration."""
        calibration, self._calibration = self._calibration, None
        assert calibration is not None
        timings = calibration.step()
        if not calibration.finished:
            self._calibration = calibration
        self.learn(timings)

    def calibrate_now(self) -> None:
        """Calibrate from the start, until interrupted."""
        calibration = Calibration(self._pair, UNKNOWN_COSTS, self._interrupted)
        while not calibration.finished and not self._interrupted():
            self._store.add(calibration.step())
