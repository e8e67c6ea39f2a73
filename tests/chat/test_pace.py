"""What the clock said of earlier answers foretells the next one, or nothing does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.chat.pace import NextMessage, Pace
from app.engine.messages import Mode, Phase, PhaseTime, Reading, Statistics


def answered(
    prompt: int,
    kept: int,
    *,
    score: float = 0.0,
    prefill: float = 0.0,
    besides: float = 0.0,
    reused: int = 0,
    fallback: str | None = None,
    waited: float = 0.0,
) -> Statistics:
    times = {Phase.WAIT: waited, Phase.SCORE: score, Phase.PREFILL: prefill}
    return Statistics(
        reading=Reading.SPARSE if kept < prompt else Reading.DENSE,
        mode=Mode.AUTO,
        keep=0.2,
        reason="",
        prompt_tokens=prompt,
        eligible_tokens=prompt - 100,
        kept_tokens=kept,
        reused_tokens=reused,
        recalled_tokens=0,
        generated_tokens=10,
        seed=0,
        ttft=score + prefill + besides + waited,
        phases=tuple(PhaseTime(phase, seconds) for phase, seconds in times.items() if seconds),
        decode_seconds=1.0,
        peak_bytes=0,
        fallback=fallback,
    )


def test_nothing_is_foretold_before_anything_was_clocked() -> None:
    assert Pace().seconds(NextMessage(Mode.FULL, 0.2, 20, 10_000)) is None


def test_a_sparse_reading_is_a_score_a_prefill_and_what_comes_besides() -> None:
    pace = Pace()
    pace.note(answered(20_000, 4_000, score=4.0, prefill=8.0, besides=0.5, waited=100.0))
    message = NextMessage(Mode.SPARSE, 0.2, 0, 10_000)
    assert message.reading is Reading.SPARSE
    assert pace.seconds(message) == pytest.approx(2.0 + 4.0 + 0.5)
    assert pace.seconds(NextMessage(Mode.FULL, 0.2, 0, 10_000)) is None  # nothing was read in full


def test_auto_reads_in_full_what_is_short_or_has_nothing_to_leave_out() -> None:
    assert NextMessage(Mode.AUTO, 0.2, 10_000, 0).reading is Reading.DENSE
    assert NextMessage(Mode.AUTO, 0.2, 20, 5_000).reading is Reading.DENSE
    assert NextMessage(Mode.AUTO, 0.2, 20, 10_000).reading is Reading.SPARSE
    assert NextMessage(Mode.FULL, 0.2, 20, 10_000).reading is Reading.DENSE


def test_what_was_left_out_is_recalled_or_read_in_full() -> None:
    last = answered(20_100, 4_100, score=4.0, prefill=8.0)
    sparse = NextMessage(Mode.SPARSE, 0.2, 30, 0, last)
    assert (sparse.reads, sparse.recalls) == (30, 2_000)
    assert NextMessage(Mode.FULL, 0.2, 30, 0, last).reads == 30 + 20_100
    whole = answered(20_100, 20_100, prefill=40.0)
    assert NextMessage(Mode.FULL, 0.2, 30, 0, whole).reads == 30


def test_what_a_recall_costs_is_learned_from_one() -> None:
    pace = Pace()
    last = answered(20_100, 4_100, score=4.0, prefill=8.2)
    pace.note(last)
    follow_up = NextMessage(Mode.SPARSE, 0.2, 100, 0, last)
    assert pace.seconds(follow_up) is None
    pace.note(
        replace(answered(20_200, 6_200, prefill=4.2, reused=4_100), recalled_tokens=3_000, keep=0.2)
    )
    expected = 100 + 2_000 * 3_000 / 2_010
    assert pace.seconds(follow_up) == pytest.approx(
        expected * 4.2 / 2_100 + 100 * 4.0 / 20_100, rel=0.01
    )


def test_the_nearest_length_counts_and_much_longer_is_not_foretold() -> None:
    pace = Pace()
    pace.note(answered(1_000, 1_000, prefill=1.0))
    pace.note(answered(10_000, 10_000, prefill=20.0))
    assert pace.seconds(NextMessage(Mode.FULL, 0.2, 2_000, 0)) == pytest.approx(2.0)
    assert pace.seconds(NextMessage(Mode.FULL, 0.2, 20_000, 0)) == pytest.approx(40.0)
    assert pace.seconds(NextMessage(Mode.FULL, 0.2, 90_000, 0)) is None


def test_what_fell_back_was_reused_or_is_short_tells_no_pace() -> None:
    pace = Pace()
    pace.note(answered(10_000, 10_000, prefill=20.0, fallback="It broke."))
    pace.note(answered(10_000, 10_000, prefill=0.1, reused=9_900))
    pace.note(answered(100, 100, prefill=0.1))
    assert pace.seconds(NextMessage(Mode.FULL, 0.2, 1_000, 0)) is None
