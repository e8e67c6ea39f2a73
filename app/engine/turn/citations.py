"""Finds the passages that an answer quotes, or that support it, among those that were read.

Words that stand in a document in the same order are a quotation. Each other sentence gets the
passage that is nearest to it by words and by meaning, if that is near enough. A passage must say
every number, date and name of the sentence (`claims.py`). Only words whose characters were all read
are compared, so no citation can point to anything else.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from app.engine.model.prompt import Prompt
from app.engine.model.text_encoder import TextEncoder
from app.engine.scorers.scorer import rarity
from app.engine.turn.claims import Claims, claims_of, names_in
from app.protocol.citations import Citation, CitationKind, Citations
from app.util.sentences import Unit, asks, units
from app.util.words import NO_SPACES, STEM, WORD, stems

MIN_WORDS, MIN_CELLS = 4, 24
"""Minimum words and terminal cells of a quotation."""
LONG_QUOTATION = 8
"""A shorter quotation must be at least half of its sentence. In words."""
COVERED = 0.6
"""A sentence of which this share is quoted needs no other passage."""
MAX_PLACES = 256
"""Maximum number of places at which a quotation is compared: the first ones."""
CANDIDATES = 8
"""Passages per sentence whose meaning is compared: those nearest by words."""
MIN_SUPPORT = 0.69
"""Minimum score of a passage that supports a sentence: the mean of the similarities by words and
by meaning."""
MIN_SUPPORT_ENGLISH = 0.788
"""The same by the English encoder, to which more texts seem similar."""
MIN_SUPPORT_BY_WORDS = 0.75
"""The same, where the encoder does not know the language."""
MIN_KNOWN = 0.7
"""Minimum share of a sentence's words that the encoder must know."""
MIN_DIFFERENT = 0.6
"""Minimum share of a sentence's pairs of words that differ: one that repeats itself states
nothing."""
MAX_LONGER = 1.5
"""Maximum number of a sentence's words for each word of its passage: a scrap supports nothing."""
PAIR_GAIN = 0.08
"""Two sentences in a row are cited if they score this much more than one."""
SHORT_SENTENCE = 4
"""A sentence with fewer words counts only if it has a number, or consists of words that were
read."""
MAX_ROWS = 64
"""Passages whose rows are searched for the figure of a short answer."""
MAX_BESIDES = 2
"""Maximum words of such an answer, apart from its numbers."""
_CELLS = re.compile(r"[|\t]|,.*,|;.*;")
_NUMBER_OR_WORD = re.compile(rf"\d++(?:[.,]\d++)++|{WORD.pattern}")
"""A number is one word, so that no quotation begins or ends in it."""
_QUOTES_BEFORE, _QUOTES_AFTER = "\"“„«‘'", "\"”“»’'"
_FENCED = re.compile(r"^ {0,3}(`{3,}|~{3,}).*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.S | re.M)

Words = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ReadText:
    """A document of the prompt. `unread` int64 (characters + 1,): the number of characters before
    each one that were not read."""

    message: int
    document: int
    text: str
    unread: NDArray[np.int64]

    def is_read(self, start: int, end: int) -> bool:
        return bool(self.unread[end] == self.unread[start])


def read_texts(prompt: Prompt, read: NDArray[np.bool_]) -> list[ReadText]:
    """The documents of a prompt, of which the target has `read` these tokens, bool (M,)."""
    found = []
    for text in prompt.texts:
        if text.document is None:
            continue
        own = read[text.first : text.first + len(text.starts) - 1]
        skipped = np.zeros(len(text.text) + 1, np.int64)
        starts = text.starts[:-1][~own]
        # A character may have several tokens, each of which must be read.
        ends = np.maximum(text.starts[1:][~own], np.minimum(starts + 1, len(text.text)))
        np.add.at(skipped, starts, 1)
        np.add.at(skipped, ends, -1)
        is_skipped = np.cumsum(skipped[:-1]) > 0
        unread = np.concatenate([[0], np.cumsum(is_skipped)])
        found.append(ReadText(text.message, text.document, text.text, unread))
    return found


def cite(
    answer: str,
    question: str,
    texts: Sequence[ReadText],
    encoder: TextEncoder | None,
    check: Callable[[], None] = lambda: None,
) -> Citations:
    """The citations of an answer to a question. Without an `encoder`, only words are compared.
    `check` is called often, and raises to cancel."""
    words = _AnswerWords(answer)
    if not words.sentences:
        return Citations()
    passages = _Passages(texts, words, question, check)
    runs = _true_quotations(_quotations(words, texts, check), words, passages, question)
    found = [Citation(CitationKind.QUOTATION, *run) for run in runs]
    quoted = words.quoted(runs)
    left = [each for each in words.sentences if not words.is_quoted(each, quoted)]
    supported = _supporting(words, question, left, passages, encoder, check)
    found += [each for each in supported if not any(_is_same(each, run) for run in runs)]
    cited = {(each.start, each.end) for each in supported}
    uncited = sum(
        (each.start, each.end) not in cited
        and not quoted[slice(*words.within(each.start, each.end))].any()
        and passages.states_something(answer[each.start : each.end])
        for each in left
    )
    return Citations(tuple(sorted(found, key=lambda each: (each.end, each.start))), uncited)


class _AnswerWords:
    """The words of an answer outside of code, and its sentences without questions and headings."""

    def __init__(self, answer: str) -> None:
        fenced = [match.span() for match in _FENCED.finditer(answer)]

        ends = [end for _, end in fenced]

        def is_prose(start: int, end: int) -> bool:
            after = bisect_right(ends, start)
            return after == len(fenced) or end <= fenced[after][0]

        self.text = answer
        found = _NUMBER_OR_WORD.finditer(answer)
        self.spans = [match.span() for match in found if is_prose(*match.span())]
        self.words = [_comparable(answer[start:end]) for start, end in self.spans]
        self.cells = [
            (end - start) * (1 + bool(re.match(f"[{NO_SPACES}]", answer[start])))
            for start, end in self.spans
        ]
        self._starts = [start for start, _ in self.spans]
        self.units = [unit for unit in units(answer) if is_prose(unit.start, unit.end)]
        self.sentences = [
            unit for unit in self.units if _is_statement(answer[unit.start : unit.end])
        ]
        self.names = names_in(answer[unit.start : unit.end] for unit in self.units)

    def within(self, start: int, end: int) -> tuple[int, int]:
        """The numbers of the words in these characters of the answer, as a range."""
        return bisect_left(self._starts, start), bisect_left(self._starts, end)

    def is_quoted(self, sentence: Unit, quoted: NDArray[np.bool_]) -> bool:
        """Whether most of a sentence's words are `quoted`."""
        first, last = self.within(sentence.start, sentence.end)
        return bool(quoted[first:last].sum() >= COVERED * (last - first))

    def quoted(self, runs: Sequence[_Run]) -> NDArray[np.bool_]:
        """Whether each word is quoted, bool (words,)."""
        quoted = np.zeros(len(self.words), bool)
        for run in runs:
            quoted[slice(*self.within(*run[:2]))] = True
        return quoted


def _comparable(word: str) -> str:
    return word.casefold().replace(",", ".")


def _is_statement(sentence: str) -> bool:
    bare = sentence.strip("*_ \t\n")
    is_heading = bare.startswith("#") or bare.endswith(":")
    return bool(WORD.search(bare)) and not is_heading and not asks(bare)


_Run = tuple[int, int, int, int, int, int]
"""Characters of the answer, message, document, and characters of the document."""


def _is_same(support: Citation, run: _Run) -> bool:
    """Whether a part of the sentence is quoted from the passage that supports it."""
    start, end, *document, first, last = run
    return (
        start < support.end
        and support.start < end
        and document == [support.message, support.document]
        and first < support.passage_end
        and support.passage_start < last
    )


@dataclass(frozen=True, slots=True)
class _Quotation:
    """Words `first:last` of the answer, which are also those from word `start` of a text on."""

    first: int
    last: int
    place: _Places
    start: int

    def part(self, first: int, last: int) -> _Quotation:
        return _Quotation(first, last, self.place, self.start + first - self.first)

    def run(self, answer: _AnswerWords) -> _Run:
        text, spans = self.place.text, self.place.spans
        end = self.start + self.last - self.first - 1
        quoted = answer.spans[self.first][0], answer.spans[self.last - 1][1]
        return *quoted, text.message, text.document, spans[self.start][0], spans[end][1]


def _quotations(
    answer: _AnswerWords, texts: Sequence[ReadText], check: Callable[[], None]
) -> list[_Quotation]:
    """The longest runs of words that stand in a text, in the order of the answer."""
    number = {word: index for index, word in enumerate(dict.fromkeys(answer.words))}
    wanted = np.array([number[word] for word in answer.words], np.int64)
    if len(wanted) < MIN_WORDS:
        return []
    places = [_Places(text, number, check) for text in texts]
    grams = _grams(wanted, len(number))
    found: list[_Quotation] = []
    at = 0
    while at + MIN_WORDS <= len(wanted):
        check()
        best, length = None, 0
        for place in places:
            start, longest = place.longest(wanted[at:], int(grams[at]))
            if longest > length:
                best, length = (place, start), longest
        if best is not None and _is_quotation(answer, at, at + length):
            found.append(_Quotation(at, at + length, *best))
            at += length
        else:
            at += 1
    return found


def _true_quotations(
    quotations: Sequence[_Quotation], answer: _AnswerWords, passages: _Passages, question: str
) -> list[_Run]:
    """The quotations without their words of sentences that state a number, date or name which the
    quoted passages do not have. What stands in quotation marks is compared with nothing else."""
    marked = {each for each in quotations if _is_in_quotes(answer.text, *each.run(answer)[:2])}
    starts = [each.first for each in quotations]
    is_false = np.zeros(len(answer.words), bool)
    for unit in answer.units:
        first, last = answer.within(unit.start, unit.end)
        nearest = max(bisect_right(starts, first) - 1, 0)
        own = [
            each.part(max(first, each.first), min(last, each.last))
            for each in quotations[nearest : bisect_left(starts, last)]
            if first < each.last and each not in marked
        ]
        said = "\n".join(passages.around(each.run(answer)) for each in own)
        stated = answer.text[unit.start : unit.end]
        is_false[first:last] = bool(own) and not claims_of(stated, answer.names).are_in(
            said, question
        )
    found: list[_Run] = []
    for each in quotations:
        kept = ~is_false[each.first : each.last] | (each in marked)
        borders = np.flatnonzero(np.diff(np.concatenate([[False], kept, [False]])))
        for first, last in (borders.reshape(-1, 2) + each.first).tolist():
            if _is_quotation(answer, first, last):
                found.append(each.part(first, last).run(answer))
    return found


def _is_in_quotes(text: str, start: int, end: int) -> bool:
    after = text[end : end + 3].lstrip(".,;:!?")
    return text[start - 1 : start] in (*_QUOTES_BEFORE,) and after[:1] in (*_QUOTES_AFTER,)


def _is_quotation(answer: _AnswerWords, first: int, last: int) -> bool:
    """Whether words `first:last` of the answer are long enough, or most of a sentence."""
    if sum(answer.cells[first:last]) + last - first - 1 < MIN_CELLS:
        return False
    if last - first >= LONG_QUOTATION:
        return True
    for sentence in answer.sentences:
        start, end = answer.within(sentence.start, sentence.end)
        if start < last and first < end:
            return 2 * (min(last, end) - max(first, start)) >= end - start
    return False


def _grams(words: Words, vocabulary: int) -> Words:
    """A key for the MIN_WORDS words that start at each word; -1 if one of them is -1."""
    count = max(len(words) - MIN_WORDS + 1, 0)
    keys, known = np.zeros(count, np.int64), np.ones(count, bool)
    for index in range(MIN_WORDS):
        part = words[index : index + count]
        known &= part >= 0
        keys = keys * (vocabulary + 1) + part  # may wrap around: matches are compared
    return np.where(known, keys, -1)


class _Places:
    """Where the words of an answer stand in a text."""

    def __init__(self, text: ReadText, number: dict[str, int], check: Callable[[], None]) -> None:
        check()
        self.text = text
        self.spans = [match.span() for match in _NUMBER_OR_WORD.finditer(text.text)]
        words = [number.get(_comparable(text.text[start:end]), -1) for start, end in self.spans]
        self._words = np.array(words, np.int64)
        starts, ends = np.array(self.spans, np.int64).reshape(-1, 2).T
        before = np.append(ends[:1] * 0, ends[:-1]) if len(ends) else ends
        self._words[text.unread[ends] > text.unread[starts]] = -1
        self._continues = text.unread[starts] == text.unread[before]
        """Whether everything between a word and the one before it was read."""
        grams = _grams(self._words, len(number))
        self._order = np.argsort(grams, kind="stable")
        self._grams = grams[self._order]

    def longest(self, wanted: Words, gram: int) -> tuple[int, int]:
        """The first word and the length of the longest run that begins like `wanted`, whose first
        words have this key; the length is 0 if there is none."""
        first, last = np.searchsorted(self._grams, [gram, gram + 1])
        best, length = 0, 0
        for start in self._order[first : min(last, first + MAX_PLACES)].tolist():
            own = self._words[start : start + len(wanted)]
            same = own == wanted[: len(own)]
            same[1:] &= self._continues[start + 1 : start + len(own)]
            count = len(same) if same.all() else int(np.argmin(same))
            if count >= MIN_WORDS and count > length:
                best, length = start, count
        return best, length


# ---------------------------------------------------------------------------------- support


@dataclass(frozen=True, slots=True)
class _Passage:
    text: ReadText
    start: int
    end: int

    @property
    def content(self) -> str:
        return self.text.text[self.start : self.end]


class _Passages:
    """The sentences of the documents, as far as they were read, and which stems each has."""

    def __init__(
        self,
        texts: Sequence[ReadText],
        answer: _AnswerWords,
        question: str,
        check: Callable[[], None],
    ) -> None:
        self.all: list[_Passage] = []
        self._of_text: dict[tuple[int, int], tuple[int, int]] = {}
        for text in texts:
            check()
            first = len(self.all)
            self.all += _read_units(text)
            self._of_text[text.message, text.document] = first, len(self.all)
        self._stems = [stems(each.content) for each in self.all]
        self._holders: dict[str, list[int]] = {}
        wanted = stems(f"{answer.text} {question}")
        for index, own in enumerate(self._stems):
            for stem in own & wanted:
                self._holders.setdefault(stem, []).append(index)

    def around(self, run: _Run) -> str:
        """The passages that a quotation is from, as far as they were read."""
        first, last = self._of_text[run[2], run[3]]
        first = bisect_right(self.all, run[4], first, last, key=lambda each: each.end)
        last = bisect_left(self.all, run[5], first, last, key=lambda each: each.start)
        return "\n".join(each.content for each in self.all[first:last])

    def rarity(self, stem: str) -> float:
        return float(rarity(len(self._holders.get(stem, ())), len(self.all)))

    def states_something(self, sentence: str) -> bool:
        words = WORD.findall(sentence.replace("_", ""))  # the name of a variable is one word
        pairs = [*pairwise(words)]
        if len({*pairs}) < MIN_DIFFERENT * len(pairs):
            return False
        if len(words) >= SHORT_SENTENCE or any(word[0].isdigit() for word in words):
            return True
        return all(len(stem) == STEM and stem in self._holders for stem in stems(sentence))

    def nearest(self, sentence: set[str], most: int = CANDIDATES) -> list[int]:
        """The passages that share most with the stems of a sentence, weighted by rarity."""
        scores = np.zeros(len(self.all))
        for stem in sentence:
            scores[self._holders.get(stem, [])] += self.rarity(stem)
        best = np.argsort(-scores, kind="stable")[:most]
        return [int(index) for index in best if scores[index] > 0]

    def candidates(self, sentence: set[str]) -> Iterator[tuple[_Passage, set[str], bool]]:
        """Passages that may support a sentence, with their stems: single ones, and pairs of
        neighbours (then True)."""
        for index in self.nearest(sentence):
            yield self.all[index], self._stems[index], False
            for first in (index - 1, index):
                if 0 <= first < len(self.all) - 1 and (pair := self._joined(first)):
                    yield pair, self._stems[first] | self._stems[first + 1], True

    def _joined(self, first: int) -> _Passage | None:
        """A passage and the next one, if everything between them was read."""
        one, other = self.all[first], self.all[first + 1]
        if one.text is not other.text or not one.text.is_read(one.start, other.end):
            return None
        if "\n\n" in one.text.text[one.end : other.start]:
            return None
        return _Passage(one.text, one.start, other.end)

    def row_with(self, claims: Claims, question: str) -> tuple[_Passage, float] | None:
        """The passage, or the row of a table, that has the figures of a short answer and most of
        what the question asks about, with its share of that; None if none, or more than one, is
        the best."""
        asked = {stem for stem in stems(question) if stem in self._holders}
        found: dict[tuple[float, int, int], _Passage] = {}
        for index in self.nearest(asked, MAX_ROWS):
            for line in _rows(self.all[index]):
                own = stems(line.content) & asked
                if own and claims.are_in(line.content, question):
                    found[self.similarity(asked, own), id(line.text), line.start] = line
        best = sorted(found, reverse=True)[:2]
        if not best or (len(best) > 1 and best[0][0] == best[1][0]):
            return None
        return found[best[0]], best[0][0]

    def similarity(self, sentence: set[str], passage: set[str]) -> float:
        """The share of a sentence's stems that a passage has, weighted by rarity, from 0 to 1."""
        total = sum(map(self.rarity, sentence)) or 1.0
        return sum(self.rarity(stem) for stem in sentence & passage) / total


@lru_cache(maxsize=16)
def _units(text: str) -> list[Unit]:
    return units(text)


def _read_units(text: ReadText) -> Iterator[_Passage]:
    """The units of a text that were read. Of a unit that was read in part, the longest part."""
    for unit in _units(text.text):
        if text.is_read(unit.start, unit.end):
            yield _Passage(text, unit.start, unit.end)
            continue
        skipped = np.diff(text.unread[unit.start : unit.end + 1]) > 0
        borders = np.flatnonzero(np.diff(np.concatenate([[True], skipped, [True]])))
        parts = borders.reshape(-1, 2) + unit.start
        if len(parts):
            start, end = parts[int(np.argmax(parts[:, 1] - parts[:, 0]))].tolist()
            if len(WORD.findall(text.text, start, end)) >= MIN_WORDS:
                yield _Passage(text, start, end)


def _is_figure(text: str) -> bool:
    """Whether an answer is little more than a number."""
    words = [match[0] for match in _NUMBER_OR_WORD.finditer(text)]
    return sum(not word[0].isdigit() for word in words) <= MAX_BESIDES


def _rows(passage: _Passage) -> Iterator[_Passage]:
    """The rows of a passage if it is a table, or else the passage."""
    if not all(_CELLS.search(line) for line in passage.content.splitlines()):
        yield passage
        return
    start = passage.start
    for line in passage.content.splitlines(keepends=True):
        if bare := line.strip():
            at = start + line.index(bare)
            yield _Passage(passage.text, at, at + len(bare))
        start += len(line)


def _supporting(
    answer: _AnswerWords,
    question: str,
    sentences: Sequence[Unit],
    passages: _Passages,
    encoder: TextEncoder | None,
    check: Callable[[], None],
) -> list[Citation]:
    """For each sentence the passage that supports it best, if it is near enough."""
    wanted = [answer.text[each.start : each.end] for each in sentences]
    asked = [
        text if len(WORD.findall(text)) >= SHORT_SENTENCE else f"{question} {text}"
        for text in wanted
    ]
    asked_stems = [stems(text) for text in asked]
    claims = [claims_of(text, answer.names) for text in wanted]
    near = [
        [
            each
            for each in passages.candidates(own)
            if passages.states_something(text)
            and len(own) <= MAX_LONGER * len(each[1])
            and stated.are_in(each[0].content, question)
        ]
        for own, stated, text in zip(asked_stems, claims, wanted, strict=True)
    ]
    contents = [[each[0].content for each in own] for own in near]
    meanings = _meanings(asked, contents, encoder, check)
    by_meaning = MIN_SUPPORT if encoder and encoder.is_multilingual else MIN_SUPPORT_ENGLISH
    found = []
    for unit, own, stated, candidates, meaning in zip(
        sentences, asked_stems, claims, near, meanings, strict=True
    ):
        scores = np.array([passages.similarity(own, each[1]) for each in candidates])
        if meaning is not None and len(scores):
            scores = (scores + meaning) / 2
        scores -= [PAIR_GAIN * each[2] for each in candidates]
        least = MIN_SUPPORT_BY_WORDS if meaning is None else by_meaning
        text = answer.text[unit.start : unit.end]
        if len(scores) and scores.max() >= least:
            best, score = candidates[int(np.argmax(scores))][0], float(scores.max())
        elif (
            stated.has_figure
            and _is_figure(text)
            and (row := passages.row_with(stated, question)) is not None
        ):
            best, score = row
        else:
            continue
        place = best.text.message, best.text.document, best.start, best.end
        score = round(min(score, 1.0), 3)
        found.append(Citation(CitationKind.SUPPORT, unit.start, unit.end, *place, score))
    return found


def _meanings(
    sentences: Sequence[str],
    passages: Sequence[Sequence[str]],
    encoder: TextEncoder | None,
    check: Callable[[], None],
) -> list[NDArray[np.float32] | None]:
    """For each sentence: how near its passages are in meaning; None if the encoder does not know
    its words."""
    known = [encoder is not None and encoder.known_share(text) >= MIN_KNOWN for text in sentences]
    needed = [
        text
        for sentence, own, knows in zip(sentences, passages, known, strict=True)
        if knows and own
        for text in (sentence, *own)
    ]
    vectors: dict[str, NDArray[np.float32]] = {}
    if encoder is not None and needed:
        texts = list(dict.fromkeys(needed))
        vectors = dict(zip(texts, encoder.encode(texts, lambda done, total: check()), strict=True))
    return [
        np.array([vectors[text] @ vectors[sentence] for text in own]) if knows else None
        for sentence, own, knows in zip(sentences, passages, known, strict=True)
    ]
