"""Position bookkeeping: runs, masks by position, what a window drops, taking entries back."""

from __future__ import annotations

import copy
import weakref

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import CacheList, ChunkedKVCache, KVCache, RotatingKVCache

from app.engine.cache import positions as positions_module
from app.engine.cache.caches import (
    PositionedCache,
    UnsupportedCache,
    WindowedCache,
    positioned_layers,
    to_positioned,
)
from app.engine.cache.positions import PositionRuns
from app.engine.cache.prefill import (
    StepSize,
    forward,
    make_positioned_cache,
    prefill,
    set_next_position,
)
from tests.tiny import PURE, SLIDING, VOCABULARY, WINDOW, build

ascending = st.lists(st.integers(0, 400), unique=True, min_size=1).map(sorted)


def _array(positions: list[int]) -> np.ndarray:
    return np.array(positions, np.int32)


@given(ascending, st.data())
def test_runs_are_a_list_of_positions(positions: list[int], data: st.DataObject) -> None:
    runs, model = PositionRuns(), list(positions)
    at = 0
    while at < len(positions):
        size = data.draw(st.integers(1, len(positions) - at))
        runs = runs.extended(_array(positions[at : at + size]))
        at += size
    first = data.draw(st.integers(0, len(model)))
    runs = runs.without_first(first)
    model = model[first:]
    last = data.draw(st.integers(0, len(model)))
    runs = runs.without_last(last)
    model = model[: len(model) - last]
    assert runs.array().tolist() == model
    assert runs.end == (model[-1] + 1 if model else 0)
    position = data.draw(st.integers(0, 401))
    assert runs.end_below(position) == max((p + 1 for p in model if p < position), default=0)
    selected, entries = runs.between(position, 500)
    assert (
        selected.array().tolist()
        == [model[i] for i in entries]
        == [p for p in model if p >= position]
    )
    assert runs.count_below(position) == sum(p < position for p in model)
    assert runs.count_from(position) == sum(p >= position for p in model)


def test_no_position_is_cached_twice() -> None:
    runs = PositionRuns().extended(_array([3, 4]))
    with pytest.raises(ValueError, match="cached already"):
        runs.extended(_array([4]))
    with pytest.raises(ValueError, match="cached already"):
        runs.with_run(2, 4)
    cache = PositionedCache(positions=PositionRuns([(7, 8)]))
    with pytest.raises(ValueError, match="before the end"):
        cache.set_next_position(7)


def test_layers_that_take_the_same_step_share_the_result() -> None:
    start, step = PositionRuns([(0, 9)]), _array([3, 4, 20, 22])
    with pytest.raises(ValueError, match="cached already"):
        start.extended(step)
    far = _array([20, 22])
    unreferenced = weakref.ref(start.extended(far))
    assert unreferenced() is None, "what came before and after is not kept alive"
    once = start.extended(far)
    assert start.extended(far) is once
    assert start.extended(_array([20, 22])).runs == once.runs
    assert once.with_run(30, 31) is not (run := once.with_run(30, 32))
    assert once.with_run(30, 32) is run
    recalled = once.extended(_array([12]))
    (ordered, entries), (again, same) = recalled.sorted(), recalled.sorted()
    assert (ordered is again, entries is same, ordered.ascending) == (True, True, True)
    assert start.runs == ((0, 9),)
    assert copy.deepcopy([once])[0] is once


def _store(cache: PositionedCache, positions: list[int]) -> None:
    cache.set_next_positions(_array(positions))
    part = mx.zeros((1, 1, len(positions), 4))
    cache.update_and_fetch(part, part)


@given(st.lists(ascending, min_size=1, max_size=4), st.integers(1, 60))
def test_a_windows_mask_is_its_definition(steps: list[list[int]], window: int) -> None:
    cache = WindowedCache(window)
    base, seen = 0, []
    for step in steps:
        positions = [base + p for p in step]
        base = positions[-1] + 1
        cache.set_next_positions(_array(positions))
        mask = cache.make_mask(len(positions), return_array=True)
        part = mx.zeros((1, 1, len(positions), 4))
        keys, _ = cache.update_and_fetch(part, part)
        seen += positions
        stored = cache.positions.array().tolist()
        assert mask is not None
        given = stored[-keys.shape[2] :]
        expected = [[k <= q < k + window for k in given] for q in positions]
        assert np.array(mask).tolist() == expected
        visible = {k for k in seen for q in positions if k <= q < k + window}
        assert visible | set(positions) == set(given), "what is seen, and nothing else"


@pytest.mark.parametrize("retain_all", [False, True])
def test_decoding_sees_its_window_alone_however_much_is_stored(retain_all: bool) -> None:
    cache = WindowedCache(16, retain_all)
    _store(cache, [*range(0, 600, 3)])
    cache.set_next_position(600)
    for position in range(600, 1600):
        assert cache.make_mask(1) is None
        part = mx.full((1, 1, 1, 4), position)
        keys, _ = cache.update_and_fetch(part, part)
        stored = cache.positions.array()
        assert keys.shape[2] == int((stored > position - 16).sum())
        assert cache.keys_and_values()[0].shape == keys.shape
    assert keys[0, 0, :, 0].tolist() == [*range(1584, 1600)]
    assert cache.size() == 1200 if retain_all else cache.size() <= 16 + WindowedCache.slack


LAYERS = 64


def recalled_into(caches: list[PositionedCache]) -> None:
    """A turn that reads every tenth chunk, and one that recalls others and reads on."""
    chunks = np.arange(4096, dtype=np.int32).reshape(-1, 32)
    turns = [chunks[::10], chunks[5::10], np.arange(4096, 4160, dtype=np.int32)]
    again = chunks[::10][:9].ravel()
    for number, part in enumerate(turns):
        if number == 1:
            for cache in caches:
                cache.rewind(4000)
                cache.evict(again)
        positions = part.ravel() if number != 1 else np.union1d(part.ravel(), again)
        for cache in caches:
            cache.set_next_positions(positions)
        for cache in caches:
            key = mx.repeat(mx.array(positions)[None, None, :, None], 4, axis=3)
            cache.update_and_fetch(key, key)


def test_recall_computed_positions_once_for_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """And after that once for each token of the answer."""
    computed: list[int] = []
    run_lengths = positions_module.runs_of

    def counted_runs(positions: np.ndarray) -> list[tuple[int, int]]:
        computed.append(len(positions))
        return run_lengths(positions)

    monkeypatch.setattr(positions_module, "runs_of", counted_runs)
    counts = []
    for layers_of_a_kind in (1, LAYERS):
        stock = [
            each for _ in range(layers_of_a_kind) for each in (KVCache(), RotatingKVCache(128))
        ]
        caches = to_positioned(stock, retain_all=True)
        computed.clear()
        recalled_into(caches)
        counts.append(len(computed))
        assert all(c.positions is caches[i % 2].positions for i, c in enumerate(caches))
    assert counts[0] == counts[1]
    full, windowed = caches[:2]
    computed.clear()
    stored = full.size()
    for position in range(4160, 4300):
        assert full.make_mask(1) is None
        assert windowed.make_mask(1) is None
        part = mx.full((1, 1, 1, 4), position)
        assert full.update_and_fetch(part, part)[0].shape[2] == stored + position - 4159
        keys, _ = windowed.update_and_fetch(part, part)
        cached = full.positions.array()
        assert keys[0, 0, :, 0].tolist() == sorted(cached[cached > position - 128].tolist())
    assert not computed


def test_which_caches_can_be_positioned() -> None:
    twins = to_positioned([KVCache(), RotatingKVCache(8), CacheList(KVCache(), KVCache())])
    assert [type(c) for c in positioned_layers(twins)] == [
        PositionedCache,
        WindowedCache,
        PositionedCache,
        PositionedCache,
    ]
    for unsupported in (ChunkedKVCache(8), RotatingKVCache(8, keep=4)):
        with pytest.raises(UnsupportedCache):
            to_positioned([unsupported])


@pytest.mark.parametrize("name", [n for n in PURE if n not in SLIDING])
def test_rewinding_is_as_if_never_read(name: str) -> None:
    model = build(name)
    ids = np.random.default_rng(1).integers(0, VOCABULARY, 60).astype(np.int32)
    selected = _array([*range(10), *range(25, 40), *range(WINDOW + 60, WINDOW + 70)])
    cache = make_positioned_cache(model)
    prefill(model, cache, ids[: len(selected)], selected, StepSize(100), lambda done: None)
    for layer in positioned_layers(cache):
        layer.rewind(30)
    fresh = make_positioned_cache(model)
    prefill(model, fresh, ids[:15], selected[:15], StepSize(100), lambda done: None)
    for one in (cache, fresh):
        set_next_position(one, 50)
    a, b = (forward(model, one, ids[:1]) for one in (cache, fresh))
    assert float(mx.abs(a - b).max().item()) < 1e-4


def test_positions_and_tokens_must_match() -> None:
    cache = PositionedCache()
    cache.set_next_positions(_array([5, 9]))
    with pytest.raises(ValueError, match="2 positions for 3 tokens"):
        cache.update_and_fetch(mx.zeros((1, 1, 3, 4)), mx.zeros((1, 1, 3, 4)))
