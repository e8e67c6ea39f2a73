"""`find_mismatch` detects caches that differ from their records; failures leave a known state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from app.engine.cache import prefix_cache
from app.engine.cache.kv_quantisation import Quantisation
from app.engine.cache.prefill import StepSize, forward, make_positioned_cache, make_stock_cache
from app.engine.cache.prefix_cache import find_mismatch
from app.engine.memory.conversation_cache import ScoredPrompt
from app.engine.model.loader import CacheMaker
from app.engine.scorers import attention
from app.engine.scorers.attention import AttentionObserver
from app.protocol.commands import Ask, CachePolicy
from app.protocol.events import EngineWarning, FellBackToDense, Finished
from app.protocol.options import BackgroundPolicy as HealWhen
from app.protocol.options import Mode, Sampling
from app.protocol.prompt import Document, Message, Role
from app.protocol.reasons import ReasonCode
from app.protocol.stats import Reading
from tests import tiny
from tests.engine.driver import Driver
from tests.tables import slow, table

IDS = np.arange(40, dtype=np.int32)
model_of = cache(tiny.build)


def cached(
    name: str, sparse: bool, tokens: int = 30, bits: int | None = None
) -> prefix_cache.PrefixCache:
    """A cache of a tiny model that has read this many tokens, with a gap if sparse."""
    model = model_of(name) if bits is None else tiny.build(name)
    maker = CacheMaker(model, Quantisation(bits, 32) if bits else None)
    make = make_positioned_cache if sparse else make_stock_cache
    cache = prefix_cache.PrefixCache(lambda: make(maker))
    positions = np.arange(tokens, dtype=np.int32)
    if sparse:
        positions = np.delete(positions, slice(10, 15))
    cache.prefill_at(model, IDS, positions, StepSize(8), lambda done: None)
    return cache


def feed_one(name: str, cache: prefix_cache.PrefixCache, model: Any = None) -> None:
    logits = forward(model or model_of(name), cache.cache, IDS[-1:])
    mx.eval(logits)


NAMES = ("llama", "gemma3", "qwen3_next", *map(slow, ("falcon_h1", "deepseek_v32", "gemma3n")))


@pytest.mark.parametrize("name", NAMES)
@table("sparse", [False, True])
def test_a_token_fed_but_not_recorded_is_a_mismatch(name: str, sparse: bool) -> None:
    cache = cached(name, sparse)
    assert find_mismatch(cache) is None
    assert find_mismatch(cache.fork()) is None
    feed_one(name, cache)
    assert find_mismatch(cache) is not None
    cache.clear()
    assert find_mismatch(cache) is None


@pytest.mark.parametrize("name", NAMES)
@table("sparse", [False, True])
def test_a_token_recorded_but_not_fed_is_a_mismatch(name: str, sparse: bool) -> None:
    cache = cached(name, sparse)
    cache.append(IDS[-1:])
    found = find_mismatch(cache)
    assert found is not None or all(hasattr(c, "cache") for c in cache.cache)


def test_a_quantised_cache_is_checked_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {**tiny.CONFIGS["llama"], "head_dim": 32}
    monkeypatch.setitem(tiny.CONFIGS, "llama", config)
    for sparse in (False, True):
        cache = cached("llama", sparse, bits=8)
        assert find_mismatch(cache) is None
        feed_one("llama", cache, tiny.build("llama"))
        assert find_mismatch(cache) is not None


@pytest.mark.parametrize("layer", [0, 1], ids=["recurrent", "attention"])
def test_a_single_layer_that_is_ahead_is_a_mismatch(layer: int) -> None:
    """This happens if a step fails halfway."""
    cache = cached("qwen3_next", True)
    ahead = cached("qwen3_next", True)
    feed_one("qwen3_next", ahead)
    cache.cache[layer] = ahead.cache[layer]
    assert f"layer {layer}" in (find_mismatch(cache) or "")


def test_a_cache_without_memory_for_its_entries_is_a_mismatch() -> None:
    cache = cached("llama", True)
    cache.cache[1].inner.keys = None
    assert "layer 1" in (find_mismatch(cache) or "")


# ----------------------------------------------------------------------- errors while scoring


def nth_call(function: Callable[..., Any], n: int, error: Exception) -> Callable[..., Any]:
    """Wrap `function` to raise after its nth call."""
    calls = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        result = function(*args, **kwargs)
        if calls == n:
            raise error
        return result

    return counted


def broken(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    error = ValueError("broken on purpose")
    if step == "the draft reads":  # its second step is cached but not recorded
        fill = nth_call(prefix_cache.prefill_step, 2, error)
        monkeypatch.setattr(prefix_cache, "prefill_step", fill)
    elif step == "the draft observes the question":
        monkeypatch.setattr(attention, "_forward", nth_call(attention._forward, 1, error))
    elif step == "the draft looks ahead":
        monkeypatch.setattr(attention, "_forward", nth_call(attention._forward, 3, error))
    elif step == "half a layer is observed":
        monkeypatch.setattr(
            AttentionObserver, "_start_block", nth_call(AttentionObserver._start_block, 2, error)
        )
    elif step == "chunks are selected":
        monkeypatch.setattr(ScoredPrompt, "select", nth_call(ScoredPrompt.select, 1, error))
    else:
        prefill = prefix_cache.prefill

        def target_only(model: Any, cache: Any, ids: Any, positions: Any, *rest: Any) -> None:
            prefill(model, cache, ids, positions, *rest)
            if positions is not None:
                raise error

        monkeypatch.setattr(prefix_cache, "prefill", target_only)


STEPS = (
    "the draft reads",
    "the draft observes the question",
    "half a layer is observed",
    "the draft looks ahead",
    "chunks are selected",
    "the target reads",
)


@pytest.fixture
def scored(loaded: Driver, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collects the importance of each turn that scores."""
    found: list[Any] = []
    score = attention.score_by_attention

    def recorded(*args: Any, **kwargs: Any) -> Any:
        importance = score(*args, **kwargs)
        found.append(importance)
        return importance

    monkeypatch.setattr(attention, "score_by_attention", recorded)
    loaded.engine.send(CachePolicy(HealWhen.OFF))
    return found


TEXT = " ".join(f"The code of gate {n} is {n * 37 % 101}." for n in range(12))
MORE = " ".join(f"Gate {n} was opened on day {n * 53 % 97}." for n in range(12))


def first_question() -> Ask:
    message = Message(Role.USER, "What is the code of gate 7?", (Document("gates.txt", TEXT),))
    sampling = Sampling(max_tokens=3)
    return Ask((message,), Mode.SPARSE, 0.2, sampling, conversation="c")


def follow_up(first: Ask, answer: Finished, name: str | None) -> Ask:
    """Ask about one more document: after a dense read nothing can be skipped."""
    said = Message(Role.ASSISTANT, answer.text, token_ids=answer.generated_ids)
    asked = Message(Role.USER, "And of gate 41?", (Document("more.txt", MORE),))
    messages = (*first.messages, said, asked)
    return replace(first, messages=messages, conversation=name)


@pytest.mark.parametrize(
    ("step", "before"),
    [
        *((step, False) for step in STEPS),
        *(slow(step, True) for step in STEPS),
    ],
)
def test_after_a_fallback_the_next_turn_scores_like_a_new_conversation(
    loaded: Driver, scored: list[Any], monkeypatch: pytest.MonkeyPatch, step: str, before: bool
) -> None:
    ask = first_question()
    if before:
        ask = follow_up(ask, loaded.answer(ask), "c")
    with monkeypatch.context() as patched:
        broken(patched, step)
        first = loaded.answer(ask)
        assert len(loaded.of(FellBackToDense)) == 1
    assert first.statistics.reading is Reading.DENSE
    later = loaded.answer(follow_up(ask, first, "c"))
    assert not loaded.of(EngineWarning), "it was put right where it broke"
    fresh = loaded.answer(follow_up(ask, first, "fresh"))
    np.testing.assert_allclose(scored[-2], scored[-1], rtol=1e-4, atol=1e-7)
    assert later.statistics.reading is fresh.statistics.reading is Reading.SPARSE


@pytest.mark.parametrize("which", ["target", "draft"])
def test_a_mismatched_cache_is_dropped_with_a_warning(
    loaded: Driver, scored: list[Any], which: str
) -> None:
    """A mismatch of any origin is found when the cache is used again."""
    ask = first_question()
    first = loaded.answer(ask)
    pool = loaded.engine._loaded.caches
    conversation_cache = pool._caches["c"]
    cache = conversation_cache.target if which == "target" else conversation_cache.draft
    cache.ids, cache.cached = cache.ids[:-9], cache.cached[:-9]
    later = loaded.answer(follow_up(ask, first, "c"))
    (warning,) = loaded.of(EngineWarning)
    assert warning.conversation == "c"
    assert warning.reason.code is ReasonCode.CACHE_DAMAGED
    assert warning.reason.data[which].startswith("layer 0 holds ")
    fresh = loaded.answer(follow_up(ask, first, "fresh"))
    np.testing.assert_allclose(scored[-2], scored[-1], rtol=1e-4, atol=1e-7)
    if which == "target":
        assert later.generated_ids == fresh.generated_ids


@pytest.mark.slow
def test_a_windowed_draft_stays_in_sync(
    driver: Driver, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows and recurrent states cannot be rewound, so they are read again."""
    driver.load(folders["target"], folders["hybrid"])
    ask = first_question()
    with monkeypatch.context() as patched:
        broken(patched, "the draft observes the question")
        first = driver.answer(ask)
    pool = driver.engine._loaded.caches
    assert pool._caches["c"].drop_damaged() is None
    later = driver.answer(follow_up(ask, first, "c"))
    assert later.statistics.reading is Reading.SPARSE
