"""Splits a text into units (sentences, or lines of code and tables), and a message into questions
that are searched for separately."""

from __future__ import annotations

import re
from dataclasses import dataclass

from app.util.prose import is_code

MAX_HEADING_WORDS = 12
LONGEST = 400
"""Maximum characters of a unit. Longer sentences, code and tables are cut at lines or words."""
MAX_QUESTIONS, MAX_PARTS = 8, 16
"""Maximum questions of a message that are searched for separately, and approximate maximum parts of
a long message."""
_END = re.compile(r"[.?!][\"')\]”»]*(?=\s)|[。！？]")
_AFTER_QUESTION = re.compile(r"(?<=[?？])\s+")
"""Matches white space after a question, even if the next sentence begins in lower case."""
_MARKER = re.compile(r"(?:[-*+•]|\(?(?:\d{1,3}|[A-Za-z]|[ivxIVX]{1,5})[.)])(?=\s|$)")
"""Matches the beginning of a list item."""
_NUMBERED = re.compile(r"(?:\d+(?:\.\d+)*\.?|[A-Z]\.|§|Chapter|Section|Article|Appendix)\s+\S")
_DOTS = ("....", ". . .", "……", "· · ·")
"""Leaders between a heading and its page number in a table of contents."""
_ABBREVIATION = re.compile(
    r"(?:e\.g|i\.e|cf|vs|mrs?|ms|dr|st|prof|sect?|nos?|fig|pp?|art|ch|vol|approx|ca|z\.b|d\.h|bzw"
    r"|vgl|nr|s|abs)\."
)


@dataclass(frozen=True, slots=True)
class Unit:
    """Characters `start:end` of a text, in paragraph number `paragraph`. `is_heading`: it is a
    heading, a line of a table of contents or another fragment. `is_inner`: it begins inside a
    sentence. `is_open`: it ends inside a sentence."""

    start: int
    end: int
    paragraph: int
    is_heading: bool = False
    is_inner: bool = False
    is_open: bool = False


def units(text: str) -> list[Unit]:
    """Split a text into units, in order. They cover everything but white space; each has at most
    LONGEST characters."""
    found: list[Unit] = []
    for number, (start, end, fenced) in enumerate(_paragraphs(text)):
        paragraph = text[start:end]
        code = fenced or is_code(paragraph)
        heading = not code and _is_heading(paragraph)
        sentences = [(start, end)] if code or heading else _sentences(text, start, end)
        opening = paragraph.lstrip().partition("\n")[0]
        is_tail = not code and opening[:1].islower() and not is_code(opening)
        for first, last in sentences:
            begins_inside = first == start and is_tail
            while first < last:
                cut = _cut(text, first, last)
                part = text[first:cut]
                if bare := part.strip():
                    at = first + part.index(bare)
                    inner, is_open = begins_inside and not code, cut < last and not code
                    found.append(Unit(at, at + len(bare), number, heading, inner, is_open))
                    begins_inside = True
                first = cut
    return found


def _paragraphs(text: str) -> list[tuple[int, int, bool]]:
    """Paragraphs as (start, end, whether it is in a Markdown code fence). Blank lines separate
    them. A Markdown heading and a line of a table of contents are separate paragraphs."""
    found: list[tuple[int, int, bool]] = []
    at, start, fence = 0, -1, ""
    for line in text.split("\n"):
        bare, end = line.strip(), at + len(line)
        is_fence = bare.startswith(fence or ("```", "~~~"))
        alone = not fence and ((bare.startswith("#") and " " in bare) or _is_contents(bare))
        if (not bare or alone or is_fence) and start >= 0:
            closes = is_fence and fence
            found.append((start, end if closes else at, bool(fence)))
            start = -1
            if closes:
                fence, at = "", end + 1
                continue
        if is_fence:
            fence = "" if fence else bare[:3]
            start = at if fence else -1
            if not fence:
                found.append((at, end, True))
        elif alone:
            found.append((at, end, False))
        elif bare and start < 0:
            start = at
        at = end + 1
    if start >= 0:
        found.append((start, len(text), bool(fence)))
    return found


def _is_contents(line: str) -> bool:
    """Whether `line` belongs to a table of contents: it has leaders and a page number."""
    return line[-1:].isalnum() and line.rstrip("0123456789ivxlc ").endswith(_DOTS)


def _is_heading(paragraph: str) -> bool:
    bare = paragraph.strip()
    if "\n" not in bare and _is_contents(bare):
        return True
    if len(bare) > LONGEST or len(bare.split()) >= MAX_HEADING_WORDS:
        return False
    if bare.startswith("#") or ("\n" not in bare and _NUMBERED.match(bare)):
        return True
    return not bare.rstrip("\"')]”»").endswith((".", "?", "!", ":", ",", ";", "。", "！", "？"))


def _sentences(text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Sentences of a paragraph of prose, as (start, end). A piece that begins in lower case, or
    closes a bracket that it did not open, is joined to the sentence before."""
    found: list[tuple[int, int]] = []
    first = start
    for match in _END.finditer(text, start, end):
        if _ends_sentence(text, match.start(), match.end(), start, end):
            found.append((first, match.end()))
            first = match.end()
    if text[first:end].strip() or not found:
        found.append((first, end))
    merged: list[tuple[int, int]] = []
    for first, last in found:
        closes = text.count(")", first, last) > text.count("(", first, last)
        if merged and closes and not _MARKER.match(text[first:last].lstrip()[:8]):
            first, _ = merged.pop()
        merged.append((first, last))
    return merged


def _ends_sentence(text: str, mark: int, after: int, start: int, end: int) -> bool:
    follows = text[after : min(after + 80, end)].lstrip()
    if not follows:
        return True
    if follows[0].islower() and not _MARKER.match(follows):
        return False
    if text[mark] != ".":
        return True
    begin = max(mark - 24, start)
    word = text[begin : mark + 1].split()[-1].lstrip("([\"'“").casefold()
    if _ABBREVIATION.fullmatch(word):
        return False
    number = word.rstrip(".").replace(".", "")
    if not number.isdigit():
        return not _MARKER.fullmatch(word) or text[begin:mark].count(" ") > 1
    dotted = "." in word.rstrip(".")
    line = text[max(text.rfind("\n", begin, mark) + 1, begin) : mark + 1]
    return not dotted and line.strip().casefold() != word


def _cut(text: str, start: int, end: int) -> int:
    """The end of the unit that begins at `start`."""
    if end - start <= LONGEST:
        return end
    last = start + LONGEST
    places = (text.rfind(mark, start, last) + 1 for mark in ("\n", " "))
    return next((place for place in places if text[start:place].strip()), last)


def questions_in(message: str) -> list[str]:
    """Split a message into parts that are searched for separately, because no passage of a document
    may match all of them together: its questions, and its other sentences. Sentences of a long
    message are joined to parts of up to LONGEST characters, about MAX_PARTS if possible."""
    found = [message[unit.start : unit.end] for unit in units(message)]
    sentences = [part for each in found for part in _AFTER_QUESTION.split(each)]
    few = sum(map(asks, sentences)) <= MAX_QUESTIONS
    size = min(len(message) // MAX_PARTS, LONGEST)
    parts: list[str] = []
    for sentence in sentences:
        alone = not parts or (few and (asks(sentence) or asks(parts[-1])))
        if alone or len(parts[-1]) + len(sentence) >= size:
            parts.append(sentence)
        else:
            parts[-1] += f" {sentence}"
    return parts or [message]


def asks(sentence: str) -> bool:
    return sentence.rstrip("\"')]”»").endswith(("?", "？"))
