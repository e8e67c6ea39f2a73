"""Sparse reading is exact, on every architecture, and the test can tell when it is not."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.base import create_causal_mask
from mlx_lm.models.cache import ArraysCache

from app.engine import caches, prefill, seams
from tests.engine import oracle
from tests.tiny import HYBRID, ORACLE, PURE, SLIDING, build

TOLERANCE = 1e-4
seams.install()


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: build(name) for name in ORACLE}


@pytest.mark.parametrize("name", ORACLE)
def test_sparse_prefill_equals_the_oracle(name: str, models: dict[str, Any]) -> None:
    assert oracle.oracle_error(name, models[name]) < TOLERANCE


@pytest.mark.parametrize("name", ORACLE)
def test_keeping_everything_equals_plain_mlx_lm(name: str, models: dict[str, Any]) -> None:
    ids, _ = oracle.prompt()
    everything = np.arange(oracle.PROMPT, dtype=np.int32)
    prompt = mx.array(ids[: oracle.PROMPT])
    _, plain = next(generate_step(prompt, models[name], max_tokens=1, prefill_step_size=16))
    ours = oracle.sparse_logits(models[name], ids, everything)[0]
    ours = ours - mx.logsumexp(ours, keepdims=True)
    assert oracle.difference(ours, plain) < TOLERANCE


@pytest.mark.parametrize("name", [n for n in ORACLE if n != "nemotron_h"])
def test_the_oracle_notices_contiguous_positions(
    name: str, models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """(nemotron_h has no rotary positions to get wrong.)"""
    expected = oracle.expected_logits(name, models[name], *oracle.prompt())
    monkeypatch.setattr(caches.PositionedCache, "place", lambda self, positions: None)
    monkeypatch.setattr(prefill.seams, "explicit_positions", _nothing)
    monkeypatch.setattr(oracle, "seek", lambda cache, position: None)
    wrong = oracle.sparse_logits(models[name], *oracle.prompt())
    assert oracle.difference(wrong, expected) > 100 * TOLERANCE


@pytest.mark.parametrize("name", SLIDING)
def test_the_oracle_notices_a_window_by_index(
    name: str, models: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_index(
        self: caches.WindowedCache, N: int, window_size: int | None = None, **_: Any
    ) -> mx.array:
        return create_causal_mask(N, self.inner.offset, window_size=window_size or self.window)

    monkeypatch.setattr(caches.WindowedCache, "_droppable", lambda self, count: 0)
    monkeypatch.setattr(caches.WindowedCache, "_seen", lambda self, stored, count: self.size())
    monkeypatch.setattr(caches.WindowedCache, "make_mask", by_index)
    assert oracle.oracle_error(name, models[name]) > 100 * TOLERANCE


@pytest.mark.parametrize("name", ORACLE)
def test_the_oracle_notices_a_dropped_tail(name: str, models: dict[str, Any]) -> None:
    ids, kept = oracle.prompt()
    expected = oracle.expected_logits(name, models[name], ids, kept)
    without_tail = np.concatenate([kept[:-9], kept[-1:]])
    assert (
        oracle.difference(oracle.sparse_logits(models[name], ids, without_tail), expected)
        > 100 * TOLERANCE
    )


@pytest.mark.parametrize("name", PURE)
def test_hybrid_oracle_agrees_with_the_masked_one(name: str, models: dict[str, Any]) -> None:
    """Feeding one by one is what hybrids are held to; where both oracles apply they agree."""
    ids, kept = oracle.prompt()
    one_by_one = oracle._one_by_one(models[name], ids, kept)
    assert (
        oracle.difference(one_by_one, oracle.expected_logits(name, models[name], ids, kept))
        < TOLERANCE
    )


def test_the_suite_has_hybrids_and_windows() -> None:
    cache = {name: prefill.sparse_cache(build(name)) for name in ORACLE}
    assert {n for n, c in cache.items() if any(isinstance(x, ArraysCache) for x in c)} == set(
        HYBRID
    )
    assert {
        n for n, c in cache.items() if any(isinstance(x, caches.WindowedCache) for x in c)
    } == set(SLIDING)


class _nothing:
    def __init__(self, positions: mx.array) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...
