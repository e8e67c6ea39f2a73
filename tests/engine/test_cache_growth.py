"""Caches grow once for what is known to come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from app.engine.backend.device import GPU
from app.engine.cache.caches import Cache, PositionedCache, flatten, reserve_capacity
from app.engine.cache.kv_quantisation import Quantisation, quantise_cache
from app.engine.cache.prefill import (
    StepSize,
    forward,
    make_positioned_cache,
    make_stock_cache,
    prefill,
)
from app.engine.progress import Cancelled
from tests import tiny
from tests.engine.test_turns import FIRST, LATER, Chat, conversation

TOKENS, STEP, BLOCK = 2000, 256, 256


def few_bits(model: Any) -> Cache:
    return quantise_cache(make_stock_cache(model), Quantisation(8, 32))


def capacity(cache: Any) -> int:
    """Tokens that one layer's buffer has room for."""
    keys = cache.inner.keys if isinstance(cache, PositionedCache) else cache.keys
    keys = keys[0] if isinstance(keys, tuple | list) else keys
    return 0 if keys is None else int(keys.shape[-2])


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(tiny.CONFIGS, "llama", {**tiny.CONFIGS["llama"], "head_dim": 32})
    return tiny.build("llama")


@pytest.mark.parametrize("make", [make_stock_cache, make_positioned_cache, few_bits])
def test_a_prefill_copied_every_layer_at_every_step(
    make: Callable[[Any], Cache], model: Any
) -> None:
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


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_turn_grows_its_caches_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it is read in parts, from checkpoint to checkpoint."""
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


def test_a_turn_that_skips_the_memory_check_takes_memory_only_as_it_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or it could not stop at a step boundary before memory is used up."""
    chat = Chat(tiny.build("llama"))
    first, _, _ = conversation((4, 804))
    manager = "app.engine.memory.manager.MemoryManager."
    monkeypatch.setattr(manager + "ensure_free", lambda *_: None)
    monkeypatch.setattr("app.engine.backend.memory.free", lambda: -1.0)
    sizes: list[int] = []

    def check_step(*_: object) -> None:
        sizes.append(capacity(chat.conversation.target.cache[0]))

    monkeypatch.setattr(manager + "check_step_fits", check_step)
    chat.read(first, None)
    assert sizes[0] == BLOCK
    assert sizes[-1] == 4 * BLOCK


@pytest.mark.parametrize("make", [make_stock_cache, make_positioned_cache, few_bits])
@pytest.mark.parametrize("done", [0, 512])
def test_a_prefill_that_was_stopped_kept_memory_for_all_of_it(
    make: Callable[[Any], Cache], done: int, model: Any
) -> None:
    cache, twin = make(model), make(model)
    ids = np.random.default_rng(0).integers(0, tiny.VOCABULARY, TOKENS // 3).astype(np.int32)

    def on_step(now: int) -> None:
        if now == done:
            raise Cancelled

    def read() -> None:
        with reserve_capacity(cache, len(ids)):
            if not done:
                raise Cancelled
            prefill(model, cache, ids, None, StepSize(STEP), on_step)

    with pytest.raises(Cancelled):
        read()
    assert {capacity(c) for c in cache} == {done}
    if done:
        prefill(model, twin, ids[:done], None, StepSize(STEP), lambda _: None)
    found, expected = forward(model, cache, ids[done:]), forward(model, twin, ids[done:])
    np.testing.assert_allclose(np.array(found), np.array(expected), atol=1e-5)
