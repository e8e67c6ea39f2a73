"""Composes documents of a given length: a task's units hidden in filler of the same kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from benchmarks.quality.words import ADJECTIVES, NOUNS, PREPOSITIONS, VERBS, Keys

TokenCount = Callable[[str], int]
SAMPLE_UNITS = 60


@dataclass(frozen=True)
class Filler:
    """Makes filler units unrelated to any task: sentences, records, lines. `prefix` and `suffix`
    enclose the document."""

    unit: Callable[[Random, Keys], str]
    join: str = "\n"
    prefix: str = ""
    suffix: str = ""


@dataclass(frozen=True)
class Document:
    """A text, and the character ranges of the task's units in it."""

    text: str
    units: tuple[tuple[int, int], ...]


def sentence(rng: Random, keys: Keys) -> str:
    """A plain, meaningless English sentence."""
    a, n, v, p = ADJECTIVES, NOUNS, VERBS, PREPOSITIONS
    c = rng.choice
    kind = rng.randrange(7)
    if kind == 0:
        return f"The {c(a)} {c(n)} {c(v)} the {c(n)} {c(p)} the {c(a)} {c(n)}."
    if kind == 1:
        return f"A {c(n)} {c(v)} every {c(a)} {c(n)}."
    if kind == 2:
        return f"{c(p).capitalize()} the {c(n)}, a {c(a)} {c(n)} {c(v)} the {c(n)}."
    if kind == 3:
        return f"Each {c(n)} {c(p)} the {c(n)} is {c(a)} and {c(a)}."
    if kind == 4:
        return f"When the {c(n)} is {c(a)}, the {c(a)} {c(n)} {c(v)} it."
    if kind == 5:
        return f"No {c(n)} {c(v)} the {c(n)}, and the {c(n)} {c(v)} no {c(n)}."
    return f"This {c(n)} {c(v)} one {c(a)} {c(n)} {c(p)} another."


def prose(rng: Random, keys: Keys) -> str:
    """A sentence, sometimes the last one of a paragraph."""
    return sentence(rng, keys) + ("\n\n" if rng.random() < 0.12 else " ")


def json_record(rng: Random, keys: Keys) -> str:
    """`{"amber-falcon": 8812}` with a unique name."""
    return f'{{"{keys.slug()}": {rng.randrange(1000, 10000)}}}'


def xml_record(rng: Random, keys: Keys) -> str:
    """`<code of="amber-falcon">8812</code>` with a unique name."""
    return f'<code of="{keys.slug()}">{rng.randrange(1000, 10000)}</code>'


def assignment(rng: Random, keys: Keys) -> str:
    """`AMBER_FALCON = 8812` with a unique name."""
    return f"{keys.thing().replace(' ', '_').upper()} = {rng.randrange(1000, 10000)}"


def function(rng: Random, keys: Keys) -> str:
    """A short Python function with a unique name."""
    name, items = keys.thing().replace(" ", "_"), rng.choice(NOUNS)
    body = rng.choice(
        (
            f"return [{items} for {items} in rows if {items}]",
            f"return sum(len({items}) for {items} in rows)",
            f"return sorted(rows, key=lambda {items}: {items}.{rng.choice(ADJECTIVES)})",
            f"return max(rows, default={rng.randrange(10)})",
        )
    )
    note = f"# {sentence(rng, keys)}"
    return f"def {name}(rows):\n    {note}\n    {body}\n"


def ticket(rng: Random, keys: Keys) -> str:
    """`Ticket 482 is DONE, for the amber falcon.` with a unique number; always DONE or SENT."""
    return ticket_line(rng, keys, rng.choice(("DONE", "SENT")))


def ticket_line(rng: Random, keys: Keys, mark: str) -> str:
    """A line of a ticket list with this mark."""
    thing = f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
    return f"Ticket {keys.number()} is {mark}, for the {thing}."


PROSE = Filler(prose, join="")
JSON = Filler(json_record, join=",\n", prefix="[\n", suffix="\n]")
XML = Filler(xml_record, prefix="<codes>\n", suffix="\n</codes>")
CODE = Filler(assignment)
FUNCTIONS = Filler(function, join="\n")
TICKETS = Filler(ticket)


def compose(
    filler: Filler,
    units: Sequence[str],
    tokens: int,
    count: TokenCount,
    rng: Random,
    keys: Keys,
    depth: float | None = None,
) -> Document:
    """A document of about `tokens` tokens: filler with `units` in their order.

    Units get random positions; with `depth` (0 start, 1 end), the first one is there and the others
    are behind it. Raises ValueError if the units alone are longer.
    """
    fixed = count(filler.prefix + filler.join.join(units) + filler.suffix)
    if fixed > tokens:
        raise ValueError(f"{tokens} tokens are too few: this task alone takes {fixed}")
    sample = [filler.unit(rng, keys) for _ in range(SAMPLE_UNITS)]
    each = max(1.0, count(filler.join.join(sample)) / SAMPLE_UNITS)
    filler_units = int((tokens - fixed) / each)
    padding = sample[:filler_units]
    padding += [filler.unit(rng, keys) for _ in range(filler_units - len(padding))]
    if depth is None:
        positions = sorted(rng.randint(0, filler_units) for _ in units)
    else:
        first = round(depth * filler_units)
        positions = [first, *sorted(rng.randint(first, filler_units) for _ in units[1:])]
    pieces: list[tuple[str, bool]] = []
    done = 0
    for position, unit in zip(positions, units, strict=True):
        pieces += [(p, False) for p in padding[done:position]]
        pieces.append((unit, True))
        done = position
    pieces += [(p, False) for p in padding[done:]]
    text, spans = filler.prefix, []
    for index, (piece, is_unit) in enumerate(pieces):
        text += filler.join if index else ""
        if is_unit:
            spans.append((len(text), len(text) + len(piece.rstrip())))
        text += piece
    return Document(text.rstrip() + filler.suffix, tuple(spans))
