"""The positions that a cache holds, in the order in which their entries are stored."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

    __slots__ = ("__weakref__", "_array", "_steps", "_visible", "ascending", "end", "runs")

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
        self._steps: list[tuple[str, Any, Callable[[], PositionRuns | None], Entries | None]] = []
        """Results by step and argument."""
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

        return self._memoised("extended", positions, make)

    def with_run(self, start: int, end: int) -> PositionRuns:
        """With the positions from `start` up to `end` at the end, all of them new."""

        def make() -> PositionRuns:
            if start < self.end and any(start < e and s < end for s, e in self.runs):
                raise ValueError(f"position {start} is cached already")
            return self._appended([(start, end)])

        return self._memoised("run", (start, end), make)

    def without_first(self, count: int) -> PositionRuns:
        """Without what is stored first."""
        return self._memoised("first", count, lambda: PositionRuns(runs_of(self.array()[count:])))

    def without_last(self, count: int) -> PositionRuns:
        """Without what is stored last."""

        def make() -> PositionRuns:
            return PositionRuns(runs_of(self.array()[: len(self.array()) - count]))

        return self._memoised("last", count, make)

    def without(self, positions: Positions) -> tuple[PositionRuns, Entries]:
        """Without these, and which entries stay."""

        def others() -> Entries:
            return np.flatnonzero(np.isin(self.array(), positions, invert=True))

        return self._memoised_choice("without", positions, others)

    def between(self, start: int, end: int) -> tuple[PositionRuns, Entries]:
        """Those from `start` up to `end`, in the order of storage, and which entries they are."""

        def inside() -> Entries:
            return np.flatnonzero((self.array() >= start) & (self.array() < end))

        return self._memoised_choice("between", (start, end), inside)

    def sorted(self) -> tuple[PositionRuns, Entries]:
        """All of them, ascending, and the entries in that order."""
        return self._memoised_choice("sorted", None, lambda: np.argsort(self.array()))

    def _appended(self, more: list[Run]) -> PositionRuns:
        """With these runs at the end. Decoding does this for every token."""
        end = max(self.end, more[-1][1])
        ascending, runs = self.ascending and more[0][0] >= self.end, self.runs
        if runs and runs[-1][1] == more[0][0]:
            more, runs = [(runs[-1][0], more[0][1]), *more[1:]], runs[:-1]
        made = PositionRuns()
        made._set((*runs, *more), end, ascending)
        return made

    def _memoised_choice(
        self, name: str, argument: object, choose: Callable[[], Entries]
    ) -> tuple[PositionRuns, Entries]:
        known = self._lookup(name, argument)[1]
        entries = choose() if known is None else known

        def make() -> PositionRuns:
            return PositionRuns(runs_of(self.array()[entries]))

        return self._memoised(name, argument, make, entries), entries

    def _memoised(
        self,
        name: str,
        argument: object,
        make: Callable[[], PositionRuns],
        entries: Entries | None = None,
    ) -> PositionRuns:
        known, _ = self._lookup(name, argument)
        if known is not None:
            return known
        made = make()
        alive = [step for step in self._steps if step[2]() is not None]
        reference = weakref.ref(made) if name in ("extended", "run") else lambda: made
        self._steps = [*alive, (name, argument, reference, entries)]
        return made

    def _lookup(self, name: str, argument: object) -> tuple[PositionRuns | None, Entries | None]:
        for known, before, reference, entries in self._steps:
            same = before is argument or (isinstance(argument, int | tuple) and before == argument)
            if known == name and same and (runs := reference()) is not None:
                return runs, entries
        return None, None

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
