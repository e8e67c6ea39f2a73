"""Documents made for tasks: sections of one kind each, and questions they answer."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from random import Random

from benchmarks.quality import adversarial, documents, tasks
from benchmarks.quality.documents import Filler, compose
from benchmarks.quality.tasks import Maker, Task
from benchmarks.quality.words import ADJECTIVES, NOUNS, Keys

PAIR = re.compile(r"\b([A-Za-z]+)([-_ ])(?=([A-Za-z]+)\b)")
CHARACTERS = 4.0  # per token, roughly; a section may come out longer or shorter

PROSE_TASKS: dict[Maker, float] = {
    tasks.needle: 0.7,
    tasks.multi_key: 0.7,
    tasks.multi_value: 2,
    tasks.multi_query: 1,
    tasks.fact: 2,
    tasks.quote: 1.5,
    tasks.many: 5,
    tasks.count_names: 12,
    tasks.track: 4,
    tasks.variables: 3,
    adversarial.identifier: 1,
    adversarial.back_reference: 1,
    adversarial.foreign_fact: 1.5,
}
HARD_TASKS: dict[Maker, float] = {
    tasks.many: 4,
    tasks.multi_value: 1.5,
    tasks.count_names: 8,
    tasks.variables: 1.5,
    tasks.fact: 2,
    tasks.needle: 1,
}
RECORD_TASKS: tuple[Maker, ...] = (
    tasks.json_value,
    tasks.xml_value,
    tasks.code_value,
    adversarial.code_bug,
    tasks.count_marks,
    tasks.count_marks,
)
HARD_RECORD_TASKS = (*[tasks.count_marks] * 4, tasks.json_value, tasks.code_value)
MAY_BE_MISSING = {
    tasks.fact,
    tasks.needle,
    tasks.multi_key,
    tasks.many,
    tasks.json_value,
    tasks.xml_value,
    tasks.code_value,
}


def _approximately(text: str) -> int:
    return int(len(text) / CHARACTERS)


def _lines_of(text: str) -> Filler:
    """Real text as filler, paragraph by paragraph, then from its start again."""
    pieces = [piece for piece in text.split("\n\n") if piece.strip()] or ["..."]
    at = 0

    def unit(rng: Random, keys: Keys) -> str:
        nonlocal at
        at += 1
        return pieces[(at - 1) % len(pieces)] + "\n\n"

    return Filler(unit, join="")


def _similar(rng: Random, keys: Keys, unit: str) -> str | None:
    """`unit` about something with nearly the same name, and another value."""
    for found in PAIR.finditer(unit):
        adjective, between, noun = found.groups()
        if adjective.lower() in ADJECTIVES:
            break
    else:
        return None
    names = [adjective.lower(), noun.lower()]
    at = rng.randrange(2)
    names[at] = rng.choice((ADJECTIVES, NOUNS)[at])
    if not keys.claim(" ".join(names)):
        return None
    name = between.join(n.upper() if noun.isupper() else n for n in names)
    value = "".join(str(rng.randrange(1, 10)) for _ in re.findall(r"\d", unit))
    return re.sub(r"\d+", value, unit[: found.start()] + name + unit[found.end(3) :])


def _harder(rng: Random, keys: Keys, task: Task, missing: float) -> Task:
    """`task`, often among units with similar names, and unanswerable with probability `missing`."""
    units = list(task.units)
    for _ in range(rng.choice((0, 0, 1, 2))):
        similar = _similar(rng, keys, rng.choice(task.units))
        if similar:
            units.insert(rng.randint(0, len(units)), similar)
    task = replace(task, units=tuple(units))
    return tasks.negative(task, tasks.restatement(task)) if rng.random() < missing else task


def _frequency(rng: Random, keys: Keys, tokens: int) -> tuple[str, list[Task]]:
    if rng.random() < 0.75:
        task = tasks.common_words(rng, keys, False, rng.choice((2, 3, 3, 3, 5, 10)))
    else:
        task = tasks.frequent_words(rng, keys, False)
    document = compose(task.filler, (), max(tokens, 60), _approximately, rng, keys)
    return document.text, [task]


def made(
    rng: Random, plain: Callable[[int], str], tokens: int, answers: int, focus: float = 0.0
) -> tuple[str, list[Task], list[tuple[int, int]]]:
    """A text of about `tokens` tokens, questions whose answers take about `answers` tokens, and
    the spans (characters) that they need. `plain` gives other text to hide units in. `focus` is
    the share of documents for the hardest tasks: several values, counts, missing facts."""
    keys = Keys(rng)
    hard = rng.random() < focus
    prose = HARD_TASKS if hard else PROSE_TASKS
    records = HARD_RECORD_TASKS if hard else RECORD_TASKS
    missing = 0.4 if hard else 0.15
    if rng.random() < 0.2:
        text, task_list = _frequency(rng, keys, tokens)
        return text, task_list, [(0, len(text))]
    sections = 1 if tokens < 400 else rng.choice((1, 1, 2, 3))
    text, spans = "", []
    questions: list[Task] = []
    for _ in range(sections):
        share, budget = tokens // sections, answers // sections
        chosen: list[Task] = []
        units = 0
        record = rng.choice(records) if rng.random() < 0.42 else None
        while budget > 0 and len(chosen) < 14:
            maker = record or rng.choices(list(prose), list(prose.values()))[0]
            try:
                if maker in (tasks.count_marks, tasks.count_names):
                    task = maker(rng, keys, False, min(20, share // 16))  # type: ignore[call-arg]
                else:
                    task = maker(rng, keys, False)
                if maker in MAY_BE_MISSING:
                    task = _harder(rng, keys, task, missing)
            except LookupError:
                break
            units += _approximately("".join(task.units)) + 2
            if units > 0.8 * share:
                break
            chosen.append(task)
            budget -= _approximately(task.question + task.answer) + 12
        if chosen:
            filler = chosen[0].filler
            if filler is documents.PROSE and rng.random() < 0.35:
                filler = _lines_of(plain(share))
            mixed = _interleaved(rng, chosen)
            fixed = _approximately(filler.join.join(mixed)) + 20
            document = compose(filler, mixed, max(share, fixed), _approximately, rng, keys)
            shift = len(text) + 2 if text else 0
            spans += [(shift + start, shift + end) for start, end in document.units]
            text += ("\n\n" if text else "") + document.text
            questions += chosen
    if not text:
        text = compose(documents.PROSE, (), tokens, _approximately, rng, keys).text
    rng.shuffle(questions)
    return text, questions, spans


def _interleaved(rng: Random, chosen: list[Task]) -> list[str]:
    """The units of all tasks, shuffled, those of each task in their order."""
    turns = [index for index, task in enumerate(chosen) for _ in task.units]
    rng.shuffle(turns)
    iterators = [iter(task.units) for task in chosen]
    return [next(iterators[index]) for index in turns]
