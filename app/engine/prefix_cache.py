"""What one model has read of a conversation: its cache, and which tokens are in it.

Tokens are counted as the conversation has them: a logical prefix is reused, whatever the buffers
look like. A cache that lacks tokens is never taken for one that has them all: `exact` says how far
every entry has seen everything before it.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache
from numpy.typing import NDArray

from app.engine.caches import (
    STOCK,
    Cache,
    PositionedCache,
    WindowedCache,
    flat,
    layers,
    nbytes,
)
from app.engine.positions import Positions
from app.engine.prefill import OnStep, StepSize, prefill

MOST_BORDERS = 3
"""Before the documents, and before the last two answers."""


@dataclass(frozen=True, slots=True)
class Border:
    """What takes it to come back to where the cache was after `position` tokens."""

    position: int
    states: dict[int, Any]
    """The layers, by their index, that cannot take back what came later, as they were then: of a
    window what was in it. One that retains everything can come back by itself."""


class Held:
    """A cache of `fresh()`'s kind with what was read into it.

    `ids` int32 (L,) are the conversation's tokens up to the last one read, `read` bool (L,) says
    which of them are in the cache, in exactly this order of positions unless some were recalled.
    """

    def __init__(self, fresh: Callable[[], Cache]) -> None:
        self._fresh = fresh
        self.depth: int | None = None
        """How many layers, from the first, are read; the caches of later ones stay empty. None for
        all."""
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.cache = self._fresh()
        self.ids = np.zeros(0, np.int32)
        self.read = np.zeros(0, bool)
        self.exact = 0
        """How many tokens, from the first, were read with nothing left out before them."""
        self.borders: list[Border] = []
        self.note_states()

    def note_states(self) -> None:
        """What recurrent layers hold now belongs to what is noted as read: they count nothing."""
        self._states = [
            weakref.ref(state)
            for cache in flat(self.cache)
            if isinstance(cache, ArraysCache)
            for state in cache.cache
            if state is not None
        ]

    def is_noted(self, cache: ArraysCache) -> bool:
        """Whether a recurrent layer has seen what is noted as read, no more and no less."""
        noted = {id(state()) for state in self._states}
        return all(id(state) in noted for state in cache.cache if state is not None)

    def fork(self) -> Held:
        """A twin that goes its own way; the arrays are shared until one of the two writes."""
        twin = Held(self._fresh)
        twin.cache, twin.depth = copy.deepcopy(self.cache), self.depth
        twin.ids, twin.read, twin.exact = self.ids, self.read.copy(), self.exact
        twin.borders = list(self.borders)
        twin.note_states()
        return twin

    def read_to(self, depth: int | None) -> None:
        """Read so many layers from now on. What was read to another depth is forgotten: some
        caches would lack it."""
        if depth != self.depth:
            self.clear()
            self.depth = depth

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        saved = [state for border in self.borders for state in border.states.values()]
        return sum(nbytes(c) for c in [*flat(self.cache), *saved])

    def inserts(self, position: int) -> bool:
        """Whether a token can be read that stands before what was read already."""
        return all(isinstance(c, PositionedCache) and c.reaches(position) for c in flat(self.cache))

    @property
    def takes_gaps(self) -> bool:
        """Whether tokens may be left out of what is read: no layer counts them."""
        return all(isinstance(c, PositionedCache | ArraysCache) for c in flat(self.cache))

    @property
    def forgets(self) -> bool:
        """Whether coming back takes a border."""
        return any(_forgets(c) for c in flat(self.cache))

    def shared(self, ids: NDArray[np.int32]) -> int:
        """How many of `ids` are, from the first on, what was read or left out here."""
        size = min(len(ids), len(self.ids))
        different = np.flatnonzero(ids[:size] != self.ids[:size])
        return int(different[0]) if len(different) else size

    def missing(self, positions: Positions) -> Positions:
        """Those of the ascending `positions` that were not read."""
        unread = np.ones(len(positions), bool)
        known = np.searchsorted(positions, len(self))
        unread[:known] = ~self.read[positions[:known]]
        return positions[unread]

    def after(self, positions: Positions, length: int) -> Positions:
        """What was read and follows one of `positions`, ascending, without a gap: of each run
        behind it the first `length` tokens."""
        ends = positions[np.append(np.diff(positions) != 1, True)] + 1
        followers = [np.arange(end, min(end + length, len(self)), dtype=np.int32) for end in ends]
        unbroken = [run[: int(np.argmin(np.append(self.read[run], False)))] for run in followers]
        return np.unique(np.concatenate(unbroken))

    def note(self, ids: NDArray[np.int32], positions: Positions) -> None:
        """The tokens of `ids`, a whole prompt, at these ascending `positions` are now read."""
        if len(positions) == 0:
            return
        end = int(positions[-1]) + 1
        if end > len(self.ids):
            self.read = np.concatenate([self.read, np.zeros(end - len(self.ids), bool)])
            self.ids = ids[:end].copy()
        self.read[positions] = True
        if int(positions[0]) == self.exact:
            gaps = np.flatnonzero(np.diff(positions) != 1)
            self.exact = int(positions[gaps[0]] if len(gaps) else positions[-1]) + 1
        self.note_states()

    def follow(self, ids: NDArray[np.int32]) -> None:
        """These tokens (n,) are read after all others."""
        start = len(self)
        positions = np.arange(start, start + len(ids), dtype=np.int32)
        self.note(np.concatenate([self.ids, ids]), positions)

    def take_in(
        self,
        model: Any,
        ids: NDArray[np.int32],
        positions: Positions,
        step: StepSize,
        on_step: OnStep,
    ) -> None:
        """Let `model` read those tokens of `ids`, a whole prompt, that stand at `positions`,
        ascending. mlx-lm's own caches take only what follows without a gap."""
        done = 0

        def read(now: int) -> None:
            nonlocal done
            self.note(ids, positions[done:now])
            done = now
            on_step(now)

        placed = positions if layers(self.cache) else None
        prefill(model, self.cache, ids[positions], placed, step, read, self.depth)

    def forget(self, positions: Positions) -> None:
        """Take these tokens, ascending, out of caches that take in what was left out."""
        for layer in layers(self.cache):
            layer.forget(positions)
        self.read[positions] = False
        self.exact = min(self.exact, int(positions[0]))

    @property
    def retains(self) -> bool:
        """Whether windows keep what no later token sees."""
        return any(isinstance(c, WindowedCache) and c.retains for c in flat(self.cache))

    def retain(self, retains: bool) -> None:
        """Whether windows keep what no later token sees, from now on: what is recalled does see it.
        A border that relied on it gets its own copy of the window."""
        windows = {i: c for i, c in enumerate(flat(self.cache)) if isinstance(c, WindowedCache)}
        if self.retains and not retains:
            self.borders = [_with_windows(b, windows) for b in self._borders_to(len(self))]
        for layer in windows.values():
            layer.retains = retains

    def mark_border(self) -> None:
        """Make it possible to come back to where the cache is now."""
        if not self.forgets or any(border.position == len(self) for border in self.borders):
            return
        states = {
            i: c.before(len(self)) if isinstance(c, WindowedCache) else copy.deepcopy(c)
            for i, c in enumerate(flat(self.cache))
            if _forgets(c) and not (isinstance(c, WindowedCache) and c.retains)
        }
        first, *later = [*self.borders, Border(len(self), states)]
        self.borders = [first, *later[-(MOST_BORDERS - 1) :]]

    def back_to(self, position: int) -> int:
        """How many tokens a `rewind` to this position would leave."""
        if position >= len(self):
            return len(self)
        if all(_comes_back(c, position) for c in flat(self.cache)):
            return position
        return max((border.position for border in self._borders_to(position)), default=0)

    def _borders_to(self, position: int) -> list[Border]:
        """Those from which to go on, none of them after `position`."""
        every = dict(enumerate(flat(self.cache)))

        def leads_back(border: Border) -> bool:
            others = (c for i, c in every.items() if i not in border.states)
            return border.position <= position and all(
                _comes_back(c, border.position) for c in others
            )

        return list(filter(leads_back, self.borders))

    def rewind(self, position: int) -> int:
        """Take back every token from `position` on, or from an earlier one where a layer can only
        come back to a border. Returns how many tokens are left."""
        if position >= len(self):
            return len(self)
        every = flat(self.cache)
        if not all(_comes_back(c, position) for c in every):
            borders = self._borders_to(position)
            if not borders:
                self.clear()
                return 0
            self.borders, position = borders, borders[-1].position
            for index, state in borders[-1].states.items():
                every[index].__dict__.update(copy.deepcopy(state).__dict__)
        for c in every:
            if isinstance(c, PositionedCache):
                c.rewind(position)
            elif isinstance(c, STOCK):
                c.trim(max(c.offset - position, 0))  # those of layers that are not read are empty
        self.borders = [border for border in self.borders if border.position <= position]
        self.ids, self.read = self.ids[:position], self.read[:position]
        self.exact = min(self.exact, position)
        self.note_states()
        return position

    def settle(self) -> None:
        """Compute what is still lazy, so that nothing of it depends on what comes later."""
        mx.eval([c.state for c in self.cache])


def _with_windows(border: Border, windows: dict[int, WindowedCache]) -> Border:
    """With a copy of each window that it has none of."""
    missing = {i: c.before(border.position) for i, c in windows.items() if i not in border.states}
    return Border(border.position, border.states | missing)


def _forgets(cache: Any) -> bool:
    """Whether a layer may be unable to take back its last tokens."""
    placed = isinstance(cache, PositionedCache) and not isinstance(cache, WindowedCache)
    return not isinstance(cache, STOCK) and not placed


def _comes_back(cache: Any, position: int) -> bool:
    """Whether a layer can take back what stands from `position` on."""
    if isinstance(cache, PositionedCache):
        return cache.reaches(position)
    return isinstance(cache, STOCK)
