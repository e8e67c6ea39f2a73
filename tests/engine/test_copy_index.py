"""Finds where the last tokens occurred before, in the prompt and in the answer."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from app.engine.model.token_stream import LONGEST, CopyIndex, Match


def index(prompt: Iterable[int], answer: Iterable[int] = ()) -> CopyIndex:
    found = CopyIndex(np.array(list(prompt), np.int32))
    for token in answer:
        found.append(token)
    return found


def test_what_followed_is_found() -> None:
    assert index([1, 2, 3, 4, 5, 6, 9], [2, 3, 4]).find(2) == Match((5, 6), 4, 3)
    assert index([1, 2, 3, 4, 5, 6, 9], [3, 4]).find(9) == Match((5, 6, 9, 3, 4, 5, 6, 9, 3), 4, 2)


def test_nothing_is_found_where_nothing_is_the_same() -> None:
    assert index([1, 2, 3, 4], [9, 8]).find(4) is None
    assert index([1], []).find(4) is None
    assert index([1, 2, 1, 2, 3], [1, 2]).find(0) is None
    assert index([1, 2], []).find(3) is None, "nothing follows the last tokens"


def test_the_longest_match_wins_and_of_these_the_last() -> None:
    one, other = [1, 2, 3, 4, 50], [7, 2, 3, 4, 60]
    assert index([*one, *other], [1, 2, 3, 4]).find(1) == Match((50,), 4, 4)
    assert index([*one, *other, *one], [1, 2, 3, 4]).find(1) == Match((50,), 14, 4)
    assert index([*one, *other], [9, 3, 4]).find(1) == Match((60,), 9, 2)


def test_the_answer_is_looked_at_too() -> None:
    found = index([9], [5, 6, 7, 8, 5, 6, 7])
    assert found.find(1) == Match((8,), 4, 3)
    assert index([9], [5, 6, 5, 6, 5, 6]).find(5) == Match((5, 6, 5, 6, 5), 5, 4)


def test_it_is_what_a_plain_search_finds() -> None:
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, 5, 300).tolist()
    found = CopyIndex(np.array(prompt, np.int32))
    text = list(prompt)
    for token in rng.integers(0, 5, 400).tolist():
        match = found.find(1)
        wanted = longest(text)
        assert (match.length if match else 0) >= min(wanted, 3), text[-6:]
        if match:
            assert tuple(text[match.start : match.start + 1]) == match.ids
            assert text[match.start - match.length : match.start] == text[-match.length :]
        found.append(token)
        text.append(token)


def longest(text: list[int]) -> int:
    """Of the matches of at least two tokens, by looking everywhere."""
    best = 0
    for end in range(2, len(text)):
        length = 0
        while length < min(end, LONGEST) and text[end - 1 - length] == text[-1 - length]:
            length += 1
        best = max(best, length)
    return best if best >= 2 else 0
