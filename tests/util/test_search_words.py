"""What words are found by."""

from __future__ import annotations

from app.util.search_words import query, stem
from tests.tables import table


@table(
    "words",
    [
        "licence license licences licensing licensed licencing",
        "organise organize organises organising organized",
        "organisation organization organisations",
        "colour color colours coloured",
    ],
)
def test_spellings_and_endings_of_a_word_are_one(words: str) -> None:
    assert len({stem(word) for word in words.split()}) == 1


def test_words_for_grammar_are_not_looked_for() -> None:
    assert list(query("Where is the licence of our colour printer?")) == [
        "licens",
        "color",
        "printer",
    ]
