"""Tasks: units to hide in a document, a question about them, and the expected answer.

Needles, variable tracking, and common and frequent words follow RULER (arXiv 2404.06654). A task's
`answer` is the one that the embedded pair was trained to give; it restates the fact.
`wordings.toml` has training and held-out wordings of each kind of question.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from random import Random

from benchmarks.quality import documents
from benchmarks.quality.documents import CODE, JSON, PROSE, TICKETS, XML, Filler
from benchmarks.quality.words import (
    ADJECTIVES,
    ATTRIBUTES,
    CITIES,
    NOUNS,
    PEOPLE,
    VERBS,
    Keys,
    load,
)

WORDINGS = load("wordings.toml")
TRAINED: dict[str, tuple[str, ...]] = WORDINGS["trained"]
HELD_OUT: dict[str, tuple[str, ...]] = WORDINGS["held_out"]
ABSENT = "The document does not say."
NOT_SAID = re.compile(
    r"does(n't| not) (say|mention|state|contain|specify|provide|include)"
    r"|not (mentioned|stated|found)|no mention",
    re.IGNORECASE,
)


class Check(StrEnum):
    """How an answer is judged. White space and case are ignored."""

    HOLDS_ALL = "holds all"
    HOLDS_ANY = "holds any"
    LAST_NUMBER = "last number"
    NOT_SAID = "not said"


@dataclass(frozen=True)
class Task:
    """One question about one document, which is composed around `units`."""

    filler: Filler
    units: tuple[str, ...]
    question: str
    answer: str
    expected: tuple[str, ...]
    check: Check = Check.HOLDS_ALL
    before: tuple[tuple[str, str], ...] = ()
    """Earlier questions about the same document and their answers."""


WORD = r"[^\W\u3040-\u30ff\u3400-\u9fff]"
"""A character that continues a word; Chinese and Japanese have no spaces between words."""


def is_correct(answer: str, expected: tuple[str, ...], check: Check) -> bool:
    """Judge an answer by RULER's rule (it contains every expected string) or one of ours. Strings
    are found as whole words."""
    plain = " ".join(answer.casefold().split())
    if check is Check.NOT_SAID:
        return bool(NOT_SAID.search(plain))
    if check is Check.LAST_NUMBER:
        numbers = re.findall(r"\d+", plain)
        return bool(numbers) and numbers[-1] == expected[0]
    words = (" ".join(e.casefold().split()) for e in expected)
    enough = any if check is Check.HOLDS_ANY else all
    return enough(re.search(_whole(word), plain) for word in words)


def _whole(text: str) -> str:
    """A pattern that finds this text, but not within a longer word."""
    before = f"(?<!{WORD})" if re.match(WORD, text) else ""
    after = f"(?!{WORD})" if re.match(WORD, text[-1:]) else ""
    return before + re.escape(text) + after


def phrase(rng: Random, name: str, held_out: bool) -> str:
    """A random wording of this question, from the training or the held-out set."""
    return rng.choice((HELD_OUT if held_out else TRAINED)[name])


def _value(rng: Random) -> str:
    return str(rng.randrange(1_000_000, 10_000_000))


def _magic(key: str, value: str) -> str:
    return f"The special magic number for {key} is: {value}. "


def _numbered(rng: Random, units: Sequence[str]) -> str:
    """`... is 17 (1 of 2). ... is 4 (2 of 2).`, in random order. The numbering tells a small model
    how many are left."""
    mixed = rng.sample(units, len(units))
    numbered = (f"{u.strip()[:-1]} ({i} of {len(units)})." for i, u in enumerate(mixed, 1))
    return " ".join(numbered)


def needle(rng: Random, keys: Keys, held_out: bool = False) -> Task:
    """RULER's single needle: one magic number."""
    key, value = keys.slug(), _value(rng)
    unit = _magic(key, value)
    return Task(PROSE, (unit,), phrase(rng, "magic", held_out).format(key), unit.strip(), (value,))


def multi_key(rng: Random, keys: Keys, held_out: bool = False, others: int = 3) -> Task:
    """RULER's multi-key needle: among magic numbers of other keys."""
    task = needle(rng, keys, held_out)
    units = [_magic(keys.slug(), _value(rng)) for _ in range(others)]
    units.insert(rng.randint(0, others), task.units[0])
    return Task(PROSE, tuple(units), task.question, task.answer, task.expected)


def multi_value(rng: Random, keys: Keys, held_out: bool = False, values: int = 4) -> Task:
    """RULER's multi-value needle: one key, several magic numbers."""
    key = keys.slug()
    found = tuple(_value(rng) for _ in range(values))
    units = tuple(f"One of the special magic numbers for {key} is: {v}. " for v in found)
    question = phrase(rng, "magics", held_out).format(key)
    return Task(PROSE, units, question, _numbered(rng, units), found)


def multi_query(rng: Random, keys: Keys, held_out: bool = False, queries: int = 4) -> Task:
    """RULER's multi-query needle: a question about several keys."""
    pairs = [(keys.slug(), _value(rng)) for _ in range(queries)]
    units = tuple(_magic(*pair) for pair in pairs)
    queried = rng.sample(pairs, len(pairs))
    names = ", ".join(k for k, _ in queried[:-1]) + f" and {queried[-1][0]}"
    question = phrase(rng, "magic_list", held_out).format(names)
    answer = "".join(_magic(*pair) for pair in queried).strip()
    return Task(PROSE, units, question, answer, tuple(v for _, v in queried))


FACTS = {
    "en": "The {a} of the {t} is {v}. ",
    "de": "Die {a} von {t} lautet {v}. ",
    "fr": "Le {a} de {t} est {v}. ",
    "es": "El {a} de {t} es {v}. ",
    "it": "Il {a} di {t} è {v}. ",
}


def _fact(rng: Random, keys: Keys, language: str, attribute: str, thing: str) -> tuple[str, str]:
    value = keys.number(4)
    return FACTS[language].format(a=attribute, t=thing, v=value), value


def fact(rng: Random, keys: Keys, held_out: bool = False, language: str = "en") -> Task:
    """A value in prose, with distractors: the same attribute of another thing, and another
    attribute of the same thing."""
    attribute, other = rng.sample(ATTRIBUTES[language], 2)
    if language == "en":
        thing, neighbour = keys.thing(), keys.thing()
    else:
        thing, neighbour = keys.choose(CITIES), keys.choose(CITIES)
    unit, value = _fact(rng, keys, language, attribute, thing)
    near = [
        _fact(rng, keys, language, attribute, neighbour)[0],
        _fact(rng, keys, language, other, thing)[0],
    ]
    units = rng.sample([unit, *near], 3)
    question = phrase(rng, f"fact_{language}", held_out).format(a=attribute, t=thing)
    return Task(PROSE, tuple(units), question[:1].upper() + question[1:], unit.strip(), (value,))


def json_value(rng: Random, keys: Keys, held_out: bool = False) -> Task:
    """A value in an array of JSON records."""
    key, value = keys.slug(), str(rng.randrange(1000, 10000))
    body = f'"{key}": {value}'
    question = phrase(rng, "record", held_out).format(key)
    return Task(JSON, (f"{{{body}}}",), question, body, (value,))


def xml_value(rng: Random, keys: Keys, held_out: bool = False) -> Task:
    """A value in an XML element."""
    key, value = keys.slug(), str(rng.randrange(1000, 10000))
    unit = f'<code of="{key}">{value}</code>'
    return Task(XML, (unit,), phrase(rng, "record", held_out).format(key), unit, (value,))


def code_value(rng: Random, keys: Keys, held_out: bool = False) -> Task:
    """A value assigned to a name in code."""
    name, value = keys.thing().replace(" ", "_").upper(), str(rng.randrange(1000, 10000))
    unit = f"{name} = {value}"
    return Task(CODE, (unit,), phrase(rng, "assigned", held_out).format(name), unit, (value,))


def quote(rng: Random, keys: Keys, held_out: bool = False) -> Task:
    """Continue a phrase of four to six words to the end of its sentence."""
    while True:
        text = documents.sentence(rng, keys)
        words = text.split()
        length = rng.randint(4, 6)
        first = rng.randint(0, 2)
        quoted, rest = " ".join(words[first : first + length]), words[first + length :]
        if len(rest) >= 3 and not quoted.endswith((",", ".")):
            break
    answer = " ".join(words[first:])
    question = phrase(rng, "quote", held_out).format(quoted)
    return Task(PROSE, (text + " ",), question, answer, (" ".join(rest),))


def many(rng: Random, keys: Keys, held_out: bool = False, values: int | None = None) -> Task:
    """Find all one to four values of a key."""
    attribute, other = rng.sample(ATTRIBUTES["en"], 2)
    thing, neighbour = keys.thing(), keys.thing()
    pairs = [_fact(rng, keys, "en", attribute, thing) for _ in range(values or rng.randint(1, 4))]
    near = [
        _fact(rng, keys, "en", attribute, neighbour)[0],
        _fact(rng, keys, "en", other, thing)[0],
    ]
    units = [unit for unit, _ in pairs]
    for unit in near:
        units.insert(rng.randint(0, len(units)), unit)
    question = phrase(rng, "many", held_out).format(a=attribute, t=thing)
    answer = _numbered(rng, [unit for unit, _ in pairs])
    return Task(PROSE, tuple(units), question, answer, tuple(value for _, value in pairs))


MARKS = ("OPEN", "LATE", "HELD", "LOST", "PAID")


def _times(number: int) -> str:
    return "1 time" if number == 1 else f"{number} times"


def count_marks(rng: Random, keys: Keys, held_out: bool = False, max_count: int = 20) -> Task:
    """Count the tickets with a mark."""
    mark = keys.choose(MARKS)
    units = [documents.ticket_line(rng, keys, mark) for _ in range(rng.randint(0, max_count))]
    question = phrase(rng, "count_marks", held_out).format(mark)
    number = str(len(units))
    answer = f"Marked {mark} {_times(len(units))}."
    return Task(TICKETS, tuple(units), question, answer, (number,), Check.LAST_NUMBER)


def count_names(rng: Random, keys: Keys, held_out: bool = False, max_count: int = 20) -> Task:
    """Count the occurrences of a name in prose."""
    name = keys.choose(PEOPLE)
    verbs = rng.sample(VERBS, rng.randint(0, max_count))
    units = tuple(f"{name} {v} the {rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}. " for v in verbs)
    question = phrase(rng, "count_names", held_out).format(name)
    number = str(len(verbs))
    answer = f"Named {name} {_times(len(verbs))}."
    return Task(PROSE, units, question, answer, (number,), Check.LAST_NUMBER)


def fact_in_turn(rng: Random, keys: Keys, held_out: bool = False, turn: int = 5) -> Task:
    """Question `turn` (from 1) of five about facts in five parts of one document."""
    facts = [fact(rng, keys, held_out) for _ in range(5)]
    units = tuple(unit for task in facts for unit in task.units)
    order = rng.sample(facts, len(facts))
    before = tuple((task.question, task.answer) for task in order[: turn - 1])
    last = order[turn - 1]
    return Task(PROSE, units, last.question, last.answer, last.expected, before=before)


def _chain(keys: Keys, steps: int) -> tuple[list[str], list[str]]:
    """A chain's number and variable names, and its statements in order."""
    links = [keys.number(4), *(keys.word() for _ in range(steps))]
    return links, [f"VAR {name} = {source}. " for source, name in pairwise(links)]


def _chains(rng: Random, keys: Keys, assignments: int) -> tuple[list[str], list[str]]:
    """One chain's links, and its statements mixed with those of a second chain, in order."""
    links, units = _chain(keys, assignments)
    for unit in _chain(keys, rng.randint(1, 3))[1][::-1]:
        units.insert(rng.randint(0, len(units)), unit)
    return links, units


def track(rng: Random, keys: Keys, held_out: bool = False, assignments: int | None = None) -> Task:
    """Trace a variable back to its number through `assignments` (default: two to four)."""
    links, units = _chains(rng, keys, assignments or rng.randint(2, 4))
    back = links[::-1]
    steps = [f"VAR {name} = {source}" for name, source in pairwise(back)]
    question = phrase(rng, "track", held_out).format(back[0])
    return Task(PROSE, tuple(units), question, ", ".join(steps), (links[0],), Check.LAST_NUMBER)


def variables(rng: Random, keys: Keys, held_out: bool = False) -> Task:
    """RULER's variable tracking: find all variables with a number."""
    links, units = _chains(rng, keys, rng.randint(2, 4))
    question = phrase(rng, "variables", held_out).format(links[0])
    return Task(PROSE, tuple(units), question, f"Value {' = '.join(links)}", tuple(links[1:]))


def negative(task: Task, restated: str) -> Task:
    """Remove the units that answer `task`. The new answer restates the question and says that the
    document does not contain the answer."""
    others = tuple(unit for unit in task.units if not any(e in unit for e in task.expected))
    return Task(task.filler, others, task.question, f"{restated}? {ABSENT}", (), Check.NOT_SAID)


def restatement(task: Task) -> str:
    """The part of the task's answer before the value."""
    before = task.answer[: min(task.answer.index(e) for e in task.expected)]
    return before.rstrip(" >:=").removesuffix(" is").removesuffix(" lautet")


def absent(rng: Random, keys: Keys, held_out: bool = False) -> Task:
    """A question whose answer is not in the document, although similar facts are."""
    task = rng.choice((fact, needle, json_value, code_value))(rng, keys, held_out)
    return negative(task, restatement(task))


MORE_OFTEN = 10
ZIPF = (60, 15, 7, 4, 3, 2, 2, 2, 1, 1, 1, 1, 1)


def _dealt(deck: list[str]) -> Filler:
    """Draws words from a deck that is reshuffled when used up, so that frequencies are exact."""
    left: list[str] = []

    def unit(rng: Random, keys: Keys) -> str:
        if not left:
            left.extend(rng.sample(deck, len(deck)))
        return left.pop()

    return Filler(unit, join=" ")


def common_words(rng: Random, keys: Keys, held_out: bool = False, words: int = 10) -> Task:
    """RULER's common words: find the words that occur ten times as often as the others."""
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
    """RULER's frequent words: coded words with Zipf-distributed frequencies (exponent two)."""
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


Maker = Callable[[Random, Keys, bool], Task]
