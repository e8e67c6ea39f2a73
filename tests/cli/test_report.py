"""What `specchat ask` prints about the passages that were read."""

from __future__ import annotations

from app.cli.report import MAX_EXCERPT, nearest_words
from tests.tables import table

CLAUSES = (
    "alleging that any patent claim is infringed by the landlord, who is responsible for the roof"
    " and all of its parts; see also the schedule of liability to the",
    "The tenant is responsible for the garden, and for the paths to the house and to the shed.",
    "Nothing here is about it, and this passage goes on and on for more than sixty characters.",
    "Short.",
)


UNSPACED = "漏" * 300 + "屋顶" + "漏" * 300


@table(
    "question, shown",
    [
        (
            "Who is responsible for the roof?",
            "… landlord, who is responsible for the roof and all of its …",
        ),
        ("Is anybody liable? For patents?", "alleging that any patent claim is infringed by the …"),
        ("What is it?", "alleging that any patent claim is infringed by the …"),
    ],
)
def test_a_passage_is_shown_by_the_words_nearest_to_the_question(question: str, shown: str) -> None:
    assert nearest_words(CLAUSES, question)[0] == shown


@table("text", ["roof " + "y" * 200, UNSPACED, "a b " * 99, ""])
def test_an_excerpt_is_short_and_of_one_line(text: str) -> None:
    for question in ("Who repairs the roof?", "屋顶在哪里?", ""):
        (shown,) = nearest_words([text.replace(" ", "\n")], question)
        assert len(shown) <= MAX_EXCERPT + 4
        assert "\n" not in shown
    assert "屋顶" in nearest_words([UNSPACED], "屋顶在哪里?")[0]
