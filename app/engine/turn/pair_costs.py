"""The costs of the loaded model pair: a first estimate, fitted to its turns, and to calibration
runs where these are requested."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from app.engine.model.loader import ModelPair
from app.engine.turn.calibration import Calibration
from app.engine.turn.cost_store import CostStore
from app.protocol.cost_model import Costs, Timing
from app.protocol.events import CostsUpdated, Event


class PairCosts:
    """For one loaded model pair; runs on the engine thread. `interrupted` tells whether a command
    is waiting. Timings are stored in `folder`; without one they are not."""

    def __init__(
        self,
        pair: ModelPair,
        folder: Path | None,
        emit: Callable[[Event], None],
        interrupted: Callable[[], bool],
    ) -> None:
        self._pair, self._emit, self._interrupted = pair, emit, interrupted
        self._store = CostStore(pair, folder)

    @property
    def costs(self) -> Costs:
        return self._store.costs

    @property
    def usual_confidence(self) -> float | None:
        """The median confidence of the pair's last answers, 0..1; None after too few of them."""
        return self._store.usual_confidence

    def learn(self, timings: list[Timing], confidence: float | None = None) -> None:
        """Fit the costs to new timings, and report them; `confidence` is that of an answer."""
        if timings or confidence is not None:
            self._store.add(timings, () if confidence is None else (confidence,))
            self.report()

    def report(self, requested: bool = False) -> None:
        self._emit(CostsUpdated(self.costs, requested))

    def calibrate_now(self) -> None:
        """Calibrate from the start, until interrupted."""
        calibration = Calibration(self._pair, self._interrupted)
        while not calibration.finished and not self._interrupted():
            self._store.add(calibration.step())
