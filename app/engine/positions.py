"""Which positions a cache holds, in the order in which their entries are stored."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int32]
Run = tuple[int, int]
Entries = NDArray[np.int64]
"""Indices in the order of storage."""


class PositionRuns:
    """Positions in the order in which their entries are stored, as runs `(start, end)`. What was
    recalled stands behind what comes after it in the text.

    One never changes: a step leads to another one, and every layer that takes the same step from
    the same one is led to the same. So what is worked out for one layer serves all of a kind. What
    is stored next is not kept alive, or one would lead to all tokens of an answer; what was taken
    away is, since a layer goes on from there before the next one comes.
    """

    __slots__ = ("__weakref__", "_array", "_steps", "_visible", "ascending", "end", "runs")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        own = tuple((start, end) for start, end in runs if start < end)
        ascending = all(a[1] <= b[0] for a, b in pairwise(own))
        self._set(own, max((end for _, end in own), default=0), ascending)

    def _set(self, runs: tuple[Run, ...], following: int, ascending: bool) -> None:
        self.runs = runs
        self.end = following
        """One past the highest position; 0 when empty."""
        self.ascending = ascending
        self._array: Positions | None = None
        self._steps: list[tuple[str, Any, Callable[[], PositionRuns | None], Entries | None]] = []
        self._visible: tuple[Positions, int, Entries] | None = None

    def __deepcopy__(self, memo: object) -> PositionRuns:
        return self

    # ------------------------------------------------------------ steps, worked out once

    def extended(self, positions: Positions) -> PositionRuns:
        """With ascending positions, none of which is held already."""

        def make() -> PositionRuns:
            if positions[0] < self.end and np.isin(positions, self.array()).any():
                raise ValueError(f"one of {positions[0]} to {positions[-1]} is held already")
            return self._appended(_runs_of(positions))

        return self._memoised("extended", positions, make)

    def with_run(self, start: int, end: int) -> PositionRuns:
        """With the positions from `start` up to `end`, none of which is held already."""

        def make() -> PositionRuns:
            if start < self.end and any(start < e and s < end for s, e in self.runs):
                raise ValueError(f"position {start} is held already")
            return self._appended([(start, end)])

        return self._memoised("run", (start, end), make)

    def without_first(self, count: int) -> PositionRuns:
        """Without what is stored first."""
        return self._memoised("first", count, lambda: PositionRuns(_runs_of(self.array()[count:])))

    def without_last(self, count: int) -> PositionRuns:
        """Without what is stored last."""

        def make() -> PositionRuns:
            stored = self.array()
            return PositionRuns(_runs_of(stored[: len(stored) - count]))

        return self._memoised("last", count, make)

    def without(self, positions: Positions) -> tuple[PositionRuns, Entries]:
        """Without these, and which entries stay."""

        def stay() -> Entries:
            return np.flatnonzero(np.isin(self.array(), positions, invert=True))

        return self._memoised_choice("without", positions, stay)

    def between(self, start: int, end: int) -> tuple[PositionRuns, Entries]:
        """Those from `start` up to `end`, in the order of storage, and which entries they are."""

        def inside() -> Entries:
            return np.flatnonzero((self.array() >= start) & (self.array() < end))

        return self._memoised_choice("between", (start, end), inside)

    def sorted(self) -> tuple[PositionRuns, Entries]:
        """All of them, ascending, and the entries in that order."""
        return self._memoised_choice("order", None, lambda: np.argsort(self.array()))

    def _appended(self, more: list[Run]) -> PositionRuns:
        """With these runs behind. Decoding does this at every token."""
        following = max(self.end, more[-1][1])
        ascending, runs = self.ascending and more[0][0] >= self.end, self.runs
        if runs and runs[-1][1] == more[0][0]:
            more, runs = [(runs[-1][0], more[0][1]), *more[1:]], runs[:-1]
        made = PositionRuns()
        made._set((*runs, *more), following, ascending)
        return made

    def _memoised_choice(
        self, name: str, given: object, choose: Callable[[], Entries]
    ) -> tuple[PositionRuns, Entries]:
        entries = self._lookup(name, given)[1]
        if entries is None:
            entries = choose()
        chosen = entries

        def make() -> PositionRuns:
            return PositionRuns(_runs_of(self.array()[chosen]))

        return self._memoised(name, given, make, chosen), chosen

    def _memoised(
        self,
        name: str,
        given: object,
        make: Callable[[], PositionRuns],
        entries: Entries | None = None,
    ) -> PositionRuns:
        known, _ = self._lookup(name, given)
        if known is not None:
            return known
        made = make()
        alive = [step for step in self._steps if step[2]() is not None]
        reach = weakref.ref(made) if name in ("extended", "run") else lambda: made
        self._steps = [*alive, (name, given, reach, entries)]
        return made

    def _lookup(self, name: str, given: object) -> tuple[PositionRuns | None, Entries | None]:
        for known, argument, made, entries in self._steps:
            same = argument is given or (isinstance(given, int | tuple) and argument == given)
            if known == name and same and (runs := made()) is not None:
                return runs, entries
        return None, None

    # ------------------------------------------------------------ what is there

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
        """Entries that one of the ascending `queries` sees: a key at k from q < k + window."""
        if self._visible is None or self._visible[0] is not queries or self._visible[1] != window:
            stored = self.array()
            first = np.searchsorted(queries, stored)
            after = queries[np.minimum(first, len(queries) - 1)]
            seen = (first < len(queries)) & (after < stored + window)
            self._visible = (queries, window, np.flatnonzero(seen))
        return self._visible[2]


def _runs_of(positions: Positions) -> list[Run]:
    if len(positions) == 0:
        return []
    breaks = np.flatnonzero(np.diff(positions) != 1)
    starts = positions[np.append(0, breaks + 1)]
    ends = positions[np.append(breaks, len(positions) - 1)] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))
