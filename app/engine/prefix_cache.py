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
    TRIMMABLE,
    Cache,
    PositionedCache,
    WindowedCache,
    flatten,
    nbytes,
    positioned_layers,
)
from app.engine.positions import Positions
from app.engine.prefill import OnStep, StepSize, prefill

MAX_CHECKPOINTS = 3
"""Before the documents, and before the last two answers."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What takes it to come back to where the cache was after `position` tokens."""

    position: int
    states: dict[int, Any]
    """The layers, by their index, that cannot take back what came later, as they were then: of a
    window what was in it. One that retains everything can come back by itself."""


class PrefixCache:
    """A cache of `fresh()`'s kind with what was read into it.

    `ids` int32 (L,) are the conversation's tokens up to the last one read, `read` bool (L,) says
    which of them are in the cache, in exactly this order of positions unless some were recalled.
    """

    def __init__(self, fresh: Callable[[], Cache]) -> None:
        self._make_cache = fresh
        self.num_layers: int | None = None
        """How many layers, from the first, are read; the caches of later ones stay empty. None for
        all."""
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.cache = self._make_cache()
        self.ids = np.zeros(0, np.int32)
        self.cached = np.zeros(0, bool)
        self.dense_prefix_len = 0
        """How many tokens, from the first, were read with nothing left out before them."""
        self.checkpoints: list[Checkpoint] = []
        self.record_states()

    def record_states(self) -> None:
        """What recurrent layers hold now belongs to what is noted as read: they count nothing."""
        self._recorded_states = [
            weakref.ref(state)
            for cache in flatten(self.cache)
            if isinstance(cache, ArraysCache)
            for state in cache.cache
            if state is not None
        ]

    def has_recorded_states(self, cache: ArraysCache) -> bool:
        """Whether a recurrent layer has seen what is noted as read, no more and no less."""
        noted = {id(state()) for state in self._recorded_states}
        return all(id(state) in noted for state in cache.cache if state is not None)

    def fork(self) -> PrefixCache:
        """A twin that goes its own way; the arrays are shared until one of the two writes."""
        twin = PrefixCache(self._make_cache)
        twin.cache, twin.num_layers = copy.deepcopy(self.cache), self.num_layers
        twin.ids, twin.cached, twin.dense_prefix_len = (
            self.ids,
            self.cached.copy(),
            self.dense_prefix_len,
        )
        twin.checkpoints = list(self.checkpoints)
        twin.record_states()
        return twin

    def use_layers(self, num_layers: int | None) -> None:
        """Read so many layers from now on. What was read to another depth is forgotten: some
        caches would lack it."""
        if num_layers != self.num_layers:
            self.clear()
            self.num_layers = num_layers

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        saved = [state for border in self.checkpoints for state in border.states.values()]
        return sum(nbytes(c) for c in [*flatten(self.cache), *saved])

    def can_insert_at(self, position: int) -> bool:
        """Whether a token can be read that stands before what was read already."""
        return all(
            isinstance(c, PositionedCache) and c.covers(position) for c in flatten(self.cache)
        )

    @property
    def supports_gaps(self) -> bool:
        """Whether tokens may be left out of what is read: no layer counts them."""
        return all(isinstance(c, PositionedCache | ArraysCache) for c in flatten(self.cache))

    @property
    def needs_checkpoints(self) -> bool:
        """Whether coming back takes a border."""
        return any(_needs_checkpoint(c) for c in flatten(self.cache))

    def common_prefix_len(self, ids: NDArray[np.int32]) -> int:
        """How many of `ids` are, from the first on, what was read or left out here."""
        size = min(len(ids), len(self.ids))
        different = np.flatnonzero(ids[:size] != self.ids[:size])
        return int(different[0]) if len(different) else size

    def uncached(self, positions: Positions) -> Positions:
        """Those of the ascending `positions` that were not read."""
        unread = np.ones(len(positions), bool)
        known = np.searchsorted(positions, len(self))
        unread[:known] = ~self.cached[positions[:known]]
        return positions[unread]

    def runs_following(self, positions: Positions, length: int) -> Positions:
        """What was read and follows one of `positions`, ascending, without a gap: of each run
        behind it the first `length` tokens."""
        ends = positions[np.append(np.diff(positions) != 1, True)] + 1
        followers = [np.arange(end, min(end + length, len(self)), dtype=np.int32) for end in ends]
        unbroken = [run[: int(np.argmin(np.append(self.cached[run], False)))] for run in followers]
        return np.unique(np.concatenate(unbroken))

    def mark_cached(self, ids: NDArray[np.int32], positions: Positions) -> None:
        """The tokens of `ids`, a whole prompt, at these ascending `positions` are now read."""
        if len(positions) == 0:
            return
        end = int(positions[-1]) + 1
        if end > len(self.ids):
            self.cached = np.concatenate([self.cached, np.zeros(end - len(self.ids), bool)])
            self.ids = ids[:end].copy()
        self.cached[positions] = True
        if int(positions[0]) == self.dense_prefix_len:
            gaps = np.flatnonzero(np.diff(positions) != 1)
            self.dense_prefix_len = int(positions[gaps[0]] if len(gaps) else positions[-1]) + 1
        self.record_states()

    def append(self, ids: NDArray[np.int32]) -> None:
        """These tokens (n,) are read after all others."""
        start = len(self)
        positions = np.arange(start, start + len(ids), dtype=np.int32)
        self.mark_cached(np.concatenate([self.ids, ids]), positions)

    def prefill_at(
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
            self.mark_cached(ids, positions[done:now])
            done = now
            on_step(now)

        placed = positions if positioned_layers(self.cache) else None
        prefill(model, self.cache, ids[positions], placed, step, read, self.num_layers)

    def evict(self, positions: Positions) -> None:
        """Take these tokens, ascending, out of caches that take in what was left out."""
        for layer in positioned_layers(self.cache):
            layer.evict(positions)
        self.cached[positions] = False
        self.dense_prefix_len = min(self.dense_prefix_len, int(positions[0]))

    @property
    def retain_all(self) -> bool:
        """Whether windows keep what no later token sees."""
        return any(isinstance(c, WindowedCache) and c.retain_all for c in flatten(self.cache))

    def set_retain_all(self, retains: bool) -> None:
        """Whether windows keep what no later token sees, from now on: what is recalled does see it.
        A border that relied on it gets its own copy of the window."""
        windows = {i: c for i, c in enumerate(flatten(self.cache)) if isinstance(c, WindowedCache)}
        if self.retain_all and not retains:
            self.checkpoints = [
                _with_window_copies(b, windows) for b in self._checkpoints_before(len(self))
            ]
        for layer in windows.values():
            layer.retain_all = retains

    def add_checkpoint(self) -> None:
        """Make it possible to come back to where the cache is now."""
        if not self.needs_checkpoints or any(
            border.position == len(self) for border in self.checkpoints
        ):
            return
        states = {
            i: c.copy_at(len(self)) if isinstance(c, WindowedCache) else copy.deepcopy(c)
            for i, c in enumerate(flatten(self.cache))
            if _needs_checkpoint(c) and not (isinstance(c, WindowedCache) and c.retain_all)
        }
        first, *later = [*self.checkpoints, Checkpoint(len(self), states)]
        self.checkpoints = [first, *later[-(MAX_CHECKPOINTS - 1) :]]

    def rewind_target(self, position: int) -> int:
        """How many tokens a `rewind` to this position would leave."""
        if position >= len(self):
            return len(self)
        if all(_can_rewind_to(c, position) for c in flatten(self.cache)):
            return position
        return max((border.position for border in self._checkpoints_before(position)), default=0)

    def _checkpoints_before(self, position: int) -> list[Checkpoint]:
        """Those from which to go on, none of them after `position`."""
        every = dict(enumerate(flatten(self.cache)))

        def leads_back(border: Checkpoint) -> bool:
            others = (c for i, c in every.items() if i not in border.states)
            return border.position <= position and all(
                _can_rewind_to(c, border.position) for c in others
            )

        return list(filter(leads_back, self.checkpoints))

    def rewind(self, position: int) -> int:
        """Take back every token from `position` on, or from an earlier one where a layer can only
        come back to a border. Returns how many tokens are left."""
        if position >= len(self):
            return len(self)
        every = flatten(self.cache)
        if not all(_can_rewind_to(c, position) for c in every):
            borders = self._checkpoints_before(position)
            if not borders:
                self.clear()
                return 0
            self.checkpoints, position = borders, borders[-1].position
            for index, state in borders[-1].states.items():
                every[index].__dict__.update(copy.deepcopy(state).__dict__)
        for c in every:
            if isinstance(c, PositionedCache):
                c.rewind(position)
            elif isinstance(c, TRIMMABLE):
                c.trim(max(c.offset - position, 0))  # those of layers that are not read are empty
        self.checkpoints = [border for border in self.checkpoints if border.position <= position]
        self.ids, self.cached = self.ids[:position], self.cached[:position]
        self.dense_prefix_len = min(self.dense_prefix_len, position)
        self.record_states()
        return position

    def eval(self) -> None:
        """Compute what is still lazy, so that nothing of it depends on what comes later."""
        mx.eval([c.state for c in self.cache])


def _with_window_copies(border: Checkpoint, windows: dict[int, WindowedCache]) -> Checkpoint:
    """With a copy of each window that it has none of."""
    missing = {i: c.copy_at(border.position) for i, c in windows.items() if i not in border.states}
    return Checkpoint(border.position, border.states | missing)


def _needs_checkpoint(cache: Any) -> bool:
    """Whether a layer may be unable to take back its last tokens."""
    placed = isinstance(cache, PositionedCache) and not isinstance(cache, WindowedCache)
    return not isinstance(cache, TRIMMABLE) and not placed


def _can_rewind_to(cache: Any, position: int) -> bool:
    """Whether a layer can take back what stands from `position` on."""
    if isinstance(cache, PositionedCache):
        return cache.covers(position)
    return isinstance(cache, TRIMMABLE)
