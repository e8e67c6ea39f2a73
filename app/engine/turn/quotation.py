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

from app.engine.model.prompt import Prompt, PromptText
from app.engine.model.text_encoder import OnPieces, TextEncoder, built_in_encoder
from app.util.prose import keeps_lines
from app.util.sentences import Unit, asks, questions_in, units

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
WHOLE = 600
"""Characters up to which a whole paragraph is quoted."""
MAX_QUOTE = 1200
"""Characters from which on a quote is not extended any more."""
MAX_PHRASE_WORDS = 50
MAX_TERM = 60
"""Characters of a term that is defined."""
STEM = 5
"""Letters by which words are compared."""
_WORD = re.compile(r"[^\W_]+")
_PHRASE = re.compile(r"\"([^\"]+)\"|“([^“”]+)”|«([^«»]+)»|„([^„“”]+)[“”]")


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
