"""Questions whose answer is several steps away: each passage says where to look next."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from app.eval.documents import FUNCTIONS, PROSE
from app.eval.tasks import Task, phrase
from app.eval.words import Keys


def across_files(rng: Random, keys: Keys, held_out: bool = False) -> Task:
    """A constant that a file of a repository takes from another one, and that from a third."""
    files = [keys.word() for _ in range(rng.randint(2, 4))]
    names = [keys.thing().replace(" ", "_").upper() for _ in files]
    value = keys.number(4)
    units = [_module(files[0], f"{names[0]} = {value}")]
    for (source, there), (file, name) in pairwise(zip(files, names, strict=True)):
        units.append(_module(file, f"from {source} import {there}\n\n{name} = {there}"))
    steps = [f"{name} = {there}" for there, name in pairwise([value, *names])]
    question = phrase(rng, "constant", held_out).format(names[-1])
    answer = ", ".join(reversed(steps))
    return Task(FUNCTIONS, tuple(rng.sample(units, len(units))), question, answer, (value,))


def _module(name: str, text: str) -> str:
    return f"# ---- {name}.py ----\n{text}\n"


def definitions(rng: Random, keys: Keys, held_out: bool = False) -> Task:
    """A contract's term, which is defined by another one, far away."""
    terms = [f"{keys.word().capitalize()} Period" for _ in range(rng.randint(2, 4))]
    days = keys.number()
    units = [f'"{terms[0]}" means {days} days after the notice. ']
    units += [f'"{term}" means the {earlier}. ' for earlier, term in pairwise(terms)]
    question = phrase(rng, "definition", held_out).format(terms[-1])
    answer = " ".join(unit.strip() for unit in reversed(units))
    return Task(PROSE, tuple(rng.sample(units, len(units))), question, answer, (days,))
