"""What reading costs is learnt from readings that were timed."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.turn.costs import fit_costs
from app.protocol.cost_model import (
    AttentionWork,
    Costs,
    CostTerm,
    LinearCost,
    ReadPlan,
    Timing,
    recalled_tokens,
    scoring_work,
    sparse_pays,
)

TRUE = LinearCost(0.05, 1e-3, 2e-7)


def clocked(lengths: list[int], noise: float = 0.0, line: LinearCost = TRUE) -> list[Timing]:
    chance = random.Random(0)
    works = [AttentionWork(tokens, index % 3 * 500) for index, tokens in enumerate(lengths)]
    return [
        Timing(CostTerm.TARGET, work, line.seconds(work) * math.exp(chance.gauss(0, noise)))
        for work in works
    ]


def target(rows: list[Timing], ratio: float = 0.0) -> LinearCost:
    line = fit_costs(rows, (ratio, ratio)).target
    assert line is not None
    return line


def test_the_pairs_of_a_reading_are_those_of_the_tokens_one_by_one() -> None:
    assert AttentionWork(3, 10).attention_pairs == 11 + 12 + 13
    assert LinearCost(1.0, 1.0, 1.0).seconds(AttentionWork(0, 50)) == 0.0


def test_readings_of_many_lengths_give_the_costs_back() -> None:
    rows = clocked([200, 16_000, 900, 4_000, 300, 9_000, 2_000, 700], noise=0.05)
    line = target(rows)
    for work in (AttentionWork(500), AttentionWork(2_000, 6_000), AttentionWork(30_000)):
        assert line.seconds(work) == pytest.approx(TRUE.seconds(work), rel=0.12)


def test_a_busy_machine_is_forgiven() -> None:
    rows = clocked([200, 16_000, 900, 4_000, 300, 9_000, 2_000, 700], noise=0.03)
    for index in (1, 4):
        rows[index] = Timing(CostTerm.TARGET, rows[index].work, 8 * rows[index].seconds)
    assert target(rows).seconds(AttentionWork(5_000)) == pytest.approx(
        TRUE.seconds(AttentionWork(5_000)), rel=0.12
    )


def test_of_one_length_the_shape_of_the_model_tells_the_rest() -> None:
    line = target(clocked([4_000] * 3), TRUE.per_pair / TRUE.per_token)
    assert line.seconds(AttentionWork(4_000)) == pytest.approx(
        TRUE.seconds(AttentionWork(4_000)), rel=0.15
    )
    assert line.seconds(AttentionWork(32_000)) == pytest.approx(
        TRUE.seconds(AttentionWork(32_000)), rel=0.3
    )


def test_what_is_new_counts_more() -> None:
    slower = LinearCost(0.1, 2e-3, 4e-7)
    rows = clocked([1_000, 5_000] * 12) + clocked([1_000, 5_000] * 10, line=slower)
    assert target(rows).seconds(AttentionWork(3_000)) == pytest.approx(
        slower.seconds(AttentionWork(3_000)), rel=0.1
    )


@pytest.mark.parametrize("short", [[0.295, 0.288], [0.2, 0.4], [0.3] * 20])
def test_short_turns_say_nothing_about_long_ones(short: list[float]) -> None:
    """Two questions without a document, of 40 to 60 tokens, before the first one with some."""
    first = Costs(*[LinearCost(0.05, 5e-3, 5e-7)] * 4)
    rows = [
        Timing(CostTerm.TARGET, AttentionWork(40 + 10 * (i % 3)), seconds)
        for i, seconds in enumerate(short)
    ]
    fitted = fit_costs(rows, (1e-4, 0.0), first).target
    assert fitted is not None
    assert first.target is not None
    for tokens in (1_000, 3_650, 20_000):
        work = AttentionWork(tokens)
        assert 0.3 < fitted.seconds(work) / first.target.seconds(work) < 3


def test_one_real_turn_outweighs_the_first_estimate() -> None:
    first = Costs(*[LinearCost(0.0, 5e-4)] * 4)
    rows = clocked([4_000])
    assert fit_costs([], first=first) == first
    fitted = fit_costs(rows, first=first)
    assert fitted.full == first.full, "not timed yet"
    assert fitted.target is not None
    assert fitted.target.seconds(rows[0].work) == pytest.approx(rows[0].seconds, rel=0.1)


@given(
    st.lists(
        st.tuples(st.integers(1, 200_000), st.integers(0, 200_000), st.floats(1e-4, 1e4)),
        min_size=1,
        max_size=12,
    ),
    st.floats(0, 1e-2),
)
def test_no_cost_is_ever_negative_or_endless(
    rows: list[tuple[int, int, float]], ratio: float
) -> None:
    line = target([Timing(CostTerm.TARGET, AttentionWork(n, s), t) for n, s, t in rows], ratio)
    assert all(0 <= each < math.inf for each in (line.fixed, line.per_token, line.per_pair))
    assert line.seconds(AttentionWork(1_000)) >= 0


@given(
    st.floats(0, 0.2),
    st.floats(1e-5, 1e-2),
    st.lists(st.integers(300, 30_000), min_size=6, max_size=20, unique=True),
)
def test_exact_readings_are_predicted(start: float, token: float, lengths: list[int]) -> None:
    line = LinearCost(start, token, token * 2e-4)
    found = target(clocked(lengths, line=line), 2e-4)
    middle = AttentionWork(sorted(lengths)[len(lengths) // 2])
    assert found.seconds(middle) == pytest.approx(line.seconds(middle), rel=0.1)


def test_a_way_is_the_sum_of_its_parts_and_nothing_when_one_was_never_timed() -> None:
    costs = Costs(
        LinearCost(0.0, 1.0), LinearCost(0.0, 0.1), LinearCost(2.0, 0.0), LinearCost(3.0, 0.01)
    )
    assert costs.seconds(ReadPlan(100, AttentionWork(100))) == pytest.approx(102)
    sparse = ReadPlan(100, AttentionWork(20), AttentionWork(100))
    assert costs.seconds(sparse) == pytest.approx(20 + 10 + 3 + 1)
    assert Costs(costs.target, None, costs.full).seconds(sparse) is None
    assert Costs().seconds(ReadPlan(100, AttentionWork(100))) is None


def test_near_ties_are_read_in_full() -> None:
    assert sparse_pays(7.9, 10.0)
    assert not sparse_pays(8.1, 10.0), "not a fifth"


def test_what_is_read_in_full_within_a_second_is() -> None:
    assert not sparse_pays(0.1, 0.9)
    assert sparse_pays(0.1, 1.1)


def test_a_later_question_recalls_what_keep_still_allows_and_its_share_at_least() -> None:
    assert recalled_tokens(0.2, 0.5, 1_000, 800) == 100
    assert recalled_tokens(0.5, 0.5, 1_000, 800) == 300
    assert recalled_tokens(0.2, 0.5, 1_000, 30) == 30
    assert recalled_tokens(0.2, 0.0, 1_000, 800) == 0


def test_a_long_prompt_costs_a_draft_no_more_for_each_token() -> None:
    every, few = AttentionWork(10_000, 0, 0), AttentionWork(10_000, 0, 3_000)
    assert few.attention_pairs == 3_000 * 3_001 / 2 + 7_000 * 3_000 < every.attention_pairs
    assert AttentionWork(500, 9_500, 3_000).attention_pairs == 500 * 3_000
    assert AttentionWork(500, 0, 3_000).attention_pairs == AttentionWork(500).attention_pairs
    assert scoring_work(8_000, 0).attention_pairs == AttentionWork(8_000).attention_pairs
    assert (
        scoring_work(500, 20_000).attention_pairs < AttentionWork(500, 20_000).attention_pairs / 5
    )
