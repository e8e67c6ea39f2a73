"""Ranks the files of a conversation for a question, where they do not all fit into the context.

Words first: an index over pages of all files (BM25), built once and extended when files are added.
Then meaning: our own encoder (`text_encoder.py`) over the best pages.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.engine.model.text_encoder import TextEncoder
from app.engine.scorers.built_in import trust
from app.engine.scorers.scorer import rarity
from app.protocol.prompt import Document
from app.util.figures import in_any_notation
from app.util.places import marks
from app.util.search_words import EARLIER_WEIGHT, WORD, query, terms
from app.util.sentences import questions_in

PAGE = 1600
"""Characters of a page, at most: some 400 tokens of English."""
K1, B = 1.2, 0.6
"""Of BM25: how soon a repeated word stops counting, and how much long pages are discounted."""
NAME_COUNT = 3
"""Times that a word of a file's name counts as being on each of its pages."""
CANDIDATES = 72
"""Pages that the encoder compares with the question."""
MEANING_WEIGHT = 0.5
"""Of meaning, compared with words."""
SECONDARY = 0.3
"""Weight of the words on pages of files that are rarely meant, such as translations."""
SECONDARY_MEANING = 1.0
"""What is subtracted from the meaning of these pages, in standard deviations."""
MIN_FILES, WORDS_LEAD, MEANING_LEAD = 3, 1.25, 0.12
"""Among at least MIN_FILES files, one stands out if its score by words is WORDS_LEAD times that of
the middle one, or its best passage is nearer to the question by MEANING_LEAD."""
_PDF_PAGE = "[Page "
_KINDS = {
    kind: re.compile(pattern, re.IGNORECASE)
    for kind, pattern in {
        "translation translate locale language po": (
            r"/(?:locales?|i18n|l10n|translations?|lang|nls)/|\.(?:po|pot|mo|xlf|xliff|arb)$"
        ),
        "lock locked pinned dependency": (
            r"(?:\.lock(?:file)?|/package-lock\.json|/npm-shrinkwrap\.json|-lock\.yaml|/go\.sum)$"
        ),
        "licence license copying copyright notice": (
            r"/licen[cs]es/|/(?:licen[cs]e|copying|copyright|notice|unlicen[cs]e)(?:[-._][^/]*)?$"
        ),
        "minified generated bundle": (
            r"[.-]min\.\w{1,5}$|\.bundle\.\w{1,5}$|\.map$|_pb2(?:_grpc)?\.pyi?$|\.pb\.\w{1,3}$"
            r"|[._](?:generated|g)\.\w{1,5}$|/__generated__/"
        ),
    }.items()
}
"""Files of a folder that are rarely meant, by words of questions that mean them."""
_GENERATED = re.compile(
    r"@generated\b|\b(?:auto[- ]?|automatically )generated\b|\bdo not edit\b", re.IGNORECASE
)
OPENING = 600
"""Characters at the beginning of a file that may say that it is generated."""
_Found = dict[str, tuple[float, NDArray[np.int64]]]
"""For each word of a question that a page has: how rare it is, and the pages."""
Progress = Callable[[int], None]
"""Called with how many files are indexed. Raises to cancel."""
RankProgress = Callable[[int, int], None]
"""Called with how many of how many pieces of the best pages are compared with the question. Raises
to cancel."""


@dataclass(frozen=True, slots=True)
class Page:
    """Characters `start:end` of a document."""

    document: Document
    start: int
    end: int

    @property
    def text(self) -> str:
        return self.document.text[self.start : self.end]


@dataclass(frozen=True, slots=True)
class RankedPage:
    """How well a page fits: `score` is higher for better ones. `words` are those of the question
    that it has, the rarest first."""

    page: Page
    score: float
    words: tuple[str, ...]
    by_meaning: bool = False
    """Whether its meaning says more for it than its words."""


class Ranking(NamedTuple):
    """The pages of documents, best first, and whether a document stands out."""

    pages: list[RankedPage]
    stands_out: bool


class FileIndex:
    """Of the pages of `documents`, of which `extend` adds more."""

    def __init__(self) -> None:
        self.documents: dict[Document, None] = {}
        self._pages: list[Page] = []
        self._terms: dict[str, int] = {}
        self._rows = (array("I"), array("I"), array("H"))
        """Term, page, and how often, of each entry."""
        self._lengths = array("I")
        self._sorted: tuple[NDArray[np.int64], ...] = ()
        """Where each term's entries start (terms + 1,), and their pages and counts."""

    def extend(self, documents: Sequence[Document], progress: Progress) -> None:
        """Add those that it lacks."""
        new = [each for each in documents if each not in self.documents]
        for done, document in enumerate(new):
            progress(len(documents) - len(new) + done)
            self._add(document)
            self.documents[document] = None
        if new:
            self._sort()

    def _add(self, document: Document) -> None:
        names = Counter(_terms(document.name))
        sheets = [each for each in marks(document.text, document.name) if each[1] == "Sheet"]
        starts = [each.start() for each in sheets]
        for page in pages(document):
            counts = Counter({term: NAME_COUNT * count for term, count in names.items()})
            if before := bisect_right(starts, page.start):
                counts.update(_terms(sheets[before - 1][2]))
            for word, count in Counter(WORD.findall(page.text)).items():
                for term in terms(word):
                    counts[term] += count
            number, (ids, numbers, often) = len(self._pages), self._rows
            for term, count in counts.items():
                ids.append(self._terms.setdefault(term, len(self._terms)))
                numbers.append(number)
                often.append(min(count, 0xFFFF))
            self._pages.append(page)
            self._lengths.append(sum(counts.values()))

    def _sort(self) -> None:
        ids, numbers, often = (np.array(row, np.int64) for row in self._rows)
        order = np.argsort(ids, kind="stable")
        starts = np.searchsorted(ids[order], np.arange(len(self._terms) + 1))
        self._sorted = starts, numbers[order], often[order]

    def rank(
        self,
        question: str,
        earlier: str,
        allowed: Container[Document],
        encoder: TextEncoder,
        progress: RankProgress,
    ) -> Ranking:
        """The pages of allowed documents that have the question's words or, among the best of
        these, mean what it does. `earlier` is the question before it."""
        numbers = np.array(
            [i for i, p in enumerate(self._pages) if p.document in allowed], np.int64
        )
        if not len(numbers):
            return Ranking([], stands_out=False)
        figures, other_words = in_any_notation(question)
        weights = query(other_words)
        for term, weight in query(earlier).items():
            weights.setdefault(term, EARLIER_WEIGHT * weight)
        scores, found = self._scores(weights)
        for figure in figures:
            self._add_figure(figure, numbers, scores)
        is_secondary = self._secondary(question)
        scores[is_secondary] *= SECONDARY
        asked = {term: word for word in WORD.findall(question) for term in terms(word)}
        rarities = {asked[term]: seen for term, seen in found.items() if term in asked}
        best = numbers[np.argsort(-scores[numbers], kind="stable")]
        candidates = best[:CANDIDATES].tolist()
        meaning = self._meaning([self._pages[i] for i in candidates], question, encoder, progress)
        words = _standardised(scores[candidates])
        meant = _standardised(meaning) - SECONDARY_MEANING * is_secondary[candidates]
        meant *= MEANING_WEIGHT * trust(encoder.known_share(question))
        joined = words + meant
        order = np.argsort(-joined, kind="stable")
        ranked = [
            RankedPage(
                self._pages[candidates[i]],
                float(joined[i]),
                self._words_on(candidates[i], rarities),
                bool(meant[i] > words[i]),
            )
            for i in order
        ]
        # What comes after the candidates has fewer of the words, in their order.
        low = min((each.score for each in ranked), default=0.0) - 1.0
        rest = [i for i in best[CANDIDATES:] if scores[i] > 0]
        ranked += [
            RankedPage(self._pages[i], low - at / max(len(rest), 1), ())
            for at, i in enumerate(rest)
        ]
        stands_out = self._stands_out(scores[numbers], numbers)
        return Ranking(ranked, stands_out or float(np.ptp(meaning)) >= MEANING_LEAD)

    def pages_of(self, documents: frozenset[str]) -> list[Page]:
        """All pages of the documents with these names."""
        return [page for page in self._pages if page.document.name in documents]

    def _scores(self, weights: Mapping[str, float]) -> tuple[NDArray[np.float64], _Found]:
        """BM25 of all pages (n,), and for each word that one has its rarity and the pages."""
        scores = np.zeros(len(self._pages))
        lengths = np.array(self._lengths, np.float64)
        norm = K1 * (1 - B + B * lengths / max(lengths.mean(), 1.0))
        starts, numbers, often = self._sorted
        found: _Found = {}
        for word, weight in weights.items():
            if (term := self._terms.get(word)) is None:
                continue
            entries = slice(starts[term], starts[term + 1])
            on, count = numbers[entries], often[entries]
            rare = float(rarity(len(on), len(scores)))
            found[word] = rare, on
            scores[on] += weight * rare * count * (K1 + 1) / (count + norm[on])
        return scores, found

    def _add_figure(
        self, figure: re.Pattern[str], numbers: NDArray[np.int64], scores: NDArray[np.float64]
    ) -> None:
        """Add to the scores of the pages with a date, a time or a number what a word would add."""
        on = [number for number in numbers.tolist() if figure.search(self._pages[number].text)]
        scores[on] += float(rarity(len(on), len(scores)))

    def _secondary(self, question: str) -> NDArray[np.bool_]:
        """Which pages are of files in folders that are rarely meant, unless the question does (n,).
        Their names or their beginnings tell."""
        asked, named = {*_terms(question)}, question.lower()
        kinds = [each for words, each in _KINDS.items() if asked.isdisjoint(_terms(words))]
        generated = asked.isdisjoint(_terms("generated"))

        def is_secondary(document: Document) -> bool:
            name = document.name.rpartition("/")[2]
            if name == document.name or name.lower() in named:
                return False
            return any(each.search(document.name) for each in kinds) or (
                generated and _GENERATED.search(document.text, 0, OPENING) is not None
            )

        known = {each: is_secondary(each) for each in self.documents}
        return np.array([known[page.document] for page in self._pages], bool)

    def _stands_out(self, scores: NDArray[np.float64], numbers: NDArray[np.int64]) -> bool:
        """Whether the words of one document count clearly more than those of the middle one."""
        best: dict[Document, float] = {}
        for score, number in zip(scores.tolist(), numbers.tolist(), strict=True):
            document = self._pages[number].document
            best[document] = max(best.get(document, 0.0), score)
        found = np.array([*best.values()])
        if len(found) < MIN_FILES:
            return True
        return bool(found.max() > WORDS_LEAD * np.median(found))

    def _words_on(self, page: int, found: _Found) -> tuple[str, ...]:
        on = [(rare, word) for word, (rare, numbers) in found.items() if page in numbers]
        return tuple(word for _, word in sorted(on, reverse=True))

    def _meaning(
        self,
        pages: Sequence[Page],
        question: str,
        encoder: TextEncoder,
        progress: RankProgress,
    ) -> NDArray[np.float64]:
        """How near each page's best piece is to the question in meaning (n,)."""
        texts = list(dict.fromkeys(page.text for page in pages))
        asked = encoder.encode_questions(questions_in(question), lambda done, total: None)
        found = encoder.encode_texts(texts, progress, remember=False)
        best = {
            text: max(float((pieces.vectors @ vector).max()) for vector in asked)
            for text, pieces in zip(texts, found, strict=True)
        }
        return np.array([best[page.text] for page in pages])


def _terms(text: str) -> list[str]:
    return [term for word in WORD.findall(text) for term in terms(word)]


def pages(document: Document) -> Iterator[Page]:
    """A document in pages, cut where something ends if there is such a place: a page of a PDF
    file, what is not indented, a paragraph, a line."""
    text, at = document.text, 0
    while len(text) - at > PAGE:
        cut = _cut(text, at, at + PAGE)
        yield Page(document, at, cut)
        at = cut
    yield Page(document, at, len(text))


def _cut(text: str, start: int, end: int) -> int:
    """Where a page that starts at `start` ends: after it, and at `end` at the latest."""
    middle = start + (end - start) // 3
    for mark, offset in ((f"\n{_PDF_PAGE}", 1), ("\n\n", 2), ("\n", 1)):
        at = text.rfind(mark, middle, end)
        if mark == "\n\n":
            # Prefer what is not indented: in code, the end of a function or class.
            while at >= 0 and text[at + 2 : at + 3].isspace():
                at = text.rfind(mark, middle, at + 1)
            at = at if at >= 0 else text.rfind(mark, middle, end)
        if at >= 0:
            return min(at + offset, end)
    return end


def _standardised(scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """In standard deviations from the mean."""
    return np.asarray((scores - scores.mean()) / max(float(scores.std()), 1e-9), np.float64)
