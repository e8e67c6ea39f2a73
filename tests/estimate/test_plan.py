"""Plans: the requested mode, auto mode's choice, and predictions for the next message."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.estimate.plan import NextMessage, PredictedTtft, plan
from app.estimate.work import MIN_SKIPPABLE
from app.protocol.commands import Ask
from app.protocol.cost_model import UNKNOWN_COSTS, AttentionWork, Costs, LinearCost
from app.protocol.options import AUTO_KEEP, Mode
from app.protocol.prompt import Message, Role
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import Reading, Statistics

WORK = AttentionWork(500)
AUTO = Ask((Message(Role.USER, "Where is it?"),), Mode.AUTO)


def decided(expected: PredictedTtft, new: int = 20_000, ask: Ask = AUTO) -> Reading:
    return plan(ask, new - 50, None, expected).reading


def test_auto_chooses_the_faster_mode_at_any_length() -> None:
    assert decided(PredictedTtft(1.0, 2.0), new=1_600) is Reading.SPARSE
    assert decided(PredictedTtft(2.0, 1.0)) is Reading.DENSE
    assert decided(PredictedTtft(9.0, 10.0)) is Reading.DENSE  # saves too little to skip anything


def test_auto_reads_a_small_table_in_full_however_slow_the_pair() -> None:
    small = plan(AUTO, 100, None, PredictedTtft(4.1, 10.0))
    assert small.reading is Reading.DENSE
    assert small.reasons == (Reason(ReasonCode.FEW_TO_SKIP, {"tokens": 1_024}),)


@pytest.mark.parametrize(
    ("expected", "code"),
    [
        (PredictedTtft(9.0, 10.0), ReasonCode.LITTLE_SAVED),
        (PredictedTtft(0.1, 0.9), ReasonCode.QUICK_IN_FULL),
        (PredictedTtft(12.0, 10.0), ReasonCode.FASTER),
    ],
)
def test_ties_and_quick_readings_go_to_full_and_the_reason_is_true(
    expected: PredictedTtft, code: ReasonCode
) -> None:
    decision = plan(AUTO, 19_000, None, expected)
    assert decision.reading is Reading.DENSE
    seconds = {"sparse": expected.sparse, "full": expected.full}
    assert decision.reasons == (Reason(code, seconds),)


def test_if_everything_is_cached_the_reason_says_so() -> None:
    sparse = replace(AUTO, mode=Mode.SPARSE, keep_ratio=0.1)
    decision = plan(sparse, 0, None, cached=900)
    assert decision.reading is Reading.DENSE
    assert decision.show_selection
    assert decision.reasons == (Reason(ReasonCode.SAVES_NOTHING, {"keep": 0.1}),)
    automatic = plan(AUTO, 0, None, cached=900)
    assert automatic.reasons == (Reason(ReasonCode.ALL_CACHED),)
    assert not automatic.show_selection
    nothing = plan(sparse, 0, None)
    assert nothing.reasons == (Reason(ReasonCode.NOTHING_TO_SKIP),)
    more = plan(sparse, 100, None, cached=900)
    assert more.reading is Reading.SPARSE
    assert more.reasons[1] == Reason(ReasonCode.CACHED_STAYS, {"tokens": 900})


def test_the_reason_has_both_predictions() -> None:
    decision = plan(AUTO, 19_000, None, PredictedTtft(3.14, 12.4))
    assert decision.reasons == (Reason(ReasonCode.FASTER, {"sparse": 3.14, "full": 12.4}),)


def test_without_a_prediction_auto_is_sparse_as_soon_as_enough_could_be_skipped() -> None:
    for expected in (PredictedTtft(), PredictedTtft(None, 1.0), PredictedTtft(1.0, None)):
        assert plan(AUTO, MIN_SKIPPABLE - 1, None, expected).reading is Reading.DENSE
        assert plan(AUTO, MIN_SKIPPABLE, None, expected).reading is Reading.SPARSE


def test_the_guard_comes_before_the_clock() -> None:
    counting = replace(AUTO, messages=(Message(Role.USER, "How many are there?"),))
    assert decided(PredictedTtft(1.0, 9.0), ask=counting) is Reading.DENSE


TARGET, DRAFT, OVERHEAD = 1e-3, 1e-4, 0.5
COSTS = Costs(
    LinearCost(0, TARGET), LinearCost(0, DRAFT), LinearCost(OVERHEAD, 0), LinearCost(OVERHEAD, 0)
)


def answered(prompt: int, kept: int) -> Statistics:
    return Statistics(
        reading=Reading.SPARSE if kept < prompt else Reading.DENSE,
        mode=Mode.AUTO,
        keep_ratio=0.2,
        reasons=(),
        prompt_tokens=prompt,
        eligible_tokens=prompt - 100,
        read_tokens=kept,
        reused_tokens=0,
        recalled_tokens=0,
        generated_tokens=10,
        seed=0,
        ttft=1.0,
        phases=(),
        decode_seconds=1.0,
        peak_bytes=0,
    )


def test_nothing_is_predicted_before_a_pair_is_loaded() -> None:
    assert NextMessage(Mode.FULL, 0.2, 20, 10_000).seconds(UNKNOWN_COSTS) is None


def test_a_sparse_prediction_is_scoring_plus_prefill_plus_overhead() -> None:
    sparse = NextMessage(Mode.SPARSE, 0.2, 100, 10_000).seconds(COSTS)
    assert sparse == pytest.approx(2_100 * TARGET + 10_100 * DRAFT + OVERHEAD)
    assert NextMessage(Mode.AUTO, 0.2, 100, 10_000).seconds(COSTS) == sparse
    full = NextMessage(Mode.FULL, 0.2, 100, 10_000).seconds(COSTS)
    assert full == pytest.approx(10_100 * TARGET + OVERHEAD)


def test_auto_predicts_the_faster_mode_or_full_if_nothing_can_be_skipped() -> None:
    slow = replace(COSTS, draft=LinearCost(0, 0.9 * TARGET))
    full = NextMessage(Mode.FULL, 0.2, 20, 10_000).seconds(slow)
    assert NextMessage(Mode.AUTO, 0.2, 20, 10_000).seconds(slow) == full
    typed = NextMessage(Mode.SPARSE, 0.2, 10_000, 0).seconds(COSTS)
    assert typed == pytest.approx(10_000 * TARGET + OVERHEAD)


def test_skipped_tokens_are_recalled_or_read_densely() -> None:
    last = answered(20_100, 4_100)
    sparse = NextMessage(Mode.SPARSE, 0.2, 30, 0, last).seconds(COSTS)
    again, twice = 2_000, 2_000 * 4_110 // 20_110
    draft = 40 * DRAFT  # it has read all but the answer
    assert sparse == pytest.approx((30 + again + twice) * TARGET + draft + OVERHEAD)
    full = NextMessage(Mode.FULL, 0.2, 30, 0, last).seconds(COSTS)
    assert full == pytest.approx((20_100 + 10 + 30) * TARGET + OVERHEAD)
    whole = answered(20_100, 20_100)
    reused = NextMessage(Mode.FULL, 0.2, 30, 0, whole).seconds(COSTS)
    assert reused == pytest.approx(30 * TARGET + OVERHEAD)


def test_auto_assumes_the_last_automatic_keep_if_smaller() -> None:
    last = answered(20_100, 2_100)
    for chosen, assumed in ((0.09, 0.09), (0.6, 0.2)):
        before = replace(last, keep_ratio=chosen)
        auto = NextMessage(Mode.SPARSE, AUTO_KEEP, 30, 5_000, before).seconds(COSTS)
        assert auto == NextMessage(Mode.SPARSE, assumed, 30, 5_000, before).seconds(COSTS)


def test_expensive_recall_includes_all_later_tokens() -> None:
    last = answered(20_100, 2_100)
    sparse = NextMessage(Mode.SPARSE, 0.2, 30, 0, last, recall_is_expensive=True).seconds(COSTS)
    read = 2_100 + 10
    assert sparse == pytest.approx((30 + 2_000 + read) * TARGET + 40 * DRAFT + OVERHEAD)
    whole = answered(20_100, 20_100)  # nothing is left to recall
    again = NextMessage(Mode.SPARSE, 0.2, 30, 0, whole, recall_is_expensive=True)
    assert again.seconds(COSTS) == replace(again, recall_is_expensive=False).seconds(COSTS)


def test_reading_from_scratch_is_predicted_if_it_is_faster() -> None:
    last = answered(10_000, 9_000)
    by_pairs = replace(COSTS, target=LinearCost(0, 0, 1.0))
    reread = NextMessage(Mode.SPARSE, 0.1, 30, 0, last).seconds(by_pairs)
    read = 10_000 + 10 + 30 - 0.9 * 9_900
    assert reread == pytest.approx(read * (read + 1) / 2 + 10_040 * DRAFT + OVERHEAD, rel=1e-3)
