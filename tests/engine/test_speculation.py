"""As many tokens are proposed as make an answer faster, and none where they do not."""

from __future__ import annotations

import numpy as np
import pytest

from app.engine.speculation import SIZES, Gate, expected

PLAIN = 0.1


def gate(slope: float, share: float, length: int = 4, steps: int = 200) -> tuple[Gate, float]:
    """A gate that has learnt on a machine where each token more costs `slope` of a plain step, and
    each proposed one is right with probability `share`; and how many times faster it then was."""
    rng, found = np.random.default_rng(0), Gate()
    found.record_plain(PLAIN)
    seconds, written = 0.0, 0
    for _ in range(steps):
        count = found.choose(length, SIZES[-1])
        if not count:
            took, right = PLAIN, 0
            found.record_plain(took)
        else:
            agree = [*(rng.random(count) < share), False]
            right = agree.index(False)
            took = PLAIN * (1 + slope * count)
            found.record_verified(length, count + 1, right, took)
        seconds, written = seconds + took, written + 1 + right
    return found, written * PLAIN / seconds


def test_nothing_is_proposed_before_a_plain_step_was_timed() -> None:
    assert Gate().choose(16, 16) == 0


@pytest.mark.parametrize("slope", [0.02, 0.1, 0.5, 1.0])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_it_is_faster_where_that_is_possible_and_never_slower(slope: float, share: float) -> None:
    found, faster = gate(slope, share)
    possible = max((1 + expected(share, n - 1)) / (1 + slope * (n - 1)) for n in (1, *SIZES))
    assert faster > 0.97
    assert faster > 0.75 * possible
    count = min(found.choose(4, SIZES[-1]) for _ in range(2))  # one may be a retry
    if share == 0 or slope == 1:
        assert count == 0
    if share == 1 and slope <= 0.5:
        assert count == SIZES[-1] - 1


def test_kinds_of_matches_are_judged_on_their_own() -> None:
    found, _ = gate(0.2, 0.0, 2)
    assert found.choose(2, 15) == 0
    assert found.choose(12, 15) > 0


def test_a_pause_is_no_measure() -> None:
    """Neither one in a plain step, nor one in the first that is verified."""
    found = Gate()
    for seconds in (PLAIN, 3600.0, PLAIN):
        found.record_plain(seconds)
    assert found.plain_rate == pytest.approx(1 / PLAIN)
    for seconds in (PLAIN, 3600.0, 1.1 * PLAIN):
        found.record_verified(9, 2, 1, seconds)
    assert found.cost(2) == pytest.approx(1.1)
    assert found.choose(9, 15) > 0


def test_what_is_expected() -> None:
    assert expected(1.0, 5) == 5
    assert expected(0.0, 5) == 0
    assert expected(0.5, 2) == pytest.approx(0.75)
