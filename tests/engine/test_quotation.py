"""The sentence that a model quotes which can only quote."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.prompt import PromptText
from app.engine.quotation import LONGEST, NEAR, best_sentence, quotes_phrase, sentences
from app.engine.text_encoder import built_in_encoder
from app.util.assets import assets_path

GPL = (assets_path() / "demo" / "gpl-3.0.txt").read_text(encoding="utf-8")
VIOLATION = "How many days do I have to fix a violation?"


def text(content: str, document: int | None = 0) -> PromptText:
    return PromptText(0, document, False, 7, np.arange(len(content) + 1), content)


def quoted(question: str, *texts: PromptText) -> str | None:
    found = best_sentence(texts, question, built_in_encoder(), lambda done, of: None)
    return found.text if found is not None and found.score >= NEAR else None


@given(st.text(alphabet="ab .?!\n。", max_size=60) | st.text(max_size=2000))
def test_sentences_are_all_of_a_text_but_white_space(content: str) -> None:
    found = sentences(content)
    assert "".join("".join(content[a:b].split()) for a, b in found) == "".join(content.split())
    for start, end in found:
        assert content[start:end] == content[start:end].strip()
        assert 0 < end - start <= LONGEST


def test_long_lines_are_cut_between_words() -> None:
    words = " ".join(f"word{number}" for number in range(200))
    assert all(words[a:b].split()[0] in words.split() for a, b in sentences(words))
    assert sentences("x" * 1000) == [(0, 400), (400, 800), (800, 1000)]


@pytest.mark.parametrize(
    ("question", "part"),
    [
        (VIOLATION, "prior to 30 days after"),
        ("May I charge money for a copy?", "any price or no price"),
        ("When may network access be denied?", "adversely affects the operation"),
    ],
)
def test_it_is_the_one_that_answers(question: str, part: str) -> None:
    found = quoted(question, text(GPL))
    assert found is not None
    assert part in " ".join(found.split())


@pytest.mark.parametrize("question", ["Which whales live in the Arctic?", "Wie alt wurde er?"])
def test_nothing_is_quoted_where_nothing_answers(question: str) -> None:
    assert quoted(question, text(GPL)) is None


def test_only_documents_are_quoted_and_headings_only_where_there_is_nothing_else() -> None:
    question = "What happens to patents?"
    assert quoted(question, text("What happens to patents is this.", document=None)) is None
    found = quoted(question, text("Patents.\n\nWhat happens to the patents of others is unknown."))
    assert found is not None
    assert found.endswith("unknown.")


def test_a_sentence_knows_its_tokens() -> None:
    content = "Nothing here. The dog of our neighbours barks at night. The end."
    found = best_sentence(
        [text(content)], "When does the dog bark?", built_in_encoder(), lambda done, of: None
    )
    assert found is not None
    assert found.tokens == (7 + content.index("The dog"), 7 + content.index(" The end"))


def test_a_phrase_in_quotation_marks_is_found_across_lines() -> None:
    texts = [text("One of the\n  two things.")]
    assert quotes_phrase('What does it say of "of the two"?', texts)
    assert quotes_phrase("Was heißt „of the two“?", texts)
    assert not quotes_phrase('What does it say of "of the three"?', texts)
    assert not quotes_phrase("What does it say of the two?", texts)
    assert not quotes_phrase('Who was it that found "of the two" the one that lasts?', texts)
