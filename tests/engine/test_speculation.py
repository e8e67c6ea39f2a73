"""As many tokens are proposed as make an answer faster, and none where they do not."""

from __future__ import annotations

import numpy as np
import pytest

from app.engine.model.speculation import (
    COPY_RETRY,
    DRAFT_RETRY,
    DRAFTED,
    NEEDED,
    SIZES,
    STALE,
    Gate,
    expected,
    kind_of_copy,
)

PLAIN = 0.1
COPY = kind_of_copy(4)


def gate(
    slope: float,
    share: float,
    kind: int = COPY,
    steps: int = 200,
    draft_cost: float = 0.0,
    verifying: float = 0.0,
    busy: float = 0.0,
    seed: int = 0,
) -> tuple[Gate, float]:
    """A gate that has learnt on a machine where a step that verifies costs `verifying` of a plain
    step more, and `slope` for each token; where a share `busy` of all steps takes several times as
    long; and where each proposed token is right with probability `share`. And how many times faster
    it then was."""
    rng, found = np.random.default_rng(seed), Gate()

    def waits() -> float:
        return 1 + 4 * rng.exponential() * (rng.random() < busy)

    for _ in range(NEEDED):
        found.record_plain(PLAIN * waits())
    found.guess_draft_cost(0.1)
    seconds, written = 0.0, 0
    for _ in range(steps):
        count = found.choose(kind, SIZES[-1]).count or int(found.wants_to_learn(kind))
        if not count:
            took, right = PLAIN * waits(), 0
            found.record_plain(took)
        else:
            agree = [*(rng.random(count) < share), False]
            right = agree.index(False)
            took = PLAIN * (1 + verifying + slope * count) * waits()
            found.record_verified(kind, count + 1, right, took)
            if kind == DRAFTED:
                found.record_drafted(count, PLAIN * draft_cost * count)
                took += PLAIN * draft_cost * count
        seconds, written = seconds + took, written + 1 + right
    return found, written * PLAIN * (1 + 4 * busy) / seconds


def test_nothing_is_proposed_before_plain_steps_of_the_answer_were_timed() -> None:
    found, _ = gate(0.1, 1.0)
    assert found.choose(COPY, 16).count > 0
    found.begin()
    assert found.choose(COPY, 16).count == 0
    assert found.plain_rate == 0
    assert not any(found.wants_to_learn(COPY) for _ in range(1000))
    for _ in range(NEEDED):
        found.record_plain(2 * PLAIN)
    assert found.choose(COPY, 16).count > 0


@pytest.mark.parametrize("slope", [0.02, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_it_is_faster_where_that_is_possible_and_never_slower(slope: float, share: float) -> None:
    found, faster = gate(slope, share)
    possible = max((1 + expected(share, n - 1)) / (1 + slope * (n - 1)) for n in (1, *SIZES))
    assert faster > 0.97
    assert faster > 0.75 * possible
    count = found.choose(COPY, SIZES[-1]).count
    if share == 0 or slope == 1:
        assert count == 0
    if share == 1 and slope <= 0.5:
        assert count == SIZES[-1] - 1


@pytest.mark.parametrize("busy", [0.0, 0.3])
@pytest.mark.parametrize("verifying", [0.5, 0.9, 1.2])
def test_on_a_busy_machine_right_tokens_are_not_proposed_one_at_a_time(
    verifying: float, busy: float
) -> None:
    """There, to wait for a step costs much, and each token in it little."""
    possible = SIZES[-1] / (1 + verifying + 0.1 * (SIZES[-1] - 1))
    seeds = range(9 if busy else 1)
    found = [gate(0.1, 1.0, steps=400, verifying=verifying, busy=busy, seed=s)[1] for s in seeds]
    assert np.median(found) > 0.75 * possible


def test_what_a_size_cost_long_ago_is_measured_again() -> None:
    """Another program was busy while it was measured."""
    found = Gate()
    for _ in range(NEEDED):
        found.record_plain(PLAIN)
    for _ in range(9):
        found.record_verified(COPY, 2, 1, 9 * PLAIN)
    assert found.choose(COPY, 15).count == 0
    for _ in range(STALE + 1):
        found.record_plain(PLAIN)
    assert found.choose(COPY, 15).count > 0


def test_kinds_of_matches_are_judged_on_their_own() -> None:
    found, _ = gate(0.2, 0.0, kind_of_copy(2))
    assert found.choose(kind_of_copy(2), 15).count == 0
    assert found.choose(kind_of_copy(12), 15).count > 0
    assert found.choose(kind_of_copy(12), 15).gain > found.choose(kind_of_copy(4), 15).gain


@pytest.mark.parametrize("cost", [0.02, 0.2, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.9])
def test_a_draft_is_asked_where_that_is_faster(cost: float, share: float) -> None:
    found, faster = gate(0.05, share, DRAFTED, 400, cost)
    sizes = [n - 1 for n in (1, *SIZES)]
    possible = max((1 + expected(share, n)) / (1 + (0.05 + cost) * n) for n in sizes)
    assert faster > 0.97
    assert faster > 0.75 * possible
    if possible == 1:
        assert found.choose(DRAFTED, 15).count == 0


def test_what_was_never_right_is_tried_again_now_and_then() -> None:
    found, _ = gate(0.2, 0.0)
    tried = sum(found.wants_to_learn(COPY) for _ in range(10 * COPY_RETRY))
    assert tried == 10
    tried = sum(found.wants_to_learn(DRAFTED) for _ in range(10 * DRAFT_RETRY))
    assert tried == 10


def test_a_pause_is_no_measure() -> None:
    """Neither one in a plain step, nor one in the first that is verified."""
    found = Gate()
    for seconds in (PLAIN, 3600.0, PLAIN, PLAIN, PLAIN):
        found.record_plain(seconds)
    assert found.plain_rate == pytest.approx(1 / PLAIN)
    for seconds in (PLAIN, 3600.0, 1.1 * PLAIN):
        found.record_verified(COPY, 2, 1, seconds)
    assert found.cost(2) == pytest.approx(1.1)
    assert found.choose(COPY, 15).count > 0


def test_what_is_expected() -> None:
    assert expected(1.0, 5) == 5
    assert expected(0.0, 5) == 0
    assert expected(0.5, 2) == pytest.approx(0.75)
