"""The positions of a cache's entries, in storage order."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Positions = NDArray[np.int32]
Run = tuple[int, int]
"""Consecutive positions from start up to, not including, end."""
Entries = NDArray[np.int64]
"""Indices of entries in storage order."""


class PositionRuns:
    """Positions in storage order, as runs. Recalled tokens are stored after tokens that follow them
    in the text.

    Immutable: a change returns a new object. Results are memoised, so that layers that make the
    same change to the same object compute it once. Results that add positions are referenced
    weakly, because a chain of them would keep every token of an answer alive; results that remove
    some strongly, because one layer drops its reference before the next layer asks.
    """

    __slots__ = ("__weakref__", "_array", "_results", "_visible", "ascending", "end", "runs")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        runs_tuple = tuple((start, end) for start, end in runs if start < end)
        ascending = all(a[1] <= b[0] for a, b in pairwise(runs_tuple))
        self._set(runs_tuple, max((end for _, end in runs_tuple), default=0), ascending)

    def _set(self, runs: tuple[Run, ...], end: int, ascending: bool) -> None:
        self.runs = runs
        self.end = end
        """One past the highest position; 0 when empty."""
        self.ascending = ascending
        self._array: Positions | None = None
        self._results: dict[object, tuple[object, Callable[[], Any]]] = {}
        """By (change, argument or its id). The argument is kept alive, so that its id is unique."""
        self._visible: tuple[Positions, int, Entries] | None = None

    def __deepcopy__(self, memo: object) -> PositionRuns:
        return self

    # ------------------------------------------------------------ memoised changes

    def extended(self, positions: Positions) -> PositionRuns:
        """Append these ascending positions. Raises ValueError if one is present already."""

        def make() -> PositionRuns:
            if positions[0] < self.end and np.isin(positions, self.array()).any():
                raise ValueError(f"one of {positions[0]} to {positions[-1]} is cached already")
            return self._appended(runs_of(positions))

        return self._memoised("extended", positions, make, weak=True)

    def with_run(self, start: int, end: int) -> PositionRuns:
        """Append the positions from `start` up to `end`. Raises ValueError if one is present."""

        def make() -> PositionRuns:
            if start < self.end and any(start < e and s < end for s, e in self.runs):
                raise ValueError(f"position {start} is cached already")
            return self._appended([(start, end)])

        return self._memoised("run", (start, end), make, weak=True)

    def without_first(self, count: int) -> PositionRuns:
        """Remove the first `count` entries."""
        return self._memoised("first", count, lambda: PositionRuns(runs_of(self.array()[count:])))

    def without_last(self, count: int) -> PositionRuns:
        """Remove the last `count` entries."""

        def make() -> PositionRuns:
            return PositionRuns(runs_of(self.array()[: len(self.array()) - count]))

        return self._memoised("last", count, make)

    def without(self, positions: Positions) -> tuple[PositionRuns, Entries]:
        """Remove these positions. Returns the rest and the indices of its entries."""

        def others() -> Entries:
            return np.flatnonzero(np.isin(self.array(), positions, invert=True))

        return self._selected("without", positions, others)

    def between(self, start: int, end: int) -> tuple[PositionRuns, Entries]:
        """The positions from `start` up to `end`, and the indices of their entries."""

        def inside() -> Entries:
            return np.flatnonzero((self.array() >= start) & (self.array() < end))

        return self._selected("between", (start, end), inside)

    def sorted(self) -> tuple[PositionRuns, Entries]:
        """All positions in ascending order, and the indices of their entries."""
        return self._selected("sorted", None, lambda: np.argsort(self.array()))

    def _appended(self, more: list[Run]) -> PositionRuns:
        """Append runs. Decoding does this for every token, so nothing is recomputed."""
        end = max(self.end, more[-1][1])
        ascending, runs = self.ascending and more[0][0] >= self.end, self.runs
        if runs and runs[-1][1] == more[0][0]:
            more, runs = [(runs[-1][0], more[0][1]), *more[1:]], runs[:-1]
        made = PositionRuns()
        made._set((*runs, *more), end, ascending)
        return made

    def _selected(
        self, step: str, argument: object, select: Callable[[], Entries]
    ) -> tuple[PositionRuns, Entries]:
        def make() -> tuple[PositionRuns, Entries]:
            entries = select()
            return PositionRuns(runs_of(self.array()[entries])), entries

        return self._memoised(step, argument, make)

    def _memoised(
        self, step: str, argument: object, make: Callable[[], T], weak: bool = False
    ) -> T:
        key = step, argument if isinstance(argument, int | tuple) else id(argument)
        if key in self._results and (known := self._results[key][1]()) is not None:
            return known  # type: ignore[no-any-return]
        made = make()
        alive = {k: result for k, result in self._results.items() if result[1]() is not None}
        self._results = alive | {key: (argument, weakref.ref(made) if weak else lambda: made)}
        return made

    # ------------------------------------------------------------ queries

    def array(self) -> Positions:
        """All positions, int32 (n,), in storage order."""
        if self._array is None:
            spans = [np.arange(start, end, dtype=np.int32) for start, end in self.runs]
            self._array = np.concatenate(spans) if spans else np.zeros(0, np.int32)
        return self._array

    def count_below(self, position: int) -> int:
        return sum(min(end, position) - start for start, end in self.runs if start < position)

    def count_from(self, position: int) -> int:
        """Number of positions >= `position`."""
        count = 0
        for start, end in reversed(self.runs):
            if end > position:
                count += end - max(start, position)
            elif self.ascending:
                break
        return count

    def end_below(self, position: int) -> int:
        """One past the highest stored position below `position`; 0 if there is none."""
        return max((min(end, position) for start, end in self.runs if start < position), default=0)

    def visible_to(self, queries: Positions, window: int) -> Entries:
        """Entries to which one of the ascending `queries` attends: k <= q < k + window."""
        known = self._visible
        if known is None or known[0] is not queries or known[1] != window:
            stored = self.array()
            first = np.searchsorted(queries, stored)
            after = queries[np.minimum(first, len(queries) - 1)]
            visible = (first < len(queries)) & (after < stored + window)
            known = self._visible = (queries, window, np.flatnonzero(visible))
        return known[2]


def runs_of(positions: Positions) -> list[Run]:
    if len(positions) == 0:
        return []
    breaks = np.flatnonzero(np.diff(positions) != 1)
    starts = positions[np.append(0, breaks + 1)]
    ends = positions[np.append(breaks, len(positions) - 1)] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
