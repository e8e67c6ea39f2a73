"""The KV cache of one model for a conversation, with the token ids that it holds.

Prefix lengths count tokens of the conversation, not entries of the cache: the cache may have gaps.
Up to `dense_prefix_len`, every entry has attended to all tokens before it.
"""

from __future__ import annotations

import copy
import itertools
import secrets
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import ArraysCache
from numpy.typing import NDArray

from app.engine.backend.device import Backend
from app.engine.cache.caches import (
    TRIMMABLE,
    Cache,
    PositionedCache,
    WindowedCache,
    capacity,
    drop_last,
    flatten,
    nbytes,
    positioned_layers,
    release_unused,
    reserve_capacity,
    row_layers,
    step_undo,
    store_of,
    stores_rows,
    trim_to_size,
)
from app.engine.cache.positions import Positions
from app.engine.cache.prefill import OnStep, StepInParts, StepSize, prefill, prefill_step
from app.estimate.memory import MIN_CHECKPOINTS

_read_numbers = itertools.count(secrets.randbits(62))
"""Numbers of forwards. They start at random: snapshots contain those of earlier processes."""


def next_read() -> int:
    return next(_read_numbers)


BeforeDrop = Callable[["PrefixCache", NDArray[np.bool_]], None]
"""Called with a cache and its tokens that are about to be dropped, bool (L,)."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State that a rewind to `position` restores. `lasting`: others are dropped first."""

    position: int
    states: dict[int, Any]
    """By index, copies of layers that cannot drop their last tokens: recurrent layers, and
    sliding-window layers that evict."""
    lasting: bool = False


class PrefixCache:
    """A cache made by `make_cache`, and the tokens in it.

    `ids` int32 (L,): the conversation's token ids up to the last cached one. `cached` bool (L,):
    which of them are in the cache. `reads` int64 (L,): the forward that read each. Entries are
    stored in this order, except recalled ones. `absent` bool (L,): tokens whose rows another cache
    holds (`shared_rows.py`); fetch them before using this cache.
    """

    is_remote = False
    """Whether other processes compute and hold the cache. A forward is then synchronous."""

    def __init__(self, make_cache: Callable[[], Cache]) -> None:
        self._make_cache = make_cache
        self.before_drop: BeforeDrop | None = None
        self.ids = np.zeros(0, np.int32)
        self.clear()

    def clear(self) -> None:
        self._announce_drop(np.ones(len(self.ids), bool))
        self.cache = self._make_cache()
        self.ids, self.reads = np.zeros(0, np.int32), np.zeros(0, np.int64)
        self.cached, self.absent = np.zeros(0, bool), np.zeros(0, bool)
        self.dense_prefix_len = 0
        """Number of leading tokens that were read without any gap, none of them aside."""
        self.checkpoints: list[Checkpoint] = []
        self.record_states()

    def record_states(self) -> None:
        """Remember the current states of recurrent layers as those of the recorded tokens: such
        layers do not count tokens themselves."""
        self._recorded_states = [
            weakref.ref(state)
            for cache in flatten(self.cache)
            if isinstance(cache, ArraysCache)
            for state in cache.cache
            if state is not None
        ]

    def has_recorded_states(self, cache: ArraysCache) -> bool:
        """Whether a recurrent layer has read exactly the recorded tokens."""
        recorded = {id(state()) for state in self._recorded_states}
        return all(id(state) in recorded for state in cache.cache if state is not None)

    def fork(self, position: int | None = None) -> PrefixCache:
        """An independent copy, rewound to `position` if given. Arrays are shared until one of the
        two writes. If this cache lacks rows, the copy has none at all."""
        twin = PrefixCache(self._make_cache)
        self._copy_to(twin, position)
        return twin

    def _copy_to(self, twin: PrefixCache, position: int | None) -> None:
        twin.cache = copy.deepcopy(self.cache)
        twin.ids, twin.cached, twin.reads = self.ids, self.cached.copy(), self.reads.copy()
        twin.absent = self.absent.copy()
        if self.absent.any():  # a rewind cannot trim rows that are partly elsewhere
            twin.absent = self.cached.copy()
            for store in map(store_of, row_layers(twin.cache)):
                store.keys = store.values = None
        twin.dense_prefix_len = self.dense_prefix_len
        twin.checkpoints = list(self.checkpoints)
        twin.record_states()
        if position is not None:
            twin.rewind(position)
            trim_to_size(twin.cache)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        copies = [state for point in self.checkpoints for state in point.states.values()]
        return sum(nbytes(c) for c in [*flatten(self.cache), *copies])

    @property
    def has_gaps(self) -> bool:
        """Whether tokens were skipped, or recalled after later ones."""
        return self.dense_prefix_len < len(self)

    @property
    def is_recurrent(self) -> bool:
        """Whether some layers are recurrent: their states depend on the order of reading."""
        return any(isinstance(c, ArraysCache) for c in flatten(self.cache))

    def can_insert_at(self, position: int, aside: bool = False) -> bool:
        """Whether a token at `position`, before cached ones, can be inserted. `aside`: recurrent
        layers may read it aside (see `prefill_at`), if there are attention layers to remember it
        and their states are in this process."""
        layers = flatten(self.cache)
        if aside and not self.is_remote and positioned_layers(self.cache):
            layers = [c for c in layers if not isinstance(c, ArraysCache)]
        return all(isinstance(c, PositionedCache) and c.covers(position) for c in layers)

    @property
    def supports_gaps(self) -> bool:
        """Whether tokens may be skipped: no layer derives positions from the number of entries."""
        return all(isinstance(c, PositionedCache | ArraysCache) for c in flatten(self.cache))

    @property
    def needs_checkpoints(self) -> bool:
        """Whether a rewind may need a checkpoint."""
        return any(_needs_checkpoint(c) for c in flatten(self.cache))

    def common_prefix_len(self, ids: NDArray[np.int32]) -> int:
        """Length of the common prefix of `ids` and this cache's token ids, cached or skipped."""
        size = min(len(ids), len(self.ids))
        different = np.flatnonzero(ids[:size] != self.ids[:size])
        return int(different[0]) if len(different) else size

    def uncached(self, positions: Positions) -> Positions:
        """The subset of the ascending `positions` that is not cached."""
        inside = np.searchsorted(positions, len(self))
        missing = np.ones(len(positions), bool)
        missing[:inside] = ~self.cached[positions[:inside]]
        return positions[missing]

    def stale_runs(self, positions: Positions, length: int) -> Positions:
        """Positions of the cached tokens right after each run of the ascending `positions`, which
        were read without these as context: at most `length` a run, up to the first gap. None with
        recurrent layers, whose states already contain them."""
        if self.is_recurrent:
            return np.zeros(0, np.int32)
        ends = positions[np.append(np.diff(positions) != 1, True)] + 1
        followers = [np.arange(end, min(end + length, len(self)), dtype=np.int32) for end in ends]
        gapless = [run[: int(np.argmin(np.append(self.cached[run], False)))] for run in followers]
        return np.unique(np.concatenate(gapless))

    def mark_cached(
        self, ids: NDArray[np.int32], positions: Positions, read: int | None = None
    ) -> None:
        """Record that the tokens at these ascending `positions` of the whole prompt `ids` are in
        the cache. `read` is the number of the forward that read them (default: a new one)."""
        if len(positions) == 0:
            return
        aside = self.is_recurrent and int(positions[0]) < len(self)
        self.extend(ids[: int(positions[-1]) + 1])
        self.cached[positions] = True
        self.reads[positions] = next_read() if read is None else read
        if int(positions[0]) == self.dense_prefix_len and not aside:
            gaps = np.flatnonzero(np.diff(positions) != 1)
            self.dense_prefix_len = int(positions[gaps[0]] if len(gaps) else positions[-1]) + 1
        self.record_states()

    def extend(self, ids: NDArray[np.int32]) -> None:
        """Record that the tokens of the prompt `ids` after those recorded so far are skipped."""
        added = max(len(ids) - len(self), 0)
        self.cached = np.append(self.cached, np.zeros(added, bool))
        self.absent = np.append(self.absent, np.zeros(added, bool))
        self.reads = np.append(self.reads, np.zeros(added, np.int64))
        self.ids = ids.copy() if added else self.ids

    def append(self, ids: NDArray[np.int32]) -> None:
        """Record that the token ids (n,) were fed after all others."""
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
        on_part: OnStep | None = None,
    ) -> None:
        """Prefill the tokens at these ascending `positions` of the whole prompt `ids`. mlx-lm's own
        caches accept only positions that continue them without a gap. `on_part`: see `prefill`.

        Recurrent layers read tokens before the end of the cache *aside*: from their states at the
        last checkpoint before these tokens. Then they return to their states at the end, which thus
        never contain such tokens; attention layers do."""
        done = 0

        def read(part: Positions) -> None:
            before = done

            def record_step(now: int) -> None:
                nonlocal done
                self.mark_cached(ids, part[done - before : now])
                done = before + now
                on_step(done)

            placed = part if positioned_layers(self.cache) else None
            part_done = None if on_part is None else lambda now: on_part(before + now)
            prefill(model, self.cache, ids[part], placed, step, record_step, part_done, self._fill)

        inserted = int(np.searchsorted(positions, len(self))) if self.is_recurrent else 0
        if inserted:
            with self._states_aside():
                for point, part in self._by_checkpoint(positions[:inserted]):
                    self._set_states(point)
                    read(part)
        read(positions[inserted:])

    @contextmanager
    def _states_aside(self) -> Iterator[None]:
        """Context manager: recurrent layers return to their present states at the end."""
        layers = [c for c in flatten(self.cache) if isinstance(c, ArraysCache)]
        states = [list(c.cache) for c in layers]
        try:
            yield
        finally:
            for layer, state in zip(layers, states, strict=True):
                layer.cache = state
            self.record_states()

    def _by_checkpoint(self, positions: Positions) -> Iterator[tuple[Checkpoint | None, Positions]]:
        """The ascending `positions` in runs with the same last checkpoint before them, and that
        checkpoint (None: the start)."""
        last = np.searchsorted([p.position for p in self.checkpoints], positions, "right")
        for index in np.unique(last):
            yield self.checkpoints[index - 1] if index else None, positions[last == index]

    def _set_states(self, point: Checkpoint | None) -> None:
        """Give recurrent layers their states at a checkpoint; without one, those of the start."""
        states = point.states if point else dict(enumerate(flatten(self._make_cache())))
        for index, layer in enumerate(flatten(self.cache)):
            if isinstance(layer, ArraysCache):
                layer.cache = list(states[index].cache)

    def _fill(
        self,
        model: Any,
        cache: Cache,
        ids: NDArray[np.int32],
        positions: Positions | None,
        backend: Backend,
        forced: bool,
        parts: StepInParts | None,
    ) -> None:
        """Run one prefill step; sharded caches override it."""
        prefill_step(model, cache, ids, positions, backend, forced=forced, parts=parts)

    def evict(self, positions: Positions) -> None:
        """Drop the tokens at these ascending positions. Requires `can_insert_at` for each."""
        dropped = np.zeros(len(self), bool)
        dropped[positions] = True
        self._announce_drop(dropped)
        for layer in positioned_layers(self.cache):
            layer.evict(positions)
        self.cached[positions] = False
        self.dense_prefix_len = min(self.dense_prefix_len, int(positions[0]))

    @property
    def retain_all(self) -> bool:
        """Whether sliding windows keep entries that no later token attends to."""
        return any(isinstance(c, WindowedCache) and c.retain_all for c in flatten(self.cache))

    def set_retain_all(self, retain_all: bool) -> None:
        """Set `retain_all` for all sliding windows: recalled tokens attend to the old entries.
        Checkpoints that relied on them get copies of the windows."""
        windows = {i: c for i, c in enumerate(flatten(self.cache)) if isinstance(c, WindowedCache)}
        if self.retain_all and not retain_all:
            points = self._checkpoints_before(len(self))
            self.checkpoints = [_with_window_copies(point, windows) for point in points]
        for layer in windows.values():
            layer.retain_all = retain_all

    def add_checkpoint(self, limit: int = MIN_CHECKPOINTS, lasting: bool = False) -> None:
        """Let a later `rewind` return to the current end. If there are more than `limit` (at least
        `MIN_CHECKPOINTS`) checkpoints then, the one is dropped that later rewinds miss
        least, except the last two and those that are `lasting`."""
        known = any(point.position == len(self) for point in self.checkpoints)
        if known or not len(self) or not self.needs_checkpoints:
            return
        states = {
            i: _state_of(c, len(self))
            for i, c in enumerate(flatten(self.cache))
            if _needs_checkpoint(c) and not (isinstance(c, WindowedCache) and c.retain_all)
        }
        points = [*self.checkpoints, Checkpoint(len(self), states, lasting)]
        while len(points) > limit:
            droppable = [i for i, point in enumerate(points[:-2]) if not point.lasting]
            if not droppable:
                break
            ends = [0, *(int(self.cached[: point.position].sum()) for point in points)]
            # Without a checkpoint, a rewind to a token between it and the next one also reads the
            # tokens between the one before and it.
            worth = [(ends[i + 2] - ends[i + 1]) * (ends[i + 1] - ends[i]) for i in droppable]
            del points[droppable[worth.index(min(worth))]]
        self.checkpoints = points

    def rewind_target(self, position: int) -> int:
        """Number of tokens that `rewind(position)` would leave."""
        if position >= len(self):
            return len(self)
        if all(_can_rewind_to(c, position) for c in flatten(self.cache)):
            return position
        return max((point.position for point in self._checkpoints_before(position)), default=0)

    def _checkpoints_before(self, position: int) -> list[Checkpoint]:
        """The usable checkpoints at `position` or before it. Those after it also count, as if at
        `position`, if all tokens in between were skipped."""
        layers = list(enumerate(flatten(self.cache)))
        return [
            replace(point, position=min(point.position, position))
            for point in self.checkpoints
            if not self.cached[position : point.position].any()
            and all(_can_rewind_to(c, point.position) for i, c in layers if i not in point.states)
        ]

    def rewind(self, position: int) -> int:
        """Drop all tokens from `position` on, or from an earlier checkpoint if a layer can only
        return to one. Returns the number of tokens left."""
        if position >= len(self):
            return len(self)
        layers, states = flatten(self.cache), dict[int, Any]()
        if not all(_can_rewind_to(c, position) for c in layers):
            usable = self._checkpoints_before(position)
            if not usable:
                self.clear()
                return 0
            self.checkpoints, position = usable, usable[-1].position
            states = usable[-1].states
        self._announce_drop(np.arange(len(self)) >= position)
        for index, state in states.items():
            layers[index].__dict__.update(copy.deepcopy(state).__dict__)
        for c in layers:
            if isinstance(c, PositionedCache):
                c.rewind(position)
            elif isinstance(c, TRIMMABLE):
                c.trim(max(c.offset - position, 0))  # some models never use some of their layers
        release_unused(self.cache)
        self.checkpoints = [point for point in self.checkpoints if point.position <= position]
        self.ids, self.cached = self.ids[:position], self.cached[:position]
        self.reads, self.absent = self.reads[:position], self.absent[:position]
        self.dense_prefix_len = min(self.dense_prefix_len, position)
        self.record_states()
        return position

    def _announce_drop(self, tokens: NDArray[np.bool_]) -> None:
        if self.before_drop is not None and tokens.any():
            self.before_drop(self, tokens)

    def record_absent(self, absent: NDArray[np.bool_], holders: Sequence[PrefixCache]) -> None:
        """Record that other caches hold the rows of these tokens, bool (L,). `holders` are those
        that hold the rows just freed, or from which absent rows were copied."""
        self.absent = absent

    def reserved(self, count: int) -> AbstractContextManager[None]:
        """Context manager: layers grow at most once for `count` tokens (`reserve_capacity`)."""
        return reserve_capacity(self.cache, count)

    def drop_last(self, count: int) -> None:
        """Drop the last `count` entries, which are not recorded. Requires `can_drop_last`."""
        drop_last(self.cache, count)

    def step_undo(self) -> Callable[[int], None] | None:
        """See `caches.step_undo`."""
        return step_undo(self.cache)

    def eval(self) -> None:
        """Evaluate all lazy arrays of the cache."""
        mx.eval([c.state for c in self.cache])


def _state_of(cache: Any, position: int) -> Any:
    """A copy of a layer's state after `position` tokens. States that are slices are copied, because
    they would keep the arrays of a whole step alive."""
    if isinstance(cache, WindowedCache):
        return cache.copy_at(position)
    twin = copy.deepcopy(cache)
    if isinstance(twin, ArraysCache):
        twin.cache = [None if state is None else mx.contiguous(state) for state in twin.cache]
        mx.eval(twin.cache)
    return twin


def _with_window_copies(checkpoint: Checkpoint, windows: dict[int, WindowedCache]) -> Checkpoint:
    """The checkpoint, completed with copies of the windows that it lacks."""
    missing = {i: c for i, c in windows.items() if i not in checkpoint.states}
    copies = {i: c.copy_at(checkpoint.position) for i, c in missing.items()}
    return replace(checkpoint, states=checkpoint.states | copies)


def _needs_checkpoint(cache: Any) -> bool:
    """Whether a layer may be unable to drop its last tokens."""
    if isinstance(cache, PositionedCache):
        return isinstance(cache, WindowedCache)
    return not isinstance(cache, TRIMMABLE)


def _can_rewind_to(cache: Any, position: int) -> bool:
    """Whether a layer can drop the tokens from `position` on."""
    if isinstance(cache, PositionedCache):
        return cache.covers(position)
    return isinstance(cache, TRIMMABLE)


def find_mismatch(prefix: PrefixCache) -> str | None:
    """How the layers differ from the recorded tokens, as a clause; None if they agree. A failed
    step leaves some layers ahead of others; using such a cache would give wrong answers."""
    recorded = np.flatnonzero(prefix.cached).astype(np.int32)
    # Some models create a cache for a layer that shares another layer's; it stays empty.
    used = [(n, cache) for n, cache in enumerate(flatten(prefix.cache)) if not _is_unused(cache)]
    if not used:
        return f"it is empty, and should hold {len(prefix):,} tokens" if len(recorded) else None
    for number, cache in used:
        if (problem := _layer_mismatch(cache, prefix, recorded)) is not None:
            return f"layer {number} {problem}"
    return None


def _layer_mismatch(cache: Any, prefix: PrefixCache, recorded: Positions) -> str | None:
    if isinstance(cache, PositionedCache):
        absent = np.count_nonzero(prefix.absent) if stores_rows(cache) else 0
        return _positioned_mismatch(cache, recorded, int(absent))
    if isinstance(cache, ArraysCache):
        return None if prefix.has_recorded_states(cache) else "has read more or less than recorded"
    if isinstance(offset := getattr(cache, "offset", None), int):
        if offset != len(prefix):
            return f"holds {offset:,} tokens instead of {len(prefix):,}"
        if not prefix.cached.all():
            return "cannot hold tokens with gaps between them"
    return None


def _positioned_mismatch(cache: PositionedCache, recorded: Positions, absent: int) -> str | None:
    stored, size = cache.positions.array(), cache.size()
    if len(stored) != size or capacity(cache.inner) < size - absent:
        return f"holds {size:,} entries, at other positions than it says"
    if not cache.positions.ascending:
        stored = np.sort(stored)
    first = cache.evicted_below if isinstance(cache, WindowedCache) else 0
    stored, expected = (a[np.searchsorted(a, first) :] for a in (stored, recorded))
    if not np.array_equal(stored, expected):
        return f"holds other positions than the {len(recorded):,} that were read"
    return None


def _is_unused(cache: Any) -> bool:
    if isinstance(cache, PositionedCache):
        return cache.size() == 0 and not cache.positions.runs
    if isinstance(cache, ArraysCache):
        return all(state is None for state in cache.cache)
    return getattr(cache, "offset", None) == 0
