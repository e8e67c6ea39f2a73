"""Importance equals a naive computation of its definition and uses little memory."""

from __future__ import annotations

from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.backend import mlx_patches
from app.engine.backend.device import CPU, GPU, Backend
from app.engine.cache.prefill import StepSize, forward, make_stock_cache, prefill
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.scorers import attention
from app.engine.scorers.attention import AttentionObserver, score_by_attention
from app.engine.scorers.scorer import Importance, ScoringError
from tests.tables import slow, table
from tests.tiny import VOCABULARY, architectures, build

mlx_patches.install()
BACKENDS = pytest.mark.parametrize("backend", [CPU, GPU], ids=["cpu", "gpu"])
SCALE = 0.125


def _score(model: Any, ids: NDArray[np.int32], start: int, **kw: Any) -> Importance:
    options: dict[str, Any] = {
        "stop_ids": (),
        "step": StepSize(32),
        "on_step": lambda done: None,
        "on_observed": lambda observations, expected: None,
    }
    prefix = kw.pop("prefix") if "prefix" in kw else PrefixCache(lambda: make_stock_cache(model))
    return score_by_attention(model, prefix, ids, start, **(options | kw))


def _ids(length: int) -> NDArray[np.int32]:
    return np.random.default_rng(3).integers(0, VOCABULARY, length).astype(np.int32)


def naive(
    model: Any,
    ids: NDArray[np.int32],
    start: int,
    lookahead: int,
    pool: int = 13,
) -> NDArray[np.float64]:
    """Importance by definition, (observations, M): one dense forward, all scores in float64."""
    total = len(ids)
    sequence = ids.tolist()
    for _ in range(lookahead):
        logits = model(mx.array([sequence]))
        sequence.append(int(mx.argmax(logits[0, -1]).item()))
    layers: list[NDArray[np.float64]] = []

    def see(q: mx.array, k: mx.array, scale: float, mask: Any, sinks: Any) -> None:
        if isinstance(mask, mx.array):
            return  # a sliding layer
        keys = np.repeat(np.array(k[0], np.float64), q.shape[1] // k.shape[1], axis=0)
        scores = np.array(q[0], np.float64) @ keys.swapaxes(1, 2) * scale
        rows, columns = np.arange(scores.shape[1])[:, None], np.arange(scores.shape[2])[None]
        scores = np.where(columns <= rows, scores, -np.inf)[:, start:, :total]
        sink = np.full(len(scores), -np.inf) if sinks is None else np.array(sinks, np.float64)
        weights = np.exp(scores)
        weights /= weights.sum(-1, keepdims=True) + np.exp(sink)[:, None, None]
        pooled = np.stack(
            [
                weights[..., max(0, i - pool // 2) : i + pool // 2 + 1].mean(-1)
                for i in range(total)
            ],
            axis=-1,
        )
        layers.append(pooled.max(axis=0))

    with mlx_patches.observed_attention(see):
        mx.eval(model(mx.array([sequence])))
    return np.asarray(np.max(layers, axis=0))


@pytest.mark.parametrize(
    "name", architectures("llama", "qwen3", "phi3", "glm4", "gpt_oss", "qwen3_next")
)
@table("lookahead, backend", [(0, CPU), (3, CPU), (3, GPU)])
def test_importance_equals_its_definition(name: str, lookahead: int, backend: Backend) -> None:
    model, ids = build(name), _ids(100)
    ours = _score(model, ids, 90, lookahead=lookahead, step=StepSize(32, backend=backend))
    assert ours.dtype == np.float32
    expected = naive(model, ids, 90, lookahead).mean(axis=0)
    np.testing.assert_allclose(ours, expected, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize(("pool", "length"), [slow(1, 100), (5, 100), slow(31, 100), (31, 12)])
@table("backend", [CPU, GPU])
def test_importance_is_right_at_any_pooling_width(pool: int, length: int, backend: Backend) -> None:
    model, ids, start = build("llama"), _ids(length), length - 10
    expected = naive(model, ids, start, 0, pool).mean(axis=0)
    step = StepSize(32, backend=backend)
    ours = _score(model, ids, start, lookahead=0, pool=pool, step=step)
    np.testing.assert_allclose(ours, expected, rtol=2e-3, atol=1e-6)


@BACKENDS
def test_the_block_shape_does_not_change_importance(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = build("gpt_oss"), _ids(300)
    whole = _score(model, ids, 200, lookahead=3, step=StepSize(32, backend=backend))
    for sizes in ((1, 7), (1, 100), (2, 100)):
        monkeypatch.setattr(attention, "block_shape", lambda *_, sizes=sizes: sizes)
        parts = _score(model, ids, 200, lookahead=3, step=StepSize(32, backend=backend))
        np.testing.assert_allclose(parts, whole, rtol=1e-5)


# ------------------------------------------------------------------------------ large keys


def _watched(
    q: mx.array, k: mx.array, backend: Backend, mask: Any = "causal", layers: int = 1
) -> AttentionObserver:
    observations = AttentionObserver(k.shape[2], backend)

    def run() -> None:
        for _ in range(layers):
            mx.fast.scaled_dot_product_attention(q, k, k, scale=SCALE, mask=mask)

    observations.observe(q.shape[2], run)
    return observations


def _keys(constant: float, dtype: mx.Dtype, length: int = 2048) -> tuple[mx.array, mx.array]:
    """Queries and keys whose scores have a large common part."""
    chance = np.random.default_rng(5)
    q, k = (
        mx.array(2 * chance.standard_normal((1, heads, n, 64), np.float32)).astype(dtype)
        for heads, n in ((4, 16), (2, length))
    )
    if constant:
        q[..., 0], k[..., 0] = 200, constant / 200
    return q, k


@table(
    "constant, dtype, backend",
    product([0, 2_000, 20_000, 80_000], [mx.float16, mx.bfloat16], [CPU, GPU]),
)
def test_large_keys_do_not_change_the_ranking(
    constant: int, dtype: mx.Dtype, backend: Backend
) -> None:
    """Biased k projections cause a large common part. Compares with float64."""
    q, k = _keys(constant, dtype)
    ours = _watched(q, k, backend).importance
    exact_q, exact_k = (np.array(a[0].astype(mx.float32), np.float64) for a in (q, k))
    scores = exact_q @ np.repeat(exact_k, 2, axis=0).swapaxes(1, 2) * SCALE
    seen = np.tri(16, 2048, 2048 - 16, dtype=bool)
    weights = np.where(seen, np.exp(scores - scores.max(-1, keepdims=True)), 0)
    weights /= np.where(seen, weights, 0).sum(-1, keepdims=True)
    neighbours = np.convolve(np.ones(2048), np.ones(13), "same")
    sums = [[np.convolve(row, np.ones(13), "same") for row in head] for head in weights]
    exact = (np.array(sums) / neighbours).max(axis=0).mean(axis=0)

    def top_fifth(importance: NDArray[Any]) -> set[int]:
        means = importance.reshape(-1, 32).mean(axis=1)
        return set(np.argsort(-means)[: len(means) // 5].tolist())

    assert top_fifth(ours) == top_fifth(exact)
    np.testing.assert_allclose(ours, exact, rtol=1e-4 + 1e-7 * constant)


@table("what, backend", product(["no number", "infinite", "sees nothing"], [CPU, GPU]))
def test_non_finite_importance_is_an_error(what: str, backend: Backend) -> None:
    """Sorted by such values, always the document's first chunks would be selected."""
    q, k = _keys(0, mx.float32, 64)
    mask: Any = "causal"
    if what == "sees nothing":
        mask = mx.array(np.tri(16, 64, 48, dtype=bool) & (np.arange(16) != 5)[:, None])
    else:  # for one key of one head
        k[0, 1, 7] = np.nan if what == "no number" else np.inf
    with pytest.raises(ScoringError, match="not finite"):
        _watched(q, k, backend, mask)


def test_a_non_finite_lookahead_is_an_error_even_after_the_question_was_observed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, ids = build("llama"), _ids(60)
    add = AttentionObserver._finish_rows
    calls: list[None] = []

    def spoilt(self: AttentionObserver) -> None:
        calls.append(None)
        if len(calls) == 2:
            self._running[0] = self._running[0] * mx.nan
        add(self)

    monkeypatch.setattr(AttentionObserver, "_finish_rows", spoilt)
    with pytest.raises(ScoringError, match="not finite"):
        _score(model, ids, 50, lookahead=3)


# ------------------------------------------------------------------------------- what it costs


def test_a_block_is_computed_while_the_previous_one_is_awaited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This keeps a GPU busy."""
    calls: list[str] = []
    begin, wait = mx.async_eval, mx.eval

    def counted_begin(*arrays: Any) -> None:
        calls.append("begin")
        begin(*arrays)

    def counted_wait(*arrays: Any) -> None:
        calls.append("wait")
        wait(*arrays)

    q, k = _keys(0, mx.float32)
    monkeypatch.setattr(attention, "block_shape", lambda *_: (1, 8))  # four blocks a layer
    monkeypatch.setattr(mx, "async_eval", counted_begin)
    monkeypatch.setattr(mx, "eval", counted_wait)
    _watched(q, k, GPU, layers=3)
    assert calls == ["begin", *["begin", "wait"] * 11, "wait"]


def test_a_lookahead_reads_the_keys_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = build("llama"), _ids(100)
    rows: list[int] = []
    score = AttentionObserver._score

    def counted(self: AttentionObserver, q: mx.array, *rest: Any) -> None:
        rows.append(q.shape[1])
        score(self, q, *rest)

    monkeypatch.setattr(AttentionObserver, "_score", counted)
    _score(model, ids, 90, lookahead=4)
    assert rows == [10] * 3 + [4] * 3, "the question's, and all others at once, layer by layer"


def test_a_lookahead_that_ends_early_is_still_observed() -> None:
    model, ids = build("llama"), _ids(100)
    first = int(mx.argmax(model(mx.array(ids)[None])[0, -1]).item())
    second = int(mx.argmax(model(mx.array([*ids.tolist(), first])[None])[0, -1]).item())
    assert first != second
    ended = _score(model, ids, 90, stop_ids=(second,), lookahead=8)
    expected = naive(model, ids, 90, 1).mean(axis=0)
    np.testing.assert_allclose(ended, expected, rtol=2e-3, atol=1e-6)


def test_lookahead_stops_at_end_of_text() -> None:
    model, ids = build("llama"), _ids(60)
    first = int(mx.argmax(model(mx.array(ids)[None])[0, -1]).item())
    stopped = _score(model, ids, 50, stop_ids=(first,), lookahead=8)
    np.testing.assert_array_equal(stopped, _score(model, ids, 50, lookahead=0))


def test_only_the_end_of_a_long_question_is_observed() -> None:
    model, ids = build("llama"), _ids(300)
    limited = _score(model, ids, 0, lookahead=0)
    expected = _score(model, ids, 300 - attention.MAX_QUERY_ROWS, lookahead=0)
    np.testing.assert_array_equal(limited, expected)


@pytest.mark.parametrize(("tail", "length"), [(16, 2048), slow(16, 8192), slow(64, 8192)])
def test_scoring_uses_little_memory(tail: int, length: int) -> None:
    """At most 2 x (heads of one layer x observations x M x 4 bytes) more than the same steps
    without observation."""
    model, lookahead = build("llama"), 8
    ids = _ids(length)
    start = length - tail

    def unobserved() -> None:
        cache = make_stock_cache(model)
        prefill(model, cache, ids[:start], None, StepSize(512), lambda done: None)
        mx.reset_peak_memory()
        mx.eval(forward(model, cache, ids[start:])[:, -1])
        for _ in range(lookahead):
            mx.eval(forward(model, cache, ids[:1])[:, -1])

    def observed() -> None:
        def on_step(done: int) -> None:
            if done == start:
                mx.reset_peak_memory()

        _score(model, ids, start, step=StepSize(512), on_step=on_step, lookahead=lookahead)

    peaks = []
    for run in (unobserved, observed):
        mx.clear_cache()
        run()
        peaks.append(mx.get_peak_memory())
    heads = 4
    assert peaks[1] - peaks[0] <= 2 * heads * (tail + lookahead) * length * 4
    assert peaks[1] > peaks[0], "observing must have taken something, or nothing was measured"
