"""Positioned caches: runs, masks by position, eviction from windows, rewinding."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx_lm.models.cache import CacheList, ChunkedKVCache, KVCache, RotatingKVCache

from app.engine.backend.device import GPU
from app.engine.backend.memory import NotEnoughMemory
from app.engine.cache import positions as positions_module
from app.engine.cache.caches import (
    Cache,
    PositionedCache,
    UnsupportedCache,
    WindowedCache,
    flatten,
    nbytes,
    positioned_layers,
    reserve_capacity,
    to_positioned,
)
from app.engine.cache.kv_quantisation import Quantisation, quantise_cache
from app.engine.cache.positions import PositionRuns
from app.engine.cache.prefill import (
    StepSize,
    forward,
    make_positioned_cache,
    make_stock_cache,
    prefill,
    set_next_position,
)
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.cache.sizes import CacheSize
from app.engine.cache.snapshot import Snapshots
from app.engine.memory.conversation_cache import ConversationCache
from app.engine.memory.manager import MemoryManager
from app.engine.model.loader import CacheMaker, _measure
from app.engine.model.prompt import Prompt
from app.engine.progress import TurnCancelled
from app.engine.turn.turn_estimate import TurnEstimate
from app.protocol.commands import Ask
from app.protocol.options import Mode
from app.protocol.prompt import Message, Role
from app.protocol.stats import Reading
from tests import tiny
from tests.engine.oracle import TOLERANCE, difference
from tests.engine.test_turns import FIRST, LATER, Chat, conversation, dense_logits, pair
from tests.tables import slow, table
from tests.tiny import PURE, RECURRENT, SLIDING, VOCABULARY, WINDOW, architectures, build

ascending = st.lists(st.integers(0, 400), unique=True, min_size=1).map(sorted)


def _array(positions: list[int]) -> np.ndarray:
    return np.array(positions, np.int32)


@given(ascending, st.data())
def test_position_runs_behave_like_a_list_of_positions(
    positions: list[int], data: st.DataObject
) -> None:
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


def test_layers_that_make_the_same_change_share_the_result() -> None:
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
def test_the_mask_of_a_window_equals_its_definition(steps: list[list[int]], window: int) -> None:
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
def test_decoding_fetches_only_its_window(retain_all: bool) -> None:
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
    """A turn that reads every tenth chunk, then one that recalls others and reads new tokens."""
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


def test_positions_are_computed_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """In decoding, they are computed once per token."""
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


@pytest.mark.parametrize("name", architectures(*(n for n in PURE if n not in SLIDING)))
def test_a_rewound_cache_equals_one_that_never_read_further(name: str) -> None:
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
    assert difference(a, b) < TOLERANCE


def test_the_numbers_of_positions_and_tokens_must_match() -> None:
    cache = PositionedCache()
    cache.set_next_positions(_array([5, 9]))
    with pytest.raises(ValueError, match="2 positions for 3 tokens"):
        cache.update_and_fetch(mx.zeros((1, 1, 3, 4)), mx.zeros((1, 1, 3, 4)))


TOKENS, STEP, BLOCK = 2000, 256, 256


def few_bits(model: Any) -> Cache:
    return quantise_cache(make_stock_cache(model), Quantisation(8, 32))


def capacity(cache: Any) -> int:
    """Capacity of one layer's buffer in tokens."""
    keys = cache.inner.keys if isinstance(cache, PositionedCache) else cache.keys
    keys = keys[0] if isinstance(keys, tuple | list) else keys
    return 0 if keys is None else int(keys.shape[-2])


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(tiny.CONFIGS, "llama", {**tiny.CONFIGS["llama"], "head_dim": 32})
    return tiny.build("llama")


@pytest.mark.parametrize("make", [slow(make_stock_cache), make_positioned_cache, few_bits])
def test_a_prefill_copies_a_layer_at_most_once(make: Callable[[Any], Cache], model: Any) -> None:
    cache = make(model)
    copied = 0

    def read(ids: Any) -> None:
        sizes = [[capacity(c) for c in cache]]

        def on_step(done: int) -> None:
            nonlocal copied
            now = [capacity(c) for c in cache]
            copied += sum(
                before for before, size in zip(sizes[-1], now, strict=True) if size > before
            )
            sizes.append(now)

        with reserve_capacity(cache, len(ids)):
            prefill(model, cache, ids, None, StepSize(STEP), on_step)

    ids = np.random.default_rng(0).integers(0, tiny.VOCABULARY, TOKENS).astype(np.int32)
    read(ids)
    assert copied == 0
    assert {capacity(c) for c in cache} == {2048}, "no more than it has to, in whole blocks"
    mx.eval(forward(model, cache, ids[:49]))
    assert {capacity(c) for c in cache} == {2000 + BLOCK}, "an answer's tokens grow it as in mlx-lm"
    read(ids)
    assert copied == 3 * (2000 + BLOCK), "each layer once"
    assert {capacity(c) for c in cache} == {2049 + 2048}
    for c in cache:
        c.trim(c.offset)
    read(ids[:600])
    assert copied == 3 * (2000 + BLOCK), "there was room"


@pytest.mark.parametrize("name", ["llama", slow("gemma3")])
def test_a_turn_grows_each_cache_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is prefilled in parts, from checkpoint to checkpoint."""
    chat = Chat(tiny.build(name), GPU)  # on a CPU, blocks of attention are put together, too
    first, _, second = conversation((4, 804))
    growths: list[int] = []
    concatenate = mx.concatenate

    def counted(arrays: list[mx.array], axis: int = 0) -> mx.array:
        if arrays[0].ndim == 4 and axis == 2 and arrays[0].shape[2] > 64:
            growths.append(arrays[0].shape[2])
        return concatenate(arrays, axis=axis)

    turns: list[tuple[Any, tuple[int, ...] | None]] = [(first, FIRST), (second, LATER)]
    turns.append((second, None))
    monkeypatch.setattr("app.engine.backend.memory.free", lambda: 1e12)
    monkeypatch.setattr(mx, "concatenate", counted)
    layers = len(flatten(chat.conversation.target.cache))
    for prompt, needed in turns:
        growths.clear()
        chat.read(prompt, needed)
        assert len(growths) <= 2 * layers, "keys and values"


def test_a_turn_without_memory_check_reserves_no_capacity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise it could not stop at a step boundary before memory runs out."""
    chat = Chat(tiny.build("llama"))
    first, _, _ = conversation((4, 804))
    manager = "app.engine.memory.manager.MemoryManager."
    monkeypatch.setattr(manager + "ensure_free", lambda *_: None)
    monkeypatch.setattr("app.engine.backend.memory.free", lambda: -1.0)
    sizes: list[int] = []

    def check_step(*_: object) -> None:
        sizes.append(capacity(chat.conversation.target.cache[0]))

    monkeypatch.setattr("app.engine.memory.manager.TurnMemory.check_step", check_step)
    chat.read(first, None)
    assert sizes[0] == BLOCK
    assert sizes[-1] == 4 * BLOCK


@table("make, done", product([make_stock_cache, make_positioned_cache, few_bits], [0, 512]))
def test_a_cancelled_prefill_releases_unused_capacity(
    make: Callable[[Any], Cache], done: int, model: Any
) -> None:
    cache, twin = make(model), make(model)
    ids = np.random.default_rng(0).integers(0, tiny.VOCABULARY, TOKENS // 3).astype(np.int32)

    def on_step(now: int) -> None:
        if now == done:
            raise TurnCancelled

    def read() -> None:
        with reserve_capacity(cache, len(ids)):
            if not done:
                raise TurnCancelled
            prefill(model, cache, ids, None, StepSize(STEP), on_step)

    with pytest.raises(TurnCancelled):
        read()
    assert {capacity(c) for c in cache} == {done}
    if done:
        prefill(model, twin, ids[:done], None, StepSize(STEP), lambda _: None)
    found, expected = forward(model, cache, ids[done:]), forward(model, twin, ids[done:])
    np.testing.assert_allclose(np.array(found), np.array(expected), atol=1e-5)


MIDDLE = (4, 244)
LONG = (4, 804)
"""A document much longer than a window and its slack."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evict at once, so that short documents suffice."""
    monkeypatch.setattr(WindowedCache, "slack", 8)


def windows(prefix: PrefixCache) -> list[WindowedCache]:
    return [c for c in positioned_layers(prefix.cache) if isinstance(c, WindowedCache)]


def predicted(model: Any, tokens: int, retained: bool) -> float:
    size = _measure(Path(), model, CacheMaker(model), None).cache_size
    return size.bytes(tokens, retained)


@pytest.mark.parametrize("name", architectures(*SLIDING))
def test_a_dense_read_after_a_sparse_one_evicts_entries_outside_the_windows(
    name: str, models: dict[str, Any]
) -> None:
    model = models[name]
    first, answer, second = conversation(LONG)
    chat = Chat(model)
    chat.read(first, tuple(range(90)))
    chat.write(first, answer)
    prefix = chat.conversation.target
    read = int(prefix.cached.sum())
    assert [c.size() for c in windows(prefix)] == [read] * 2, "a later recall may need it"
    assert predicted(model, read, True) <= prefix.nbytes <= predicted(model, read + BLOCK, True)
    logits = chat.read(second, None)
    assert difference(logits, dense_logits(model, second.ids)) < TOLERANCE
    assert all(c.size() <= WINDOW + c.slack for c in windows(prefix))
    saved = sum(c.nbytes for point in prefix.checkpoints for c in point.states.values())
    at_most = predicted(model, len(second.ids) + BLOCK, False)
    assert predicted(model, len(second.ids) - BLOCK, False) <= prefix.nbytes - saved <= at_most
    prefix.eval()
    before, nbytes = mx.get_active_memory(), prefix.nbytes
    prefix.clear()
    assert before - mx.get_active_memory() == pytest.approx(nbytes, rel=0.1), "nothing else lives"


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", architectures(*SLIDING))
@pytest.mark.parametrize("needed", [None, LATER], ids=["dense", "sparse"])
def test_entries_evicted_by_a_dense_read_are_read_again_when_needed(
    name: str,
    needed: tuple[int, ...] | None,
    models: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A document is changed in the middle after a sparse and a dense read of it."""
    model = models[name]
    first, answer, second = conversation(MIDDLE)
    chat, fresh = Chat(model), Chat(model)
    chat.read(first, FIRST)
    chat.write(first, answer)
    chat.read(second, None)
    prefix = chat.conversation.target
    edited = Prompt(second.ids.copy(), second.segments, {})
    edited.ids[120:] = edited.ids[120:][::-1].copy()
    assert not prefix.can_insert_at(120)
    assert prefix.rewind_target(120) == MIDDLE[0]
    models_of = pair(model)
    full = Ask((Message(Role.USER, ""),), Mode.FULL)
    room = MemoryManager(models_of, lambda event: None)
    monkeypatch.setattr(room, "max_available", lambda *_: -1.0)
    with pytest.raises(NotEnoughMemory) as raised:
        TurnEstimate(models_of, full, edited, chat.conversation, room).check(Reading.DENSE)
    assert raised.value.failure.data["reading"] == len(edited.ids) - 1 - MIDDLE[0]
    logits = chat.read(edited, needed)
    assert chat.reader.so_far.reused_tokens == MIDDLE[0], (
        "back to the checkpoint before the document"
    )
    assert difference(logits, fresh.read(edited, needed)) < TOLERANCE
    if needed is None:
        assert difference(logits, dense_logits(model, edited.ids)) < TOLERANCE


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", architectures(*SLIDING))
def test_checkpoints_copy_only_the_windows(
    name: str, models: dict[str, Any], tmp_path: Path
) -> None:
    first, answer, second = conversation(MIDDLE)
    chat = Chat(models[name])
    for prompt in (first, second):
        chat.read(prompt, tuple(range(25)))
        chat.write(prompt, answer)
        prefix = chat.conversation.target
        alone = sum(c.nbytes for c in flatten(prefix.cache))
        assert prefix.checkpoints
        assert prefix.nbytes == alone, "a layer that retains everything needs no copy"
    snapshots = Snapshots(tmp_path, 1 << 30, {"target": name})
    list(snapshots.save("c", chat.conversation))
    on_disk = sum(f.stat().st_size for f in tmp_path.rglob("*.safetensors"))
    assert on_disk < 1.1 * alone
    again = snapshots.load("c", lambda: ConversationCache(pair(models[name])))
    position = prefix.checkpoints[-1].position
    assert again.target.rewind(position) == prefix.rewind(position) == position

    chat.read(second, None)
    each = sum(c.nbytes // c.size() for c in windows(prefix))
    for checkpoint in prefix.checkpoints:
        states = checkpoint.states.values()
        assert len(states) == 2
        assert sum(c.nbytes for c in states) <= WINDOW * each


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("name", architectures(*SLIDING))
def test_a_cache_rewound_to_a_checkpoint_equals_one_that_never_read_further(
    name: str, models: dict[str, Any]
) -> None:
    """After a dense read, only the window before a checkpoint is left."""
    first, answer, second = conversation(MIDDLE)
    chat, fresh = Chat(models[name]), Chat(models[name])
    chat.read(first, None)
    chat.write(first, np.concatenate([answer] * 3))
    prefix = chat.conversation.target
    checkpoint = prefix.checkpoints[-1].position
    assert MIDDLE[1] < checkpoint <= len(first.ids)
    assert prefix.rewind_target(len(first.ids) + 1) == checkpoint
    logits = chat.read(second, None)
    assert chat.reader.so_far.reused_tokens > MIDDLE[1]
    assert difference(logits, fresh.read(second, None)) < TOLERANCE


@pytest.mark.parametrize("name", architectures(*SLIDING))
def test_windowed_layers_attend_only_to_their_window(
    name: str, models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a sparse turn they keep everything, but a step fetches only its first token's window."""
    first, answer, second = conversation(LONG)
    chat = Chat(models[name])
    given: list[tuple[int, int, int]] = []
    fetch = WindowedCache.update_and_fetch

    def counted(self: WindowedCache, keys: mx.array, values: mx.array) -> Any:
        recalls = self.offset < self.positions.end
        found = fetch(self, keys, values)
        given.append((recalls, found[0].shape[2], self.size()))
        return found

    monkeypatch.setattr(WindowedCache, "update_and_fetch", counted)
    chat.read(first, tuple(range(0, 90, 2)))
    chat.write(first, answer)
    chat.read(second, tuple(range(1, 90, 9)))
    assert max(keys for recalls, keys, _ in given if not recalls) <= WINDOW - 1 + 16
    assert max(stored for *_, stored in given) > 400
    recalled = [(keys, stored) for recalls, keys, stored in given if recalls]
    assert len(recalled) > 4
    assert all(keys < stored / 4 for keys, stored in recalled)


@pytest.mark.slow
def test_checkpoints_that_save_the_fewest_tokens_are_dropped() -> None:
    """The lasting ones and the last two stay; the others are spread evenly over what was read."""
    model = build("qwen3_5")
    prefix = PrefixCache(lambda: make_positioned_cache(model))
    ids = np.arange(400, dtype=np.int32) % VOCABULARY
    for end in range(20, 401, 20):
        part = np.arange(end - 20, end, dtype=np.int32)
        prefix.prefill_at(model, ids, part[part % 40 < 30], StepSize(32), lambda done: None)
        prefix.add_checkpoint(8, lasting=end in (20, 60))
    found = np.array([point.position for point in prefix.checkpoints])
    assert len(found) == 8
    assert found[:2].tolist() == [20, 60]
    assert np.diff(found[1:-1]).max() <= 100


_LINEAR = {"linear_key_head_dim": 64, "linear_value_head_dim": 64}
WIDE: dict[str, dict[str, Any]] = {
    "qwen3_5": _LINEAR,
    "qwen3_next": _LINEAR,
    "nemotron_h": {"ssm_state_size": 64, "mamba_num_heads": 16},
    "lfm2": {"hidden_size": 1024, "block_dim": 1024, "head_dim": 256},
    "granitemoehybrid": {"mamba_d_state": 64, "mamba_n_heads": 16},
    "falcon_h1": {"mamba_d_state": 64, "mamba_n_heads": 16, "mamba_d_ssm": 256},
}
"""States that are large compared with the 16 KB by which MLX's arrays may differ from views."""


@pytest.fixture
def no_spare_buffers() -> Iterator[None]:
    """An array may otherwise get a buffer that is larger, and that nothing uses any more."""
    limit = mx.set_cache_limit(0)
    yield
    mx.set_cache_limit(limit)


@pytest.mark.usefixtures("no_spare_buffers")
@pytest.mark.parametrize("name", ["lfm2", *(slow(n) for n in RECURRENT if n != "lfm2")])
def test_the_memory_of_checkpoints_is_predicted_within_a_tenth(name: str) -> None:
    """States that are slices of a step's arrays do not keep these alive."""
    model = build(name, **WIDE[name])
    prefix = PrefixCache(lambda: make_positioned_cache(model))
    ids = np.arange(2304, dtype=np.int32) % VOCABULARY
    for part in np.split(np.arange(2304, dtype=np.int32), 9):
        prefix.add_checkpoint(10)
        prefix.prefill_at(model, ids, part, StepSize(256), lambda done: None)
    prefix.eval()
    predicted = 8 * CacheSize.of(prefix.cache).state_bytes
    assert sum(nbytes(c) for p in prefix.checkpoints for c in p.states.values()) == predicted
    gc.collect()
    before = mx.get_active_memory()
    prefix.checkpoints = []
    gc.collect()
    assert before - mx.get_active_memory() == pytest.approx(predicted, rel=0.1)
