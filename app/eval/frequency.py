"""Common and frequent words (RULER's CWE and FWE): every word of the document has a say."""

from __future__ import annotations

from random import Random

from app.eval.documents import Filler
from app.eval.tasks import Check, Task, phrase
from app.eval.words import ADJECTIVES, NOUNS, PEOPLE, VERBS, Keys

MORE_OFTEN = 10
ZIPF = (60, 15, 7, 4, 3, 2, 2, 2, 1, 1, 1, 1, 1)


def _dealt(deck: list[str]) -> Filler:
    """Words from a deck that is shuffled anew whenever it is used up, so that shares are exact."""
    left: list[str] = []

    def unit(rng: Random, keys: Keys) -> str:
        if not left:
            left.extend(rng.sample(deck, len(deck)))
        return left.pop()

    return Filler(unit, join=" ")


def common_words(rng: Random, keys: Keys, held_out: bool = False, words: int = 10) -> Task:
    """A list where some words stand ten times as often as all the others."""
    pool = rng.sample([*ADJECTIVES, *NOUNS, *VERBS, *PEOPLE], 300)
    common = pool[:words]
    filler = _dealt(pool[words:] + common * MORE_OFTEN)
    question = phrase(rng, "common", held_out).format(words)
    return Task(
        filler, (), question, f"The words: {', '.join(common)}", tuple(common), Check.HOLDS_ALL
    )


def _coded(rng: Random) -> str:
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(3))


def frequent_words(rng: Random, keys: Keys, held_out: bool = False, words: int = 3) -> Task:
    """Coded words whose frequencies follow Zipf's law with exponent two."""
    coded: list[str] = []
    while len(coded) < len(ZIPF):
        word = _coded(rng)
        if word[:3] not in {c[:3] for c in coded}:
            coded.append(word)
    filler = _dealt([w for w, times in zip(coded, ZIPF, strict=True) for _ in range(times)])
    question = phrase(rng, "frequent", held_out).format(words)
    return Task(
        filler, (), question, f"The words: {', '.join(coded[:words])}", tuple(coded[:words])
    )
