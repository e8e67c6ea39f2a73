"""Chooses files, or parts of files, for the prompt if the documents of a conversation exceed the
context.

Each question gets half of the remaining context. Parts that were chosen for earlier questions stay
in place, so that their cache is reused, until a question would get less than `min_retrieved`
tokens; then all of them are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from app.engine.model.prompt import Prompt, Prompts
from app.engine.model.text_encoder import TextEncoder, built_in_encoder
from app.engine.scorers.file_index import CANDIDATES, PAGE, FileIndex, Page, RankedPage
from app.protocol.events import RankedFile
from app.protocol.options import (
    MAX_RETRIEVED,
    MIN_SHARE,
    RETRIEVAL_SHARE,
    TemplateValues,
    min_retrieved,
)
from app.protocol.prompt import (
    Document,
    FileChoice,
    Message,
    RetrievalReason,
    RetrievedPart,
    Role,
)
from app.protocol.stats import DocumentsRead
from app.sandbox.process import Check

SAMPLES, SAMPLE_LENGTH = 48, 2000
"""Number of samples, and characters of each, from which the number of tokens is estimated."""
FAR_TOO_LONG = 1.5
"""Documents estimated at more than this many times the context are not tokenised at all."""
ENOUGH, MAX_BATCHES = 0.85, 3
"""Filling stops at this share of the room, or after this many batches of pages."""
WHOLE_SHARE = 0.25
"""A file that needs at most this share of the room is included as a whole."""
MAX_RANKED = 50
"""Maximum number of files that are reported although they were not chosen."""
MIN_NAME = 4
"""Shorter file names in a question do not count as a mention of the file."""
COMPARING = 200
"""Comparing a character with the question takes this many times as long as indexing it."""
INDEXES = 2
"""Number of indexes that are kept in memory."""

Build = Callable[[tuple[Message, ...]], Prompt]
OnProgress = Callable[[int, int], None]
"""Called with how much of the work is done, and all of it. Raises to cancel."""


@dataclass(frozen=True, slots=True)
class RetrievedPrompt:
    """The prompt and its messages. `parts` is None if nothing was chosen: everything fits, or the
    choice was made earlier. `room`: tokens available for the parts. `stands_out`: whether a file
    fits the question better than most."""

    prompt: Prompt
    messages: tuple[Message, ...]
    parts: tuple[RetrievedPart, ...] | None = None
    ranked: tuple[RankedFile, ...] = ()
    room: int = 0
    stands_out: bool = True


class Retriever:
    """Retrieval for one model with a context of `context` tokens (0: unlimited). `encoder`: the
    text encoder that the user chose; None: the built-in one."""

    def __init__(
        self,
        prompts: Prompts,
        context: int,
        thinking: bool,
        check: Check,
        values: TemplateValues = (),
        encoder: TextEncoder | None = None,
    ) -> None:
        self._prompts, self._context, self._check = prompts, context, check
        self._encoder = encoder
        self._build: Build = lambda messages: prompts.build(messages, check, thinking, values)

    def fit(
        self,
        messages: tuple[Message, ...],
        files: FileChoice,
        answer_tokens: int,
        on_progress: OnProgress,
    ) -> RetrievedPrompt:
        """Build the prompt; first choose parts for the last question if the documents exceed the
        context or were chosen before. `answer_tokens` are reserved for the answer. Raises
        PromptError, and what `check` and `on_progress` raise."""
        asked = [i for i, each in enumerate(messages) if each.role is Role.USER]
        documents = [document for i in asked for document in messages[i].documents]
        if not self._context or not asked or messages[asked[-1]].plain:
            return RetrievedPrompt(self._build(messages), messages)
        room = min(answer_tokens, max(self._context // 8, 1))
        if all(messages[i].retrieved is None for i in asked) and (
            not documents or self.estimate(documents) <= FAR_TOO_LONG * self._context
        ):
            prompt = self._build(messages)
            if not documents or len(prompt.ids) + room <= self._context:
                return RetrievedPrompt(prompt, messages)
        bare = tuple(replace(each, retrieved=()) for each in messages)
        without = self._build(bare)
        left = self._context - room - len(without.ids)
        if left <= 0:  # too long even without documents; the turn will report it
            return RetrievedPrompt(without, bare)
        every = tuple(dict.fromkeys(each for each in documents if not each.name.endswith("/")))
        kept, used = self._keep_earlier(messages, asked, left)
        last = messages[asked[-1]]
        if last.retrieved is not None:
            kept[asked[-1]] = last.retrieved
            return self._retrieval(_with(bare, kept), every)
        return self._choose(messages, bare, every, kept, asked, files, left, used, on_progress)

    def is_far_too_long(self, documents: Sequence[Document]) -> bool:
        """Whether documents exceed the context so far that they should not be tokenised, which
        needs about 240 bytes of memory per character."""
        characters = sum(len(each.text) for each in documents)
        if not self._context or characters <= max(SAMPLES * SAMPLE_LENGTH, 2 * self._context):
            return False
        return self.estimate(documents) > FAR_TOO_LONG * self._context

    def estimate(self, documents: Sequence[Document]) -> int:
        """Estimate the number of tokens of documents from samples."""
        total = sum(len(each.text) for each in documents)
        if total <= SAMPLES * SAMPLE_LENGTH:
            return sum(self._count(documents))
        pieces: list[Document] = []
        at, step = 0, total / SAMPLES
        for document in documents:
            start, at = at, at + len(document.text)
            while len(pieces) < SAMPLES and (first := int(len(pieces) * step)) < at:
                piece = document.text[first - start : first - start + SAMPLE_LENGTH]
                pieces.append(Document("", piece))
        characters = sum(len(each.text) for each in pieces)
        return int(sum(self._count(pieces)) * total / max(characters, 1))

    def _count(self, documents: Sequence[Document]) -> list[int]:
        return self._prompts.count(documents, self._check) if documents else []

    def _keep_earlier(
        self, messages: tuple[Message, ...], asked: Sequence[int], left: int
    ) -> tuple[dict[int, tuple[Document, ...]], int]:
        """The parts of earlier questions that stay, by message index, and their tokens. Stable from
        question to question until one has to make room."""
        kept: dict[int, tuple[Document, ...]] = {}
        used = 0
        minimum = min_retrieved(left)
        for index in asked[:-1]:
            if messages[index].retrieved and RETRIEVAL_SHARE * (left - used) < minimum:
                kept, used = {}, 0
            brought = messages[index].in_prompt
            characters = sum(len(each.text) for each in brought)
            tokens = self.estimate(brought) if characters > 8 * left else sum(self._count(brought))
            if tokens > (1 - MIN_SHARE) * left:
                continue
            if used + tokens > (1 - MIN_SHARE) * left:
                kept, used = {}, 0
            if brought:
                kept[index], used = brought, used + tokens
        if RETRIEVAL_SHARE * (left - used) < minimum:
            return {}, 0
        return kept, used

    def _choose(
        self,
        messages: tuple[Message, ...],
        bare: tuple[Message, ...],
        every: tuple[Document, ...],
        kept: dict[int, tuple[Document, ...]],
        asked: Sequence[int],
        files: FileChoice,
        left: int,
        used: int,
        on_progress: OnProgress,
    ) -> RetrievedPrompt:
        compared = COMPARING * min(sum(len(each.text) for each in every), CANDIDATES * PAGE)
        lengths = [0, *accumulate(len(each.text) for each in every)]
        total = lengths[-1] + compared
        index = index_of(every, lambda done: on_progress(lengths[done], total))
        texts = [messages[i].text for i in asked]
        present = {_place(each) for brought in kept.values() for each in brought}
        allowed = {each for each in every if each.name not in files.never}
        earlier = texts[-2] if len(texts) > 1 else ""
        encoder = self._encoder or built_in_encoder(texts[-1], [each.text for each in every])
        ranking = index.rank(
            texts[-1],
            earlier,
            allowed,
            encoder,
            lambda done, pieces: on_progress(lengths[-1] + compared * done // pieces, total),
        )
        on_progress(total, total)
        ranked = [each for each in ranking.pages if not _is_in(each.page, present)]
        room = min(int(RETRIEVAL_SHARE * (left - used)), MAX_RETRIEVED)
        wanted = self._wanted(index, ranked, files, allowed, texts[-1], present)
        parts = self._fill(wanted, ranked, room, int((1 - MIN_SHARE / 2) * (left - used)))
        kept[asked[-1]] = tuple(part.document for part in parts)
        chosen = {part.document.name for part in parts}
        fitted = self._retrieval(_with(bare, kept), every)
        others = _others(ranked, chosen)
        return replace(fitted, parts=parts, ranked=others, room=room, stands_out=ranking.stands_out)

    def _retrieval(
        self, messages: tuple[Message, ...], every: Sequence[Document]
    ) -> RetrievedPrompt:
        """The prompt with the chosen parts of `every` document."""
        prompt = self._build(messages)
        chosen = 0 if prompt.documents is None else prompt.documents.chosen
        tokens = max(self.estimate(every), chosen)
        whole = DocumentsRead.of((each.name for each in every), tokens, chosen)
        return RetrievedPrompt(replace(prompt, documents=whole), messages)

    @staticmethod
    def _wanted(
        index: FileIndex,
        ranked: Sequence[RankedPage],
        files: FileChoice,
        allowed: set[Document],
        question: str,
        present: set[tuple[str, int, int]],
    ) -> list[tuple[Page, RetrievalReason]]:
        """Pages of files that the user chose, then of files that the question names; best first."""
        places = {_place_of(each.page): number for number, each in enumerate(ranked)}

        def pages_of(names: Iterable[str]) -> list[Page]:
            found = [p for p in index.pages_of(frozenset(names)) if not _is_in(p, present)]
            return sorted(found, key=lambda page: places.get(_place_of(page), len(places)))

        names = {each.name for each in allowed}
        asked = question.lower()
        named = {n for n in names if len(last := _last(n)) >= MIN_NAME and last in asked}
        full = {n for n in named if n.partition("/")[2].lower() in asked}
        chosen = pages_of(names & files.always)
        return [
            *((page, RetrievalReason.CHOSEN) for page in chosen),
            *((page, RetrievalReason.NAME) for page in pages_of((full or named) - files.always)),
        ]

    def _fill(
        self,
        wanted: Sequence[tuple[Page, RetrievalReason]],
        ranked: Sequence[RankedPage],
        room: int,
        max_tokens: int,
    ) -> tuple[RetrievedPart, ...]:
        """Take whole files, or pages of longer ones, until `room` tokens are used; files that the
        user chose may use `max_tokens`."""
        words: dict[str, tuple[str, ...]] = {}
        order: list[tuple[Page, RetrievalReason]] = [*wanted]
        for each in ranked:
            reason = RetrievalReason.MEANING if each.by_meaning else RetrievalReason.WORDS
            order.append((each.page, reason))
            words.setdefault(each.page.document.name, each.words)
        taken: dict[Document, list[tuple[int, int]]] = {}
        reasons: dict[Document, RetrievalReason] = {}
        full = tokens_of_first = 0
        for batch in _batches(order, 8 * max_tokens):
            if full >= ENOUGH * room:
                break
            whole = [*{page.document: None for page, _ in batch}]
            counts = dict(zip(whole, self._sizes(whole, room), strict=True))
            tokens = self._count([_part(page.document, page.start, page.end) for page, _ in batch])
            tokens_of_first = tokens_of_first or tokens[0]
            for (page, reason), size in zip(batch, tokens, strict=True):
                document, limit = page.document, room
                if reason is RetrievalReason.CHOSEN:
                    limit = max_tokens
                ranges = taken.get(document, [])
                if any(start <= page.start and page.end <= end for start, end in ranges):
                    continue
                file = counts[document]
                if not ranges and file <= WHOLE_SHARE * room and full + file <= limit:
                    size, ranges = file, [(0, len(document.text))]
                elif full + size <= limit:
                    ranges = [*ranges, (page.start, page.end)]
                else:
                    continue
                full += size
                taken[document] = ranges
                reasons.setdefault(document, reason)
        if not taken and order:  # even the best page is too long: take its beginning
            (page, reason), size = order[0], tokens_of_first
            end = page.start + (page.end - page.start) * room // max(size, 1)
            taken, reasons = {page.document: [(page.start, end)]}, {page.document: reason}
        places = {page.document: number for number, (page, _) in reversed([*enumerate(order)])}
        documents = [
            (document, _part(document, start, end))
            for document in sorted(taken, key=places.__getitem__)
            for start, end in _merged(taken[document])
        ]
        sizes = self._count([part for _, part in documents])
        found = [
            RetrievedPart(part, size, reasons[document], words.get(document.name, ()))
            for (document, part), size in zip(documents, sizes, strict=True)
        ]
        return tuple(sorted(found, key=lambda each: (each.document.name, each.document.line)))

    def _sizes(self, documents: Sequence[Document], room: int) -> list[int]:
        """Tokens of each document; `room + 1` for those that are certainly too long."""
        short = [each for each in documents if len(each.text) <= 8 * WHOLE_SHARE * room]
        counts = dict(zip(short, self._count(short), strict=True))
        return [counts.get(each, room + 1) for each in documents]


_indexes: list[FileIndex] = []
"""Most recently used first. Indexes do not depend on the model."""


def index_of(documents: Sequence[Document], progress: Callable[[int], None]) -> FileIndex:
    """An index that contains these documents (and maybe others). Extends a similar one if kept."""
    every = set(documents)
    for index in _indexes:
        if len(index.documents.keys() & every) >= max(len(index.documents), 1) / 2:
            break
    else:
        index = FileIndex()
    if index in _indexes:
        _indexes.remove(index)
    index.extend(documents, progress)
    _indexes.insert(0, index)
    del _indexes[INDEXES:]
    return index


def _with(
    bare: tuple[Message, ...], retrieved: dict[int, tuple[Document, ...]]
) -> tuple[Message, ...]:
    return tuple(
        replace(each, retrieved=retrieved.get(i, ())) if each.role is Role.USER else each
        for i, each in enumerate(bare)
    )


def _batches(
    order: Sequence[tuple[Page, RetrievalReason]], characters: int
) -> Iterator[list[tuple[Page, RetrievalReason]]]:
    """Batches of pages with about this many `characters` each."""
    at = 0
    for _ in range(MAX_BATCHES):
        batch, left = [], characters
        while at < len(order) and left > 0:
            batch.append(order[at])
            left -= order[at][0].end - order[at][0].start
            at += 1
        if batch:
            yield batch


def _part(document: Document, start: int, end: int) -> Document:
    """A part of a document, or all of it, without its origin, because events are printed."""
    if (start, end) == (0, len(document.text)):
        return replace(document, origin=None, replaces=None)
    line = document.line + document.text.count("\n", 0, start)
    pinned = tuple(
        (max(a, start) - start, min(b, end) - start)
        for a, b in document.pinned
        if a < end and b > start
    )
    return Document(document.name, document.text[start:end], pinned, line)


def _merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort ranges and merge those that touch."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _place(part: Document) -> tuple[str, int, int]:
    """A part's file name, first line and last line."""
    return part.name, part.line, part.line + part.text.count("\n")


def _place_of(page: Page) -> tuple[str, int]:
    return page.document.name, page.start


def _is_in(page: Page, present: set[tuple[str, int, int]]) -> bool:
    """Whether one of the present parts contains the page."""
    name = page.document.name
    parts = [(first, last) for other, first, last in present if other == name]
    if not parts:
        return False
    first = page.document.line + page.document.text.count("\n", 0, page.start)
    last = first + page.document.text.count("\n", page.start, page.end)
    return any(a <= first and last <= b for a, b in parts)


def _last(name: str) -> str:
    return name.rpartition("/")[2].lower()


def _others(ranked: Sequence[RankedPage], chosen: set[str]) -> tuple[RankedFile, ...]:
    """The best files that were not chosen, with scores scaled to 0..1."""
    best: dict[str, RankedPage] = {}
    for each in ranked:
        best.setdefault(each.page.document.name, each)
    scores = [each.score for each in best.values()] or [0.0]
    high, low = scores[0], min(scores)
    return tuple(
        RankedFile(name, (each.score - low) / max(high - low, 1e-9), each.words)
        for name, each in best.items()
        if name not in chosen
    )[:MAX_RANKED]
