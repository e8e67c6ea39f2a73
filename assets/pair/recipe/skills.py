"""Documents made for tasks: sections of one kind each, and questions whose answers they hold."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from app.eval import adversarial, documents, frequency, tasks
from app.eval.documents import Filler, compose
from app.eval.tasks import Maker, Task
from app.eval.words import Keys

CHARACTERS = 4.0  # per token, roughly; a section may come out longer or shorter

PROSE_TASKS: dict[Maker, float] = {
    tasks.needle: 0.7,
    tasks.multi_key: 0.7,
    tasks.multi_value: 2,
    tasks.multi_query: 1,
    tasks.fact: 2,
    tasks.quote: 1.5,
    tasks.many: 5,
    tasks.count_names: 8,
    tasks.track: 4,
    tasks.variables: 3,
    adversarial.identifier: 1,
    adversarial.back_reference: 1,
    adversarial.foreign_fact: 1.5,
}
HARD_TASKS: dict[Maker, float] = {
    tasks.many: 4,
    tasks.multi_value: 2,
    tasks.count_names: 6,
    tasks.variables: 2,
    tasks.fact: 1,
}
RECORD_TASKS: tuple[Maker, ...] = (
    tasks.json_value,
    tasks.xml_value,
    tasks.code_value,
    adversarial.code_bug,
    tasks.count_marks,
    tasks.count_marks,
)


def _approximately(text: str) -> int:
    return int(len(text) / CHARACTERS)


def _lines_of(text: str) -> Filler:
    """Real text as filler, a paragraph at a time in its order, then from its start again."""
    pieces = [piece for piece in text.split("\n\n") if piece.strip()] or ["..."]
    at = 0

    def unit(rng: Random, keys: Keys) -> str:
        nonlocal at
        at += 1
        return pieces[(at - 1) % len(pieces)] + "\n\n"

    return Filler(unit, join="")


def _absent(rng: Random, keys: Keys) -> Task:
    """A question like one that the document answers, about something it does not hold."""
    kinds: tuple[Maker, ...] = (
        tasks.fact,
        tasks.needle,
        tasks.many,
        tasks.json_value,
        tasks.code_value,
        tasks.quote,
        adversarial.identifier,
    )
    try:
        task = rng.choice(kinds)(rng, keys, False)
    except LookupError:
        task = tasks.needle(rng, keys)
    return tasks.unanswerable(task, tasks.restated(task))


def _frequency(rng: Random, keys: Keys, tokens: int) -> tuple[str, list[Task]]:
    if rng.random() < 0.65:
        task = frequency.common_words(rng, keys, False, rng.choice((2, 3, 5, 5, 10, 10)))
    else:
        task = frequency.frequent_words(rng, keys, False)
    document = compose(task.filler, (), max(tokens, 60), _approximately, rng, keys)
    return document.text, [task]


def made(
    rng: Random, plain: Callable[[int], str], tokens: int, answers: int, focus: float = 0.0
) -> tuple[str, list[Task], list[tuple[int, int]]]:
    """A text of about `tokens` tokens, questions whose answers take about `answers` tokens, and
    the spans (characters) that they need. `plain` gives other text to hide things in. `focus` is
    the share of documents for what is learnt last: several values, counts, what is absent."""
    keys = Keys(rng)
    hard = rng.random() < focus
    prose, records = (HARD_TASKS, (tasks.count_marks,)) if hard else (PROSE_TASKS, RECORD_TASKS)
    if rng.random() < 0.15:
        text, asked = _frequency(rng, keys, tokens)
        return text, asked, [(0, len(text))]
    sections = 1 if tokens < 400 else rng.choice((1, 1, 2, 3))
    text, spans = "", []
    questions: list[Task] = []
    for _ in range(sections):
        share, room = tokens // sections, answers // sections
        chosen: list[Task] = []
        units = 0
        record = rng.choice(records) if rng.random() < 0.35 else None
        while room > 0 and len(chosen) < 14:
            maker = record or rng.choices(list(prose), list(prose.values()))[0]
            try:
                if maker in (tasks.count_marks, tasks.count_names):
                    task = maker(rng, keys, False, min(20, share // 16))  # type: ignore[call-arg]
                else:
                    task = maker(rng, keys, False)
            except LookupError:
                break
            units += _approximately("".join(task.units)) + 2
            if units > 0.8 * share:
                break
            chosen.append(task)
            room -= _approximately(task.question + task.answer) + 12
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
    missing = sum(rng.random() < (0.3 if hard else 0.12) for _ in range(len(questions) + 1))
    questions += [_absent(rng, keys) for _ in range(missing)]
    rng.shuffle(questions)
    return text, questions, spans


def _interleaved(rng: Random, chosen: list[Task]) -> list[str]:
    """All tasks' units, shuffled together, each task's own in their order."""
    turns = [index for index, task in enumerate(chosen) for _ in task.units]
    rng.shuffle(turns)
    iterators = [iter(task.units) for task in chosen]
    return [next(iterators[index]) for index in turns]
