"""Words are counted in the text itself, without a model."""

from __future__ import annotations

from dataclasses import replace

from app.engine.turn.counting import counted
from app.protocol.prompt import SEARCHED, Document, Origin
from tests.tables import table

TEXT = (
    "The library is free.\nA Library or libraries.\nnothing\nlibrary library\n"
    "ERROR 7 worker-2 was late\nerror worker-20\nThe patent license ends.\n"
)
LOG = Document("app.log", TEXT)


@table(
    "question, begins",
    [
        ("How often does library occur?", "“library” occurs 4 times in app.log, on 3 lines. ("),
        ("How many times does the word 'Library' appear?", "“Library” occurs 4 times"),
        ("how many times is “patent license” mentioned", "“patent license” occurs 1 time in"),
        ("Count the occurrences of free.", "“free” occurs 1 time in app.log, on 1 line."),
        ("Wie oft kommt das Wort library vor?", "“library” occurs 4 times"),
        ("How often does brar occur?", "“brar” does not occur in app.log. It is part of a longer"),
        ("How many lines contain worker-2?", "1 line of app.log has “worker-2” (1 time in all)."),
        ("How many ERROR lines are there?", "2 lines of app.log have “ERROR” (2 times in all)."),
        ("How many rows mention FATAL?", "“FATAL” does not occur in app.log. (Counted"),
        ("Wie viele Zeilen enthalten library?", "3 lines of app.log have “library” (4 times"),
        ("How many sections are there?", None),
        ("How often does it occur?", None),
        ("How often is the rent paid?", None),
        ("How many empty lines are there?", None),
        ("Who counts the books?", None),
    ],
)
def test_a_word_is_counted_where_a_question_asks_for_that(
    question: str, begins: str | None
) -> None:
    answer = counted(question, [LOG])
    assert answer is None if begins is None else answer is not None
    assert (answer or "").startswith(begins or "")


def test_the_first_places_are_shown_and_the_others_counted() -> None:
    many = Document("many.txt", "A line with a word.\nNone.\n" * 9)
    answer = counted("How often does word occur?", [many])
    assert answer is not None
    assert "many.txt, line 1: A line with a word." in answer
    assert "many.txt, line 9: A line with a word." in answer
    assert answer.endswith("and 4 more lines.")


def test_of_several_documents_each_has_its_count() -> None:
    other = Document("b.txt", "word word\n")
    answer = counted("How often does word occur?", [Document("a.txt", "a word"), other, LOG])
    assert answer is not None
    assert answer.startswith("“word” occurs 3 times in 3 documents, on 2 lines.")
    assert "- b.txt: 2\n- a.txt: 1" in answer


def test_nothing_is_counted_where_only_some_lines_of_a_file_are_known() -> None:
    found = replace(LOG, origin=Origin("/logs/app.log", 3_000_000_000, part=SEARCHED))
    assert counted("How often does library occur?", [found]) is None
