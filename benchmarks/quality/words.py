"""Vocabulary of the evaluation documents, and unique names."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any


def load(file: str) -> dict[str, Any]:
    """Load a TOML file in this folder, with lists as tuples."""
    content: dict[str, Any] = _tuples(
        tomllib.loads((Path(__file__).parent / file).read_text("utf-8"))
    )
    return content


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tuples(each) for name, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


_WORDS = load("words.toml")
ADJECTIVES: tuple[str, ...] = tuple(_WORDS["adjectives"].split())
NOUNS: tuple[str, ...] = tuple(_WORDS["nouns"].split())
PEOPLE: tuple[str, ...] = tuple(_WORDS["people"].split())
VERBS: tuple[str, ...] = tuple(_WORDS["verbs"].split())
PREPOSITIONS: tuple[str, ...] = tuple(_WORDS["prepositions"].split())
CITIES: tuple[str, ...] = tuple(_WORDS["cities"].split())
ATTRIBUTES: dict[str, tuple[str, ...]] = _WORDS["attributes"]
"""By language: attributes that questions ask for."""


class Keys:
    """Draws unique names, so that questions are unambiguous."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self._used: set[str] = set()

    def claim(self, name: str) -> bool:
        """Mark a name as used. Returns False if it was used before."""
        if name in self._used:
            return False
        self._used.add(name)
        return True

    def choose(self, options: Sequence[str]) -> str:
        """Draw an unused name. Raises LookupError if all are used."""
        left = [option for option in options if option not in self._used]
        if not left:
            raise LookupError("all of these names are used up")
        name = self.rng.choice(left)
        self._used.add(name)
        return name

    def thing(self) -> str:
        """`amber falcon`: an adjective and a noun."""
        while True:
            name = f"{self.rng.choice(ADJECTIVES)} {self.rng.choice(NOUNS)}"
            if self.claim(name):
                return name

    def slug(self) -> str:
        """`amber-falcon`."""
        return self.thing().replace(" ", "-")

    def word(self) -> str:
        """A noun; if all are used, an adjective and a noun joined by an underscore."""
        try:
            return self.choose(NOUNS)
        except LookupError:
            return self.thing().replace(" ", "_")

    def number(self, digits: int = 3) -> str:
        """A number with this many digits, or more if most of those are used."""
        tries = 0
        while True:
            number = str(self.rng.randrange(10 ** (digits - 1), 10**digits))
            if self.claim(number):
                return number
            tries += 1
            digits += tries % 50 == 0
