"""A document as passages, and as rows."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from app.chat.turn_progress import TurnProgress
from app.protocol.citations import Citation, CitationKind, Citations
from app.protocol.events import ImportanceMap, Planned, Selected
from app.protocol.prompt import Document, Segment, SegmentKind, Span, SpanReason, SpanText
from app.protocol.stats import Reading
from app.ui.spans.passages import (
    Collection,
    Passage,
    Position,
    ReadDocument,
    ReadKind,
    read_documents,
)
from app.ui.spans.view import CollapsedRange, WrappedRows, visible_text
from tests.patience import PATIENCE
from tests.tables import table

TEXT = "First line.\nSecond line.\n\nThird, a paragraph\nof two lines.\n\nLast."


SEGMENTS = (Segment(SegmentKind.DOCUMENT, 0, 60, 0, 0),)


def selected(
    *texts: tuple[int, int, int, int], pinned: tuple[int, ...] = (), later: tuple[int, ...] = ()
) -> Selected:
    """Of (message, document, start, end), a span each."""
    reasons = dict.fromkeys(pinned, SpanReason.PINNED) | dict.fromkeys(
        later, SpanReason.NEEDED_LATER
    )
    spans = tuple(
        Span(10 * i, 10 * i + 5, reasons.get(i, SpanReason.IMPORTANT), 2.0)
        for i in range(len(texts))
    )
    places = tuple(SpanText(i, *text) for i, text in enumerate(texts))
    return Selected(1, 0.2, 10, 100, spans, places)


def progress(**known: Any) -> TurnProgress:
    return TurnProgress(0.2, **known)


def document(*passages: Passage, text: str = TEXT) -> ReadDocument:
    return ReadDocument(0, 0, "a.txt", text, passages)


def test_passages_read_while_answering_have_their_own_mark() -> None:
    chosen = selected((0, 0, 0, 12), (0, 0, 30, 40), later=(1,))
    (document,) = read_documents([[Document("a.txt", TEXT)]], progress(selected=chosen))
    assert [p.kind for p in document.passages] == [
        ReadKind.SELECTED,
        ReadKind.UNREAD,
        ReadKind.READ_ON,
        ReadKind.UNREAD,
    ]
    assert document.is_read(30, 40)


def test_passages_cover_every_document() -> None:
    messages = [[Document("a.txt", TEXT), Document("b.txt", "short")], [], [Document("c", "x" * 9)]]
    chosen = selected((0, 0, 12, 24), (0, 0, 24, 30), (2, 0, 0, 4), pinned=(1,))
    a, b, c = read_documents(messages, progress(selected=chosen))
    assert [(p.start, p.end, p.kind) for p in a.passages] == [
        (0, 12, ReadKind.UNREAD),
        (12, 24, ReadKind.SELECTED),
        (24, 30, ReadKind.PINNED),
        (30, len(TEXT), ReadKind.UNREAD),
    ]
    assert [p.kind for p in b.passages] == [ReadKind.UNREAD]
    assert [p.kind for p in c.passages] == [ReadKind.SELECTED, ReadKind.UNREAD]
    assert (c.message, c.document) == (2, 0)
    assert a.read_fraction == pytest.approx(18 / len(TEXT))
    assert a.passages[1].score == 2.0


def test_without_a_selection_everything_was_read() -> None:
    planned = Planned(1, Reading.DENSE, "", 0.2, 100, 60, 0, (), SEGMENTS)
    (only,) = read_documents([[Document("a", TEXT)]], progress(planned=planned))
    assert [p.kind for p in only.passages] == [ReadKind.SELECTED]
    assert only.read_fraction == 1.0
    assert only.importance_at(3) is None


@table("failed", [False, True])
def test_before_a_selection_nothing_was_read(failed: bool) -> None:
    planned = Planned(1, Reading.SPARSE, "", 0.2, 100, 60, 0, (), SEGMENTS)
    for known in (None, planned):
        turn = progress(planned=known, failed=failed)
        (only,) = read_documents([[Document("a", TEXT)]], turn)
        assert [p.kind for p in only.passages] == [ReadKind.UNREAD]


def test_an_empty_document_is_omitted() -> None:
    assert not read_documents([[Document("a", "")]], progress())


def test_importance_is_of_the_documents_own_tokens() -> None:
    segments = (
        Segment(SegmentKind.TEMPLATE, 0, 20),
        Segment(SegmentKind.DOCUMENT, 20, 80, 0, 0),
        Segment(SegmentKind.QUESTION, 80, 100, 0),
    )
    planned = Planned(1, Reading.SPARSE, "", 0.2, 100, 60, 0, (), segments)
    buckets = ImportanceMap(1, (9, 9, 1, 0, 0, 0.5, 0, 0.25, 9, 9), 4, 4)
    (only,) = read_documents(
        [[Document("a", "x" * 600)]],
        progress(planned=planned, selected=selected(), importance=buckets),
    )
    average = 3.775
    assert only.importance == pytest.approx([each / average for each in (1, 0, 0, 0.5, 0, 0.25)])
    assert only.importance_at(0) == pytest.approx(1 / average)
    assert only.importance_at(599) == pytest.approx(0.25 / average)


def test_from_passage_to_passage() -> None:
    read = document(
        Passage(0, 12, ReadKind.UNREAD),
        Passage(12, 20, ReadKind.SELECTED),
        Passage(20, 30, ReadKind.UNREAD),
        Passage(30, 40, ReadKind.PINNED),
        Passage(40, len(TEXT), ReadKind.UNREAD),
    )
    collection = Collection([read])
    following = [collection.next_read((0, at)) for at in (0, 12, 15, 35)]
    assert following == [(0, 12), (0, 30), (0, 30), None]
    previous = [collection.previous_read((0, at)) for at in (5, 12, 13, 30, 31)]
    assert previous == [None, None, (0, 12), (0, 12), (0, 30)]
    assert [p.start for p in read.between(19, 31)] == [12, 20, 30]


def test_finding_ignores_case_and_kinds_of_white_space() -> None:
    read = document(Passage(0, len(TEXT), ReadKind.UNREAD))
    assert [TEXT[a:b] for a, b in read.find("LINE.")] == ["line.", "line."]
    assert [TEXT[a:b] for a, b in read.find("paragraph of")] == ["paragraph\nof"]
    assert read.find("  ") == []
    assert read.find("(") == []


PARAGRAPHS = [
    (
        "Some.\n\n\nA title\n\nIts text\nof two.\n\nMore.",
        "title",
        "A title\n\nIts text\nof two.",
    ),
    (
        "Some.\n\nA title\n\nIts text\nof two.\n\nMore.",
        "of two",
        "A title\n\nIts text\nof two.",
    ),
    (
        "Of a double-\n\nspaced text\n\nall.\n\nNext.",
        "spaced",
        "Of a double-\n\nspaced text\n\nall.",
    ),
    ("a = 1;\n\ndef f():\n    return 2\n\nb = 3;", "return", "def f():\n    return 2"),
    ("One.\n\nTwo.\n\nThree.", "Two", "Two."),
]


@table(
    "text, at, paragraph, newline",
    [(*row, newline) for row in PARAGRAPHS for newline in ("\n", "\r\n")],
)
def test_a_paragraph_goes_from_blank_line_to_blank_line(
    text: str, at: str, paragraph: str, newline: str
) -> None:
    text, paragraph = text.replace("\n", newline), paragraph.replace("\n", newline)
    whole = document(Passage(0, len(text), ReadKind.UNREAD), text=text)
    start, end = whole.paragraph(text.index(at))
    assert text[start:end] == paragraph
    blank = text.index(newline * 2) + len(newline)
    following = len(text) - len(text[blank:].lstrip())
    assert whole.paragraph(blank) == whole.paragraph(following)


def test_in_a_text_without_blank_lines_a_paragraph_is_whole_lines() -> None:
    lines = [f"{number}: something happened" for number in range(2_000)]
    text = "\n".join(lines)
    whole = document(Passage(0, len(text), ReadKind.UNREAD), text=text)
    start, end = whole.paragraph(text.index("1000: "))
    assert set(text[start:end].split("\n")) <= set(lines)
    assert 3_000 < end - start <= 4_000


@given(st.text(st.sampled_from("ab. \n\r"), min_size=1, max_size=80), st.data())
def test_a_paragraph_has_its_place_and_no_white_space_around_it(text: str, data: Any) -> None:
    at = data.draw(st.integers(0, len(text) - 1))
    start, end = document(Passage(0, len(text), ReadKind.UNREAD), text=text).paragraph(at)
    assert text[start:end].strip() == text[start:end]
    line = text[text.rfind("\n", 0, at) + 1 :].partition("\n")[0]
    assert (start < end) is bool(text.strip())
    assert line.strip() in text[start:end]


def test_a_paragraph_without_end_is_cut_around_the_place() -> None:
    text = "word " * 20_000
    start, end = document(Passage(0, len(text), ReadKind.UNREAD), text=text).paragraph(50_000)
    assert start < 50_000 < end
    assert end - start <= 4000


@settings(max_examples=2 * settings().max_examples)
@given(st.text(st.sampled_from("ab \n\t漢é\u0301\x1b\u202e"), max_size=200), st.integers(8, 40))
def test_rows_hold_the_whole_text_and_fit(text: str, width: int) -> None:
    rows = WrappedRows(text, width)
    pieces = [rows[i] for i in range(len(rows))]
    assert "".join(text[a:b] for a, b in pieces) == text.replace("\n", "")
    assert all(first[1] <= second[0] for first, second in pairwise(pieces))
    assert all(cell_len(visible_text(text[a:b]).rstrip(" ")) <= width for a, b in pieces)
    for row, (start, end) in enumerate(pieces):
        assert all(rows.at(offset) == row for offset in range(start, end))


def test_lines_are_rows_and_break_at_spaces() -> None:
    rows = WrappedRows("one two three four\n\nfive", 10)
    shown_rows = [rows.text[slice(*rows[i])] for i in range(len(rows))]
    assert shown_rows == ["one two ", "three four", "", "five"]


def test_a_fold_is_one_row() -> None:
    text = "a\n" * 5 + "b\n" + "c\n" * 5
    rows = WrappedRows(text, 20, [CollapsedRange(0, 10, 5), CollapsedRange(12, 22, 5)])
    assert len(rows) == 3
    assert rows.collapsed(0) == CollapsedRange(0, 10, 5)
    assert rows.collapsed(1) is None
    assert [rows.at(offset) for offset in (0, 9, 10, 12, 21)] == [0, 0, 1, 2, 2]


@st.composite
def folders(draw: st.DrawFn) -> list[ReadDocument]:
    """Documents of passages that were read or were not, one after the other."""
    found = []
    for number in range(draw(st.integers(1, 6))):
        passages, at = [], 0
        for length in draw(st.lists(st.integers(1, 4), min_size=1, max_size=6)):
            read = draw(st.sampled_from(ReadKind))
            score = draw(st.sampled_from([1.0, 2.0])) if read is ReadKind.SELECTED else None
            passages.append(Passage(at, at + length, read, score))
            at += length
        found.append(ReadDocument(0, number, f"{number}.txt", "x" * at, tuple(passages)))
    return found


@given(folders())
def test_next_visits_every_passage_of_every_document_once(folder: list[ReadDocument]) -> None:
    """From the most important document on, and `previous` goes the same way back."""
    collection = Collection(folder)
    place: Position | None = collection.first()
    seen: list[Position] = []
    while place is not None and collection.passages:
        seen.append(place)
        assert collection.passage_number(place) == len(seen)
        place = collection.next_read(place)
    every = [
        (index, passage.start)
        for index, document in enumerate(collection.documents)
        for passage in document.passages
        if passage.kind is not ReadKind.UNREAD
    ]
    assert seen == every
    back = seen[-1:]
    while back and (before := collection.previous_read(back[-1])) is not None:
        back.append(before)
    assert back == seen[::-1]
    highest = max((p.score or 0 for d in folder for p in d.passages), default=0)
    if highest:
        assert highest in [passage.score for passage in collection[0].passages]


def test_equally_important_documents_stay_in_their_order() -> None:
    dense = [document(Passage(0, len(TEXT), ReadKind.SELECTED)) for _ in range(3)]
    folder = [replace(each, document=number) for number, each in enumerate(dense)]
    assert list(Collection(folder).documents) == folder


def test_a_large_folder_is_quick() -> None:
    """500 documents of 1 KB, 4,000 passages: what every key and every keep costs. The bound only
    finds what is quadratic: other work on the machine doubles CPU seconds."""
    text = "A clause of forty characters, no more.\n" * 26
    messages = [[Document(f"{i}.txt", text) for i in range(500)]]
    chosen = selected(*((0, i, 120 * j, 120 * j + 60) for i in range(500) for j in range(8)))
    began = time.process_time()
    collection = Collection(read_documents(messages, progress(selected=chosen)))
    assert collection.passages == 4_000
    assert len(collection.find("clause")) == 13_000
    place: Position | None = collection.first()
    for _ in range(100):
        assert place is not None
        assert collection.passage_number(place)
        place = collection.next_read(place)
    assert time.process_time() - began < 5.0 * PATIENCE


def test_cited_ranges_are_merged_and_a_citation_is_found() -> None:
    def cited(document: int, start: int, end: int) -> Citation:
        return Citation(CitationKind.SUPPORT, 0, 5, 0, document, start, end)

    found = (cited(1, 30, 40), cited(1, 5, 12), cited(1, 10, 20), cited(0, 3, 4))
    messages = [[Document("a.txt", TEXT), Document("b.txt", TEXT)]]
    segments = tuple(Segment(SegmentKind.DOCUMENT, 30 * i, 30 * i + 30, 0, i) for i in (0, 1))
    dense = progress(planned=Planned(1, Reading.DENSE, (), 0.2, 100, 60, 0, (), segments))
    documents = read_documents(messages, dense, citations=Citations(found))
    assert [each.cited for each in documents] == [((3, 4),), ((5, 20), (30, 40))]
    collection = Collection(documents)
    assert collection.passage_of(cited(1, 10, 20)) == (1, 10)
    assert collection.passage_of(cited(7, 10, 20)) is None
    assert collection.next_cited((0, 3)) == (1, 5)
