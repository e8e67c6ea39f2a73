"""Finds the passage of the documents that answers a question, for a model that can only quote.

A text is split into *units*: sentences, or lines of code and tables. The unit nearest to the
question is quoted together with the text around it in its paragraph.
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

MIN_SCORE = 0.5
"""Minimum score of an answer. Of 48 questions about another document, 90 % score lower."""
NOTHING_FOUND = (
    "No passage of the document seems to answer this. This demo model can only quote; a real model"
    " answers in its own words."
)
"""Written instead of a quote."""
MIN_WORDS = 5
"""Units with fewer words are never chosen."""
MAX_HEADINGS = 4
"""At most this many headings in a row are quoted with the prose after them."""
HEADING_PENALTY = 0.3
"""Subtracted from a heading's score, to prefer prose."""
HEADING_SHARE = 0.5
"""Share of a heading's score that is added to the unit after it."""
PHRASE_BONUS = 1.0
"""Added for a unit that contains a phrase quoted in the question."""
MAX_PHRASES = 20
"""Maximum number of quoted phrases of a question."""
TERM_BONUS = 0.3
"""Added for a unit with a quoted term, as in a definition, that the question asks about."""
MAX_PARAGRAPH = 600
"""Longer paragraphs are not quoted as a whole. In characters."""
MAX_QUOTE = 1200
"""Quotes of this many characters are not extended."""
MAX_PHRASE_WORDS = 50
MAX_TERM = 60
"""Maximum characters of a defined term."""
STEM = 5
"""Words are compared by this many first letters."""
_WORD = re.compile(r"[^\W_]+")
_PHRASE = re.compile(r"\"([^\"]+)\"|“([^“”]+)”|«([^«»]+)»|„([^„“”]+)[“”]")


@dataclass(frozen=True, slots=True)
class Quote:
    """Characters `start:end` of `source`. `score` ranges from -1 to 3."""

    source: PromptText
    start: int
    end: int
    score: float

    @property
    def text(self) -> str:
        return self.source.text[self.start : self.end]

    @property
    def tokens(self) -> tuple[int, int]:
        """Its token range in the prompt."""
        starts, first = self.source.starts, self.source.first
        start = int(np.searchsorted(starts[1:], self.start, side="right"))
        end = int(np.searchsorted(starts[:-1], self.end, side="left"))
        return first + start, first + end


def quote(prompt: Prompt, question: str, on_pieces: OnPieces) -> tuple[Prompt, str]:
    """The prompt with the passage that answers the question pinned, and its text, or
    `NOTHING_FOUND`. Raises what `on_pieces` raises."""
    found = best_quote(prompt.texts, question, built_in_encoder(), on_pieces)
    if found is None or found.score < MIN_SCORE:
        return prompt, NOTHING_FOUND
    return replace(prompt, user_pins=(*prompt.user_pins, found.tokens)), found.text


def best_quote(
    texts: Sequence[PromptText], question: str, encoder: TextEncoder, on_pieces: OnPieces
) -> Quote | None:
    """The passage around the unit nearest to the question by meaning and words, from the documents
    among `texts`; None if they are empty. Raises what `on_pieces` raises."""
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
    """Per unit: for the first prose after a heading, the heading's score if positive; else 0."""
    found, at = np.zeros(len(scores)), 0
    for each in cut:
        for before, (index, unit) in zip(each, enumerate(each[1:], at + 1), strict=False):
            if before.is_heading and not unit.is_heading:
                found[index] = max(scores[index - 1], 0.0)
        at += len(each)
    return found


# ------------------------------------------------------------------------------- what is quoted


def around(text: str, found: Sequence[Unit], index: int) -> tuple[int, int]:
    """The character range to quote for a unit: its paragraph if that is short, else the unit and
    its neighbours. A heading is quoted with the text after it, a fragment with the rest of its
    sentence."""
    heading, end_of_headings = index, min(index + MAX_HEADINGS, len(found) - 1)
    while found[index].is_heading and index < end_of_headings:
        index += 1
    first = last = index
    paragraph = found[index].paragraph
    while first and found[first - 1].paragraph == paragraph:
        first -= 1
    while last + 1 < len(found) and found[last + 1].paragraph == paragraph:
        last += 1
    if found[last].end - found[first].start > MAX_PARAGRAPH:
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
    """Whether a unit ends with a colon."""
    return text[before.end - 1] == ":"


# ------------------------------------------------------------------------------------- words


def _with_phrase(
    question: str, documents: Sequence[PromptText], cut: Sequence[Sequence[Unit]]
) -> NDArray[np.float64]:
    """Per unit: 1 if a phrase that the question puts in quotation marks begins in it, else 0."""
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
    """Per text: 1 if it has a quoted term that the question is about, else 0. The question must
    contain all words of the term and few others."""
    asked = _long_words(question)

    def is_asked(term: str) -> bool:
        words = _long_words(term) if len(term) <= MAX_TERM else set()
        return words <= asked and 2 * len(words) >= len(asked) > 0

    terms = ([next(filter(None, each.groups())) for each in _PHRASE.finditer(t)] for t in found)
    return np.array([float(any(map(is_asked, each))) for each in terms])


def _shared_words(question: str, found: Sequence[str]) -> NDArray[np.float64]:
    """Per text: the share of the question's words that it contains, weighted by rarity."""
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
