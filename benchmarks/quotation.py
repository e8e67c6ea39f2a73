"""`python -m benchmarks.quotation`: what the demo model answers to natural questions.

The documents come from `make real-texts`. For each set of questions it counts the answers that are
the right passage, those that are a wrong one, lists of candidates with and without the right
passage, and "nothing found". Each question is also asked about a text of another document, which
does not answer it. `--dev` uses the questions on which thresholds may be chosen, and prints what
other thresholds would give.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from app.engine.backend.blas import load_openblas
from app.engine.model.prompt import PromptText
from app.engine.turn.quotation import Found, find_quotes
from app.models.embedded import target_path
from app.protocol.prompt import Document
from app.util.tables import TextTable
from benchmarks.quality.real_documents import Corpus, facts_of
from benchmarks.quality.tokens import FolderTokens

TEXTS = Path(".cache/real/texts")
HELD_OUT = (
    "passage-english",
    "passage-english-reworded",
    "passage-change",
    "passage-followup",
    "passage-tables",
    "passage-logs",
)
DEV = ("dev-change", "dev-followup", "dev-tables")
"""Of follow-up questions, the first question of the conversation is asked."""
KINDS = ("right", "wrong", "candidates with it", "other candidates", "nothing found")
LEADS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
NEARNESSES = (0.6, 0.7, 0.8, 0.9, 1.0)
SIMILARITIES = (0.26, 0.28, 0.3, 0.32, 0.34, 0.36, 0.38, 0.4, 0.42, 0.44)


@dataclass(frozen=True)
class Asked:
    """A question about `text`. `passages` are character ranges, any of which answers it; none if
    the text does not answer it."""

    suite: str
    document: str
    question: str
    text: str
    passages: tuple[tuple[int, int], ...] = ()

    def is_right(self, start: int, end: int) -> bool:
        """Whether a quote has at least half of a passage, or is at least half in it."""
        return any(
            min(end, last) - max(start, first) >= min(end - start, last - first) / 2
            for first, last in self.passages
        )


@dataclass(frozen=True)
class Outcome:
    """What was found for a question. `right` says so for each of the passages found."""

    asked: Asked
    right: tuple[bool, ...]
    shown: int
    answers: bool
    found: Found

    def would_answer(self, lead: float, nearness: float) -> bool:
        """Whether it would be answered with this `MIN_LEAD` and `MIN_NEARNESS`."""
        leads = self.found.is_only or self.found.lead >= lead
        return self.found.has_figures and leads and self.found.nearness >= nearness

    @property
    def kind(self) -> str:
        if self.answers:
            return "right" if self.right[0] else "wrong"
        if not self.shown:
            return "nothing found"
        return "candidates with it" if any(self.right) else "other candidates"


def main(arguments: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--dev", action="store_true", help="use the questions to tune on")
    options.add_argument("--suite", action="append", help="only these sets of questions")
    options.add_argument("--texts", type=Path, default=TEXTS, help="folder of the documents")
    options.add_argument("--length", type=int, default=8192, help="prompt tokens")
    options.add_argument("--n", type=int, default=1000, help="maximum questions of a suite")
    chosen = options.parse_args(arguments)
    load_openblas()
    files = [Document(path.name, path.read_text("utf-8")) for path in chosen.texts.iterdir()]
    corpus = Corpus(files, FolderTokens(target_path()))
    outcomes = []
    for suite in chosen.suite or (DEV if chosen.dev else HELD_OUT):
        items = [*questions(corpus, suite, chosen.length)][: chosen.n]
        for number, asked in enumerate(items):
            outcomes.append(outcome(asked))
            if (other := _elsewhere(items, number)) is not None:
                outcomes.append(outcome(other))
    print(TextTable(["", "questions", *KINDS], [*_rows(outcomes)]).plain())
    if chosen.dev:
        print(_thresholds(outcomes))


def questions(corpus: Corpus, suite: str, length: int) -> Iterator[Asked]:
    for index, fact in enumerate(facts_of(suite)):
        item = corpus.item(suite, index, length, 0)
        text, passages, question = item.document.text, item.passages, item.question
        if suite.endswith("followup"):
            question = fact.before[-1][0]
            earlier = fact.find_earlier(text)
            passages = () if earlier is None else (earlier,)
        if passages:
            yield Asked(suite, fact.document, question, text, passages)


def _elsewhere(items: Sequence[Asked], number: int) -> Asked | None:
    """The same question about the text of another document."""
    asked = items[number]
    others = (items[(number + step) % len(items)] for step in range(1, len(items)))
    other = next((each for each in others if each.document != asked.document), None)
    if other is None:
        return None
    return Asked(f"{asked.suite}, unanswerable", other.document, asked.question, other.text)


def outcome(asked: Asked) -> Outcome:
    from app.engine.model.text_encoder import english_encoder

    text = PromptText(0, 0, False, 0, np.arange(len(asked.text) + 1), asked.text)
    found = find_quotes([text], asked.question, english_encoder(), lambda done, total: None)
    right = tuple(asked.is_right(each.start, each.end) for each in found.quotes)
    return Outcome(asked, right, len(found.shown), found.answers, found)


def _rows(outcomes: Sequence[Outcome]) -> Iterator[list[str]]:
    for suite in dict.fromkeys(each.asked.suite for each in outcomes):
        kinds = Counter(each.kind for each in outcomes if each.asked.suite == suite)
        total = kinds.total()
        yield [suite, str(total), *(f"{kinds[kind] / total:.0%}" for kind in KINDS)]


def _thresholds(outcomes: Sequence[Outcome]) -> str:
    """What other values of `MIN_LEAD`, `MIN_NEARNESS` and `MIN_SIMILARITY` would give."""
    with_answer = [each for each in outcomes if each.asked.passages]
    without = [each for each in outcomes if not each.asked.passages]

    def share(flags: Sequence[bool]) -> str:
        return f"{np.mean(flags):.0%}"

    rows = []
    for lead, nearness in product(LEADS, NEARNESSES):
        right = [each.right[0] for each in with_answer if each.would_answer(lead, nearness)]
        of_others = share([each.would_answer(lead, nearness) for each in without])
        shares = (sum(right) / len(with_answer), (len(right) - sum(right)) / len(with_answer))
        rows.append([f"{lead:g}", f"{nearness:g}", *(f"{each:.0%}" for each in shares), of_others])
    titles = ["lead", "nearness", "right", "wrong", "unanswerable answered"]
    answers = TextTable(titles, rows).plain()
    rows = [
        [
            f"{least:g}",
            share([each.found.similarity < least for each in with_answer]),
            share([each.found.similarity < least for each in without]),
        ]
        for least in SIMILARITIES
    ]
    floors = TextTable(["similarity", "nothing found", "of unanswerable"], rows).plain()
    return f"\n{answers}\n\n{floors}"


if __name__ == "__main__":
    main()
