"""Selection keeps what it must, spends its budget, and describes itself truthfully."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.engine.messages import SpanReason
from app.engine.selection import select
from app.engine.tuning import DEFAULT_TUNING, Tuning

CHUNK = DEFAULT_TUNING.chunk


@st.composite
def prompts(draw: st.DrawFn) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    runs = draw(st.lists(st.tuples(st.booleans(), st.integers(1, 100)), min_size=1, max_size=8))
    pinned = np.concatenate([np.full(length, flag) for flag, length in runs])
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rng.random(len(pinned)).astype(np.float32), pinned


@given(prompts(), st.floats(0, 1))
def test_spans_describe_exactly_what_is_kept(
    prompt: tuple[NDArray[np.float32], NDArray[np.bool_]], keep: float
) -> None:
    importance, pinned = prompt
    selection = select(importance, pinned, keep)
    from_spans = [p for span in selection.spans for p in range(span.start, span.end)]
    assert from_spans == selection.positions.tolist()
    for span in selection.spans:
        expected = SpanReason.PINNED if pinned[span.start] else SpanReason.IMPORTANT
        assert span.reason is expected
        assert (span.score is None) == (span.reason is SpanReason.PINNED)
        assert (pinned[span.start : span.end] == pinned[span.start]).all()
    for before, after in zip(selection.spans, selection.spans[1:], strict=False):
        assert before.end < after.start or before.reason is not after.reason


@given(prompts(), st.floats(0, 1))
def test_the_budget_counts_chunks_of_eligible_tokens(
    prompt: tuple[NDArray[np.float32], NDArray[np.bool_]], keep: float
) -> None:
    importance, pinned = prompt
    kept = np.zeros(len(pinned), bool)
    kept[select(importance, pinned, keep).positions] = True
    assert kept[pinned].all()
    chunks, kept_chunks = 0, 0
    start = 0
    while start < len(pinned):
        end = start + 1
        while end < len(pinned) and pinned[end] == pinned[start]:
            end += 1
        for chunk in range(start, end, CHUNK) if not pinned[start] else ():
            part = kept[chunk : min(chunk + CHUNK, end)]
            assert part.all() or not part.any(), "a chunk is kept whole or not at all"
            chunks, kept_chunks = chunks + 1, kept_chunks + bool(part[0])
        start = end
    assert kept_chunks == math.ceil(keep * chunks)


@given(prompts(), st.floats(0, 1), st.floats(0, 1))
def test_a_higher_keep_keeps_more(
    prompt: tuple[NDArray[np.float32], NDArray[np.bool_]], a: float, b: float
) -> None:
    low, high = sorted((a, b))
    fewer = set(select(*prompt, low).positions.tolist())
    assert fewer <= set(select(*prompt, high).positions.tolist())


def test_the_most_important_chunk_goes_first() -> None:
    importance = np.zeros(10 * CHUNK, np.float32)
    importance[7 * CHUNK + 3] = 1.0
    selection = select(importance, np.zeros(10 * CHUNK, bool), 0.1)
    assert selection.positions.tolist() == list(range(7 * CHUNK, 8 * CHUNK))
    assert selection.spans[0].score == pytest.approx(10.0)


def test_what_follows_an_important_chunk_comes_next() -> None:
    importance = np.full(10 * CHUNK, 1e-3, np.float32)
    importance[2 * CHUNK : 3 * CHUNK] = 1.0
    importance[7 * CHUNK : 8 * CHUNK] = 0.4
    kept = [
        sorted(
            {int(p) // CHUNK for p in select(importance, np.zeros(10 * CHUNK, bool), k).positions}
        )
        for k in (0.1, 0.2, 0.3, 0.4, 0.5)
    ]
    assert kept == [[2], [2, 3], [2, 3, 7], [2, 3, 4, 7], [2, 3, 4, 7, 8]]


def test_importance_is_not_carried_over_what_is_pinned() -> None:
    pinned = np.zeros(3 * CHUNK, bool)
    pinned[CHUNK : 2 * CHUNK] = True
    importance = np.repeat(np.array([1.0, 0.0, 0.0], np.float32), CHUNK)
    importance[2 * CHUNK :] = 1e-6
    positions = select(importance, pinned, 0.5).positions
    assert positions.tolist() == list(range(2 * CHUNK))


def test_chunks_end_where_lines_do() -> None:
    importance = np.zeros(10 * CHUNK, np.float32)
    importance[5 * CHUNK - 3 : 5 * CHUNK + 9] = 1.0
    borders = np.array([3 * CHUNK, 5 * CHUNK - 4, 5 * CHUNK + 10, 6 * CHUNK - 5, 9 * CHUNK])
    chosen = select(importance, np.zeros(10 * CHUNK, bool), 0.1, Tuning(carry=0), borders)
    assert chosen.positions.tolist() == list(range(5 * CHUNK - 4, 6 * CHUNK - 5))


@given(prompts(), st.floats(0, 1), st.lists(st.integers(0, 400), unique=True))
def test_snapped_chunks_still_cover_everything_once(
    prompt: tuple[NDArray[np.float32], NDArray[np.bool_]], keep: float, ends: list[int]
) -> None:
    importance, pinned = prompt
    borders = np.array(sorted(e for e in ends if e <= len(pinned)), np.int64)
    everything = select(importance, pinned, 1.0, borders=borders).positions
    assert everything.tolist() == list(range(len(pinned)))
    some = select(importance, pinned, keep, borders=borders).positions
    assert set(np.flatnonzero(pinned)) <= set(some.tolist())


def test_first_and_last_eligible_tokens_can_be_kept() -> None:
    pinned = np.zeros(10 * CHUNK, bool)
    pinned[:5] = pinned[-5:] = True
    chosen = select(np.ones(len(pinned), np.float32), pinned, 0.0, Tuning(first=3, tail=2))
    expected = [*range(8), *range(len(pinned) - 7, len(pinned))]
    assert chosen.positions.tolist() == expected


def test_keep_outside_its_range_is_refused() -> None:
    for keep in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="between 0 and 1"):
            select(np.ones(4, np.float32), np.zeros(4, bool), keep)


def test_a_long_prompt_is_selected_quickly() -> None:
    rng = np.random.default_rng(0)
    importance = rng.random(131072).astype(np.float32)
    pinned = np.zeros(131072, bool)
    pinned[-40:] = True
    begun = time.perf_counter()
    select(importance, pinned, 0.2)
    assert time.perf_counter() - begun < 1.0  # a guard against quadratic work, not a benchmark
