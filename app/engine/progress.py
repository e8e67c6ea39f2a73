"""A turn's clock: what its phases took, how far each is, and whether the user has stopped it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from app.engine.messages import Event, Phase, PhaseProgress


class Cancelled(Exception):
    """The user stopped the turn."""


class Progress:
    """`emit` gets the events, `cancelled` is asked at every step border. The turn was `sent` at
    that time of `time.perf_counter`, or now."""

    def __init__(
        self,
        turn: int,
        emit: Callable[[Event], None],
        cancelled: Callable[[], bool],
        sent: float | None = None,
    ) -> None:
        self.turn, self.emit, self.cancelled = turn, emit, cancelled
        now = time.perf_counter()
        self.begun = now if sent is None else sent
        self.phases = {Phase.WAIT: now - self.begun}

    def check_cancel(self) -> None:
        if self.cancelled():
            raise Cancelled

    def report(self, phase: Phase, total: int) -> Callable[[int], None]:
        """A callback that reports tokens done and raises Cancelled at a step border."""
        begun = time.perf_counter()
        self.emit(PhaseProgress(self.turn, phase, 0, total, 0.0))

        def report(done: int) -> None:
            elapsed = time.perf_counter() - begun
            eta = elapsed / done * (total - done) if done else None
            self.emit(PhaseProgress(self.turn, phase, done, total, elapsed, eta))
            self.check_cancel()

        return report

    @contextmanager
    def timed(self, phase: Phase) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.add(phase, time.perf_counter() - begun)

    def add(self, phase: Phase, seconds: float) -> None:
        """A phase that ran twice, before and after a fallback, took the sum."""
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds
