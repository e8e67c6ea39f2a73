"""Which passages an answer quotes, and which support it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.model.prompt import Prompt, PromptText
from app.engine.model.text_encoder import TextEncoder, multilingual_encoder
from app.engine.turn.citations import MIN_WORDS, ReadText, cite, read_texts
from app.protocol.citations import Citation, CitationKind, Citations
from tests.tables import table

LEASE = (
    "The tenant pays the rent on the first day.\n"
    "Either party may end this\n    agreement with three months' notice.\n"
    "Das Übrige regelt die Hausordnung für alle.\n"
    "租户应当在每个月的第一天支付租金，并保持房屋清洁。\n"
    "key = 'c0ffee00-1234-5678-9abc-def012345678'\n"
)
CONTRACT = (
    "# Term\n\nThis contract begins on 1 March 2024. It runs for three years.\n\n"
    "# Termination\n\nThe customer can cancel the contract in writing within 30 days.\n"
    "The supplier repays all fees after a cancellation.\n\n"
    "# Liability\n\nThe supplier is not liable for damage by fire, flood or war.\n"
)


def read_text(text: str, *unread: tuple[int, int], document: int = 0) -> ReadText:
    mask = np.zeros(len(text), np.int64)
    for start, end in unread:
        mask[start:end] = 1
    return ReadText(0, document, text, np.concatenate([[0], np.cumsum(mask)]))


def found(
    answer: str, *texts: ReadText, encoder: TextEncoder | None = None, question: str = ""
) -> Citations:
    return cite(answer, question, texts, encoder)


def passages(citations: Citations, *texts: str, kind: CitationKind) -> list[str]:
    return [
        texts[each.document][each.passage_start : each.passage_end]
        for each in citations.found
        if each.kind is kind
    ]


@table(
    "answer, expected",
    [
        ("", []),
        ("The tenant has to pay the rent.", []),  # only short pieces
        (
            'It says: "The tenant pays the rent on the first day."',
            ["The tenant pays the rent on the first day"],
        ),
        (
            "- **Either party may end this agreement** with notice",
            ["Either party may end this\n    agreement with"],
        ),
        ("Either party may end this agreementation", ["Either party may end this"]),
        ("the tenant pays the RENT on the first", ["The tenant pays the rent on the first"]),
        (
            "“Das Übrige regelt die Hausordnung für alle”",
            ["Das Übrige regelt die Hausordnung für alle"],
        ),
        ("原文：租户应当在每个月的第一天支付租金。", ["租户应当在每个月的第一天支付租金"]),
        ("It is c0ffee00-1234-5678-9abc-def012345678.", ["c0ffee00-1234-5678-9abc-def012345678"]),
        ("```\nThe tenant pays the rent on the first day.\n```", []),  # code is never marked
        (
            "He wrote at length to all of his friends that the tenant pays the rent at last.",
            [],
        ),  # a phrase in a sentence of its own
    ],
)
def test_words_that_stand_in_both_are_a_quotation(answer: str, expected: list[str]) -> None:
    citations = found(answer, read_text(LEASE))
    assert passages(citations, LEASE, kind=CitationKind.QUOTATION) == expected


def test_only_a_place_that_was_read_is_cited() -> None:
    text = "the same words stand here twice.\n" * 3
    answer = "the same words stand here twice."

    def starts(*unread: tuple[int, int]) -> list[int]:
        return [each.passage_start for each in found(answer, read_text(text, *unread)).found]

    assert starts() == [0]
    assert starts((0, 40)) == [66]
    assert starts((0, len(text))) == []
    assert starts((10, 12), (43, 45), (75, 77)) == []


def test_a_quotation_does_not_span_what_was_not_read() -> None:
    text = "one two three four five ------ six seven eight nine ten"
    answer = "One two three four five six seven eight nine ten."
    (whole,) = found(answer, read_text(text)).found
    assert text[whole.passage_start : whole.passage_end] == text
    skipped = text.index("---")
    citations = found(answer, read_text(text, (skipped, skipped + 2)))
    assert all(
        each.passage_end < skipped or skipped < each.passage_start for each in citations.found
    )


@pytest.mark.parametrize(
    ("answer", "passage"),
    [
        (
            "A customer may cancel in writing for 30 days.",
            "The customer can cancel the contract in writing within 30 days.",
        ),
        ("The contract begins in March 2024.", "This contract begins on 1 March 2024."),
        (
            "After a cancellation, the supplier repays the fees.",
            "The supplier repays all fees after a cancellation.",
        ),
    ],
)
def test_a_sentence_gets_the_passage_that_supports_it(answer: str, passage: str) -> None:
    text = read_text(CONTRACT)
    citations = found(answer, text, encoder=multilingual_encoder())
    assert passages(citations, CONTRACT, kind=CitationKind.SUPPORT) == [passage]
    assert citations.uncited == 0


def test_a_sentence_that_quotes_its_passage_has_one_citation() -> None:
    answer = "The supplier is not liable for damage by fire, by a flood or during any war."
    citations = found(answer, read_text(CONTRACT), encoder=multilingual_encoder())
    (only,) = citations.found
    assert only.kind is CitationKind.QUOTATION
    assert citations.uncited == 0


@table(
    "answer, uncited",
    [
        ("A customer may cancel in writing for 90 days.", 1),  # another number
        ("Whales live in all of the oceans of the world.", 1),
        ("Whales live in all oceans. Elephants live in large herds.", 2),
        ("Yes.", 0),
        ("Hello!", 0),
        ("Do you want to cancel the contract?", 0),
        ("# Whales of the world\n\nHere is a list of them:", 0),
        ("```\nwhales = ocean.find(1, 2, 3)\n```", 0),
    ],
)
def test_sentences_without_a_passage_are_counted(answer: str, uncited: int) -> None:
    citations = found(answer, read_text(CONTRACT), encoder=multilingual_encoder())
    assert citations == Citations((), uncited)


def test_a_scrap_supports_no_longer_sentence() -> None:
    text = "with the fees of the supplier.\n\nAnother sentence stands here."
    answer = "The customer cancels the contract with the fees of all suppliers."
    assert found(answer, read_text(text), encoder=multilingual_encoder()) == Citations((), 1)


def test_a_sentence_that_repeats_itself_states_nothing() -> None:
    answer = "The fees, the fees, the fees, the fees, the fees, the fees are repaid by suppliers."
    assert found(answer, read_text(CONTRACT), encoder=multilingual_encoder()) == Citations()


def test_numbers_are_shared_by_citations_of_one_passage() -> None:
    def citation(start: int, passage: int) -> Citation:
        return Citation(CitationKind.SUPPORT, start, start + 5, 0, 0, passage, passage + 9)

    assert Citations((citation(0, 20), citation(9, 0), citation(20, 20))).numbers == (1, 2, 1)


def test_characters_of_tokens_that_were_not_read_are_not_read() -> None:
    content = "ab€cd"
    # The tokens are `ab`, three bytes of the euro sign, and `cd`.
    starts = np.array([0, 2, 2, 2, 3, 5])
    prompt = Prompt(
        np.zeros(8, np.int32),
        (),
        {},
        texts=(
            PromptText(0, 1, False, 2, starts, content),
            PromptText(0, None, False, 0, np.array([0, 1, 2]), "xy"),
        ),
    )

    def is_read(*tokens: int) -> list[bool]:
        mask = np.zeros(8, bool)
        mask[list(tokens)] = True
        (text,) = read_texts(prompt, mask)
        assert (text.message, text.document) == (0, 1)
        return [text.is_read(index, index + 1) for index in range(len(content))]

    assert is_read(*range(2, 7)) == [True] * 5
    assert is_read(2, 3, 5, 6) == [True, True, False, True, True]
    assert is_read(6) == [False, False, False, True, True]
    assert is_read() == [False] * 5


words = st.lists(
    st.sampled_from(
        ["alpha", "beta", "gamma", "delta", "", "epsilon\n", "租户", "支付", "x,", "7."]
    )
)
ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=3)


@settings(deadline=None)
@given(words, st.lists(words, min_size=1, max_size=2), ranges)
def test_a_citation_lies_in_what_was_read(
    answer: list[str], documents: list[list[str]], unread: list[tuple[int, int]]
) -> None:
    written, contents = " ".join(answer), [" ".join(each) for each in documents]
    texts = [
        read_text(content, *unread, document=number) for number, content in enumerate(contents)
    ]
    citations = found(written, *texts)
    quoted = [each for each in citations.found if each.kind is CitationKind.QUOTATION]
    for one, other in pairwise(sorted(quoted, key=lambda each: each.start)):
        assert one.end <= other.start
    for each in citations.found:
        assert 0 <= each.start < each.end <= len(written)
        assert 0 <= each.passage_start < each.passage_end <= len(contents[each.document])
        assert texts[each.document].is_read(each.passage_start, each.passage_end)
    for each in quoted:
        piece = contents[each.document][each.passage_start : each.passage_end]
        assert len(piece.replace("租户", "租 户").replace("支付", "支 付").split()) >= MIN_WORDS
        assert "".join(filter(str.isalnum, piece)) == "".join(
            filter(str.isalnum, written[each.start : each.end])
        )


@settings(deadline=None)
@given(st.text(), st.text(), st.text())
def test_any_text_is_taken(answer: str, question: str, text: str) -> None:
    found(answer, read_text(text), question=question)
