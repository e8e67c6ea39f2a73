"""Importance equals its definition, computed naively, and takes little memory."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine import scoring, seams
from app.engine.held import Held
from app.engine.prefill import StepSize, dense_cache, feed, prefill
from app.engine.tuning import Scoring, Tuning
from tests.tiny import SLIDING, VOCABULARY, build

seams.install()


def _score(model: Any, ids: NDArray[np.int32], start: int, **kw: Any) -> scoring.Importance:
    options: dict[str, Any] = {
        "stop_ids": (),
        "step": StepSize(32),
        "on_step": lambda done: None,
        "on_observed": lambda observations, expected: None,
    }
    tuning = Tuning(**{f.name: kw.pop(f.name) for f in fields(Tuning) if f.name in kw})
    held = kw.pop("held") if "held" in kw else Held(lambda: dense_cache(model))
    return scoring.score(model, held, ids, start, **(options | kw), tuning=tuning)


def _ids(length: int) -> NDArray[np.int32]:
    return np.random.default_rng(3).integers(0, VOCABULARY, length).astype(np.int32)


def naive(
    model: Any,
    ids: NDArray[np.int32],
    start: int,
    lookahead: int,
    pool: int = 13,
    counted: slice = slice(None),
) -> NDArray[np.float64]:
    """By definition: one dense forward, all scores of all layers at once, in float64. Importance
    of each observation by the `counted` layers, (observations, M)."""
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

    with seams.observed_attention(see):
        mx.eval(model(mx.array([sequence])))
    return np.asarray(np.max(layers[counted], axis=0))


@pytest.mark.parametrize("name", ["llama", "qwen3", "phi3", "glm4", "gpt_oss", "qwen3_next"])
@pytest.mark.parametrize("lookahead", [0, 3])
def test_importance_equals_its_definition(name: str, lookahead: int) -> None:
    model, ids = build(name), _ids(100)
    ours = _score(model, ids, 90, lookahead=lookahead)
    assert ours.dtype == np.float32
    expected = naive(model, ids, 90, lookahead).mean(axis=0)
    np.testing.assert_allclose(ours, expected, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("pool", [1, 5, 31])
def test_any_pooling_width(pool: int) -> None:
    model, ids = build("llama"), _ids(100)
    expected = naive(model, ids, 90, 0, pool).mean(axis=0)
    ours = _score(model, ids, 90, lookahead=0, pool=pool)
    np.testing.assert_allclose(ours, expected, rtol=2e-3, atol=1e-6)


def test_which_observations_count_and_how() -> None:
    model, ids = build("llama"), _ids(100)
    each = naive(model, ids, 90, 3)
    question, ahead = each[:10].mean(axis=0), each[10:].mean(axis=0)
    for tuning, expected in (
        ({"scoring": Scoring.QUESTION}, question),
        ({"scoring": Scoring.LOOKAHEAD}, ahead),
        ({"scoring": Scoring.BOTH}, each.mean(axis=0)),
    ):
        ours = _score(model, ids, 90, lookahead=3, **tuning)
        np.testing.assert_allclose(ours, expected, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("scoring", [Scoring.QUESTION, Scoring.BOTH])
@pytest.mark.parametrize(
    ("layers", "skipped", "counted"),
    [
        (0.67, 0.0, slice(2)),
        (0.0, 0.0, slice(1)),
        (1.0, 0.34, slice(1, 3)),
        (0.67, 1.0, slice(1, 2)),
    ],
)
def test_only_the_layers_asked_for_count(
    scoring: Scoring, layers: float, skipped: float, counted: slice
) -> None:
    model, ids = build("llama"), _ids(100)
    ahead = 3 if scoring is Scoring.BOTH else 0
    expected = naive(model, ids, 90, ahead, counted=counted).mean(axis=0)
    ours = _score(model, ids, 90, scoring=scoring, lookahead=3, layers=layers, skip_layers=skipped)
    np.testing.assert_allclose(ours, expected, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "qwen3_5", "gpt_oss", "nemotron_h"])
def test_layers_past_the_last_that_counts_are_not_run(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = build(name), _ids(100)
    held = Held(lambda: dense_cache(model))
    half = {"scoring": Scoring.QUESTION, "layers": 0.5}
    _score(model, ids[:70], 60, held=held, **half)
    assert held.cache[0].nbytes > 0
    assert held.cache[-1].nbytes == 0
    later = _score(model, ids, 90, held=held, **half)
    # A cache that lacks layers is of no use to a draft that writes.
    ahead = _score(model, ids, 90, held=held, lookahead=2)
    assert held.cache[-1].nbytes > 0
    monkeypatch.setattr(seams, "ending_when", lambda enough: nullcontext())
    np.testing.assert_allclose(later, _score(model, ids, 90, **half), atol=1e-6)
    np.testing.assert_allclose(ahead, _score(model, ids, 90, lookahead=2), atol=1e-6)


def test_lookahead_stops_at_end_of_text() -> None:
    model, ids = build("llama"), _ids(60)
    first = int(mx.argmax(model(mx.array(ids)[None])[0, -1]).item())
    stopped = _score(model, ids, 50, stop_ids=(first,), lookahead=8)
    np.testing.assert_array_equal(stopped, _score(model, ids, 50, lookahead=0))


def test_a_long_question_is_observed_at_its_end() -> None:
    model, ids = build("llama"), _ids(300)
    limited = _score(model, ids, 0, lookahead=0)
    expected = _score(model, ids, 300 - scoring.MOST_OBSERVED, lookahead=0)
    np.testing.assert_array_equal(limited, expected)


def test_only_layers_that_span_the_prompt_count() -> None:
    for name in SLIDING:
        assert np.isfinite(_score(build(name), _ids(100), 90)).all()


def test_a_model_whose_attention_is_hidden_is_no_draft() -> None:
    with pytest.raises(scoring.ScoringError, match="cannot be observed"):
        _score(build("gemma2"), _ids(60), 50)


@pytest.mark.parametrize("tail", [16, 64])
def test_scores_take_little_memory(tail: int) -> None:
    """At most 2 x (heads of one layer x observations x M x 4 bytes) beyond what the same steps take
    unobserved."""
    model, length, lookahead = build("llama"), 8192, 8
    ids = _ids(length)
    start = length - tail

    def unobserved() -> None:
        cache = dense_cache(model)
        prefill(model, cache, ids[:start], None, StepSize(512), lambda done: None)
        mx.reset_peak_memory()
        mx.eval(feed(model, cache, ids[start:])[:, -1])
        for _ in range(lookahead):
            mx.eval(feed(model, cache, ids[:1])[:, -1])

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
