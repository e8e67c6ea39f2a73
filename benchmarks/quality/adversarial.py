"""Tasks that are hard for sparse reading: one small fact that is unlike the text around it."""

from __future__ import annotations

from random import Random
from uuid import UUID

from benchmarks.quality.documents import FUNCTIONS, PROSE
from benchmarks.quality.tasks import FACTS, Task, fact, phrase
from benchmarks.quality.words import NOUNS, PEOPLE, VERBS, Keys

FAULTS = (
    "skips the first row",
    "skips the last row",
    "counts empty rows twice",
    "sorts in the wrong order",
    "divides by zero when empty",
    "forgets to close the file",
    "returns the wrong total",
    "reads past the end",
    "drops negative numbers",
    "rounds too early",
)
LANGUAGES = tuple(language for language in FACTS if language != "en")


def identifier(rng: Random, keys: Keys, held_out: bool = False) -> Task:
    """Find a UUID in prose."""
    key, value = keys.slug(), str(UUID(int=rng.getrandbits(128), version=4))
    unit = f"The identifier of {key} is {value}. "
    question = phrase(rng, "identifier", held_out).format(key)
    return Task(PROSE, (unit,), question, unit.strip(), (value,))


def code_bug(rng: Random, keys: Keys, held_out: bool = False) -> Task:
    """Find a comment in one of many functions."""
    name, fault = keys.thing().replace(" ", "_"), rng.choice(FAULTS)
    unit = f"def {name}(rows):\n    # BUG: {fault}\n    return {rng.choice(NOUNS)}(rows)\n"
    question = phrase(rng, "bug", held_out).format(name)
    return Task(FUNCTIONS, (unit,), question, f"def {name}(rows):\n    # BUG: {fault}", (fault,))


def back_reference(rng: Random, keys: Keys, held_out: bool = False) -> Task:
    """Find the definition of a term that is used often later."""
    role = keys.word().capitalize()
    person = f"{keys.choose(PEOPLE)} {rng.choice(NOUNS).capitalize()}"
    defined = f'"{role}" means the firm of {person}. '
    uses = [f"The {role} {rng.choice(VERBS)} the {rng.choice(NOUNS)}. " for _ in range(5)]
    question = phrase(rng, "role", held_out).format(role)
    return Task(PROSE, (defined, *uses), question, defined.strip(), (person,))


def foreign_fact(rng: Random, keys: Keys, held_out: bool = False) -> Task:
    """Find a value in another language than the text around it."""
    return fact(rng, keys, held_out, rng.choice(LANGUAGES))


def later_turn(rng: Random, keys: Keys, held_out: bool = False) -> Task:
    """A second question about the document, or a request to repeat the first answer."""
    first, second = fact(rng, keys, held_out), fact(rng, keys, held_out)
    units = tuple(rng.sample([*first.units, *second.units], len(first.units) + len(second.units)))
    before = ((first.question, first.answer),)
    if rng.random() < 0.5:
        question = phrase(rng, "again", held_out)
        return Task(PROSE, units, question, first.answer, first.expected, before=before)
    return Task(PROSE, units, second.question, second.answer, second.expected, before=before)
