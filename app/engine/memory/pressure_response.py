"""Responds to memory pressure."""

from __future__ import annotations

import time
from collections.abc import Callable

import mlx.core as mx

from app.engine.backend import memory
from app.engine.backend.memory_probes import MemorySample
from app.engine.memory.manager import MemoryManager
from app.engine.memory.monitor import MemoryMonitor
from app.engine.memory.pressure_levels import HYSTERESIS, SWAP_RATE_WARNING, THRESHOLDS, LevelChange
from app.engine.model.loader import ModelPair
from app.protocol.events import Event, MemoryReport, PressureChanged
from app.protocol.memory import PressureLevel, format_bytes

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
                    change.level, change.previous, memory.memory_stats(), describe(change)
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


def describe(change: LevelChange) -> str:
    """Why the level changed, with numbers, and what is done."""
    reading, rung = change.sample, change.level
    if rung is PressureLevel.NORMAL:
        return "Memory pressure is back to normal."
    if rung.severity < change.previous.severity:
        return f"Memory is less tight ({_why(reading)})."
    return f"{_PROBLEMS[rung]} ({_why(reading)}): {_RESPONSES[rung]}."


_PROBLEMS = {
    PressureLevel.WARN: "Memory is getting tight",
    PressureLevel.TIGHT: "Memory is tight",
    PressureLevel.CRITICAL: "Memory is nearly used up",
}
_RESPONSES = {
    PressureLevel.WARN: "idle caches are dropped, and prompts are read in smaller steps",
    PressureLevel.TIGHT: "the draft is unloaded until it is needed",
    PressureLevel.CRITICAL: "the running answer is stopped",
}


def _why(reading: MemorySample) -> str:
    """What is scarce: this program's share of memory is named only if it is why."""
    if reading.share >= THRESHOLDS[PressureLevel.WARN] - HYSTERESIS:
        used, most = format_bytes(reading.used), format_bytes(reading.ceiling)
        return f"{used} of {most}, {reading.share:.0%}"
    if reading.swap_rate >= SWAP_RATE_WARNING:
        return f"{format_bytes(reading.swap_rate)} a second go to swap"
    return "other programs use most of it"
