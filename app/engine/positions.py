"""Which positions a cache holds, in the order in which their entries are stored."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int32]


class PositionRuns:
    """Positions in the order in which their entries are stored, held as runs, so that decoding adds
    in O(1). What was recalled stands behind what comes after it in the text."""

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        self._set([start, end] for start, end in runs)

    def _set(self, runs: Iterable[list[int]]) -> None:
        self._runs = list(runs)
        self.next = max((end for _, end in self._runs), default=0)
        """One past the highest position; 0 when empty."""
        self.ascending = all(a[1] <= b[0] for a, b in pairwise(self._runs))

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        return tuple((start, end) for start, end in self._runs)

    def append(self, positions: Positions) -> None:
        """Add ascending positions, none of which is held already."""
        borders = np.flatnonzero(np.diff(positions) != 1) + 1
        for run in np.split(positions, borders):
            self.append_run(int(run[0]), int(run[-1]) + 1)

    def append_run(self, start: int, end: int) -> None:
        """Add the positions from `start` up to `end`, none of which is held already."""
        if start < self.next:
            if any(start < e and s < end for s, e in self._runs):
                raise ValueError(f"position {start} is held already")
            self.ascending = False
        if self._runs and self._runs[-1][1] == start:
            self._runs[-1][1] = end
        else:
            self._runs.append([start, end])
        self.next = max(self.next, end)

    def drop_first(self, count: int) -> None:
        """Drop what is stored first."""
        kept = []
        for start, end in self._runs:
            gone = min(count, end - start)
            count -= gone
            if start + gone < end:
                kept.append([start + gone, end])
        self._set(kept)

    def drop_last(self, count: int) -> None:
        """Drop what is stored last."""
        kept = []
        for start, end in reversed(self._runs):
            gone = min(count, end - start)
            count -= gone
            if start < end - gone:
                kept.append([start, end - gone])
        self._set(reversed(kept))

    def drop_from(self, position: int) -> None:
        """Drop every position from this one on."""
        self._set([s, min(e, position)] for s, e in self._runs if s < position)

    def count_below(self, position: int) -> int:
        return sum(min(end, position) - start for start, end in self._runs if start < position)

    def count_from(self, position: int) -> int:
        """How many are at `position` or after it."""
        count = 0
        for start, end in reversed(self._runs):
            if end > position:
                count += end - max(start, position)
            elif self.ascending:
                break
        return count

    def array(self) -> Positions:
        if not self._runs:
            return np.zeros(0, np.int32)
        return np.concatenate([np.arange(s, e, dtype=np.int32) for s, e in self._runs])
