"""Long messages are cut into documents and a question, and nothing of them is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.serve.cutting import LONG, cut

PASTE = "\n".join(f"line {n} of a long file" for n in range(400))
QUESTION = "What does line 7 say?"


@pytest.mark.parametrize("text", [f"{PASTE}\n\n{QUESTION}", f"{QUESTION}\n\n{PASTE}"])
def test_the_short_paragraph_at_an_end_is_the_question(text: str) -> None:
    (document,), question = cut([text])
    assert question == QUESTION
    assert document.text == PASTE


def test_what_is_short_stays_whole() -> None:
    text = f"{PASTE[: LONG - 100]}\n\n{QUESTION}"[: LONG - 1]
    assert cut([text]) == ((), text)


def test_long_code_blocks_become_documents_and_their_names_stay() -> None:
    text = (
        f"Compare these.\n\n```old.py\n{PASTE}\n```\n\n```python\n{PASTE}!\n```\n\nWhich is right?"
    )
    documents, question = cut([text])
    assert [document.name for document in documents] == ["old.py", "python"]
    assert [document.text for document in documents] == [f"{PASTE}\n", f"{PASTE}!\n"]
    assert question == "Compare these.\n\n[old.py]\n\n[python]\n\nWhich is right?"


def test_tagged_files_become_documents() -> None:
    text = f'<file path="a/b.txt">\n{PASTE}</file>\n{QUESTION}\n```\nshort()\n```'
    (document,), question = cut([text])
    assert (document.name, document.text) == ("a/b.txt", PASTE)
    assert question == f"[a/b.txt]\n{QUESTION}\n```\nshort()\n```"


def test_a_long_part_beside_a_short_one_is_a_document() -> None:
    (document,), question = cut([PASTE, QUESTION])
    assert (document.text, question) == (PASTE, QUESTION)


def test_without_paragraphs_the_last_lines_are_the_question() -> None:
    (document,), question = cut([PASTE])
    assert f"{document.text}\n{question}" == PASTE
    assert 20 < len(question) < 700


def test_a_text_without_lines_is_not_cut() -> None:
    assert cut(["x" * 9000]) == ((), "x" * 9000)


@given(st.lists(st.sampled_from([PASTE, QUESTION, "", "\n\n", "```\n", "<file>", "x" * 5000])))
def test_no_text_is_lost(parts: list[str]) -> None:
    text = "\n".join(parts)
    documents, question = cut([text])
    letters = "".join(document.text for document in documents) + question
    for word in ("400", "line 399", "What does", "x" * 5000):
        assert letters.count(word) >= text.count(word)
