"""What of a document an answer copied."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from app.ui.spans.copies import SHORTEST, copied_ranges, place_of

TEXT = (
    "The tenant pays the rent on the first day.\n"
    "Either party may end this\n    agreement with three months' notice.\n"
    "Das Übrige regelt die Hausordnung. 租户应当在每个月的第一天支付租金，并保持房屋清洁。\n"
    "key = 'c0ffee00-1234-5678-9abc-def012345678'\n"
)


def copied(answer: str, text: str = TEXT) -> list[str]:
    return [text[start:end] for start, end in copied_ranges(answer, text)]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("", []),
        ("The tenant has to pay the rent.", []),  # only short pieces
        (
            'It says: "The tenant pays the rent on the first day."',
            ["The tenant pays the rent on the first day."],
        ),
        (
            "- **Either party may end this agreement** with notice",
            ["Either party may end this\n    agreement"],
        ),
        ("Either party may end this agreementation", ["Either party may end this"]),
        ("“Das Übrige regelt die Hausordnung”", ["Das Übrige regelt die Hausordnung"]),
        ("原文：租户应当在每个月的第一天支付租金。", ["租户应当在每个月的第一天支付租金"]),
        ("It is c0ffee00-1234-5678-9abc-def012345678.", ["c0ffee00-1234-5678-9abc-def012345678"]),
    ],
)
def test_what_stands_in_both_is_found(answer: str, expected: list[str]) -> None:
    assert copied(answer) == expected


def test_of_several_places_one_that_was_read_is_marked() -> None:
    text = "the same words stand here twice.\n" * 3
    answer = "the same words stand here twice."
    assert copied_ranges(answer, text) == ((0, 32),)
    assert copied_ranges(answer, text, lambda start, end: start >= 60) == ((66, 98),)
    assert copied_ranges(answer, text, lambda start, end: False) == ((0, 32),)


words = st.lists(
    st.sampled_from(["alpha", "beta", "gamma", "delta", "", "epsilon\n", "租户", "支付", "x,"])
)


@given(words, words)
def test_what_is_marked_stands_in_both(answer: list[str], text: list[str]) -> None:
    written, document = " ".join(answer), " ".join(text)
    found = copied_ranges(written, document)
    assert list(found) == sorted(set(found))
    for (_, end), (start, _) in pairwise(found):
        assert end < start
    for start, end in found:
        piece = " ".join(document[start:end].split())
        assert cell_len(piece) >= SHORTEST
        # Where pieces touch they are one range, so its first words are what is looked for.
        assert piece[:SHORTEST] in " ".join(written.split())


@given(st.text(), st.text())
def test_any_text_is_taken(answer: str, text: str) -> None:
    copied_ranges(answer, text)


def test_a_place_has_a_page_if_the_text_has_pages() -> None:
    assert place_of("a\nb\nc", 4) == "line 3"
    pages = "[Page 1]\none\n\n[Page 12]\ntwo\nthree"
    assert place_of(pages, pages.index("one")) == "page 1, line 1"
    assert place_of(pages, pages.index("three")) == "page 12, line 2"
    assert place_of(pages, 0) == "line 1"
    assert place_of("a\nb\nc", 4, 120) == "line 122"
    assert place_of(pages, pages.index("three"), 120) == "page 12, line 2"
