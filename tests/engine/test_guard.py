"""What the guard foresees. Its hit rates are measured by `specchat eval --auto --held-out`."""

from __future__ import annotations

import numpy as np
import pytest

from app.engine.guard import asks_for_every_token, spread


@pytest.mark.parametrize(
    "question",
    [
        "How many clauses mention rent?",
        "Count the errors in this log.",
        "What is the total number of invoices?",
        "Which words are the most common?",
        "Wie viele Rechnungen sind offen?",
        "Combien de fois ce nom est-il cité ?",
        "Name all variables that hold 17, directly or through others.",
    ],
)
def test_what_needs_every_token_is_named(question: str) -> None:
    reason = asks_for_every_token(question)
    assert reason is not None
    assert reason.endswith("so everything is read.")


@pytest.mark.parametrize(
    "question",
    [
        "What are the termination rights?",
        "Which magic number belongs to amber-falcon?",
        "What is the account number of the north gate?",
        'What does it say of "how many tickets there are"?',
        "Who signed the contract, and when?",
        "Is the discount mentioned in the county register?",
    ],
)
def test_what_needs_a_place_or_two_is_left_alone(question: str) -> None:
    assert asks_for_every_token(question) is None


def test_spread_is_one_for_even_importance_and_small_for_a_peak() -> None:
    pinned = np.zeros(100 * 32, bool)
    pinned[-20:] = True
    even = np.ones(len(pinned), np.float32)
    assert spread(even, pinned, 32) == pytest.approx(1.0, abs=0.01)
    peak = np.zeros(len(pinned), np.float32)
    peak[320:340] = 1.0
    assert spread(peak, pinned, 32) <= 0.02
    assert spread(even[:40], pinned[:40], 32) == 0.0
