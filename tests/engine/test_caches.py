"""Position bookkeeping: runs, masks by position, what a window drops, taking entries back."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import CacheList, ChunkedKVCache, KVCache, RotatingKVCache

from app.engine.caches import (
    PositionedCache,
    UnsupportedCache,
    WindowedCache,
    layers,
    positioned,
)
from app.engine.positions import PositionRuns
from app.engine.prefill import StepSize, feed, prefill, seek, sparse_cache
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
        runs.append(_array(positions[at : at + size]))
        at += size
    first = data.draw(st.integers(0, len(model)))
    runs.drop_first(first)
    model = model[first:]
    last = data.draw(st.integers(0, len(model)))
    runs.drop_last(last)
    model = model[: len(model) - last]
    assert runs.array().tolist() == model
    assert runs.next == (model[-1] + 1 if model else 0)
    border = data.draw(st.integers(0, 401))
    assert runs.count_below(border) == sum(p < border for p in model)
    assert runs.count_from(border) == sum(p >= border for p in model)


def test_no_position_is_held_twice() -> None:
    runs = PositionRuns()
    runs.append(_array([3, 4]))
    with pytest.raises(ValueError, match="held"):
        runs.append(_array([4]))
    cache = PositionedCache()
    cache.positions.append(_array([7]))
    with pytest.raises(ValueError, match="passed"):
        cache.seek(7)


def _store(cache: PositionedCache, positions: list[int]) -> None:
    cache.place(_array(positions))
    part = mx.zeros((1, 1, len(positions), 4))
    cache.update_and_fetch(part, part)


@given(st.lists(ascending, min_size=1, max_size=4), st.integers(1, 60))
def test_a_windows_mask_is_its_definition(steps: list[list[int]], window: int) -> None:
    cache = WindowedCache(window)
    base, seen = 0, []
    for step in steps:
        positions = [base + p for p in step]
        base = positions[-1] + 1
        cache.place(_array(positions))
        mask = cache.make_mask(len(positions), return_array=True)
        part = mx.zeros((1, 1, len(positions), 4))
        keys, _ = cache.update_and_fetch(part, part)
        seen += positions
        held = cache.positions.array().tolist()
        assert mask is not None
        given = held[-keys.shape[2] :]  # one token alone is given its window
        assert len(given) == len(held) or len(positions) == 1
        expected = [[k <= q < k + window for k in given] for q in positions]
        assert np.array(mask).tolist() == expected
        visible = {k for k in seen for q in positions if k <= q < k + window}
        assert visible <= set(given), "nothing that is still seen was dropped"


@pytest.mark.parametrize("retains", [False, True])
def test_decoding_sees_its_window_alone_however_much_is_stored(retains: bool) -> None:
    cache = WindowedCache(16, retains)
    _store(cache, [*range(0, 600, 3)])
    cache.seek(600)
    for position in range(600, 1600):
        assert cache.make_mask(1) is None
        part = mx.full((1, 1, 1, 4), position)
        keys, _ = cache.update_and_fetch(part, part)
        held = cache.positions.array()
        assert keys.shape[2] == int((held > position - 16).sum())
        assert cache.keys_and_values()[0].shape == keys.shape
    assert keys[0, 0, :, 0].tolist() == [*range(1584, 1600)]
    assert cache.size() == 1200 if retains else cache.size() <= 16 + WindowedCache.slack


def test_which_caches_can_be_placed() -> None:
    twins = positioned([KVCache(), RotatingKVCache(8), CacheList(KVCache(), KVCache())])
    assert [type(c) for c in layers(twins)] == [
        PositionedCache,
        WindowedCache,
        PositionedCache,
        PositionedCache,
    ]
    for unsupported in (ChunkedKVCache(8), RotatingKVCache(8, keep=4)):
        with pytest.raises(UnsupportedCache):
            positioned([unsupported])


@pytest.mark.parametrize("name", [n for n in PURE if n not in SLIDING])
def test_rewinding_is_as_if_never_read(name: str) -> None:
    model = build(name)
    ids = np.random.default_rng(1).integers(0, VOCABULARY, 60).astype(np.int32)
    kept = _array([*range(10), *range(25, 40), *range(WINDOW + 60, WINDOW + 70)])
    cache = sparse_cache(model)
    prefill(model, cache, ids[: len(kept)], kept, StepSize(100), lambda done: None)
    for layer in layers(cache):
        layer.rewind(30)
    fresh = sparse_cache(model)
    prefill(model, fresh, ids[:15], kept[:15], StepSize(100), lambda done: None)
    for one in (cache, fresh):
        seek(one, 50)
    a, b = (feed(model, one, ids[:1]) for one in (cache, fresh))
    assert float(mx.abs(a - b).max().item()) < 1e-4


def test_positions_and_tokens_must_match() -> None:
    cache = PositionedCache()
    cache.place(_array([5, 9]))
    with pytest.raises(ValueError, match="2 positions placed, 3 tokens came"):
        cache.update_and_fetch(mx.zeros((1, 1, 3, 4)), mx.zeros((1, 1, 3, 4)))
