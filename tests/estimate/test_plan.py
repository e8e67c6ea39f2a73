"""Auto takes the way that is expected to be the faster one, and turns teach what to expect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.estimate.plan import PredictedTtft, plan
from app.protocol.commands import Ask
from app.protocol.cost_model import MIN_SKIPPABLE, AttentionWork
from app.protocol.options import Mode
from app.protocol.prompt import Message, Role
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import Reading

WORK = AttentionWork(500)
AUTO = Ask((Message(Role.USER, "Where is it?"),), Mode.AUTO)


def decided(expected: PredictedTtft, new: int = 20_000, ask: Ask = AUTO) -> Reading:
    return plan(ask, new - 50, None, expected).reading


def test_auto_takes_the_faster_way_whatever_the_length() -> None:
    assert decided(PredictedTtft(1.0, 2.0), new=1_600) is Reading.SPARSE
    assert decided(PredictedTtft(2.0, 1.0)) is Reading.DENSE
    assert decided(PredictedTtft(9.0, 10.0)) is Reading.DENSE  # nothing is left out for so little


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


def test_what_is_cached_already_is_the_reason_that_keep_saves_nothing() -> None:
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


def test_what_is_expected_of_both_is_the_reason() -> None:
    decision = plan(AUTO, 19_000, None, PredictedTtft(3.14, 12.4))
    assert decision.reasons == (Reason(ReasonCode.FASTER, {"sparse": 3.14, "full": 12.4}),)


def test_without_a_prediction_auto_is_sparse_as_soon_as_enough_could_be_skipped() -> None:
    for expected in (PredictedTtft(), PredictedTtft(None, 1.0), PredictedTtft(1.0, None)):
        assert plan(AUTO, MIN_SKIPPABLE - 1, None, expected).reading is Reading.DENSE
        assert plan(AUTO, MIN_SKIPPABLE, None, expected).reading is Reading.SPARSE


def test_the_guard_comes_before_the_clock() -> None:
    counting = replace(AUTO, messages=(Message(Role.USER, "How many are there?"),))
    assert decided(PredictedTtft(1.0, 9.0), ask=counting) is Reading.DENSE
