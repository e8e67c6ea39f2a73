"""Questions about real documents with known answers (`real.toml`, `passages/*.toml`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, starmap, zip_longest
from pathlib import PurePath
from random import Random

import numpy as np

from app.errors import UserError
from app.protocol.prompt import Document
from benchmarks.quality.suites import (
    ANSWER,
    ANSWERED,
    ASKED_ONCE,
    CONVERSATION,
    PASSAGE,
    RESERVED,
    REWORDED,
    SEVERAL,
    DoesNotFit,
    Item,
    item_id,
)
from benchmarks.quality.tasks import Check
from benchmarks.quality.tokens import Tokens
from benchmarks.quality.words import load

SEPARATOR = "\n\n"
TURNS, GROUP = 15, 5
"""Of a conversation; and those that are reported together."""
TALKS = (
    ("english", "handbook-en.txt"),
    ("logs", "server.log"),
    ("code", "werkzeug.py"),
    ("tables", "redis.conf"),
    ("english", "policy.txt"),
)
"""A kind of facts and a document for each conversation."""
BRIEF = "Answer in as few words as possible."
"""System prompt of the suites that want an answer. In the question it would be scored, too."""
CharacterRange = tuple[int, int]


@dataclass(frozen=True)
class Fact:
    """A fact stated by `passage`, which occurs once in `document`. `question` uses the document's
    words, `reworded` does not. An answer is right if it contains one of `expected`. `before` has
    the questions and answers of earlier turns, `earlier` the passage of the last answer."""

    document: str
    passage: str
    question: str
    answer: str
    reworded: str = ""
    expected: tuple[str, ...] = ()
    before: tuple[tuple[str, str], ...] = ()
    earlier: str = ""

    def find(self, text: str) -> tuple[int, int] | None:
        """The character range of the passage, ignoring white space; None unless it occurs exactly
        once."""
        return _find_once(self.passage, text)

    def find_earlier(self, text: str) -> tuple[int, int] | None:
        """The characters of what an earlier turn was about, if there is one and it occurs once."""
        return _find_once(self.earlier, text) if self.earlier else None


def _find_once(passage: str, text: str) -> tuple[int, int] | None:
    pattern = r"\s+".join(re.escape(word) for word in passage.split())
    found = [match.span() for match in re.finditer(pattern, text)]
    return found[0] if len(found) == 1 else None


def load_facts(file: str) -> tuple[Fact, ...]:
    """Facts with alternating documents: the first fact of each, then the second of each, and so
    on."""
    loaded = load(file)["facts"]
    facts = [Fact(**each) for each in loaded]
    names = dict.fromkeys(fact.document for fact in facts)
    groups = [[fact for fact in facts if fact.document == name] for name in names]
    found = chain.from_iterable(zip_longest(*groups))
    return tuple(fact for fact in found if fact is not None)


@cache
def facts_of(suite: str) -> tuple[Fact, ...]:
    """The facts that a suite asks about; those of a conversation in the order of its turns."""
    if suite == CONVERSATION:
        return tuple(chain.from_iterable(starmap(_turns, TALKS)))
    facts = _facts_of_kind(suite)
    return tuple(fact for fact in facts if fact.expected) if suite in ANSWERED else facts


def _turns(kind: str, document: str) -> list[Fact]:
    """The facts that a conversation about a document asks about, in random order and, in turns, in
    the document's own words and in others."""
    facts = [fact for fact in _facts_of_kind(f"{ANSWER}-{kind}") if fact.document == document]
    rng = Random(document)
    asked = rng.sample([fact for fact in facts if fact.expected and not fact.before], TURNS)
    return [
        replace(fact, question=fact.reworded or fact.question) if turn % 2 else fact
        for turn, fact in enumerate(asked)
    ]


@cache
def _facts_of_kind(suite: str) -> tuple[Fact, ...]:
    """The facts of a suite's documents, whether or not it asks about all of them."""
    kind = kind_of(suite)
    if kind == SEVERAL:
        kind = "english"
    return load_facts(f"passages/{kind}.toml" if suite in ASKED_ONCE else "real.toml")


def kind_of(suite: str) -> str:
    """The kind of passages of a suite: `english` for `passage-english-reworded`."""
    kind = suite.removesuffix(REWORDED)
    return kind.removeprefix(PASSAGE).removeprefix(ANSWER).removeprefix("-")


class Corpus:
    """The documents among the given files, and excerpts of them that contain a fact."""

    def __init__(self, files: Sequence[Document], tokens: Tokens) -> None:
        self._texts = {PurePath(document.name).name: document.text for document in files}
        self._tokens = tokens
        self._offsets: dict[str, Sequence[CharacterRange]] = {}
        self._found: dict[str, dict[Fact, CharacterRange]] = {}
        """By the name of a text: the character range of each fact's passage."""

    def check(self, suites: Iterable[str]) -> None:
        """Raise UserError if a document is missing or differs from the expected version."""
        for fact in chain.from_iterable(map(facts_of, suites)):
            text = self._texts.get(fact.document, "")
            passages = [fact.find(text)] + [fact.find_earlier(text)] * bool(fact.earlier)
            if None in passages:
                problem = "differs" if fact.document in self._texts else "is missing"
                raise UserError(
                    f"The document {fact.document!r} that is asked about {problem}",
                    "fetch the documents with `make real-texts`, and give their folder with --file",
                )

    def item(self, suite: str, index: int, length: int, seed: int) -> Item:
        """Item `index` with an excerpt, so that the prompt has about `length` tokens. Reworded
        suites have the same excerpts, and so have those that want an answer. Raises DoesNotFit."""
        if suite == CONVERSATION:
            return self._turn(index, length, seed)
        facts = facts_of(suite)
        fact = facts[index % len(facts)]
        drawn = _facts_of_kind(suite).index(fact) if suite in ANSWERED else index
        rng = Random(f"{seed}/{length}/{drawn}")
        name, text, passage = self._source(suite, fact, length)
        asked = {fact: passage}
        if kind_of(suite) == SEVERAL:
            other, its_passage = self._other(suite, name, text, passage, length // 2, rng)
            asked[other] = its_passage
        reworded = suite.endswith(REWORDED)
        question = " ".join(each.reworded if reworded else each.question for each in asked)
        around = self._tokens_around(question, fact)
        needed = [*asked.values()]
        if (earlier := fact.find_earlier(text)) is not None:
            needed.append(earlier)
        whole = min(start for start, _ in needed), max(end for _, end in needed)
        start, end = _excerpt(self._token_offsets(name, text), whole, length - around, rng)
        return Item(
            item_id(suite, length, index),
            suite,
            fact.document,
            length,
            Document(fact.document, text[start:end]),
            question,
            fact.answer,
            fact.expected,
            Check.HOLDS_ANY,
            length,
            fact.before,
            passages=tuple((first - start, last - start) for first, last in asked.values()),
            system=BRIEF if suite in ANSWERED else "",
        )

    def _turn(self, index: int, length: int, seed: int) -> Item:
        """A turn of a conversation about the parts of a document that hold its answers, of about
        `length` tokens together. Raises DoesNotFit."""
        talk, turn = divmod(index, TURNS)
        facts = facts_of(CONVERSATION)[talk * TURNS : (talk + 1) * TURNS]
        name = facts[turn].document
        text, rng = self._texts[name], Random(f"{seed}/{length}/{name}")
        offsets, taken = self._token_offsets(name, text), np.zeros(len(text), bool)
        for fact in facts:
            passage = _find_once(fact.passage, text)
            assert passage is not None, "checked before"
            start, end = _excerpt(offsets, passage, length // TURNS, rng)
            taken[start:end] = True
        edges = np.flatnonzero(np.diff(taken, prepend=False, append=False)).tolist()
        parts = [text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)]
        asked = tuple((fact.question, fact.answer) for fact in facts[:turn])
        first = turn // GROUP * GROUP
        return Item(
            item_id(CONVERSATION, length, index),
            CONVERSATION,
            f"turns {first + 1} to {first + GROUP}",
            length,
            Document(name, SEPARATOR.join(parts)),
            facts[turn].question,
            facts[turn].answer,
            facts[turn].expected,
            Check.HOLDS_ANY,
            length + sum(self._tokens_around(question, facts[turn]) for question, _ in asked),
            asked,
            chat=f"{CONVERSATION}/{length}/{name}",
            system=BRIEF,
        )

    def _tokens_around(self, question: str, fact: Fact) -> int:
        """Tokens of the prompt without the document."""
        texts = chain([question], *fact.before)
        return RESERVED * (1 + len(fact.before)) + sum(map(self._tokens.count, texts))

    def _source(self, suite: str, fact: Fact, length: int) -> tuple[str, str, CharacterRange]:
        """The fact's document or, if that is too short, all documents of the suite concatenated."""
        name, text = fact.document, self._texts[fact.document]
        if len(self._token_offsets(name, text)) < length:
            names = dict.fromkeys(each.document for each in _facts_of_kind(suite))
            name, text = kind_of(suite), SEPARATOR.join(self._texts[each] for each in names)
        passage = fact.find(text)
        if passage is None:
            raise DoesNotFit(f"the answer's passage is not once in {fact.document}")
        return name, text, passage

    def _other(
        self, suite: str, name: str, text: str, passage: CharacterRange, tokens: int, rng: Random
    ) -> tuple[Fact, CharacterRange]:
        """Another fact whose passage is at most this many tokens away. Raises DoesNotFit."""
        offsets = self._token_offsets(name, text)
        reach = tokens * len(text) // max(len(offsets), 1)
        low, high = passage[0] - reach, passage[1] + reach
        if name not in self._found:
            found = {fact: fact.find(text) for fact in facts_of(suite)}
            self._found[name] = {fact: each for fact, each in found.items() if each is not None}
        near = [
            (fact, each)
            for fact, each in self._found[name].items()
            if low <= each[0] and each[1] <= high
            if each[1] <= passage[0] or passage[1] <= each[0]
        ]
        if not near:
            raise DoesNotFit("no other passage that is asked about is near")
        return rng.choice(near)

    def _token_offsets(self, name: str, text: str) -> Sequence[tuple[int, int]]:
        if name not in self._offsets:
            self._offsets[name] = self._tokens.offsets(text)
        return self._offsets[name]


def _excerpt(
    offsets: Sequence[tuple[int, int]], passage: tuple[int, int], count: int, rng: Random
) -> tuple[int, int]:
    """The character range of `count` tokens that contain a passage at a random place."""
    first = sum(end <= passage[0] for _, end in offsets)
    last = sum(start < passage[1] for start, _ in offsets)
    if last - first > count:
        raise DoesNotFit(f"its passage alone takes {last - first} tokens")
    if len(offsets) < count:
        raise DoesNotFit(f"the documents have only {len(offsets):,} tokens")
    begin = rng.randint(max(0, last - count), min(first, len(offsets) - count))
    return offsets[begin][0], offsets[begin + count - 1][1]
