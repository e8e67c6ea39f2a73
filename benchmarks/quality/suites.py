"""The evaluation suites, and their items, which are deterministic for a seed."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from app.protocol.prompt import Document, Message, Role
from benchmarks.quality import adversarial, hops, tasks
from benchmarks.quality.documents import TokenCount, compose
from benchmarks.quality.tasks import Check, Maker, Task
from benchmarks.quality.words import Keys

RESERVED = 40
"""Approximate tokens of the chat template and the tags around the document."""
TOLERANCE = 0.02
"""Documents with a larger relative error of their length are made again."""
TRIES = 8
DOCUMENT = "document.txt"
RECALL, HOPS, HOPS_IN_FILES = "recall", "hops", "hops-in-files"
REAL, PASSAGE, ANSWER, DEV, REWORDED = "real", "passage", "answer", "dev", "-reworded"
OTHER_LANGUAGES = ("german", "french", "spanish", "russian", "chinese", "japanese", "arabic")
SEVERAL = "several"
PASSAGE_KINDS = ("english", SEVERAL, "code", "logs", *OTHER_LANGUAGES)
"""Held-out kinds of passages: no scorer or parameter was chosen on them. `SEVERAL` asks two English
questions at once."""
ONE_WORDING = ("followup", "change", "tables", "cross")
"""Asked in other words only: what refers to the turn before, what changes its subject, a row of a
table, and what is written in another language than the question."""
DEV_KINDS = (*ONE_WORDING, "code")
ANSWER_KINDS = ("english", "code", "logs", "german", "french", "spanish", "chinese")
"""Kinds of passages with answers that are judged by rule, beside `tables` and `followup`."""


def passage_suites(*kinds: str, what: str = PASSAGE) -> tuple[str, ...]:
    """The suites of these kinds, in the document's own words and reworded."""
    return tuple(f"{what}-{kind}{words}" for kind in kinds for words in ("", REWORDED))


HELD_OUT = (*passage_suites(*PASSAGE_KINDS), *(f"{PASSAGE}-{kind}" for kind in ONE_WORDING))
TUNED_ON = tuple(f"{DEV}-{kind}" for kind in DEV_KINDS)
"""Scorers and parameters may be chosen on these, whose documents the others do not ask about."""
CONVERSATION = f"{ANSWER}-conversation"
ANSWERED = (
    *passage_suites(*ANSWER_KINDS, what=ANSWER),
    *(f"{ANSWER}-{kind}" for kind in ("tables", "followup")),
    CONVERSATION,
)
"""The questions of `HELD_OUT` whose answers can be judged; the model writes an answer. Those of
`CONVERSATION` are turns of conversations about one document each."""
ASKED_ONCE = frozenset({*HELD_OUT, *ANSWERED, *TUNED_ON})
"""Suites that never ask the same question twice, however many items are wanted."""
ONLY_PASSAGES = frozenset({PASSAGE, PASSAGE + REWORDED, *HELD_OUT, *TUNED_ON})
"""Suites that only measure whether the answer's passage is selected; no answer is written."""
ABOUT_PASSAGES = frozenset({REAL, REAL + REWORDED, *ANSWERED, *ONLY_PASSAGES})
"""Suites that ask about known passages of known files."""
NEED_FILES = frozenset({HOPS_IN_FILES, *ABOUT_PASSAGES})
"""Suites that read files."""


def has_other_words(suite: str) -> bool:
    """Whether a suite about passages asks in other words than its documents use."""
    return suite.endswith(REWORDED) or suite.partition("-")[2] in ONE_WORDING


class DoesNotFit(ValueError):
    """An item cannot be made at this length; the message is a clause with the reason."""


def _always(task: Task, text: str) -> bool:
    return True


def _phrase_occurs_once(task: Task, text: str) -> bool:
    """Whether the phrase quoted in the question occurs exactly once in the text."""
    phrase = re.search('"(.+)"', task.question)
    return phrase is not None and text.count(phrase[1]) == 1


def _most_frequent_in(task: Task, text: str) -> bool:
    """Whether the expected words are the most frequent ones (a partial deck may differ)."""
    counts = Counter(text.split())
    rest = max((n for word, n in counts.items() if word not in task.expected), default=0)
    return min(counts[word] for word in task.expected) > rest


@dataclass(frozen=True)
class Case:
    """A kind of item. `depth`: position of its first unit (0 start, 1 end; None: random).
    `records`: number of records in the document, regardless of the length. `valid`: whether a task
    and its document have exactly one answer."""

    name: str
    maker: Maker
    depth: float | None = None
    records: int | None = None
    valid: Callable[[Task, str], bool] = _always


@dataclass(frozen=True)
class Suite:
    """`safe`: whether sparse reading should give the same answers; None if open, so that the guard
    is not judged by it. The cases of a `chat` are successive turns of one conversation, which are
    all run in the same configuration with their caches."""

    name: str
    cases: tuple[Case, ...]
    safe: bool | None = True
    chat: bool = False


@dataclass(frozen=True)
class Item:
    """A question about a document. `tokens`: approximate length of its prompt. `passages`:
    character ranges of the document that contain the answer, if known."""

    id: str
    suite: str
    case: str
    length: int
    document: Document
    question: str
    answer: str
    expected: tuple[str, ...]
    check: Check
    tokens: int
    before: tuple[tuple[str, str], ...] = ()
    chat: str | None = None
    """The conversation of which this is a turn; its earlier answers are the model's own."""
    passages: tuple[tuple[int, int], ...] = ()
    system: str = ""
    """A system prompt."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation; the document is attached to its first question."""
        texts = [text for turn in self.before for text in turn] + [self.question]
        roles = (Role.USER, Role.ASSISTANT)
        documents = (self.document,)
        turns = tuple(
            Message(roles[i % 2], text, documents if i == 0 else ()) for i, text in enumerate(texts)
        )
        return (Message(Role.SYSTEM, self.system), *turns) if self.system else turns

    @property
    def digest(self) -> str:
        """A digest of the engine's input and the criteria, 12 hexadecimal digits. It is stored with
        results, so the repr of messages must not change. The answers expected of real documents
        are left out: they may be corrected, and stored answers are judged again."""
        expected = () if self.suite in ABOUT_PASSAGES else self.expected
        parts = (self.messages, self.answer, expected, self.check)
        return hashlib.sha256(repr(parts).encode("utf-8", "replace")).hexdigest()[:12]


NEEDLES = ("needle-single", "needle-multikey", "needle-multivalue", "needle-multiquery")


THREE_WORDS = partial(tasks.common_words, words=3)


def _at_depths(name: str, maker: Maker) -> tuple[Case, ...]:
    return tuple(Case(f"{name} at {depth:.0%}", maker, depth) for depth in (0.1, 0.5, 0.9))


HOP_CASES = (
    *(Case(f"chain of {n}", partial(tasks.track, assignments=n)) for n in range(2, 7)),
    Case("files", hops.across_files),
    Case("definitions", hops.definitions),
)

_SUITES = (
    Suite("needle-single", _at_depths("needle", tasks.needle)),
    Suite("needle-multikey", (Case("multi-key", tasks.multi_key),)),
    Suite("needle-multivalue", (Case("multi-value", tasks.multi_value),)),
    Suite("needle-multiquery", (Case("multi-query", tasks.multi_query),)),
    Suite(
        "lookup",
        (
            Case("prose", tasks.fact),
            Case("foreign language", adversarial.foreign_fact),
            Case("json", tasks.json_value),
            Case("xml", tasks.xml_value),
            Case("code", tasks.code_value),
        ),
    ),
    Suite("quote", (Case("quote", tasks.quote, valid=_phrase_occurs_once),)),
    Suite("many", (Case("many", tasks.many),)),
    Suite("count", (Case("marks", tasks.count_marks), Case("names", tasks.count_names)), False),
    Suite("cwe", (Case("ten words", tasks.common_words, valid=_most_frequent_in),), False),
    Suite("cwe-3", (Case("three words", THREE_WORDS, valid=_most_frequent_in),), False),
    Suite("fwe", (Case("frequent words", tasks.frequent_words, valid=_most_frequent_in),), None),
    Suite("vt", (Case("variables", tasks.variables),), False),
    Suite("track", (Case("chain", tasks.track),), None),
    Suite(HOPS, HOP_CASES, None),
    Suite(HOPS_IN_FILES, HOP_CASES, None),
    Suite(
        "adversarial",
        (
            *_at_depths("uuid", adversarial.identifier),
            Case("json array of 80", tasks.json_value, records=80),
            Case("code bug", adversarial.code_bug),
            Case("back reference", adversarial.back_reference),
            Case("mixed languages", adversarial.foreign_fact),
            Case("xml", tasks.xml_value),
        ),
    ),
    Suite("turns", (Case("later turn", adversarial.later_turn),)),
    Suite("absent", (Case("absent", tasks.absent),)),
    Suite(
        RECALL,
        tuple(Case(f"turn {t}", partial(tasks.fact_in_turn, turn=t)) for t in (2, 3, 4, 5)),
        None,
        chat=True,
    ),
    Suite(REAL, ()),
    Suite(REAL + REWORDED, ()),
    Suite(PASSAGE, (), None),
    Suite(PASSAGE + REWORDED, (), None),
    *(Suite(name, (), chat=name == CONVERSATION) for name in ANSWERED),
    *(Suite(name, (), None) for name in (*HELD_OUT, *TUNED_ON)),
)
SUITES = {suite.name: suite for suite in _SUITES}
DEFAULT = tuple(name for name in SUITES if name not in {*NEED_FILES, RECALL, HOPS})
GROUPS = {
    "all": DEFAULT,
    "needle": NEEDLES,
    "answers": tuple(name for name in ANSWERED if name != CONVERSATION),
    "passages": HELD_OUT,
    DEV: TUNED_ON,
}
UNSAFE = frozenset(suite.name for suite in _SUITES if suite.safe is False)
JUDGED = frozenset(suite.name for suite in _SUITES if suite.safe is not None)
"""Suites by which the guard is judged."""


def item_id(suite: str, length: int, index: int) -> str:
    return f"{suite}/{length}/{index}"


def make(
    suite: Suite,
    index: int,
    length: int,
    seed: int,
    count: TokenCount,
    held_out: bool = False,
    files: Sequence[Document] = (),
) -> Item:
    """Item `index` of a suite, with a prompt of about `length` tokens by `count`. With `files`, its
    document is one of these with the task's units inserted. Cases alternate; those of a chat share
    their document. Deterministic. Raises DoesNotFit."""
    case = suite.cases[index % len(suite.cases)]
    if files:
        case = replace(case, maker=hops.in_files(case.maker, files))
    shared = index // len(suite.cases) if suite.chat else index
    name = f"{seed}/{suite.name}/{length}/{shared}"
    for attempt in range(TRIES):
        source = f"{name}/{attempt}" if attempt else name
        longest = suite.cases[-1] if suite.chat else case
        task, text = _draw(longest, source, length, count, held_out)
        if longest is not case:
            rng = Random(source)
            task = case.maker(rng, Keys(rng), held_out)
        if case.valid(task, text):
            break
    else:
        raise DoesNotFit("no question with one answer was found in so short a document")
    return Item(
        item_id(suite.name, length, index),
        suite.name,
        case.name,
        length,
        Document(DOCUMENT, text),
        task.question,
        task.answer,
        task.expected,
        task.check,
        count(text) + _tokens_around(task, count),
        task.before,
        chat=name if suite.chat else None,
    )


def _tokens_around(task: Task, count: TokenCount) -> int:
    """Approximate tokens of the prompt without the document."""
    earlier = sum(count(question) + count(answer) + 8 for question, answer in task.before)
    return RESERVED + count(task.question) + earlier


def _draw(
    case: Case, source: str, length: int, count: TokenCount, held_out: bool
) -> tuple[Task, str]:
    """A task and its document. `compose` only estimates lengths, so it is repeated with the same
    random numbers and a corrected length until the document has the required one."""
    requested: float | None = None
    for _ in range(3):
        rng = Random(source)
        keys = Keys(rng)
        try:
            task = case.maker(rng, keys, held_out)
        except LookupError as error:
            raise DoesNotFit(str(error)) from None
        if case.records is not None:
            return task, _record_list(task, case.records, rng, keys)
        required = length - _tokens_around(task, count)
        requested = required if requested is None else requested
        try:
            text = compose(
                task.filler, task.units, int(requested), count, rng, keys, case.depth
            ).text
        except ValueError as error:
            raise DoesNotFit(str(error)) from None
        actual = count(text)
        if abs(actual - required) <= TOLERANCE * required or not actual:
            break
        requested *= required / actual
    return task, text


def _record_list(task: Task, number: int, rng: Random, keys: Keys) -> str:
    """A document of `number` records, including the task's."""
    filler = task.filler
    records = [filler.unit(rng, keys) for _ in range(number - len(task.units))]
    for unit in task.units:
        records.insert(rng.randint(0, len(records)), unit)
    return filler.prefix + filler.join.join(records) + filler.suffix
