"""Progress, speed and remaining time of a download."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_WINDOW = 10.0
"""Seconds over which the speed is averaged."""


@dataclass(frozen=True, slots=True)
class ByteProgress:
    """Progress of a download. `done` (which never decreases) and `total` are in bytes. `speed` is
    in bytes a second over the last ten seconds. `seconds_left` is None while nothing arrives.
    `note` is a clause about waits and checks, and may quote untrusted names."""

    done: int
    total: int
    speed: float
    seconds_left: float | None
    note: str = ""


class ProgressMeter:
    """Counts bytes. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()
        self.total = 0
        self.note = ""
        self._done = 0
        self._max_done = 0
        self._fetched = 0

    def start(self, done: int, total: int) -> None:
        """Start with `done` of `total` bytes."""
        self._done, self.total = done, total
        self._max_done = max(self._max_done, done)
        self._samples.clear()

    def add(self, count: int) -> None:
        """Count bytes that arrived or, if negative, that must be downloaded again."""
        self._done += count
        self._max_done = max(self._max_done, self._done)
        self._fetched += max(count, 0)

    def read(self) -> ByteProgress:
        now = self._clock()
        self._samples.append((now, self._fetched))
        while now - self._samples[0][0] > _WINDOW:
            self._samples.popleft()
        since, fetched = self._samples[0]
        # The speed is meaningful only after half a second.
        speed = (self._fetched - fetched) / (now - since) if now - since >= 0.5 else 0.0
        left = max(self.total - self._done, 0) / speed if speed > 0 else None
        return ByteProgress(min(self._max_done, self.total), self.total, speed, left, self.note)
