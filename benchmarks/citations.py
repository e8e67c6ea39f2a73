"""Writes answers about real documents with their citations into a table, to be judged by hand.

Each row of the table is a citation, or a sentence without one. Its column `right` is filled in by
hand: `yes` if the passage says what the sentence says, else `no`. Verdicts stay when the command
runs again, for rows with the same sentence and passage.

`--again` cites the answers of the stored tables without a model. The tables do not have all of a
model's answer: of a sentence that was quoted in part only that part, and not which parts of the
excerpt were read. So each of their sentences is cited alone, and all of the excerpt counts as read.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

from app.chat.engine_session import EngineSession
from app.chat.model_pairs import resolve_pair
from app.engine.backend import blas
from app.protocol.citations import CitationKind, Citations
from app.protocol.commands import Ask, CachePolicy
from app.protocol.events import Cited, Finished
from app.protocol.options import BackgroundPolicy, Mode, Sampling
from app.protocol.prompt import Document, Message, Role
from app.util.sentences import units
from benchmarks.quality.real_documents import Fact, load_facts

FACTS = "facts"
TEXTS, TABLE = Path(".cache/real/texts"), Path("benchmarks/results/citations/new.tsv")
AGAIN, HIDDEN = "again.tsv", "-hidden.tsv"
"""The table of verdicts about citations that only `--again` found, and how the name of a table ends
that was made with `--hide-passage`."""
CHARACTERS_OF_FACTS, CHARACTERS_OF_MODELS = 12_000, 1_500
"""Lengths of the excerpts that the stored tables are about."""
KEEP = 0.4
"""Every other document is read sparsely, at this keep."""
TOKENS = 80


@dataclass(frozen=True)
class Row:
    answer: str
    model: str
    document: str
    question: str
    sentence: str
    kind: str
    score: str
    passage: str
    right: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.sentence, self.kind, self.passage


def add_arguments(command: argparse.ArgumentParser) -> None:
    say = command.add_argument
    command.description = "Asks about real documents and writes a table of citations to judge."
    say(
        "--target",
        default="embedded",
        help=f"the model that answers, or `{FACTS}` for answers"
        " that people wrote (default %(default)s)",
    )
    say("--facts", action="append", metavar="F", help="kinds of facts (default english)")
    say("--texts", type=Path, default=TEXTS, metavar="FOLDER", help="the real documents")
    say("--out", type=Path, default=TABLE, metavar="FILE.tsv", help="the table")
    say("--n", type=int, default=20, help="answers for each kind of facts (default %(default)s)")
    say("--characters", type=int, default=4000, help="length of an excerpt (default %(default)s)")
    say("--hide-passage", action="store_true", help="with facts: as if the passage was not read")
    say("--min-support", type=float, help="another threshold, to see what it leaves out")
    say("--summary", action="store_true", help="only print the precision of the judged rows")
    say(
        "--again",
        action="store_true",
        help="cite the answers of the tables beside --out again, without a model, and print how"
        f" many citations are right; those without a verdict are added to {AGAIN}",
    )


def measure(options: argparse.Namespace) -> int:
    """Ask, write the table, and print how much of it was judged right."""
    if options.min_support is not None:
        from app.engine.turn import citations

        citations.MIN_SUPPORT = citations.MIN_SUPPORT_ENGLISH = options.min_support
    if options.again:
        _cite_all_again(options.out.parent, options.texts)
        return 0
    if not options.summary:
        known = {row.key: row.right for row in read_table(options.out)}
        rows = [row for row in read_table(options.out) if row.model != options.target]
        for row in _ask_all(options):
            rows.append(replace(row, right=known.get(row.key, "")))
            write_table(options.out, rows)
    print(summary(read_table(options.out)))
    return 0


def _ask_all(options: argparse.Namespace) -> Iterator[Row]:
    facts = [
        (name, fact)
        for name in options.facts or ["english"]
        for fact in load_facts(f"passages/{name}.toml")[: options.n]
    ]
    if options.target == FACTS:
        yield from _written_answers(options, facts)
        return
    with EngineSession(upkeep=CachePolicy(BackgroundPolicy.OFF)) as session:
        session.load(resolve_pair(options.target))
        for number, (name, fact) in enumerate(facts):
            text = (options.texts / fact.document).read_text(encoding="utf-8")
            excerpt = _excerpt(text, fact, options.characters, Random(number))
            message = Message(Role.USER, fact.question, (Document(fact.document, excerpt),))
            mode = Mode.SPARSE if number % 2 else Mode.FULL
            ask = Ask((message,), mode, KEEP, Sampling(max_tokens=TOKENS, seed=0))
            answer, found = "", Citations()
            for event in session.run(ask):
                match event:
                    case Cited():
                        found = event.citations
                    case Finished():
                        answer = event.text
            sys.stderr.write(f"{number + 1}/{len(facts)} {fact.question}\n")
            about = f"{name}-{number}", options.target, fact.document, fact.question
            yield from _rows(about, answer, excerpt, found)


def _written_answers(
    options: argparse.Namespace, facts: Sequence[tuple[str, Fact]]
) -> Iterator[Row]:
    """The citations of the facts' own answers."""
    for number, (name, fact) in enumerate(facts):
        text = (options.texts / fact.document).read_text(encoding="utf-8")
        excerpt = _excerpt(text, fact, options.characters, Random(number))
        hidden = fact.find(excerpt) if options.hide_passage else None
        about = f"{name}-{number}", FACTS, fact.document, fact.question
        yield from _cited(about, fact.answer, excerpt, hidden)


def _cited(
    about: tuple[str, str, str, str], answer: str, excerpt: str, hidden: tuple[int, int] | None
) -> Iterator[Row]:
    """The citations of an answer after all of an excerpt but the `hidden` characters was read."""
    blas.load_openblas()  # before MLX is imported
    from app.engine.model.text_encoder import built_in_encoder
    from app.engine.turn.citations import ReadText, cite

    start, end = hidden or (0, 0)
    unread = np.clip(np.arange(len(excerpt) + 1) - start, 0, end - start)
    read = ReadText(0, 0, excerpt, unread)
    question = about[-1]
    encoder = built_in_encoder(question, [answer, excerpt])
    yield from _rows(about, answer, excerpt, cite(answer, question, [read], encoder))


def _cite_all_again(folder: Path, texts: Path) -> None:
    """Cite the answers of all tables of a folder again, and print for each table how many citations
    are right, and the right ones that are gone."""
    tables = {path: read_table(path) for path in sorted(folder.glob("*.tsv"))}
    verdicts = {row.key: row.right for rows in tables.values() for row in rows if row.right}
    new = tables.pop(folder / AGAIN, [])
    known = {*verdicts, *(row.key for row in new)}
    for path, stored in tables.items():
        rows = [
            replace(row, right=verdicts.get(row.key, ""))
            for row in _cite_again(stored, path.name.endswith(HIDDEN), texts)
        ]
        gone = {row.key: row for row in stored if row.right == "yes"}
        for row in rows:
            gone.pop(row.key, None)
            if row.kind != "none" and row.key not in known:
                known.add(row.key)
                new.append(row)
        print(f"{path.stem}: {summary(rows)}")
        for row in gone.values():
            print(f"gone: {row.sentence} <- {row.passage}")
    write_table(folder / AGAIN, new)
    unjudged = sum(not row.right for row in new)
    print(f"{unjudged} citations in {folder / AGAIN} wait for a verdict")


def _cite_again(stored: Sequence[Row], hides: bool, texts: Path) -> Iterator[Row]:
    """The citations of a table's answers, by today's code. The facts have whole answers; of those
    of models the table has sentences."""
    done = set()
    for row in stored:
        name, _, number = row.answer.rpartition("-")
        is_fact = row.model == FACTS
        fact = _fact(name, row.question)
        answer = fact.answer if is_fact else row.sentence
        if not is_fact and row.kind == CitationKind.QUOTATION:
            answer += "."  # what begins with "is" or "may" looks like a question without it
        if (row.model, row.answer, answer) in done:
            continue
        done.add((row.model, row.answer, answer))
        text = (texts / fact.document).read_text(encoding="utf-8")
        length = CHARACTERS_OF_FACTS if is_fact else CHARACTERS_OF_MODELS
        excerpt = _excerpt(text, fact, length, Random(int(number)))
        about = row.answer, row.model, row.document, row.question
        yield from _cited(about, answer, excerpt, fact.find(excerpt) if hides else None)


@cache
def _fact(name: str, question: str) -> Fact:
    return next(fact for fact in load_facts(f"passages/{name}.toml") if fact.question == question)


def _excerpt(text: str, fact: Fact, length: int, rng: Random) -> str:
    """Whole lines around the passage."""
    passage = fact.find(text)
    assert passage is not None, fact.passage
    start = max(0, passage[0] - rng.randrange(max(1, length - passage[1] + passage[0])))
    start = text.rfind("\n", 0, start) + 1
    end = text.find("\n", max(start + length, passage[1]))
    return text[start : end if end >= 0 else len(text)]


def _rows(
    about: tuple[str, str, str, str], answer: str, text: str, found: Citations
) -> Iterator[Row]:
    for each in found.found:
        passage = text[each.passage_start : each.passage_end]
        sentence = answer[each.start : each.end]
        yield Row(*about, _flat(sentence), str(each.kind), f"{each.score:.3f}", _flat(passage))
    for unit in units(answer):
        if not any(each.start < unit.end and unit.start < each.end for each in found.found):
            yield Row(*about, _flat(answer[unit.start : unit.end]), "none", "", "")


def _flat(text: str) -> str:
    return " ".join(text.split())


def read_table(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [Row(**row) for row in csv.DictReader(file, delimiter="\t")]


def write_table(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow([field.name for field in fields(Row)])
        writer.writerows(astuple(row) for row in rows)


def summary(rows: Sequence[Row]) -> str:
    """How many citations of each kind were judged, and how many of them are right."""
    lines = [f"{len({(row.model, row.answer) for row in rows})} answers"]
    for kind in ("quotation", "support", "none"):
        verdicts = Counter(row.right for row in rows if row.kind == kind)
        judged = verdicts["yes"] + verdicts["no"]
        share = f", {verdicts['yes']} of {judged} judged right" if judged else ""
        lines.append(f"{kind}: {verdicts.total()}{share}")
    return "\n".join(lines)
