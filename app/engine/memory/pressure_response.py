"""Responds to memory pressure."""

from __future__ import annotations

import time
from collections.abc import Callable

import mlx.core as mx

from app.engine.backend import memory
from app.engine.backend.memory_probes import MemorySample
from app.engine.memory.manager import MemoryManager
from app.engine.memory.monitor import MemoryMonitor
from app.engine.memory.pressure_levels import HYSTERESIS, SWAP_RATE_WARNING, THRESHOLDS
from app.engine.model.loader import ModelPair
from app.protocol.events import Event, MemoryReport, PressureChanged
from app.protocol.memory import PressureLevel
from app.protocol.reasons import Reason, ReasonCode

REPORT_INTERVAL = 1.0
"""Seconds between two reports of memory while something runs."""


class PressureResponse:
    """Acts on the monitor's changes, on the engine thread. For one loaded model pair."""

    def __init__(
        self,
        pair: ModelPair,
        monitor: MemoryMonitor,
        memory_manager: MemoryManager,
        emit: Callable[[Event], None],
    ) -> None:
        self._pair, self._monitor, self._memory_manager, self._emit = (
            pair,
            monitor,
            memory_manager,
            emit,
        )
        self._reported = time.monotonic()

    def poll(self) -> bool:
        """Check memory pressure and respond; whether the running turn has to stop."""
        for change in self._monitor.take_changes():
            self._emit(
                PressureChanged(
                    change.level, change.previous, memory.memory_stats(), scarcity(change.sample)
                )
            )
            self._respond(change.level)
        now = time.monotonic()
        if now - self._reported >= REPORT_INTERVAL:
            self._reported = now
            self._emit(MemoryReport(memory.memory_stats(), self._monitor.level))
        return self._monitor.level is PressureLevel.CRITICAL

    def after_turn(self) -> None:
        """Under pressure, drop caches that the turn needed."""
        if not self.is_normal:
            self._memory_manager.drop_idle(everything=self._monitor.level is PressureLevel.CRITICAL)

    @property
    def is_normal(self) -> bool:
        return self._monitor.level is PressureLevel.NORMAL

    def _respond(self, rung: PressureLevel) -> None:
        for model in (self._pair.target, self._pair.draft):
            if model is not None:
                model.step.under_pressure = rung is not PressureLevel.NORMAL
        if rung is PressureLevel.NORMAL:
            return
        mx.clear_cache()
        self._memory_manager.drop_idle()
        if rung is not PressureLevel.WARN:
            self._memory_manager.unload_draft()


def scarcity(sample: MemorySample) -> Reason:
    """What is scarce: this program's share of memory is named only if it is why."""
    if sample.share >= THRESHOLDS[PressureLevel.WARN] - HYSTERESIS:
        data = {"used": sample.used, "ceiling": sample.ceiling, "share": sample.share}
        return Reason(ReasonCode.MEMORY_SHARE, data)
    if sample.swap_rate >= SWAP_RATE_WARNING:
        return Reason(ReasonCode.SWAPPING, {"rate": sample.swap_rate})
    return Reason(ReasonCode.OTHER_PROGRAMS)
