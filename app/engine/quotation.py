"""Finds the sentence of the documents that answers a question, for a model that can only quote."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from app.engine.prompt import Prompt, PromptText
from app.engine.text_encoder import OnPieces, TextEncoder, built_in_encoder

NEAR = 0.5
"""Cosine and shared words from which on a sentence counts as an answer: of 48 questions about
another document nine in ten find nothing so near."""
NOTHING_FOUND = (
    "No sentence of the document seems to answer this. I am a small model that can only quote:"
    " press Ctrl+L for one that answers in its own words, or run"
    " `specchat models pull local/smollm2-135m-instruct`."
)
"""What a model that only quotes writes instead."""
SHORTEST = 5
"""Words of a sentence: headings have fewer. They are only quoted where there is nothing else."""
ASIDE = 8
"""Words beside a phrase in quotation marks, at most: with more, something else is asked, too."""
LONGEST = 400
"""Characters of a sentence; longer ones, as in code and tables, are cut at lines or words."""
STEM = 5
"""Letters by which words are compared."""
_END = re.compile(r"[.?!][\"')\]”»]*(?=\s)|\n[ \t]*(?=\n)|[。！？]")
_WORD = re.compile(r"[^\W_]+")
_PHRASE = re.compile(r"\"([^\"]+)\"|“([^”]+)”|«([^»]+)»|„([^“”]+)[“”]")


@dataclass(frozen=True, slots=True)
class Sentence:
    """Characters `start:end` of a document. `score` is from -1 to 2."""

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
    """The sentence that answers the question, and the prompt in which it is pinned; or that there
    is none."""
    found = best_sentence(prompt.texts, question, built_in_encoder(), on_pieces)
    if found is None or found.score < NEAR:
        return prompt, NOTHING_FOUND
    return replace(prompt, user_pins=(*prompt.user_pins, found.tokens)), found.text


def quotes_phrase(question: str, texts: Iterable[PromptText]) -> bool:
    """Whether the question only asks about a phrase in quotation marks, and a text has it."""
    if len(_WORD.findall(_PHRASE.sub("", question))) > ASIDE:
        return False
    phrases = [
        " ".join(next(filter(None, match.groups())).split()) for match in _PHRASE.finditer(question)
    ]
    return any(phrase in " ".join(text.text.split()) for text in texts for phrase in phrases)


def best_sentence(
    texts: Sequence[PromptText], question: str, encoder: TextEncoder, on_pieces: OnPieces
) -> Sentence | None:
    """The sentence of the documents among `texts` that is nearest to the question, by meaning and
    by words; None if there are none. Raises what `on_pieces` raises."""
    places = [
        (text, *place)
        for text in texts
        if text.document is not None
        for place in sentences(text.text)
    ]
    if not places:
        return None
    found = [text.text[start:end] for text, start, end in places]
    meaning = encoder.encode(found, on_pieces) @ encoder.encode_question(question)
    scores = meaning + _shared_words(question, found)
    scores -= [2.0 * (len(text.split()) < SHORTEST) for text in found]
    best = int(np.argmax(scores))
    return Sentence(*places[best], float(scores[best]))


def sentences(text: str) -> list[tuple[int, int]]:
    """The characters of each sentence, without the white space around it."""
    found = []
    ends = [match.end() for match in _END.finditer(text)]
    for start, end in zip([0, *ends], [*ends, len(text)], strict=True):
        while start < end:
            cut = _cut(text, start, end)
            part = text[start:cut]
            if bare := part.strip():
                first = start + part.index(bare)
                found.append((first, first + len(bare)))
            start = cut
    return found


def _cut(text: str, start: int, end: int) -> int:
    """The end of what is taken as one sentence."""
    if end - start <= LONGEST:
        return end
    last = start + LONGEST
    places = (text.rfind(mark, start, last) + 1 for mark in ("\n", " "))
    return next((place for place in places if text[start:place].strip()), last)


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


def _stems(text: str) -> set[str]:
    return {word[:STEM] for word in _WORD.findall(text.casefold())}
