"""Finds the passage of the documents that answers a question, for a model that can only quote.

A text is cut into *units*: sentences, or the lines of code and tables. The unit that is nearest to
the question is quoted with what stands around it in its paragraph.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from app.engine.prompt import Prompt, PromptText
from app.engine.text_encoder import OnPieces, TextEncoder, built_in_encoder
from app.util.prose import is_code, keeps_lines

NEAR = 0.5
"""Cosine and shared words from which on a unit counts as an answer: of 48 questions about
another document nine in ten find nothing so near."""
NOTHING_FOUND = (
    "No passage of the document seems to answer this. This demo model can only quote; a real model"
    " answers in its own words."
)
"""What a model that only quotes writes instead."""
MIN_WORDS = 5
"""Words of a unit; what has fewer is never what a quote is about."""
MAX_HEADING_WORDS = 12
MAX_HEADINGS = 4
"""In a row, with which the prose after them is quoted."""
HEADING_PENALTY = 0.3
"""Prose is preferred to a heading that is as near to the question."""
HEADING_SHARE = 0.5
"""Of a heading's nearness, what counts for the unit that follows it."""
PHRASE_BONUS = 1.0
"""For a unit with a phrase that the question has in quotation marks."""
MAX_PHRASES = 20
"""Phrases of a question that are looked for."""
TERM_BONUS = 0.3
"""For a unit with a term in quotation marks, as in a definition, whose words the question has."""
LONGEST = 400
"""Characters of a unit; longer sentences, code and tables are cut at lines or words."""
WHOLE = 600
"""Characters up to which a whole paragraph is quoted."""
MAX_QUOTE = 1200
"""Characters from which on a quote is not extended any more."""
MAX_PHRASE_WORDS = 50
MAX_QUESTIONS, MAX_PARTS = 8, 16
"""Questions of a message that are looked for by themselves, and about how many parts of it."""
MAX_TERM = 60
"""Characters of a term that is defined."""
STEM = 5
"""Letters by which words are compared."""
_END = re.compile(r"[.?!][\"')\]”»]*(?=\s)|[。！？]")
_AFTER_QUESTION = re.compile(r"(?<=[?？])\s+")
"""Also where the next sentence begins in lower case, as many people type."""
_WORD = re.compile(r"[^\W_]+")
_PHRASE = re.compile(r"\"([^\"]+)\"|“([^“”]+)”|«([^«»]+)»|„([^„“”]+)[“”]")
_MARKER = re.compile(r"(?:[-*+•]|\(?(?:\d{1,3}|[A-Za-z]|[ivxIVX]{1,5})[.)])(?=\s|$)")
"""What a list's item begins with."""
_NUMBERED = re.compile(r"(?:\d+(?:\.\d+)*\.?|[A-Z]\.|§|Chapter|Section|Article|Appendix)\s+\S")
_DOTS = ("....", ". . .", "……", "· · ·")
"""What stands between a heading and its page in a table of contents."""
_ABBREVIATION = re.compile(
    r"(?:e\.g|i\.e|cf|vs|mrs?|ms|dr|st|prof|sect?|nos?|fig|pp?|art|ch|vol|approx|ca|z\.b|d\.h|bzw"
    r"|vgl|nr|s|abs)\."
)


@dataclass(frozen=True, slots=True)
class Unit:
    """Characters `start:end` of a text, in the paragraph of this number. `is_heading`: a heading,
    a line of a table of contents or another scrap. `is_inner`: it begins inside a sentence.
    `is_open`: it ends inside one."""

    start: int
    end: int
    paragraph: int
    is_heading: bool = False
    is_inner: bool = False
    is_open: bool = False


@dataclass(frozen=True, slots=True)
class Quote:
    """Characters `start:end` of a document. `score` is from -1 to 3."""

    source: PromptText
    start: int
    end: int
    score: float

    @property
    def text(self) -> str:
        return self.source.text[self.start : self.end]

    @property
    def tokens(self) -> tuple[int, int]:
        """Those of the prompt that it is in."""
        starts, first = self.source.starts, self.source.first
        start = int(np.searchsorted(starts[1:], self.start, side="right"))
        end = int(np.searchsorted(starts[:-1], self.end, side="left"))
        return first + start, first + end


def quote(prompt: Prompt, question: str, on_pieces: OnPieces) -> tuple[Prompt, str]:
    """The passage that answers the question, and the prompt in which it is pinned; or that there
    is none. Raises what `on_pieces` raises."""
    found = best_quote(prompt.texts, question, built_in_encoder(), on_pieces)
    if found is None or found.score < NEAR:
        return prompt, NOTHING_FOUND
    return replace(prompt, user_pins=(*prompt.user_pins, found.tokens)), found.text


def best_quote(
    texts: Sequence[PromptText], question: str, encoder: TextEncoder, on_pieces: OnPieces
) -> Quote | None:
    """The passage of the documents among `texts` around the unit that is nearest to the question,
    by meaning and by words; None if there are none. Raises what `on_pieces` raises."""
    documents = [text for text in texts if text.document is not None]
    cut = [units(text.text) for text in documents]
    places = [(number, index) for number, each in enumerate(cut) for index in range(len(each))]
    if not places:
        return None
    found = [
        documents[number].text[cut[number][index].start : cut[number][index].end]
        for number, index in places
    ]
    parts = questions_in(question)
    asked = [part for part in parts if asks(part)] or parts
    vectors = encoder.encode_questions(asked, on_pieces)
    scores = (encoder.encode(found, on_pieces) @ vectors.T).max(axis=1)
    scores += _shared_words(question, found)
    scores += PHRASE_BONUS * _with_phrase(question, documents, cut)
    scores += TERM_BONUS * _with_term(question, found)
    scores -= [2.0 * (len(_WORD.findall(text)) < MIN_WORDS) for text in found]
    scores -= [HEADING_PENALTY * cut[number][index].is_heading for number, index in places]
    scores += HEADING_SHARE * _of_headings(cut, scores)
    best = int(np.argmax(scores))
    number, index = places[best]
    start, end = around(documents[number].text, cut[number], index)
    return Quote(documents[number], start, end, float(scores[best]))


def questions_in(message: str) -> list[str]:
    """The parts of a message that are looked for one by one, because what they mean together
    nothing in a document does: its questions, and the other sentences. Those of a long message are
    joined to parts of up to LONGEST characters, about MAX_PARTS if that is enough."""
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


def _of_headings(
    cut: Sequence[Sequence[Unit]], scores: NDArray[np.floating]
) -> NDArray[np.float64]:
    """For the first unit of prose after a heading, that heading's score if it is near, else 0."""
    found, at = np.zeros(len(scores)), 0
    for each in cut:
        for before, (index, unit) in zip(each, enumerate(each[1:], at + 1), strict=False):
            if before.is_heading and not unit.is_heading:
                found[index] = max(scores[index - 1], 0.0)
        at += len(each)
    return found


# ------------------------------------------------------------------------------- what is quoted


def around(text: str, found: Sequence[Unit], index: int) -> tuple[int, int]:
    """The characters to quote for a unit: its paragraph, if that is short, or else the unit and
    its neighbours there. A heading is quoted with what follows it, a scrap with what it belongs
    to."""
    heading, end_of_headings = index, min(index + MAX_HEADINGS, len(found) - 1)
    while found[index].is_heading and index < end_of_headings:
        index += 1
    first = last = index
    paragraph = found[index].paragraph
    while first and found[first - 1].paragraph == paragraph:
        first -= 1
    while last + 1 < len(found) and found[last + 1].paragraph == paragraph:
        last += 1
    if found[last].end - found[first].start > WHOLE:
        first, last = max(first, index - 1), min(last, index + 1)

    def grows() -> bool:
        return found[last].end - found[first].start < MAX_QUOTE

    while first and found[first].is_inner and grows():
        first -= 1
    while last + 1 < len(found) and found[last].is_open and grows():
        last += 1
    if text[: found[last].end].endswith(":") and last + 1 < len(found) and grows():
        last += 1
    if first and _introduces(text, found[first - 1]) and grows():
        first -= 1
    start, end = found[min(first, heading)].start, found[last].end
    if keeps_lines(text[start:end]):
        line = text.rfind("\n", 0, start) + 1
        start = line if not text[line:start].strip() else start
    return start, end


def _introduces(text: str, before: Unit) -> bool:
    """Whether a unit announces what comes after it."""
    return text[before.end - 1] == ":"


# ------------------------------------------------------------------------------------- units


def units(text: str) -> list[Unit]:
    """All of a text but white space, in order. Each has at most LONGEST characters."""
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
    """Characters of lines between blank ones, and whether they are in a Markdown code fence. A
    Markdown heading and a line of a table of contents are paragraphs of their own."""
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
    """Whether it is a line of a table of contents: dots, and the number of a page."""
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
    """The sentences of a paragraph of prose. What begins in lower case, or closes a bracket that
    it does not open, belongs to the sentence before."""
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
    """The end of what is taken as one unit."""
    if end - start <= LONGEST:
        return end
    last = start + LONGEST
    places = (text.rfind(mark, start, last) + 1 for mark in ("\n", " "))
    return next((place for place in places if text[start:place].strip()), last)


# ------------------------------------------------------------------------------------- words


def _with_phrase(
    question: str, documents: Sequence[PromptText], cut: Sequence[Sequence[Unit]]
) -> NDArray[np.float64]:
    """1 for each unit in which a phrase that the question has in quotation marks begins, else 0."""
    quoted = (next(filter(None, match.groups())).split() for match in _PHRASE.finditer(question))
    words = dict.fromkeys(tuple(each[:MAX_PHRASE_WORDS]) for each in quoted if each)
    phrases = [
        re.compile(r"\s+".join(map(re.escape, each)), re.IGNORECASE)
        for each in islice(words, MAX_PHRASES)
    ]
    found = []
    for document, each in zip(documents, cut, strict=True):
        starts = [unit.start for unit in each]
        has = np.zeros(len(each))
        for phrase in phrases:
            at = [match.start() for match in phrase.finditer(document.text)]
            has[np.maximum(np.searchsorted(starts, at, side="right") - 1, 0)] = 1.0
        found.append(has)
    return np.concatenate(found)


def _with_term(question: str, found: Sequence[str]) -> NDArray[np.float64]:
    """1 for each text with a term in quotation marks that the question is about, else 0: it has
    all words of the term, and hardly any others."""
    asked = _long_words(question)

    def is_asked(term: str) -> bool:
        words = _long_words(term) if len(term) <= MAX_TERM else set()
        return words <= asked and 2 * len(words) >= len(asked) > 0

    terms = ([next(filter(None, each.groups())) for each in _PHRASE.finditer(t)] for t in found)
    return np.array([float(any(map(is_asked, each))) for each in terms])


def _shared_words(question: str, found: Sequence[str]) -> NDArray[np.float64]:
    """The share of the question's words that each text has, weighted by rarity."""
    words = [_stems(text) for text in found]
    holders = Counter(word for each in words for word in each)
    rarity = {
        word: np.log(1 + (len(found) - holders[word] + 0.5) / (holders[word] + 0.5))
        for word in _stems(question)
    }
    total = sum(rarity.values()) or 1.0
    return np.array([sum(rarity[word] for word in each & rarity.keys()) for each in words]) / total


def _long_words(text: str) -> set[str]:
    return {word for word in _stems(text) if len(word) > 3}


def _stems(text: str) -> set[str]:
    return {word[:STEM] for word in _WORD.findall(text.casefold())}
