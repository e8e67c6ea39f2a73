"""Stop sequences end an answer, in however many pieces they come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.serve.answers import StopFinder


@pytest.mark.parametrize("pieces", [["one END two"], ["one E", "N", "D two"], list("one END two")])
def test_the_text_ends_before_it(pieces: list[str]) -> None:
    finder = StopFinder(["END", "never"])
    assert "".join(map(finder.add, pieces)) + finder.rest() == "one "
    assert finder.found == "END"


def test_what_only_begins_like_one_comes_out() -> None:
    finder = StopFinder(["END"])
    assert finder.add("one E") == "one "
    assert finder.add("Nd") == "ENd"
    assert finder.add("E") == ""
    assert finder.rest() == "E"


def test_the_first_of_several_counts() -> None:
    finder = StopFinder(["two", "one"])
    assert finder.add("zero one two") == "zero "
    assert finder.found == "one"


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_in_single_letters_as_in_one_piece(text: str, stops: list[str]) -> None:
    finder = StopFinder(stops)
    shown = "".join(map(finder.add, text)) + finder.rest()
    places = [text.find(stop) for stop in stops if stop in text]
    assert text.startswith(shown)
    if not places:
        assert shown == text
    else:
        assert finder.found is not None
        assert len(shown) >= min(places)
        assert text[len(shown) :].startswith(finder.found)
