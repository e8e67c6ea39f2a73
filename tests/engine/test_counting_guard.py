"""What the guard foresees. Its hit rates are measured by `specchat eval --auto --held-out`."""

from __future__ import annotations

import pytest

from app.engine.counting_guard import asks_for_every_token


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
        "When did the county grant the discount?",
    ],
)
def test_what_needs_a_place_or_two_is_left_alone(question: str) -> None:
    assert asks_for_every_token(question) is None
