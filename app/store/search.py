"""Full-text search in questions, answers and attached documents."""

from __future__ import annotations

import json
import math
import re
import sqlite3
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import islice

from app.protocol.prompt import Role
from app.store.document_index import (
    UNSPACED_RUN,
    Tokeniser,
    WordList,
    pairs,
    regular,
    unindexed,
    whole_lines,
)
from app.store.messages import check_text
from app.store.records import (
    AttachmentRecord,
    DamagedError,
    DocumentHit,
    FoundDocuments,
    SearchHit,
    StoreError,
)
from app.store.schema import IRREGULAR, UNSPACED
from app.util.words import NO_SPACES

MAX_SNIPPET = 160
"""Maximum characters of a snippet, beside the words at its ends."""
_BEFORE = 40
"""Characters of a snippet before its first match."""
MAX_READ_CHARACTERS = 16 << 20
"""Maximum characters, of all documents together, that a search reads to find the lines of hits."""
MAX_LINES = 50
"""Lines of a document that are compared to find the best one."""
MAX_LINE = 2000
"""Maximum characters of a line that are compared."""

# The texts are read in a second step, only for the results.
_FOUND = """
WITH found(id, score) AS MATERIALIZED (
  SELECT m.id, {score}
  FROM messages m {index}
  JOIN conversations c ON c.id = m.conversation
  WHERE {condition} AND c.trashed_at IS NULL AND m.trashed_at IS NULL
  {group}
  ORDER BY 2, m.id DESC {limit}
)
SELECT c.id, c.title, m.id, m.role, m.text
FROM found
JOIN messages m ON m.id = found.id
JOIN conversations c ON c.id = m.conversation
ORDER BY found.score, found.id DESC
"""
_Row = tuple[int, str, int, str, str]
_INDEXED = {
    "index": "JOIN message_text ON message_text.rowid = m.id",
    "condition": "message_text MATCH :query",
    "limit": "LIMIT :limit",
}
_ALL = _FOUND.format(**_INDEXED, score="message_text.rank", group="")
# With min(), SQLite takes the other columns from the row with the minimum.
_BEST = _FOUND.format(**_INDEXED, score="min(message_text.rank)", group="GROUP BY m.conversation")
_SCANNED = _FOUND.format(
    score="0",
    index="",
    condition=f"m.id IN (SELECT id FROM messages WHERE {UNSPACED})"
    " AND m.state <> 'partial' AND m.role <> 'system' {words}",
    group="",
    limit="",
)
_MAX_LIKES, _MAX_LIKE = 100, 1_000
"""Maximum conditions, and characters of each: SQLite has limits."""


def search(
    connection: sqlite3.Connection, words: str, limit: int = 50, best_only: bool = False
) -> tuple[SearchHit, ...]:
    """Find messages with all these words outside the trash, best first, or only the best one of
    each conversation. The last word may be a prefix of at least two letters, because a single
    letter would match a tenth of all words. In scripts that do not separate words, the words may
    stand anywhere; messages in these are read, because the index has only what is between spaces
    and marks."""
    terms = _terms(words)
    if not terms:
        return ()
    hits: dict[int, SearchHit] = {}
    if all(term.query for term in terms):
        query = " ".join(term.query for term in terms)
        values = {"query": query, "limit": limit}
        for row in connection.execute(_BEST if best_only else _ALL, values):
            hits[row[2]] = _message_hit(row, terms)
    conversations = {hit.conversation for hit in hits.values()}
    for row in _scanned(connection, terms):
        if len(hits) >= limit:
            break
        if row[2] not in hits and not (best_only and row[0] in conversations):
            hits[row[2]] = _message_hit(row, terms)
            conversations.add(row[0])
    return tuple(hits.values())


def _scanned(connection: sqlite3.Connection, terms: Sequence[_Term]) -> Iterator[_Row]:
    """Yield the messages in scripts without spaces that have all terms, newest first."""
    needed = [piece for term in terms for piece in term.literal][:_MAX_LIKES]
    # The pieces have no wildcards, because these are marks.
    likes = [f"%{piece[:_MAX_LIKE]}%" for piece in needed]
    conditions = " AND m.text LIKE ?" * len(likes)
    for row in connection.execute(_SCANNED.format(words=conditions), likes):
        folded = _fold(row[4])
        if all(term.pattern.search(folded) for term in terms):
            yield row


def _message_hit(row: _Row, terms: Sequence[_Term]) -> SearchHit:
    conversation, title, message, role, text = row
    line = _best_line(terms, [1.0] * len(terms), [text])
    start, end = 0, MAX_LINE
    if line is not None:  # with the lines around it
        start, end = line.start - MAX_LINE // 2, line.start + len(line.text) + MAX_LINE // 2
    snippet, matches, _ = _snippet(text[max(0, start) : end].strip(), terms)
    try:
        return SearchHit(conversation, title, message, Role(role), snippet, matches)
    except ValueError as error:
        raise DamagedError from error


TextOf = Callable[[AttachmentRecord], Iterable[str]]
"""Yields the text of a document in pieces. Iterating may raise StoreError."""


def search_documents(
    connection: sqlite3.Connection, text_of: TextOf, words: str, limit: int
) -> FoundDocuments:
    """Find the best documents with all these words, with the line that has most of them.

    A word with punctuation, such as `read_map`, is found where its parts follow one another in a
    line.
    """
    terms = _terms(words)
    if not terms:
        return FoundDocuments()
    waiting = len(unindexed(connection))
    scores, weights = _scores(connection, terms)
    rows = connection.execute(_WITH_DOCUMENTS, (json.dumps([*scores]),)).fetchall()
    rows.sort(key=lambda row: (-scores[row[0]], -row[1]))
    phrases = any(len(term.tokens) > 1 for term in terms)
    hits: list[DocumentHit] = []
    left = MAX_READ_CHARACTERS
    for sha256, message, conversation, title, name, size, first, conversations in rows:
        if len(hits) == limit or (phrases and left <= 0):
            break
        hit = DocumentHit(conversation, title, message, name, conversations - 1)
        if left > 0:
            left -= size
            placed = None
            with suppress(StoreError):  # damaged: reported when the conversation is opened
                placed = _with_line(
                    hit, first, text_of(AttachmentRecord(sha256, name, size)), terms, weights
                )
            if placed is None and phrases:
                continue
            hit = placed or hit
        hits.append(hit)
    total = len(hits) if phrases and len(hits) < limit else len(rows)
    return FoundDocuments(tuple(hits), total, waiting)


# With max(), SQLite takes the other columns from the row with the maximum.
_WITH_DOCUMENTS = """
SELECT a.sha256, max(m.id), c.id, c.title, a.name, a.size, a.line, count(DISTINCT c.id)
FROM attachments a
JOIN messages m ON m.id = a.message
JOIN conversations c ON c.id = m.conversation
WHERE a.sha256 IN (SELECT value FROM json_each(?))
  AND m.role = 'user' AND m.trashed_at IS NULL AND c.trashed_at IS NULL
GROUP BY a.sha256
"""


# --------------------------------------------------------------------------------- the query


@dataclass(frozen=True, slots=True)
class _Term:
    """A word of the query."""

    query: str
    """In FTS5's syntax; empty if it has text without spaces, which that index cannot find."""
    tokens: tuple[tuple[str, bool], ...]
    """Words of the index of documents, and whether each may be the beginning of one."""
    literal: tuple[str, ...]
    """Parts between spaces and marks that a message must have as they are, but for case."""
    needle: str
    """What a folded text must have, which is much faster to look for than the `pattern`."""
    pattern: re.Pattern[str]
    """Matches the pieces one after another in a folded text."""

    def frequencies(self, words: WordList) -> Iterator[int]:
        """Approximate number of occurrences of each token in a document."""
        for token, prefix in self.tokens:
            if len(token) == 2 and UNSPACED_RUN.fullmatch(token) is not None:
                yield words.pair_frequency(token[0].encode(), token[1].encode())
            else:
                yield words.frequency(token.encode(), prefix)


_SPACED_START = rf"(?:(?<=[{NO_SPACES}])|(?<![^\W_]))"
_SPACED_END = rf"(?:(?=[{NO_SPACES}])|(?![^\W_]))"
"""Where a word begins and ends that has spaces, marks or another script around it."""
_REST_OF_WORD = rf"(?:(?![{NO_SPACES}])[^\W_])*+"


def _terms(words: str) -> list[_Term]:
    quoted, prefix = _quoted(words)
    terms = []
    with Tokeniser() as tokeniser:
        for index, query in enumerate(quoted):
            is_prefix = prefix and index == len(quoted) - 1
            if (term := _term(tokeniser, query, is_prefix)) is not None:
                terms.append(term)
    return terms


def _term(tokeniser: Tokeniser, query: str, prefix: bool) -> _Term | None:
    pieces: list[str] = []
    at = 0
    for run in (*UNSPACED_RUN.finditer(query), None):
        pieces += tokeniser.split(query[at : len(query) if run is None else run.start()])
        if run is not None:
            pieces.append(run[0])
            at = run.end()
    if not pieces:
        return None
    runs = [UNSPACED_RUN.match(each) is not None for each in pieces]
    tokens: list[tuple[str, bool]] = []
    for number, (piece, is_run) in enumerate(zip(pieces, runs, strict=True), 1):
        is_last = number == len(pieces)
        if not is_run:
            tokens.append((piece, prefix and is_last))
            continue
        tokens += [(pair, False) for pair in pairs(piece)]
        if not is_last or len(piece) == 1:  # the last character of a run, or the first of a pair
            tokens.append((piece[-1], is_last))
    folded = [_fold(each) for each in pieces]
    expression = "" if runs[0] else _SPACED_START
    for number, piece in enumerate(folded):
        if number:
            expression += r"[\W_]*" if runs[number] or runs[number - 1] else r"[\W_]+"
        expression += re.escape(piece)
    if not runs[-1]:
        expression += _REST_OF_WORD if prefix else _SPACED_END
    return _Term(
        "" if any(runs) else query + ("*" if prefix else ""),
        tuple(tokens),
        tuple(each for each, is_run in zip(pieces, runs, strict=True) if is_run or query.isascii()),
        max(folded, key=len),
        re.compile(expression),
    )


def _quoted(words: str) -> tuple[list[str], bool]:
    """Quote each word, so that FTS5 finds no operators in it. Also returns whether the last word
    may be a prefix. Raises StoreError."""
    check_text(words)
    quoted = [
        '"' + word.replace('"', '""') + '"'
        for word in regular(words).replace("\0", " ").split()
        if any(character.isalnum() for character in word)
    ]
    last = quoted[-1][1:-1] if quoted else ""
    return quoted, len(last) > 1 or not last.isascii()


def _scores(
    connection: sqlite3.Connection, terms: Sequence[_Term]
) -> tuple[dict[str, float], list[float]]:
    """BM25 score of each document that has all terms, by SHA-256, and the weight of each term."""
    found: list[tuple[str, int, tuple[int, ...]]] = []
    documents, length, in_documents = 0, 0, [0] * sum(len(term.tokens) for term in terms)
    for sha256, packed in connection.execute("SELECT sha256, words FROM document_words"):
        try:
            words = WordList(packed)
        except zlib.error:  # damaged
            continue
        documents += 1
        length += len(words)
        frequencies = tuple(f for term in terms for f in term.frequencies(words))
        for index, frequency in enumerate(frequencies):
            in_documents[index] += frequency > 0
        if all(frequencies):
            found.append((sha256, len(words), frequencies))
    weights = [math.log(1 + (documents - n + 0.5) / (n + 0.5)) for n in in_documents]
    mean = length / documents if documents else 1.0
    scores = {
        sha256: sum(
            weight * 2.2 * frequency / (frequency + 1.2 * (0.25 + 0.75 * size / mean))
            for weight, frequency in zip(weights, frequencies, strict=True)
        )
        for sha256, size, frequencies in found
    }
    of_tokens = iter(weights)
    return scores, [sum(next(of_tokens) for _ in term.tokens) for term in terms]


# ------------------------------------------------------------------------- lines and snippets


@dataclass(frozen=True, slots=True)
class _Line:
    """A line with some of the terms, or a part of a long one: its number, its first character in
    the text, and the sum of the terms' weights."""

    number: int
    start: int
    text: str
    weight: float


def _with_line(
    hit: DocumentHit,
    first_line: int,
    pieces: Iterable[str],
    terms: Sequence[_Term],
    weights: Sequence[float],
) -> DocumentHit | None:
    """Add the line with the most and rarest terms to a hit; None if no line has a term."""
    line = _best_line(terms, weights, pieces)
    if line is None:
        return None
    snippet, matches, offset = _snippet(line.text, terms)
    return replace(
        hit,
        line=first_line - 1 + line.number,
        offset=line.start + offset,
        snippet=snippet,
        matches=matches,
    )


def _best_line(
    terms: Sequence[_Term], weights: Sequence[float], pieces: Iterable[str]
) -> _Line | None:
    """The line with the most and rarest terms; of several the one that has most for its length."""
    found = nlargest(MAX_LINES, _lines_with(terms, weights, pieces), key=lambda line: line.weight)
    best = [line for line in found if line.weight == found[0].weight]
    return max(
        best,
        key=lambda line: len(_matches(line.text, terms)) / (len(line.text) + 100),
        default=None,
    )


def _lines_with(
    terms: Sequence[_Term], weights: Sequence[float], pieces: Iterable[str]
) -> Iterator[_Line]:
    """Yield lines that have a term. A long line is cut to the text around its first term."""
    number, offset = 1, 0
    for text in whole_lines(pieces):
        folded, start = _fold(text), offset
        offset += len(text)
        present = [
            (term, weight)
            for term, weight in zip(terms, weights, strict=True)
            if term.needle in folded
        ]
        if not present:
            number += text.count("\n")
            continue
        for line, folded_line in zip(text.split("\n"), folded.split("\n"), strict=True):
            found = [
                (match.start(), weight)
                for term, weight in present
                if term.needle in folded_line and (match := term.pattern.search(folded_line))
            ]
            if found:
                at = min(at for at, _ in found)
                first = max(0, at - MAX_LINE // 2) if len(line) > MAX_LINE else 0
                shown = line[first : first + MAX_LINE]
                yield _Line(number, start + first, shown, sum(weight for _, weight in found))
            start += len(line) + 1
            number += 1
        number -= 1  # the last line continues in the next piece, or is empty


def _snippet(line: str, terms: Sequence[_Term]) -> tuple[str, tuple[tuple[int, int], ...], int]:
    """The part of a line with most terms, the matches in it, and the place of the first one in the
    line."""
    matches = _matches(line, terms)
    at = _densest(matches)
    start, end = max(0, at - _BEFORE), min(len(line), max(0, at - _BEFORE) + MAX_SNIPPET)
    if start:
        space = re.compile(r"\s").search(line, start, at)
        start = start if space is None else space.end()
    if end < len(line):
        space = re.compile(r"\s(?=\S*$)").search(line, max(at, end - _BEFORE), end)
        end = end if space is None else space.start()
    before, after = "…" if start else "", "…" if end < len(line) else ""
    moved = len(before) - start
    shown = [(a, b) for a, b, _ in matches if start <= a and b <= end]
    snippet = before + line[start:end] + after
    return snippet, tuple((a + moved, b + moved) for a, b in shown), shown[0][0] if shown else 0


def _densest(matches: Sequence[tuple[int, int, int]]) -> int:
    """Where the match begins that has most terms soon after it."""
    best, most = 0, 0
    for number, (start, _, _) in enumerate(matches):
        near = islice(matches, number, number + MAX_SNIPPET)
        count = len({term for _, end, term in near if end <= start + MAX_SNIPPET - _BEFORE})
        if count > most:
            best, most = start, count
    return best


def _matches(line: str, terms: Sequence[_Term]) -> list[tuple[int, int, int]]:
    """Where terms begin and end in a line, and their numbers. They do not overlap."""
    folded, places = _folded_with_places(line)
    found = sorted(
        (places[match.start()], max(places[match.end()], places[match.end() - 1] + 1), number)
        for number, term in enumerate(terms)
        for match in term.pattern.finditer(folded)
    )
    apart: list[tuple[int, int, int]] = []
    for each in found:
        if not apart or each[0] >= apart[-1][1]:
            apart.append(each)
    return apart


def _folded_with_places(line: str) -> tuple[str, Sequence[int]]:
    """A folded line, and for each of its characters the one of the line that it is from; at the
    end, the length of the line."""
    if line.isascii():
        return line.lower(), range(len(line) + 1)
    folded = [_fold(character) for character in line]
    places = [place for place, each in enumerate(folded) for _ in each]
    return "".join(folded), [*places, len(line)]


_DROPPED = dict.fromkeys(range(0x300, 0x370)) | dict.fromkeys(
    code for code, replacement in IRREGULAR.items() if not replacement
)
"""Combining diacritics of Latin, Greek and Cyrillic letters, and characters that nobody sees."""


def _fold(text: str) -> str:
    """Remove case and diacritics. Line breaks stay the same."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKD", text.casefold()).translate(_DROPPED)
