"""Training rows: a document, then questions about it and their answers.

A row is token ids with their positions and loss weights. The pieces of the prompt (template,
document header, text, footer, question) are encoded one by one, as the app does. In gapped rows the
document lacks runs of 32-token chunks, and the rest keeps its positions.
"""

from __future__ import annotations

import random
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
from skills import made
from tokenizers import Encoding, Tokenizer

from benchmarks.quality.tasks import ABSENT, TRAINED, Check, Task, restatement

CHUNK = 32
MAX_ANSWER = 84
MAX_ALTERNATIVES = 9
WORD = re.compile(r"\w+")
LISTED = re.compile(r" \(1 of \d\)|^The words: ")
IN_QUOTES = re.compile(r'(?<=")\w[^"\n]{1,40}\w(?=")')
DECISIVE = 4.0  # the weight of tokens that decide an answer: the first, a count, the first value
SENTENCE_END = re.compile(r"[.?!](?=\s|$)|(?=\n[ \t]*\n)|$")

# In the quoted ones the document's own quotation marks count as the question's.
QUOTED = (
    'What does it say of "{}"?', 'What does the document say about "{}"?', 'Find "{}".', '"{}"?',
    'Quote the sentence with "{}".', 'Where does it mention "{}"?', 'What follows "{}"?',
    'Please quote "{}" and go on.', 'What is written about "{}"?', 'Show me the passage "{}".',
    'What does the text say of "{}"?', 'Look up "{}".', 'Continue: "{}"', 'What about "{}"?',
    'Tell me what it says of "{}".', 'Read out "{}" for me.', *TRAINED["quote"],
)  # fmt: skip
PLAIN = (
    "{}?", "What does the document say about {}?", "Find {}.", "{}", "What does it say of {}?",
    "Quote: {}", "Search for {}.", "What of {}?",
)  # fmt: skip
SYSTEMS = (
    "You are a helpful assistant.",
    "Answer by quoting the document.",
    "Quote the text exactly.",
)
NAMES = (
    "notes",
    "contract",
    "licence",
    "readme",
    "report",
    "chapter",
    "manual",
    "paste",
    "log",
    "terms",
    "letter",
)
SUFFIXES = (".txt", ".md", ".py", "", ".rst", "-2.0.txt", "-3.0.txt", "_1.txt", ".log")
QUESTION_WEIGHT = 0.3


@dataclass
class Document:
    """A text with its tokens; `starts` and `ends` are character offsets of each token."""

    text: str
    ids: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    @classmethod
    def encode(cls, tokenizer: Tokenizer, text: str, tokens: int) -> Document:
        """Encodes and cuts to at most this many tokens, at a token's end."""
        encoding = tokenizer.encode(text, add_special_tokens=False)
        offsets = np.array(encoding.offsets[:tokens], dtype=np.int64).reshape(-1, 2)
        end = int(offsets[-1, 1]) if len(offsets) else 0
        ids = np.array(encoding.ids[:tokens], dtype=np.int64)
        return cls(text[:end], ids, offsets[:, 0], offsets[:, 1])

    @cached_property
    def words(self) -> list[tuple[int, int]]:
        """Character spans of the words."""
        return [m.span() for m in WORD.finditer(self.text)]

    @cached_property
    def contested(self) -> list[tuple[int, int]]:
        """Those of `quoted` that also occur in the text without quotation marks."""
        return [
            (start, end)
            for start, end in self.quoted
            if self.normal.count(" ".join(self.text[start:end].split())) > 1
        ]

    @cached_property
    def quoted(self) -> list[tuple[int, int]]:
        """Character spans of the phrases in quotation marks, without the marks."""
        return [m.span() for m in IN_QUOTES.finditer(self.text)]

    @cached_property
    def normal(self) -> str:
        """The text with every run of white space as one space."""
        return " ".join(self.text.split())

    def tokens_of(self, start: int, end: int) -> tuple[int, int]:
        """The token range that covers these characters."""
        first = int(np.searchsorted(self.ends, start, side="right"))
        return first, int(np.searchsorted(self.starts, end, side="left"))


@dataclass(frozen=True)
class Quote:
    """A question about a phrase, and its answer; `span` is its token range in the document."""

    before: str
    phrase: str
    after: str
    answer: str
    span: tuple[int, int]

    @property
    def question(self) -> str:
        return self.before + self.phrase + self.after


def sentence_end(text: str, start: int) -> int:
    """The end of the sentence around `start`, without trailing white space."""
    match = SENTENCE_END.search(text, start)
    return match.end() if match else len(text)


def ask(document: Document, rng: random.Random, visible: np.ndarray | None = None) -> Quote | None:
    """One question about a phrase that occurs once, or None when the random choice did not fit.

    `visible` marks the tokens that the model sees; the whole answer must be among them.
    """
    words, text = document.words, document.text
    if len(words) < 8:
        return None
    count = rng.choice((1, 2, 2, 3, 3, 4, 4, 5, 6))
    first = rng.randrange(len(words) - count)
    start, end = words[first][0], words[first + count - 1][1]
    quoted = 0.9
    if document.contested and rng.random() < 0.45:
        start, end = rng.choice(document.contested)
        count, quoted = 2, 1.0
    elif document.quoted and rng.random() < 0.25:
        start, end = rng.choice(document.quoted)
        count = 2
    template = rng.choice(QUOTED if rng.random() < quoted else PLAIN)
    before, after = template.split("{}")
    if before.endswith('"'):
        if text[start - 1 : start] == '"':
            start, before = start - 1, before[:-1]
        if text[end : end + 1] == '"':
            end, after = end + 1, after[1:]
    elif rng.random() < 0.3 and text[start - 1 : start] in ("(", "[", "'", '"', "<", "`"):
        start -= 1
    if "\n\n" in text[start:end] or end - start > 120:
        return None
    stop = sentence_end(text, end)
    if stop == len(text):
        return None
    span = document.tokens_of(start, stop)
    if span[1] - span[0] > MAX_ANSWER or (
        visible is not None and not visible[span[0] : span[1]].all()
    ):
        return None
    phrase = " ".join(text[start:end].split())
    if (count == 1 and len(phrase) < 4) or len(phrase) < 3 or document.normal.count(phrase) != 1:
        return None
    if rng.random() < 0.2:
        phrase = text[start:end]
    return Quote(before, phrase, after, text[start:stop].rstrip(), span)


@dataclass
class Row:
    """Token ids under construction, with positions and loss weights."""

    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    alternatives: dict[int, set[int]] = field(default_factory=dict)
    """Other tokens that would be as correct at some positions: several values come in any order."""
    next_position: int = 0

    def add(self, ids: list[int], weight: float = 0.0, skip: int = 0) -> None:
        """Appends contiguous tokens; the first `skip` carry no loss."""
        self.ids += ids
        self.positions += range(self.next_position, self.next_position + len(ids))
        self.weights += [0.0] * min(skip, len(ids)) + [weight] * max(0, len(ids) - skip)
        self.next_position += len(ids)


class Prompt:
    """Encodes the pieces of a chat exactly as the app does."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.user = self.encode("<|im_start|>user\n")
        self.reply = self.encode("<|im_end|>\n<|im_start|>assistant\n")
        self.end = self.encode("<|im_end|>")
        self.newline = self.encode("\n")
        self.footer = self.encode("\n</document>\n\n")

    def encode(self, text: str) -> list[int]:
        """Token ids of one piece."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def system(self, text: str) -> list[int]:
        """A system message with its template."""
        return [
            *self.encode("<|im_start|>system\n"),
            *self.encode(text),
            *self.encode("<|im_end|>\n"),
        ]

    def header(self, name: str) -> list[int]:
        """The tag before the document's text."""
        return self.encode(f'<document name="{name}">\n')


class Writer:
    """Makes documents: of random words and sentences, or cut out of real text."""

    def __init__(self, texts: dict[str, list[str]], rng: random.Random) -> None:
        self.texts, self.rng = texts, rng
        prose = " ".join(texts.get("licences", []) + texts.get("topics", [])[:10])
        self.pool = sorted({w.lower() for w in WORD.findall(prose) if w.isalpha()}) or ["word"]
        self.kinds = [k for k in texts if texts[k]]

    def invented(self) -> str:
        """A made-up word."""
        rng = self.rng
        if rng.random() < 0.15:
            return "".join(rng.choices("abcdef0123456789", k=rng.randint(3, 8)))
        syllables = rng.randint(1, 3)
        vowels = ("a", "e", "i", "o", "u", "an", "er", "ou", "il")
        return "".join(rng.choice("bcdfghjklmnprstvwz") + rng.choice(vowels)
                       for _ in range(syllables))  # fmt: skip

    def vocabulary(self) -> Callable[[], str]:
        """A source of words for one document, more or less repetitive, more or less odd."""
        rng, odd = self.rng, self.rng.choice((0.05, 0.2, 0.5, 0.9))
        size = rng.choice((60, 300, 1000))
        words = [
            self.invented() if rng.random() < odd else rng.choice(self.pool) for _ in range(size)
        ]
        return lambda: words[int(len(words) * rng.random() ** 1.5)]

    def sentence(self, word: Callable[[], str], terms: list[str]) -> str:
        """Random words with a capital, punctuation and a full stop."""
        rng = self.rng
        words = [word() for _ in range(rng.randint(4, 26))]
        for _ in range(rng.choice((0, 0, 1, 1, 2))):
            at, kind = rng.randrange(len(words)), rng.random()
            width = rng.randint(1, 3)
            piece = " ".join(words[at : at + width])
            if kind < 0.35:
                words[at : at + width] = [
                    '"' + (piece.title() if rng.random() < 0.5 else piece) + '"'
                ]
            elif kind < 0.5:
                words[at : at + width] = [f"({piece})"]
            elif kind < 0.6:
                words[at : at + width] = [f"{piece.replace(' ', '_')}({rng.randint(0, 99)})"]
            elif kind < 0.75:
                words[at] = str(rng.randint(0, 9999))
            else:
                words[at] += rng.choice((",", ",", ";", ":", " -"))
        words[0] = words[0][:1].upper() + words[0][1:]
        if terms and rng.random() < 0.6:
            words.insert(rng.randint(1, len(words)), rng.choice(terms))
        return " ".join(words) + rng.choice("......?!")

    def written(self, tokens: int) -> str:
        """Random sentences in paragraphs, some wrapped and indented as licences are."""
        rng, word = self.rng, self.vocabulary()
        terms = [
            " ".join(word().title() for _ in range(rng.randint(1, 3)))
            for _ in range(rng.choice((0, 3, 6)))
        ]
        open_terms = list(terms)
        width, indent = rng.choice((0, 0, 45, 60, 72, 78)), " " * rng.choice((0, 0, 2, 4, 8))
        paragraphs, length = [], 0
        while length < tokens * 4.5:
            sentences = []
            for _ in range(rng.randint(1, 6)):
                if open_terms and rng.random() < 0.3:
                    lead = rng.choice(("The ", "", "A ", "In this text, "))
                    rest = self.sentence(word, terms)
                    sentences.append(f'{lead}"{open_terms.pop()}" {rest[:1].lower()}{rest[1:]}')
                else:
                    sentences.append(self.sentence(word, terms))
            paragraph = " ".join(sentences)
            if width:
                paragraph = textwrap.fill(
                    paragraph,
                    width,
                    initial_indent=indent,
                    subsequent_indent=rng.choice(("", indent)),
                )
            paragraphs.append(paragraph)
            length += len(paragraph) + 2
        return rng.choice(("\n\n", "\n\n", "\n")).join(paragraphs)

    def cut(self, tokens: int, kind: str | None = None) -> str:
        """Real text from a line's start; short texts are followed by others of their kind."""
        rng = self.rng
        kind = kind or rng.choice(self.kinds)
        text, wanted = "", int(tokens * 5)
        while len(text) < wanted:
            source = rng.choices(
                self.texts[kind], weights=[len(t) ** 0.5 for t in self.texts[kind]]
            )[0]
            start = rng.randrange(max(1, len(source) - 400))
            start = source.find("\n", start) + 1
            text += ("\n\n" if text else "") + source[start : start + wanted].strip("\n")
        return text


@dataclass(frozen=True)
class Mix:
    """What the rows of a training phase look like."""

    length: int
    real: float = 0.5  # share of quoted documents cut out of real text
    gapped: float = 0.5  # share of rows with holes or gaps
    reach: int = 32768  # positions in gapped rows go up to here
    document: tuple[float, float] = (0.35, 0.7)  # the document's share of the row
    focus: float = 0.0  # share of these documents for the hardest tasks
    tasks: float = 0.7  # share of documents made for tasks; the others are only quoted


def holes(tokens: int, rng: random.Random, wanted: int, needed: np.ndarray) -> np.ndarray:
    """Keeps the `needed` tokens (a mask) and about `wanted` in all, in runs of whole chunks."""
    chunks = -(-tokens // CHUNK)
    keep = np.zeros(chunks, dtype=bool)
    keep[np.flatnonzero(needed) // CHUNK] = True
    keep[0] = True
    while keep.sum() * CHUNK < wanted and not keep.all():
        at = rng.randrange(chunks)
        keep[at : at + rng.choice((1, 2, 3, 3, 4, 6, 10))] = True
    return np.repeat(keep, CHUNK)[:tokens]


def decisive(task: Task) -> list[int]:
    """The characters of the answer that decide whether it is correct."""
    answer = task.answer
    if task.check is Check.LAST_NUMBER:
        return [answer.rindex(task.expected[0])]
    if task.check is Check.NOT_SAID:
        return [answer.index(f"? {ABSENT}")]
    values = in_any_order(task) or [min(answer.index(e) for e in task.expected)]
    numbers = [found.start(1) for found in re.finditer(r" of (\d)\)", answer)]
    return [len(restatement(task)), *values, *numbers[:1]]


def in_any_order(task: Task) -> list[int]:
    """The characters of values in the answer that could be in another order."""
    if " of 1)" not in task.answer and LISTED.search(task.answer):
        return sorted(task.answer.index(e) for e in task.expected)
    return []


def token_at(encoding: Encoding, character: int) -> int:
    """The index of the token that covers this character."""
    return next(i for i, (_, end) in enumerate(encoding.offsets) if end > character)


def bigrams(ids: np.ndarray) -> set[int]:
    """Every pair of neighbours as one number."""
    return set((ids[:-1] * (1 << 20) + ids[1:]).tolist())


class Rows:
    """An endless source of training rows of one length."""

    def __init__(
        self, tokenizer: Tokenizer, texts: dict[str, list[str]], mix: Mix, seed: int
    ) -> None:
        self.rng = random.Random(seed)
        self.prompt = Prompt(tokenizer)
        self.writer = Writer(texts, self.rng)
        self.tokenizer, self.mix = tokenizer, mix

    def plain(self, tokens: int) -> str:
        """Real or written text of about this many tokens."""
        real = self.rng.random() < self.mix.real
        return self.writer.cut(tokens) if real else self.writer.written(tokens)

    def document(self, wanted: int, stretch: float) -> tuple[list[Task], Document, np.ndarray]:
        """A document, questions made for it, and which of its tokens are read, about `wanted`."""
        rng, mix = self.rng, self.mix
        if rng.random() >= mix.tasks:
            tokens = int(wanted * stretch)
            document = Document.encode(self.tokenizer, self.plain(tokens), tokens)
            visible = np.ones(len(document.ids), bool)
            if stretch > 1:
                visible = holes(len(visible), rng, wanted, ~visible)
            return [], document, visible
        size = wanted
        while True:
            text, questions, spans = made(
                rng, self.plain, int(size * stretch), mix.length - size, mix.focus
            )
            document = Document.encode(self.tokenizer, text, 1 << 30)
            visible = np.ones(len(document.ids), bool)
            if stretch > 1:
                needed = ~visible
                for span in spans:
                    first, end = document.tokens_of(*span)
                    needed[first:end] = True
                visible = holes(len(visible), rng, wanted, needed)
            if visible.sum() < 0.9 * mix.length - 60:
                return questions, document, visible
            size = int(size * 0.75)

    def place(self, row: Row, document: Document, visible: np.ndarray, gapped: bool) -> None:
        """Adds the visible tokens at their positions, with further gaps between runs of chunks."""
        base, shift = row.next_position, 0
        positions = np.arange(len(document.ids))
        if gapped:
            chunks = np.repeat(visible[::CHUNK], 1)
            begins = np.flatnonzero(np.diff(np.concatenate([[True], chunks]).astype(int)) == 1)
            if len(begins) == 0 or self.rng.random() < 0.3:
                begins = np.flatnonzero(np.array([self.rng.random() < 0.2 for _ in chunks]))
            room = (self.mix.reach - 2 * self.mix.length - len(document.ids)) // CHUNK
            total = (
                int(room * self.rng.random() ** 2) if room > 0 and self.rng.random() < 0.8 else 0
            )
            cuts = np.array(sorted(self.rng.random() for _ in begins))
            shifts = np.zeros(len(chunks), dtype=np.int64)
            for begin, share in zip(begins, cuts, strict=True):
                shifts[begin:] = int(total * share) * CHUNK
            positions = positions + np.repeat(shifts, CHUNK)[: len(positions)]
            shift = int(self.rng.random() * (total - shifts[-1] // CHUNK)) * CHUNK if total else 0
        row.ids += document.ids[visible].tolist()
        row.positions += (base + positions[visible]).tolist()
        row.weights += [0.0] * int(visible.sum())
        row.next_position = base + int(positions[-1]) + 1 + max(0, shift)

    def row(self) -> Row:
        """One row: the document, then questions and answers until the length is reached."""
        rng, mix, prompt = self.rng, self.mix, self.prompt
        row = Row()
        if rng.random() < 0.1:
            row.add(prompt.system(rng.choice(SYSTEMS)))
        row.add(prompt.user)
        row.add(prompt.header(rng.choice(NAMES) + rng.choice(SUFFIXES)))
        wanted = int(mix.length * rng.uniform(*mix.document))
        gapped = rng.random() < mix.gapped
        stretch = rng.choice((1, 1.5, 3, 5)) if gapped and wanted > 128 else 1
        questions, document, visible = self.document(wanted, stretch)
        self.place(row, document, visible, gapped)
        row.add(prompt.footer)
        known = bigrams(document.ids[visible])
        failures, turns, last, repeated = 0, 0, "", False
        while len(row.ids) < mix.length and failures < 100:
            decides: list[int] = []
            values: list[int] = []
            if questions and rng.random() < 0.8:
                task = questions.pop()
                question, answer, decides = task.question, task.answer, decisive(task)
                values = in_any_order(task)
            elif last and rng.random() < 0.05 and not repeated:
                question, answer, repeated = rng.choice(TRAINED["again"]), last, True
            else:
                quote = ask(document, rng, visible)
                if quote is None:
                    failures += 1
                    continue
                question, answer, repeated = quote.question, quote.answer, False
            if turns:
                row.add([*prompt.newline, *prompt.user])
            ids = prompt.encode(question)
            row.add(ids)
            row.weights[-len(ids) :] = [0.0] + [
                QUESTION_WEIGHT if (a << 20) + b in known else 0.0 for a, b in pairwise(ids)
            ]
            row.add(prompt.reply)
            encoded = self.tokenizer.encode(answer, add_special_tokens=False)
            row.add([*encoded.ids, *prompt.end], weight=1.0)
            start_index = len(row.ids) - len(encoded.ids) - len(prompt.end)
            row.weights[start_index] = DECISIVE
            for at in decides:
                row.weights[start_index + token_at(encoded, at)] = DECISIVE
            places = [start_index + token_at(encoded, at) for at in values]
            for index, place in enumerate(places):
                row.alternatives[place] = {row.ids[p] for p in places[index:]} - {row.ids[place]}
            turns, failures, last = turns + 1, 0, answer
        return row

    def batches(self, rows: int) -> Iterator[tuple[np.ndarray, ...]]:
        """Ids, positions and loss weights, each of shape (rows, length + 1), padded at the end; and
        (rows, length + 1, MAX_ALTERNATIVES) equally correct tokens, -1 where there are none."""
        size = self.mix.length + 1
        while True:
            made = [self.row() for _ in range(rows)]
            ids, positions = np.zeros((2, rows, size), np.int64)
            weights = np.zeros((rows, size), np.float32)
            alternatives = np.full((rows, size, MAX_ALTERNATIVES), -1, np.int64)
            for index, row in enumerate(made):
                used = min(size, len(row.ids))
                ids[index, :used] = row.ids[:used]
                positions[index, :used] = row.positions[:used]
                weights[index, :used] = row.weights[:used]
                for place, tokens in row.alternatives.items():
                    if place < size:
                        alternatives[index, place, : len(tokens)] = sorted(tokens)
            yield ids, positions, weights, alternatives
