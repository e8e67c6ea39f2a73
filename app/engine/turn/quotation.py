"""Finds the passages of the documents that may answer a question, for a model that can only quote.

A text is split into *units*: sentences, or lines of code and tables. The unit nearest to the
question is quoted together with the text around it in its paragraph. It is the answer if it clearly
leads; otherwise the nearest passages are shown as candidates, or none if nothing is near.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from app.engine.model.prompt import Prompt, PromptText
from app.engine.model.text_encoder import OnPieces, TextEncoder, english_encoder
from app.engine.scorers.built_in import trust
from app.engine.scorers.scorer import Importance, rarity
from app.engine.turn.counting import counted
from app.estimate.guard import asks_for_every_token
from app.protocol.prompt import Document, Message
from app.util.figures import in_any_notation
from app.util.places import place_of
from app.util.prose import keeps_lines
from app.util.search_words import query, terms
from app.util.sentences import Unit, asks_for_overview, questions_in, units
from app.util.table_rows import names_of, tables_of
from app.util.words import WORD, stems

MIN_LEAD = 0.15
"""The nearest passage is the answer if its score is at least this much higher than the next one's,
or if only it has all words of the question. `python -m benchmarks.quotation --dev` measures it;
measure again after a change of the text encoder."""
MIN_SIMILARITY = 0.32
"""Minimum cosine between a question and the nearest sentence. Below it, the documents are not about
the question. Measured by the same command."""
MIN_NEARNESS = 0.9
"""Minimum of the similarity and the share of the question's words together, for a passage that is
given as the answer: it halves the wrong answers and those to questions that have none."""
RARE_NEARNESS = 0.4
"""Added for a row of a table that has all names, dates, codes and numbers of the question: its
other words are names of columns, which may be written differently."""
FAR_ABOVE = 50.0
"""A passage this many times as important as the average, to the scorer, is shown in any case."""
CANDIDATES = 3
"""Maximum passages shown if none of them is given as the answer."""
NOTHING_FOUND = (
    "I found no passage to quote for this. This demo model can only quote, and may have missed one;"
    " a real model answers in its own words."
)
"""Written instead of a quote."""
PASSAGES_FOUND = (
    "I found these passages, the nearest first, but this demo model cannot tell whether they answer"
    " the question. It can only quote; a real model answers in its own words."
)
"""Written before the candidates."""
CANNOT_COUNT = (
    "This demo model can only quote: it cannot count, list or compare. A real model can. These"
    " passages are the nearest."
)
"""Written before them if the question needs the whole text."""
ROW_WORDS = 3.0
"""Weight of the question's words in a row of a table, in place of its neighbours' meaning."""
RARE_WORDS = 3.0
"""Weight of a date, code or number of the question among its words; in rows, also of a name."""
MIN_WORDS = 5
"""Units with fewer words are never chosen."""
MAX_HEADINGS = 4
"""At most this many headings in a row are quoted with the prose after them."""
HEADING_PENALTY = 0.3
"""Subtracted from a heading's score, to prefer prose."""
HEADING_SHARE = 0.5
"""Share of a heading's score that is added to the unit after it."""
PHRASE_BONUS = 1.0
"""Added for a unit that contains a phrase quoted in the question."""
MAX_PHRASES = 20
"""Maximum number of quoted phrases of a question."""
TERM_BONUS = 0.3
"""Added for a unit with a quoted term, as in a definition, that the question asks about."""
MAX_PARAGRAPH = 600
"""Longer paragraphs are not quoted as a whole. In characters."""
MAX_QUOTE = 1200
"""Quotes of this many characters are not extended."""
MAX_CANDIDATE = 400
"""Longer candidates are shortened to the sentence nearest to the question, so that three of them
fit in an answer. In characters."""
MAX_PHRASE_WORDS = 50
MAX_TERM = 60
"""Maximum characters of a defined term."""
_LIST = re.compile(r"\b(?:what|which|welche)\b[^.?!]{0,80}\b(?:are there|gibt es)\b", re.IGNORECASE)
_PHRASE = re.compile(r"\"([^\"]+)\"|“([^“”]+)”|«([^«»]+)»|„([^„“”]+)[“”]")


@dataclass(frozen=True, slots=True)
class Quote:
    """Characters `start:end` of `source`, around the `nearest` sentence. `score` ranges from -2 to
    5, and says how much the question's words and meaning are in the passage."""

    source: PromptText
    start: int
    end: int
    score: float
    nearest: tuple[int, int]
    names: str = ""
    """The names of the sheet and the columns, if this is a row of a table."""

    @property
    def brief(self) -> Quote:
        """The passage, or of a long one the nearest sentence."""
        if self.end - self.start <= MAX_CANDIDATE:
            return self
        start, end = self.nearest
        return replace(self, start=start, end=end)

    @property
    def text(self) -> str:
        """The passage; a row of a table with the names of its sheet and columns before it."""
        return "\n".join(filter(None, (self.names, self.source.text[self.start : self.end])))

    @property
    def tokens(self) -> tuple[int, int]:
        """Its token range in the prompt."""
        starts, first = self.source.starts, self.source.first
        start = int(np.searchsorted(starts[1:], self.start, side="right"))
        end = int(np.searchsorted(starts[:-1], self.end, side="left"))
        return first + start, first + end

    def overlaps(self, other: Quote) -> bool:
        return self.source is other.source and self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True)
class Found:
    """The passages nearest to a question, the nearest first. `similarity` is the cosine between
    the question and the sentence nearest to it; the share of its words if the encoder does not know
    its language; and at least 1 if a phrase that it quotes is found."""

    quotes: tuple[Quote, ...] = ()
    similarity: float = -1.0
    nearness: float = 0.0
    """The first passage's similarity to the question, plus the share of the question's words that
    it has."""
    has_figures: bool = True
    """Whether the first passage has all dates, times, codes and numbers of the question."""
    is_only: bool = False
    """Whether only the first passage has all words of the question."""
    only_nearest: bool = False
    """None of them can answer the question, which needs the whole text."""

    @property
    def lead(self) -> float:
        """How much higher the first passage's score is than the second one's."""
        best, other, *_ = *(quote.score for quote in self.quotes), 0.0, 0.0
        return best - max(other, 0.0)

    @property
    def answers(self) -> bool:
        """Whether the first passage is given as the answer."""
        if self.only_nearest or not self.has_figures:
            return False
        return self.nearness >= MIN_NEARNESS and (self.is_only or self.lead >= MIN_LEAD)

    @property
    def shown(self) -> tuple[Quote, ...]:
        """The answer alone, or the candidates, or nothing if nothing is near."""
        if self.similarity < MIN_SIMILARITY:
            return ()
        return self.quotes[:1] if self.answers else tuple(each.brief for each in self.quotes)


def quote(
    prompt: Prompt, messages: Sequence[Message], question: str, on_pieces: OnPieces
) -> tuple[Prompt, str]:
    """The prompt with the passages that are quoted pinned, and the answer: the passage that answers
    the question, or else the nearest passages with their lines, or `NOTHING_FOUND`. Raises what
    `on_pieces` raises."""
    every = dict.fromkeys(document for each in messages for document in each.documents)
    files = [each for each in every if not each.name.endswith("/")]
    if (count := counted(question, files)) is not None:
        return prompt, count
    wholes = [_whole(each, messages, files) for each in prompt.texts if each.document is not None]
    found = find_quotes(prompt.texts, question, english_encoder(), on_pieces, wholes)
    needs_all = asks_for_every_token(question) is not None and not asks_for_overview(question)
    if needs_all or _LIST.search(question):
        found = replace(found, only_nearest=True)
    pins = (*prompt.user_pins, *(each.tokens for each in found.shown))
    return replace(prompt, user_pins=pins), _answer(found, messages)


def far_above_average(
    prompt: Prompt, messages: Sequence[Message], importance: Importance
) -> str | None:
    """The answer that shows the passage which the scorer found far more important than all others,
    though it was not found here; None if there is none."""
    best = int(importance.argmax())
    eligible = importance[~prompt.pinned]
    if not len(eligible) or importance[best] < FAR_ABOVE * eligible.mean():
        return None
    for text in prompt.texts:
        offset = best - text.first
        if text.document is None or not 0 <= offset < len(text.starts) - 1:
            continue
        found, names = _with_rows(text.text, text.text, 0)
        if not found:
            return None
        starts = [each.start for each in found]
        index = max(int(np.searchsorted(starts, text.starts[offset], side="right")) - 1, 0)
        start, end = around(text.text, found, index)
        nearest = found[index].start, found[index].end
        passage = Quote(text, start, end, 0.0, nearest, names.get(index, ""))
        return _answer(Found((passage,), similarity=1.0), messages)
    return None


def _whole(
    text: PromptText, messages: Sequence[Message], files: Sequence[Document]
) -> tuple[str, int]:
    """The text of the file that a text of the prompt is from, and where that text begins there."""
    assert text.document is not None
    part = messages[text.message].in_prompt[text.document]
    for file in files:
        if file.name == part.name and (start := file.text.find(text.text)) >= 0:
            return file.text, start
    return text.text, 0


def _answer(found: Found, messages: Sequence[Message]) -> str:
    if not found.shown:
        return NOTHING_FOUND
    if found.answers:
        return found.shown[0].text
    parts = [CANNOT_COUNT if found.only_nearest else PASSAGES_FOUND]
    for number, each in enumerate(found.shown, 1):
        parts += [f"{number}. {_place(each, messages)}:", each.text]
    return "\n\n".join(parts)


def _place(quote: Quote, messages: Sequence[Message]) -> str:
    """Where a passage is, such as `report.txt, lines 4 to 6` or `a.pdf, page 3, line 4`."""
    number = quote.source.document
    assert number is not None
    document = messages[quote.source.message].in_prompt[number]
    first, last = (
        place_of(document.text, offset, document.line, document.name)
        for offset in (quote.start, quote.end - 1)
    )
    if first.part != last.part:
        where = f"{first.part} to {last.part}"
    elif first.line != last.line:
        where = f"{first.unit}s {first.line:,} to {last.line:,}"
    else:
        where = f"{first.unit} {first.line:,}"
    part = first.part if first.part == last.part else ""
    return ", ".join(filter(None, (document.name, part, where)))


def find_quotes(
    texts: Sequence[PromptText],
    question: str,
    encoder: TextEncoder,
    on_pieces: OnPieces,
    wholes: Sequence[tuple[str, int]] = (),
) -> Found:
    """The passages around the units nearest to the question by meaning and words, from the
    documents among `texts`. `wholes`: for each of these, the text that it is a part of, and where
    it begins there. Raises what `on_pieces` raises."""
    documents = [text for text in texts if text.document is not None]
    wholes = wholes or [(text.text, 0) for text in documents]
    split = [_with_rows(text.text, *whole) for text, whole in zip(documents, wholes, strict=True)]
    cut = [each for each, _ in split]
    names = [names.get(index, "") for each, names in split for index in range(len(each))]
    places = [(number, index) for number, each in enumerate(cut) for index in range(len(each))]
    if not places:
        return Found()
    if asks_for_overview(question):  # the beginnings
        before = np.array([float(index) for _, index in places])
        return Found(_best(documents, cut, places, -before, names), 1.0)
    found = [
        documents[number].text[cut[number][index].start : cut[number][index].end]
        for number, index in places
    ]
    questions = encoder.encode_questions(questions_in(question), on_pieces)
    vectors = encoder.encode(found, on_pieces)
    is_row = np.array([index in rows for each, rows in split for index in range(len(each))], bool)
    alone = np.array([index == 0 for _, index in places]) | is_row
    alone[1:] |= is_row[:-1]
    similarities = (vectors @ questions.T).max(axis=1)
    around_each = (_around_each(vectors, alone) @ questions.T).max(axis=1)
    scores = similarities + np.where(is_row, 0.0, around_each)
    asked = Asked.by(question)
    words = _shared_words(asked, found, names, alone, is_row)
    phrases = _with_phrase(question, documents, cut)
    scores += np.where(is_row, ROW_WORDS, 1.0) * words + PHRASE_BONUS * phrases
    scores += TERM_BONUS * _with_term(question, found)
    too_short = ~is_row & np.array([len(WORD.findall(text)) < MIN_WORDS for text in found])
    scores -= 2.0 * too_short
    scores -= [HEADING_PENALTY * cut[number][index].is_heading for number, index in places]
    scores += HEADING_SHARE * _of_headings(cut, scores)
    weight = trust(encoder.known_share(question))
    near = weight * similarities + (1 - weight) * words
    near = np.maximum(near, words) + phrases - 2.0 * too_short
    nearness = weight * similarities + (2 - weight) * words + phrases
    best = _best(documents, cut, places, scores, names)
    first, *others = (asked.on(each.text) for each in best)
    if any(asked.are_rare) and _has_all(first, asked.are_rare):
        nearness += RARE_NEARNESS * is_row
    is_only = all(first) and not any(map(all, others))
    nearest = float(nearness[scores.argmax()])
    return Found(best, float(near.max()), nearest, _has_all(first, asked.are_figures), is_only)


def _with_rows(text: str, whole: str, start: int) -> tuple[list[Unit], dict[int, str]]:
    """The units of a text, which begins at offset `start` of the `whole`. For units that are rows
    of a table, by their numbers, also the names of the sheet and the columns."""
    found: list[Unit] = []
    names: dict[int, str] = {}
    at = paragraphs = 0

    def add_until(end: int) -> None:
        nonlocal paragraphs
        if not text[at:end].strip():
            return
        own = units(text[at:end])
        found.extend(
            replace(
                each,
                start=at + each.start,
                end=at + each.end,
                paragraph=paragraphs + each.paragraph,
            )
            for each in own
        )
        paragraphs += own[-1].paragraph + 1

    for table in tables_of(text):
        named = "\n".join(filter(None, names_of(whole, start + table.rows[0][0])))
        for each in (table.mark, table.header):
            if each is not None and text[slice(*each)].strip() in named:
                add_until(each[0])
                at = each[1]
        for first, last in table.rows:
            add_until(first)
            at, row = last, text[first:last]
            begin = first + len(row) - len(row.lstrip())
            names[len(found)] = named
            found.append(Unit(begin, begin + len(row.strip()), paragraphs))
            paragraphs += 1
    add_until(len(text))
    return found, names


def _best(
    documents: Sequence[PromptText],
    cut: Sequence[Sequence[Unit]],
    places: Sequence[tuple[int, int]],
    scores: NDArray[np.floating],
    names: Sequence[str],
) -> tuple[Quote, ...]:
    """The passages around the units with the highest scores, at most CANDIDATES, each text
    once."""
    quotes: list[Quote] = []
    for place in np.argsort(-scores, kind="stable").tolist():
        number, index = places[place]
        start, end = around(documents[number].text, cut[number], index)
        unit = cut[number][index]
        nearest = unit.start, unit.end
        next_best = Quote(
            documents[number], start, end, float(scores[place]), nearest, names[place]
        )
        if not any(next_best.overlaps(each) or next_best.text == each.text for each in quotes):
            quotes.append(next_best)
        if len(quotes) == CANDIDATES:
            break
    return tuple(quotes)


def _around_each(vectors: NDArray[np.float32], alone: NDArray[np.bool_]) -> NDArray[np.float32]:
    """Per unit: the vector of the unit and its neighbours together, of length 1. A unit that is
    `alone` has no neighbour before it."""
    together = vectors.copy()
    follows = ~alone[1:, None]
    together[1:] += vectors[:-1] * follows
    together[:-1] += vectors[1:] * follows
    return np.asarray(together / np.linalg.norm(together, axis=1, keepdims=True))


def _of_headings(
    cut: Sequence[Sequence[Unit]], scores: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Per unit: for the first prose after a heading, the heading's score if positive; else 0."""
    found, at = np.zeros(len(scores)), 0
    for each in cut:
        for before, (index, unit) in zip(each, enumerate(each[1:], at + 1), strict=False):
            if before.is_heading and not unit.is_heading:
                found[index] = max(scores[index - 1], 0.0)
        at += len(each)
    return found


# ------------------------------------------------------------------------------- what is quoted


def around(text: str, found: Sequence[Unit], index: int) -> tuple[int, int]:
    """The character range to quote for a unit: its paragraph if that is short, else the unit and
    its neighbours. A heading is quoted with the text after it, a fragment with the rest of its
    sentence."""
    heading, end_of_headings = index, min(index + MAX_HEADINGS, len(found) - 1)
    while found[index].is_heading and index < end_of_headings:
        index += 1
    first = last = index
    paragraph = found[index].paragraph
    while first and found[first - 1].paragraph == paragraph:
        first -= 1
    while last + 1 < len(found) and found[last + 1].paragraph == paragraph:
        last += 1
    if found[last].end - found[first].start > MAX_PARAGRAPH:
        first, last = max(first, index - 1), min(last, index + 1)

    def grows() -> bool:
        return found[last].end - found[first].start < MAX_QUOTE

    while first and found[first].is_inner and grows():
        first -= 1
    while last + 1 < len(found) and found[last].is_open and grows():
        last += 1
    if text[: found[last].end].endswith(":") and last + 1 < len(found) and grows():
        last += 1
    if first and _introduces(text, found[first - 1]) and grows():
        first -= 1
    start, end = found[min(first, heading)].start, found[last].end
    if keeps_lines(text[start:end]):
        line = text.rfind("\n", 0, start) + 1
        start = line if not text[line:start].strip() else start
    return start, end


def _introduces(text: str, before: Unit) -> bool:
    """Whether a unit ends with a colon."""
    return text[before.end - 1] == ":"


# ------------------------------------------------------------------------------------- words


@dataclass(frozen=True, slots=True)
class Asked:
    """What a question is looked for by: its `words`, and patterns of its `figures`, namely dates,
    times and numbers in any notation."""

    words: tuple[str, ...]
    figures: tuple[re.Pattern[str], ...]
    names: frozenset[str] = frozenset()
    """Those of the words that have a capital within the question."""

    @classmethod
    def by(cls, question: str) -> Asked:
        figures, rest = in_any_notation(question)
        named = (word for word in WORD.findall(rest)[1:] if word[0].isupper())
        return cls(tuple(query(rest)), figures, frozenset(t for word in named for t in terms(word)))

    def on(self, text: str) -> list[bool]:
        """Which of them a text has."""
        own = {term for word in WORD.findall(text) for term in terms(word)}
        return [
            *(word in own for word in self.words),
            *(each.search(text) is not None for each in self.figures),
        ]

    @property
    def are_rare(self) -> list[bool]:
        """Which of them are figures or names, so that few passages have them by chance."""
        names = [word in self.names or _has_digit(word) for word in self.words]
        return [*names, *(True for _ in self.figures)]

    @property
    def are_figures(self) -> list[bool]:
        """Which of them are figures, or words with digits."""
        return [*map(_has_digit, self.words), *(True for _ in self.figures)]


def _with_phrase(
    question: str, documents: Sequence[PromptText], cut: Sequence[Sequence[Unit]]
) -> NDArray[np.float64]:
    """Per unit: 1 if a phrase that the question puts in quotation marks begins in it, else 0."""
    quoted = (next(filter(None, match.groups())).split() for match in _PHRASE.finditer(question))
    words = dict.fromkeys(tuple(each[:MAX_PHRASE_WORDS]) for each in quoted if each)
    phrases = [
        re.compile(r"\s+".join(map(re.escape, each)), re.IGNORECASE)
        for each in islice(words, MAX_PHRASES)
    ]
    found = []
    for document, each in zip(documents, cut, strict=True):
        starts = [unit.start for unit in each]
        has = np.zeros(len(each))
        for phrase in phrases:
            at = [match.start() for match in phrase.finditer(document.text)]
            has[np.maximum(np.searchsorted(starts, at, side="right") - 1, 0)] = 1.0
        found.append(has)
    return np.concatenate(found)


def _with_term(question: str, found: Sequence[str]) -> NDArray[np.float64]:
    """Per text: 1 if it has a quoted term that the question is about, else 0. The question must
    contain all words of the term and few others."""
    asked = _long_words(question)

    def is_asked(term: str) -> bool:
        words = _long_words(term) if len(term) <= MAX_TERM else set()
        return words <= asked and 2 * len(words) >= len(asked) > 0

    terms = ([next(filter(None, each.groups())) for each in _PHRASE.finditer(t)] for t in found)
    return np.array([float(any(map(is_asked, each))) for each in terms])


def _shared_words(
    asked: Asked,
    found: Sequence[str],
    names: Sequence[str],
    alone: NDArray[np.bool_],
    is_row: NDArray[np.bool_],
) -> NDArray[np.float64]:
    """Per text: the share of the question's words and figures that it contains, weighted by rarity;
    the mean of what it contains alone and together with its neighbours. The `names` of its columns
    and its sheet are words of a row, too."""
    of_names = {each: asked.on(each) for each in dict.fromkeys(names)}
    own = np.array([asked.on(text) for text in found], bool).reshape(len(found), -1)
    own |= np.array([of_names[each] for each in names], bool).reshape(own.shape)
    follows = ~alone[1:, None]
    together = own.copy()
    together[1:] |= own[:-1] & follows
    together[:-1] |= own[1:] & follows
    weights = rarity(own.sum(axis=0), len(found))
    kinds = [asked.are_figures, asked.are_rare]
    weights = np.where(np.transpose(kinds), RARE_WORDS, 1.0) * weights[:, None]
    shares = (own + 1.0 * together) @ weights / np.maximum(2 * weights.sum(axis=0), 1e-9)
    return np.asarray(np.where(is_row, shares[:, 1], shares[:, 0]))


def _has_all(has: Sequence[bool], needed: Sequence[bool]) -> bool:
    return all(each for each, is_needed in zip(has, needed, strict=True) if is_needed)


def _has_digit(word: str) -> bool:
    return any(map(str.isdigit, word))


def _long_words(text: str) -> set[str]:
    return {word for word in stems(text) if len(word) > 3}
