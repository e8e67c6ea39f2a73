"""No function of ours that reads texts takes time by the square of their length, whatever they are.

Each is tried on texts of doubling lengths. Processor time is compared where it can be told apart
from the clock's steps. If a doubling takes more than three times as long, three further doublings
must take more than 27 times as long: the square would take 64 times, a straight line 8 times, and
the noise of a busy machine does not reach between them.
"""

from __future__ import annotations

import gc
import itertools
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from app.chat.citations import marked, placed
from app.engine.turn.citations import cite
from app.estimate.guard import asks_for_every_token
from app.extras.serve.cutting import cut
from app.ingest import markdown
from app.ingest.calendar_text import calendar_events
from app.ingest.excerpt import excerpt, outline_of, page_ranges, split_path
from app.ingest.fields import field_text
from app.ingest.filenames import printable
from app.ingest.generated import is_generated
from app.ingest.html_styles import sheet
from app.ingest.ignore import parse, parse_attributes
from app.ingest.mail import read_mail
from app.ingest.names import distinct_names
from app.ingest.notebook import notebook_text
from app.ingest.number_formats import shown_number
from app.ingest.records import Rejected
from app.ingest.rtf import rtf_text
from app.ingest.text import decode
from app.ingest.web_page import mail_text, markup_text, page_text
from app.protocol.citations import Citation, CitationKind, Citations
from app.protocol.prompt import Document
from app.ui.transcript.answer import Sections
from app.util.json_amount import is_too_much
from app.util.places import gaps, headings, marks, place_of
from app.util.prose import as_markdown, reflow
from app.util.sanitize import sanitize, sanitize_line, without_hidden
from app.util.sentences import asks, asks_for_overview, questions_in, units
from app.util.words import stems

QUICK, SLOW = (0.005, 1 << 16), (0.15, 1 << 20)
"""Processor seconds that can be compared, and the length of a text with which a function that takes
less is let pass."""
EVERY = 5
"""Each function is tried with one in this many pieces."""
MAX_RATIO, DOUBLINGS, TRIES = 3.0, 3, 4
NUMBERS = itertools.count()
PIECES = (
    *(
        "a",
        " ",
        "\n",
        "a ",
        "a\n",
        "a. ",
        "A. b! ",
        "1.",
        "#",
        "# a\n",
        "## a\n\n",
        "[",
        "]",
        "[a](b)",
    ),
    *("```\n", "~~~\na\n", "`", "|", "| a | b |\n", "- a\n", "  - a\n", "> ", '"', "“a” ", "'a' "),
    *("[Page 1]\n", "[Page 1]\n# a\n", "[a, not read]\n", "\u200d", "\U000e0041", "\ufe00", "\xad"),
    *("<p>", "<b>", "<table><tr><td>", "<td>x", "<tr><td>x", "</p>", "<!--", "<a href='#a'>1</a>"),
    *("<ol reversed><li>", "<blockquote>", "<select><option>", "<p style='font-size:0'>", "<math>"),
    *("<file name='a'>b</file>\n", "<file>", "&amp;", "&#", "{", "}", '{"cell_type":', "[[", "\\"),
    *(
        "{\\rtf1 ",
        "\\cell ",
        "\\row",
        "\\trowd\\cellx9",
        "{\\field{\\*\\fldinst ",
        "\\u8364?",
        "\\'e4",
    ),
    *(
        "BEGIN:VEVENT\n",
        "RRULE:FREQ=DAILY\n",
        "a:b\n",
        " folded\n",
        "--b\n",
        "=?utf-8?q?a?=",
        "*/",
        "**/a\n",
    ),
    *(
        "あ",
        "。",
        "12 January 2026, ",
        "page 3-5,",
        "1-",
        ".a{",
        "a?",
        "/a",
        "\t",
        "\r",
        "\x1b[1m",
        "0;",
    ),
)
HEADERS = "From: a\nContent-Type: multipart/mixed; boundary=b\n\n--b\n"


def document(text: str) -> Document:
    return Document("notes.md", text)


def footnotes(text: str) -> None:
    found = (Citation(CitationKind.QUOTATION, 0, 9, 0, 0, len(text) // 2, len(text) // 2 + 9),)
    [*placed(Citations(found * 3, 0), [[document(text)]])]


def refused(function: Callable[[], object]) -> None:
    with suppress(Rejected):
        function()


FUNCTIONS: dict[str, Callable[[str], Any]] = {
    "headings": lambda text: [*headings(text)],
    "headings in other forms": lambda text: [
        [*headings(text, name)] for name in ("notes", "a.rst", "a.org", "a.adoc", "a.tex")
    ],
    "marks": lambda text: [*marks(text)],
    "gaps": lambda text: [*gaps(text)],
    "a place": lambda text: place_of(text, len(text) - 1),
    "footnotes": footnotes,
    "marks of footnotes": lambda text: marked(
        text, Citations((Citation(CitationKind.QUOTATION, 0, 9, 0, 0, 0, 9),), 0)
    ),
    "citations": lambda text: cite(text, "What is due?", [], None),
    "the outline": lambda text: outline_of(document(text)),
    "the outline of a PDF": lambda text: outline_of(Document("a.pdf", f"[Page 1]\n{text}")),
    "an excerpt": lambda text: refused(lambda: excerpt(document(text), "2-3,5")),
    "the name of an excerpt": lambda text: refused(lambda: excerpt(document("# a"), text)),
    "page ranges": lambda text: page_ranges(text, 100, ["i", "ii"]),
    "a path and its part": lambda text: split_path(f"a.pdf#{text}"),
    "sentences": units,
    "questions": questions_in,
    "a question": lambda text: (asks(text), asks_for_overview(text), asks_for_every_token(text)),
    "stems": stems,
    "prose": lambda text: (as_markdown(text), reflow(text)),
    "sections of an answer": lambda text: Sections().feed(text),
    "a request": lambda text: cut([text]),
    "shown": lambda text: (sanitize(text), sanitize_line(text), without_hidden(text)),
    "a name": printable,
    "names of files": lambda text: distinct_names(text[:50_000].split(" "), []),
    "cleaned": lambda text: (
        markdown.visible(text), markdown.plain(text), markdown.fenced(text), markdown.raised(text),
        markdown.struck(text), markdown.hidden(text), markdown.address("https://a", text),
    ),
    "a table": lambda text: markdown.table([row.split("|") for row in text.split("\n")]),
    "margins": lambda text: markdown.Margins().add("header", text),
    "a web page": page_text,
    "the HTML of a mail": mail_text,
    "a section of a book": markup_text,
    "a style sheet": sheet,
    "a mail": lambda text: read_mail((HEADERS + text).encode(), lambda: None),
    "a calendar": lambda text: [*calendar_events(f"BEGIN:VCALENDAR\n{text}")],
    "Rich Text": lambda text: rtf_text(b"{\\rtf1 " + text.encode()),
    "a notebook": lambda text: notebook_text(f'{{"cell_type": [{text}'),
    "the amount of JSON": lambda text: is_too_much(text, 1_000, 1_000),
    "an encoding": lambda text: refused(lambda: decode(b"\xe4\xf6" + text.encode())),
    "a generated file": lambda text: is_generated("a.js", text.encode()),
    "rules": lambda text: (parse(text.encode()), parse_attributes(text.encode())),
    "a field": lambda text: (field_text(f"EQ {text}", ""), field_text(f"SYMBOL {text}", "")),
    "a format of numbers": lambda text: shown_number(12.5, text),
}  # fmt: skip


def seconds(function: Callable[[str], Any], piece: str, length: int) -> float:
    text = piece * (length // len(piece)) + f"\0z{next(NUMBERS)}"  # in no cache
    gc.disable()  # it visits what all tests before this one have left
    try:
        started = time.thread_time()
        function(text)
        return time.thread_time() - started
    finally:
        gc.enable()


def grows_by_the_square(
    function: Callable[[str], Any], piece: str, measurable: float, longest: int
) -> bool:
    """Whether doublings take more than three times as long, however often they are tried."""
    length, before, took = 1 << 10, 0.0, 0.0
    while took < measurable and length < longest:
        length *= 2
        before, took = took, seconds(function, piece, length)
    if took < measurable:
        return False
    for _ in range(TRIES):
        before = min(before, *(seconds(function, piece, length // 2) for _ in range(3)))
        took = min(took, seconds(function, piece, length))
        if took < MAX_RATIO * before:
            return False
    longer = min(seconds(function, piece, length << DOUBLINGS) for _ in range(2))
    return longer > MAX_RATIO**DOUBLINGS * took


@pytest.mark.parametrize("limits", [QUICK, pytest.param(SLOW, marks=pytest.mark.slow)])
def test_no_function_is_worse_than_linear(limits: tuple[float, int]) -> None:
    slow = {
        name: pieces
        for number, (name, function) in enumerate(FUNCTIONS.items())
        if (
            pieces := [
                each
                for each in PIECES[number % EVERY :: EVERY]
                if grows_by_the_square(function, each, *limits)
            ]
        )
    }
    assert not slow


def test_a_square_is_found() -> None:
    def compare(text: str) -> None:
        for at in range(len(text)):
            text[at:].upper()  # far longer than the call itself, which is linear

    assert grows_by_the_square(compare, "ab", *QUICK)
