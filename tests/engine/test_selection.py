"""Selection keeps pinned tokens, uses the budget, and describes itself with correct spans."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.engine.scorers.selection import adaptive_keep, chunk_bounds, select
from app.protocol.options import DEFAULT_TUNING, Tuning
from app.protocol.prompt import SpanReason
from tests.patience import PATIENCE
from tests.tables import table

CHUNK = DEFAULT_TUNING.chunk


@st.composite
def prompts(draw: st.DrawFn) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    runs = draw(st.lists(st.tuples(st.booleans(), st.integers(1, 100)), min_size=1, max_size=8))
    pinned = np.concatenate([np.full(length, flag) for flag, length in runs])
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return rng.random(len(pinned)).astype(np.float32), pinned


@given(prompts(), st.floats(0, 1))
def test_spans_describe_exactly_what_is_selected(
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
    selected = np.zeros(len(pinned), bool)
    selected[select(importance, pinned, keep).positions] = True
    assert selected[pinned].all()
    chunks, kept_chunks = 0, 0
    start = 0
    while start < len(pinned):
        end = start + 1
        while end < len(pinned) and pinned[end] == pinned[start]:
            end += 1
        for chunk in range(start, end, CHUNK) if not pinned[start] else ():
            part = selected[chunk : min(chunk + CHUNK, end)]
            assert part.all() or not part.any(), "a chunk is selected as a whole"
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


def test_the_most_important_chunk_comes_first() -> None:
    importance = np.zeros(10 * CHUNK, np.float32)
    importance[7 * CHUNK + 3] = 1.0
    selection = select(importance, np.zeros(10 * CHUNK, bool), 0.1)
    assert selection.positions.tolist() == list(range(7 * CHUNK, 8 * CHUNK))
    assert selection.spans[0].score == pytest.approx(10.0)


def test_neighbours_of_an_important_chunk_come_next() -> None:
    importance = np.full(10 * CHUNK, 1e-3, np.float32)
    importance[2 * CHUNK : 3 * CHUNK] = 1.0
    importance[7 * CHUNK : 8 * CHUNK] = 0.4
    selected = [
        sorted(
            {int(p) // CHUNK for p in select(importance, np.zeros(10 * CHUNK, bool), k).positions}
        )
        for k in (0.1, 0.2, 0.3, 0.4, 0.5)
    ]
    assert selected == [[2], [1, 2], [1, 2, 3], [1, 2, 3, 7], [1, 2, 3, 4, 7]]


def test_importance_does_not_spread_across_pinned_tokens() -> None:
    pinned = np.zeros(3 * CHUNK, bool)
    pinned[CHUNK : 2 * CHUNK] = True
    importance = np.repeat(np.array([1.0, 0.0, 0.0], np.float32), CHUNK)
    importance[2 * CHUNK :] = 1e-6
    positions = select(importance, pinned, 0.5).positions
    assert positions.tolist() == list(range(2 * CHUNK))


@given(prompts(), st.floats(0, 1), st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.integers(0, 300))
def test_the_same_tokens_are_selected_as_by_plain_loops(
    prompt: tuple[NDArray[np.float32], NDArray[np.bool_]],
    keep: float,
    neighbours: float,
    earlier: int,
) -> None:
    """The selection is identical; scores of spans differ only by rounding."""
    importance, pinned = prompt
    read = np.random.default_rng(earlier).random(min(earlier, len(pinned))) < 0.5
    tuning = Tuning(neighbours=neighbours)
    ours = select(importance, pinned, keep, tuning, read)
    selected = _plainly(importance, pinned, keep, tuning, read)
    assert ours.positions.tolist() == np.flatnonzero(selected).tolist()
    usual = importance[~pinned].mean() if not pinned.all() else 1.0
    for span in ours.spans:
        if span.reason is SpanReason.IMPORTANT:
            mean = importance[span.start : span.end].mean() / usual
            assert span.score == pytest.approx(mean, rel=1e-5)


def _plainly(
    importance: NDArray[np.float32],
    pinned: NDArray[np.bool_],
    keep: float,
    tuning: Tuning,
    read: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """`select` written as loops over chunks and tokens. Returns bool (M,)."""
    selected = pinned.copy()
    selected[: len(read)] |= read
    chunks: list[tuple[int, int]] = []
    for at in range(len(pinned)):
        if pinned[at]:
            continue
        if chunks and chunks[-1][1] == at and at - chunks[-1][0] < tuning.chunk:
            chunks[-1] = (chunks[-1][0], at + 1)
        else:
            chunks.append((at, at + 1))
    means: list[np.float64] = []
    for start, end in chunks:
        total = np.add.reduceat(importance * ~pinned, [start, end][: 1 + (end < len(pinned))])[0]
        means.append(total / np.int64(end - start))
    smoothed = list(means)
    for index in range(1, len(chunks)):
        if chunks[index - 1][1] == chunks[index][0]:
            smoothed[index] += tuning.neighbours * means[index - 1]
    for index in range(1, len(chunks)):
        if chunks[index - 1][1] == chunks[index][0]:
            smoothed[index - 1] += tuning.neighbours * means[index]
    for index in range(1, len(chunks)):
        if chunks[index - 1][1] == chunks[index][0]:
            smoothed[index] = max(smoothed[index], tuning.neighbours * smoothed[index - 1])
    order = sorted(range(len(chunks)), key=lambda index: -smoothed[index])
    new = [i for i in order if chunks[i][0] >= len(read)]
    old = [i for i in order if chunks[i][0] < len(read)]
    left_out = [i for i in old if not selected[slice(*chunks[i])].all()]
    allowed = math.ceil(keep * len(old)) - (len(old) - len(left_out))
    least = math.ceil(tuning.recall_share * keep * len(old))
    for index in new[: math.ceil(keep * len(new))] + left_out[: max(allowed, least)]:
        selected[slice(*chunks[index])] = True
    return selected


def test_keep_outside_its_range_is_refused() -> None:
    for keep in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="between 0 and 1"):
            select(np.ones(4, np.float32), np.zeros(4, bool), keep)


def test_a_long_prompt_is_selected_quickly() -> None:
    rng = np.random.default_rng(0)
    importance = rng.random(131072).astype(np.float32)
    pinned = np.zeros(131072, bool)
    pinned[-40:] = True
    started_at = time.perf_counter()
    select(importance, pinned, 0.2)
    # A guard against quadratic work, not a benchmark.
    assert time.perf_counter() - started_at < 1.0 * PATIENCE


# -------------------------------------------------------------------------------- later turns


def _recalled(
    importance: NDArray[np.float32],
    read_chunks: set[int],
    keep: float,
    share: float,
    new: int = 0,
) -> set[int]:
    """The chunks selected in addition to cached ones; the last `new` chunks are new."""
    chunks = len(importance) // CHUNK
    read = np.zeros((chunks - new) * CHUNK, bool)
    for chunk in read_chunks:
        read[chunk * CHUNK : (chunk + 1) * CHUNK] = True
    tuning = Tuning(neighbours=0.0, recall_share=share)
    pinned = np.zeros(len(importance), bool)
    positions = select(importance, pinned, keep, tuning, cached=read).positions
    return {int(p) // CHUNK for p in positions} - read_chunks


def _rising(chunks: int) -> NDArray[np.float32]:
    """Importance increases from chunk to chunk."""
    return np.repeat(np.arange(1, chunks + 1, dtype=np.float32), CHUNK)


EVERY = set(range(20))


@table(
    "read, keep, share, recalled",
    [
        ({16, 17, 18, 19}, 0.2, 0.5, {14, 15}),  # a share of keep, the most important first
        ({16, 17, 18, 19}, 0.2, 0.25, {15}),
        ({16, 17, 18, 19}, 0.2, 1.0, {12, 13, 14, 15}),
        ({19, 18, 17, 3}, 0.2, 0.5, {15, 16}),  # what is cached is not counted again
        ({0}, 0.5, 0.1, set(range(11, 20))),  # the rest of keep after a smaller one
        (set(), 0.2, 0.1, {16, 17, 18, 19}),
        ({0, 1, 2, 3}, 0.2, 0.0, set()),
        (EVERY, 0.2, 1.0, set()),
    ],
)
def test_a_later_turn_recalls_what_keep_allows(
    read: set[int], keep: float, share: float, recalled: set[int]
) -> None:
    assert _recalled(_rising(20), read, keep, share) == recalled


def test_new_tokens_have_their_own_keep() -> None:
    importance = _rising(30)
    importance[20 * CHUNK :] /= 1000
    assert _recalled(importance, {0, 1, 2, 3}, 0.2, 0.25, new=10) == {19, 28, 29}


@given(
    prompts(),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(0, 2**32 - 1),
    st.floats(0, 1),
)
def test_later_turns_select_cached_tokens_and_more_with_a_higher_keep(
    prompt: tuple[NDArray[np.float32], NDArray[np.bool_]],
    a: float,
    b: float,
    share: float,
    seed: int,
    part: float,
) -> None:
    importance, pinned = prompt
    read = np.random.default_rng(seed).random(int(part * len(pinned))) < 0.5
    tuning, (low, high) = Tuning(recall_share=share), sorted((a, b))
    fewer, more, everything = (
        set(select(importance, pinned, keep, tuning, cached=read).positions.tolist())
        for keep in (low, high, 1.0)
    )
    assert set(np.flatnonzero(read).tolist()) <= fewer <= more
    assert len(everything) == len(pinned)


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_non_finite_importance_is_refused(odd: float) -> None:
    importance = np.ones(100, np.float32)
    importance[40] = odd
    with pytest.raises(ValueError, match="not a finite number"):
        select(importance, np.zeros(100, bool), 0.2)


@given(prompts(), st.floats(0, 1), st.lists(st.integers(0, 10**6), max_size=40))
def test_recalled_tokens_are_selected_in_addition(
    prompt: tuple[NDArray[np.float32], NDArray[np.bool_]], keep: float, later: list[int]
) -> None:
    importance, pinned = prompt
    before = select(importance, pinned, keep)
    read_later = np.unique(np.array(later, np.int32) % len(pinned))
    found = select(importance, pinned, keep, read_later=read_later)
    assert found.positions.tolist() == sorted({*before.positions.tolist(), *read_later.tolist()})
    for span in found.spans:
        is_later = span.reason is SpanReason.NEEDED_LATER
        tokens = set(range(span.start, span.end))
        assert tokens <= set(found.positions.tolist())
        assert is_later == tokens.isdisjoint(before.positions.tolist())


def peaks(chunks: int, *places: int) -> NDArray[np.float32]:
    importance = np.ones(chunks * CHUNK, np.float32)
    for place in places:
        importance[place * CHUNK : (place + 1) * CHUNK] = 9.0
    return importance


def test_automatic_keep_follows_the_number_of_outliers() -> None:
    """The two neighbours of each important chunk get half of its importance."""
    unpinned = np.zeros(100 * CHUNK, bool)
    assert adaptive_keep(peaks(100, 40), unpinned) == pytest.approx(0.03)
    assert adaptive_keep(peaks(100, 10, 40, 70), unpinned) == pytest.approx(0.09)
    assert adaptive_keep(peaks(100), unpinned) == 0.98, (
        "nothing stands out; the ends have one neighbour"
    )
    assert adaptive_keep(peaks(3), np.ones(3 * CHUNK, bool)) == 0.0, "all is pinned"


def test_automatic_keep_ignores_average_chunks() -> None:
    """Only one chunk has any importance, and neighbours get none."""
    importance = np.zeros(100 * CHUNK, np.float32)
    importance[:CHUNK] = 1.0
    unpinned = np.zeros(100 * CHUNK, bool)
    assert adaptive_keep(importance, unpinned, Tuning(neighbours=0.0)) == 0.01
    assert adaptive_keep(0 * importance, unpinned) == 1.0, "nothing stands out"


def test_the_threshold_of_automatic_keep_is_a_tuning_parameter() -> None:
    importance = peaks(100, 40)
    importance[70 * CHUNK : 71 * CHUNK] = 4.0
    unpinned = np.zeros(100 * CHUNK, bool)
    keeps = [
        adaptive_keep(importance, unpinned, Tuning(keep_above=a)) for a in (1.1, 0.9, 0.6, 0.3)
    ]
    assert keeps == [pytest.approx(k) for k in (0.01, 0.03, 0.04, 0.06)]


@given(prompts(), st.integers(0, 400), st.floats(0.05, 0.95))
def test_automatic_keep_selects_every_important_chunk(
    prompt: tuple[NDArray[np.float32], NDArray[np.bool_]], known: int, above: float
) -> None:
    importance, pinned = prompt
    tuning = Tuning(keep_above=above, neighbours=0.0)
    known = min(known, len(pinned))
    keep = adaptive_keep(importance, pinned, tuning)
    if not (~pinned).any():
        return
    starts, ends = chunk_bounds(pinned, CHUNK)
    means = np.array(
        [importance[s:e].mean(dtype=np.float64) for s, e in zip(starts, ends, strict=False)]
    )
    high = means - np.median(means)
    cached = pinned[:known].copy()
    selected = set(select(importance, pinned, keep, tuning, cached, one_budget=True).positions)
    for start, chunk in zip(starts, high, strict=True):
        if chunk >= max(0.0, above * np.sort(high)[-min(3, len(high))]) + 1e-5:
            assert start in selected
