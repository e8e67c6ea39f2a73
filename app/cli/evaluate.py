"""`specchat eval`: measures which answers of a pair of models survive sparse reading.

Facts, sentences and marked lines are hidden in a text, and asked for in full and sparsely. Needles
follow RULER (arXiv 2404.06654).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import TextIO

from app.chat.engine_session import EngineSession
from app.chat.sample import text_of
from app.cli.bench import ALONE, ask
from app.cli.options import add_kv_bits, add_length, add_models, parse_keep, whole
from app.cli.settings import requested_load, user_settings
from app.cli.status import INTERRUPTED
from app.cli.terminal import ProgressLine
from app.protocol.options import DEFAULT_KEEP_RATIO, Mode, Sampling
from app.util.tables import TextTable

ANSWER_TOKENS = 64
_ADJECTIVES = ("amber", "brisk", "calm", "dusty", "eager", "faint", "gentle", "hollow", "icy")
_NOUNS = ("anchor", "bridge", "candle", "dagger", "engine", "falcon", "garden", "harbour")
_VERBS = ("carries", "follows", "greets", "hides", "lifts", "mends", "paints", "watches")


@dataclass(frozen=True, slots=True)
class Task:
    """`lines` are hidden in the text. An answer is right if it contains `expected` as a word."""

    kind: str
    lines: tuple[str, ...]
    question: str
    expected: str


@dataclass(frozen=True, slots=True)
class Attempt:
    right: bool
    read_fraction: float
    ttft: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """How one task was answered, in full and sparsely."""

    kind: str
    full: Attempt
    sparse: Attempt


def needle(rng: Random) -> Task:
    key = f"{rng.choice(_ADJECTIVES)}-{rng.choice(_NOUNS)}"
    value = str(rng.randrange(1_000_000, 10_000_000))
    line = f"The special magic number for {key} is: {value}."
    return Task("needle", (line,), f"What is the special magic number for {key}?", value)


def quotation(rng: Random) -> Task:
    subject, first, second = rng.sample(_NOUNS, 3)
    one, two, three = rng.sample(_ADJECTIVES, 3)
    begins = f"The {one} {subject} {rng.choice(_VERBS)} the {two} {first}"
    ends = f"while the {three} {second} {rng.choice(_VERBS)} it"
    question = f'How does the sentence go on that begins with "{begins}"? Quote it.'
    return Task("quotation", (f"{begins} {ends}.",), question, ends)


def count(rng: Random) -> Task:
    number = rng.randint(2, 9)
    tickets = rng.sample(range(100, 1000), number)
    lines = tuple(f"Ticket {each} is marked LATE." for each in tickets)
    return Task("count", lines, "How many tickets are marked LATE?", str(number))


KINDS: dict[str, Callable[[Random], Task]] = {
    "needle": needle,
    "quotation": quotation,
    "count": count,
}


def document(task: Task, length: int, rng: Random) -> str:
    """A text of about `length` tokens with the task's lines between its paragraphs."""
    paragraphs = text_of(length).split("\n\n")
    for line in task.lines:
        paragraphs.insert(rng.randint(0, len(paragraphs)), line)
    return "\n\n".join(paragraphs)


def is_right(answer: str, expected: str) -> bool:
    """Whether `answer` contains `expected` as a word, ignoring white space and case."""
    plain, wanted = (" ".join(each.casefold().split()) for each in (answer, expected))
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", plain) is not None


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Hides facts, sentences and marked lines in a text, asks for them in full and sparsely, and"
        " reports which correct answers sparse reading loses."
    )
    add_length(command)
    command.add_argument(
        "--keep",
        type=parse_keep,
        default=DEFAULT_KEEP_RATIO,
        help="fraction of the prompt that is read, or auto (default %(default)s)",
    )
    command.add_argument(
        "--n",
        type=whole("number of questions", 1, 100_000),
        default=10,
        metavar="N",
        help="questions of each kind (default %(default)s)",
    )
    command.add_argument(
        "--seed", type=whole("seed", 0, 2**63), default=0, help="seed of the questions (default 0)"
    )
    command.add_argument("--json", action="store_true", help="print every result as JSON")
    add_models(command)
    add_kv_bits(command)


def run(options: argparse.Namespace) -> int:
    """Ask all questions and print a table, after Ctrl-C of the answers so far. Return the exit
    status. Raises UserError."""
    results: list[Comparison] = []
    total = options.n * len(KINDS)
    with EngineSession(upkeep=ALONE) as session, ProgressLine() as line:
        # Measure what the model itself writes, even if it can only quote.
        load = requested_load(options, user_settings())
        session.load(replace(load, only_quotes=False))
        try:
            for result in _results(session, options):
                results.append(result)
                line.show(f"{len(results)} of {total} questions")
        except KeyboardInterrupt:
            session.cancel()
    if options.json:
        sys.stdout.write(json.dumps([asdict(each) for each in results]) + "\n")
    elif results:
        _print(results, options.keep, sys.stdout)
    if len(results) < total:
        sys.stderr.write(f"Stopped after {len(results)} of {total} questions.\n")
        return INTERRUPTED
    return 0


def _results(session: EngineSession, options: argparse.Namespace) -> Iterator[Comparison]:
    """Yield a comparison for each task. The kinds alternate, so that partial results cover all of
    them."""
    for number in range(options.n):
        for kind, make in KINDS.items():
            rng = Random(f"{options.seed} {kind} {number}")
            task = make(rng)
            text = document(task, options.length, rng)
            full, sparse = (
                _answer(session, task, text, mode, options.keep)
                for mode in (Mode.FULL, Mode.SPARSE)
            )
            yield Comparison(kind, full, sparse)


def _answer(session: EngineSession, task: Task, text: str, mode: Mode, keep: float) -> Attempt:
    sampling = Sampling(max_tokens=ANSWER_TOKENS)
    answer, stats = ask(session, text, task.question, mode, keep, sampling)
    return Attempt(is_right(answer, task.expected), stats.read_fraction, stats.ttft)


def _print(results: Sequence[Comparison], keep: float, out: TextIO) -> None:
    head = ["", "questions", "in full", "sparse", "lost", "read", "first word"]
    rows = []
    for kind in KINDS:
        of_kind = [each for each in results if each.kind == kind]
        if not of_kind:
            continue
        lost = sum(each.full.right and not each.sparse.right for each in of_kind)
        read = sum(each.sparse.read_fraction for each in of_kind) / len(of_kind)
        sooner = sum(each.full.ttft for each in of_kind) / sum(each.sparse.ttft for each in of_kind)
        row = [
            kind,
            f"{len(of_kind)}",
            f"{sum(each.full.right for each in of_kind)}",
            f"{sum(each.sparse.right for each in of_kind)}",
            f"{lost}",
            f"{read:.0%}",
            f"{sooner:.1f}x",
        ]
        rows.append(row)
    out.write(
        f"{TextTable(head, rows).plain()}\n"
        "\nCorrect answers when read in full and sparsely; *lost* ones are correct only in full."
        "\nRead in full (Ctrl+T, `--full`) if a question needs every line, as counting does.\n"
    )
