"""What is done on each rung of the ladder."""

from __future__ import annotations

import time
from collections.abc import Callable

import mlx.core as mx

from app.engine import memory
from app.engine.loader import Pair
from app.engine.memory_manager import Room
from app.engine.memory_monitor import Watch
from app.engine.memory_probes import Level, MemoryReading
from app.engine.pressure_levels import SWAPPING, Change
from app.protocol.events import Event, MemoryReport, PressureChanged
from app.protocol.memory import PressureLevel, format_bytes

REPORTED = 1.0
"""Seconds between two reports of memory while something runs."""


class Relief:
    """Acts on what the watch saw, on the engine's thread. Belongs to one loaded pair."""

    def __init__(self, pair: Pair, watch: Watch, room: Room, emit: Callable[[Event], None]) -> None:
        self._pair, self._watch, self._room, self._emit = pair, watch, room, emit
        self._reported = time.monotonic()

    def pressed(self) -> bool:
        """Look, and do what is due; whether what runs has to stop."""
        for change in self._watch.take():
            self._emit(PressureChanged(change.rung, change.was, memory.figures(), in_words(change)))
            self._act(change.rung)
        now = time.monotonic()
        if now - self._reported >= REPORTED:
            self._reported = now
            self._emit(MemoryReport(memory.figures(), self._watch.rung))
        return self._watch.rung is PressureLevel.CRITICAL

    def settle(self) -> None:
        """After a turn: what it had to have goes, too, if that has to be."""
        if not self.calm:
            self._room.drop_idle(everything=self._watch.rung is PressureLevel.CRITICAL)

    @property
    def calm(self) -> bool:
        return self._watch.rung is PressureLevel.NORMAL

    def _act(self, rung: PressureLevel) -> None:
        for model in (self._pair.target, self._pair.draft):
            if model is not None:
                model.step.under_pressure = rung is not PressureLevel.NORMAL
        if rung is PressureLevel.NORMAL:
            return
        mx.clear_cache()
        self._room.drop_idle()
        if rung is not PressureLevel.WARN:
            self._room.park_draft()


def in_words(change: Change) -> str:
    """A sentence or two: why the rung was reached, with the figures, and what follows."""
    reading, rung = change.reading, change.rung
    figures = (
        f"{format_bytes(reading.used)} of {format_bytes(reading.ceiling)}, {reading.share:.0%}"
    )
    if rung is PressureLevel.NORMAL:
        return f"Memory has room again ({figures})."
    if rung.severity < change.was.severity:
        return f"Memory is less tight ({figures})."
    return f"{_TIGHT[rung]} ({_why(reading, figures)}): {_DONE[rung]}."


_TIGHT = {
    PressureLevel.WARN: "Memory is getting tight",
    PressureLevel.TIGHT: "Memory is tight",
    PressureLevel.CRITICAL: "Memory is nearly used up",
}
_DONE = {
    PressureLevel.WARN: "what is only kept for later is dropped, and reading goes in smaller steps",
    PressureLevel.TIGHT: "the draft leaves memory until it is needed",
    PressureLevel.CRITICAL: "what runs is stopped",
}


def _why(reading: MemoryReading, figures: str) -> str:
    if reading.level is not Level.NORMAL:
        return f"the system says so, {figures}"
    if reading.swapping >= SWAPPING:
        return f"{format_bytes(reading.swapping)} a second go to swap, {figures}"
    return figures
