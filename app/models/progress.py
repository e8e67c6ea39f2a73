"""How far a download is, how fast it goes, and when it will be done."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

_WINDOW = 10.0
"""Seconds that the speed is averaged over."""


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` and `total` in bytes, and `done` never shrinks; `speed` in bytes a second over the
    last ten seconds; `left` in seconds, None as long as nothing arrives. `note` says what goes on
    beside fetching, such as a wait, as a clause; it may quote names that came from elsewhere."""

    done: int
    total: int
    speed: float
    seconds_left: float | None
    note: str = ""


class ProgressMeter:
    """Counts bytes. Not for several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._samples: deque[tuple[float, int]] = deque()
        self.total = 0
        self.note = ""
        self._done = 0
        self._most = 0
        self._fetched = 0

    def start(self, done: int, total: int) -> None:
        """From here on, with `done` of `total` bytes there already."""
        self._done, self.total = done, total
        self._most = max(self._most, done)
        self._samples.clear()

    def add(self, count: int) -> None:
        """So many bytes arrived, or, when negative, must be fetched once more."""
        self._done += count
        self._most = max(self._most, self._done)
        self._fetched += max(count, 0)

    def read(self) -> Progress:
        now = self._clock()
        self._samples.append((now, self._fetched))
        while now - self._samples[0][0] > _WINDOW:
            self._samples.popleft()
        since, fetched = self._samples[0]
        # Over less than half a second it would be a guess.
        speed = (self._fetched - fetched) / (now - since) if now - since >= 0.5 else 0.0
        left = max(self.total - self._done, 0) / speed if speed > 0 else None
        return Progress(min(self._most, self.total), self.total, speed, left, self.note)
