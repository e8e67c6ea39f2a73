"""The positions that a cache holds, in the order in which their entries are stored."""

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
"""Start and end of consecutive positions."""
Entries = NDArray[np.int64]
"""Indices in the order of storage."""


class PositionRuns:
    """Positions in the order in which their entries are stored, as runs. Recalled tokens come after
    tokens that follow them in the text.

    Immutable: each step returns another object, and layers that take the same step from the same
    object get the same result, so that it is computed once for all layers of a kind. Results that
    add positions are referenced weakly, or one object would keep all tokens of an answer alive.
    Results that remove some are referenced strongly: a layer moves on from there before the next
    layer comes.
    """

    __slots__ = ("__weakref__", "_array", "_results", "_visible", "ascending", "end", "runs")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        own = tuple((start, end) for start, end in runs if start < end)
        ascending = all(a[1] <= b[0] for a, b in pairwise(own))
        self._set(own, max((end for _, end in own), default=0), ascending)

    def _set(self, runs: tuple[Run, ...], end: int, ascending: bool) -> None:
        self.runs = runs
        self.end = end
        """One past the highest position; 0 when empty."""
        self.ascending = ascending
        self._array: Positions | None = None
        self._results: dict[object, tuple[object, Callable[[], Any]]] = {}
        """By step and argument, which is referenced so that its id stays its own."""
        self._visible: tuple[Positions, int, Entries] | None = None

    def __deepcopy__(self, memo: object) -> PositionRuns:
        return self

    # ------------------------------------------------------------ steps, computed once

    def extended(self, positions: Positions) -> PositionRuns:
        """With these ascending positions at the end, all of them new."""

        def make() -> PositionRuns:
            if positions[0] < self.end and np.isin(positions, self.array()).any():
                raise ValueError(f"one of {positions[0]} to {positions[-1]} is cached already")
            return self._appended(runs_of(positions))

        return self._memoised("extended", positions, make, weak=True)

    def with_run(self, start: int, end: int) -> PositionRuns:
        """With the positions from `start` up to `end` at the end, all of them new."""

        def make() -> PositionRuns:
            if start < self.end and any(start < e and s < end for s, e in self.runs):
                raise ValueError(f"position {start} is cached already")
            return self._appended([(start, end)])

        return self._memoised("run", (start, end), make, weak=True)

    def without_first(self, count: int) -> PositionRuns:
        """Without the first entries."""
        return self._memoised("first", count, lambda: PositionRuns(runs_of(self.array()[count:])))

    def without_last(self, count: int) -> PositionRuns:
        """Without the last entries."""

        def make() -> PositionRuns:
            return PositionRuns(runs_of(self.array()[: len(self.array()) - count]))

        return self._memoised("last", count, make)

    def without(self, positions: Positions) -> tuple[PositionRuns, Entries]:
        """Without these, and which entries stay."""

        def others() -> Entries:
            return np.flatnonzero(np.isin(self.array(), positions, invert=True))

        return self._selected("without", positions, others)

    def between(self, start: int, end: int) -> tuple[PositionRuns, Entries]:
        """Those from `start` up to `end`, in the order of storage, and which entries they are."""

        def inside() -> Entries:
            return np.flatnonzero((self.array() >= start) & (self.array() < end))

        return self._selected("between", (start, end), inside)

    def sorted(self) -> tuple[PositionRuns, Entries]:
        """All of them, ascending, and the entries in that order."""
        return self._selected("sorted", None, lambda: np.argsort(self.array()))

    def _appended(self, more: list[Run]) -> PositionRuns:
        """With these runs at the end. Decoding does this for every token."""
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
        """int32 (n,), in the order of storage."""
        if self._array is None:
            spans = [np.arange(start, end, dtype=np.int32) for start, end in self.runs]
            self._array = np.concatenate(spans) if spans else np.zeros(0, np.int32)
        return self._array

    def count_below(self, position: int) -> int:
        return sum(min(end, position) - start for start, end in self.runs if start < position)

    def count_from(self, position: int) -> int:
        """How many are at `position` or after it."""
        count = 0
        for start, end in reversed(self.runs):
            if end > position:
                count += end - max(start, position)
            elif self.ascending:
                break
        return count

    def end_below(self, position: int) -> int:
        """One past the highest of them below `position`; 0 without one."""
        return max((min(end, position) for start, end in self.runs if start < position), default=0)

    def visible_to(self, queries: Positions, window: int) -> Entries:
        """Entries that one of the ascending `queries` attends to: keys at k with q < k + window."""
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
