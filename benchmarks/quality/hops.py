"""Multi-hop questions: each passage refers to the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, pairwise
from pathlib import PurePath
from random import Random

from app.protocol.prompt import Document
from benchmarks.quality.documents import FUNCTIONS, PROSE, Filler
from benchmarks.quality.tasks import Maker, Task, phrase
from benchmarks.quality.words import Keys

MAX_PARAGRAPH = 300
"""Maximum characters of a paragraph; longer ones are split."""


def across_files(rng: Random, keys: Keys, held_out: bool = False) -> Task:
    """A constant that a file imports from a second file, and that one from a third."""
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
    """A term of a contract that is defined by another term elsewhere."""
    terms = [f"{keys.word().capitalize()} Period" for _ in range(rng.randint(2, 4))]
    days = keys.number()
    units = [f'"{terms[0]}" means {days} days after the notice. ']
    units += [f'"{term}" means the {earlier}. ' for earlier, term in pairwise(terms)]
    question = phrase(rng, "definition", held_out).format(terms[-1])
    answer = " ".join(unit.strip() for unit in reversed(units))
    return Task(PROSE, tuple(rng.sample(units, len(units))), question, answer, (days,))


def in_files(maker: Maker, files: Sequence[Document]) -> Maker:
    """Wrap `maker` to use the paragraphs of one of the files as filler, starting at a random one:
    of Python files for code, of other files for everything else, if there are any."""
    code = [file for file in files if PurePath(file.name).suffix == ".py"]
    prose = [file for file in files if file not in code]

    def make(rng: Random, keys: Keys, held_out: bool = False) -> Task:
        task = maker(rng, keys, held_out)
        source = rng.choice((code if task.filler is FUNCTIONS else prose) or files)
        paragraphs = _paragraphs(source.text)
        first = rng.randrange(len(paragraphs))
        rest = cycle(paragraphs[first:] + paragraphs[:first])
        units = tuple(unit.strip() for unit in task.units)
        return replace(task, filler=Filler(lambda *_: next(rest), join="\n\n"), units=units)

    return make


def _paragraphs(text: str) -> list[str]:
    found = []
    for block in filter(str.strip, text.split("\n\n")):
        paragraph = ""
        for line in block.strip("\n").splitlines():
            for start in range(0, len(line) or 1, MAX_PARAGRAPH):
                part = line[start : start + MAX_PARAGRAPH]
                if len(paragraph) + len(part) > MAX_PARAGRAPH:
                    found.append(paragraph)
                    paragraph = ""
                paragraph = f"{paragraph}\n{part}" if paragraph else part
        found.append(paragraph)
    return [paragraph for paragraph in found if paragraph]
