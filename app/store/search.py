"""Full-text search in questions, answers and attached documents."""

from __future__ import annotations

import json
import math
import re
import sqlite3
import unicodedata
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from heapq import nlargest
from operator import itemgetter

from app.protocol.prompt import Role
from app.store.document_index import TOKENISER, Tokeniser, WordList, unindexed, whole_lines
from app.store.messages import check_text
from app.store.records import AttachmentRecord, DocumentHit, FoundDocuments, SearchHit, StoreError

_OPEN, _CLOSE = "\x02", "\x03"
"""Mark a match in a snippet."""
SNIPPET_WORDS = 24
"""Approximate length of a snippet."""

MAX_READ_CHARACTERS = 16 << 20
"""Maximum characters, of all documents together, that a search reads to find the lines of hits."""
MAX_LINES = 50
"""Lines of a document that are compared to find the best one."""
MAX_LINE = 2000
"""Maximum characters of a line that are compared."""

# Snippets are made in a second step, only for the results.
_SEARCH = f"""
WITH found(id, score) AS MATERIALIZED (
  SELECT message_text.rowid, {{score}}
  FROM message_text
  JOIN messages m ON m.id = message_text.rowid
  JOIN conversations c ON c.id = m.conversation
  WHERE message_text MATCH :query AND c.trashed_at IS NULL AND m.trashed_at IS NULL
  {{group}}
  ORDER BY 2, message_text.rowid DESC LIMIT :limit
)
SELECT c.id, c.title, m.id, m.role,
  snippet(message_text, 0, '{_OPEN}', '{_CLOSE}', '…', {SNIPPET_WORDS})
FROM found
JOIN message_text ON message_text.rowid = found.id
JOIN messages m ON m.id = found.id
JOIN conversations c ON c.id = m.conversation
WHERE message_text MATCH :query
ORDER BY found.score, found.id DESC
"""
_ALL = _SEARCH.format(score="message_text.rank", group="")
# With min(), SQLite takes the other columns from the row with the minimum.
_BEST = _SEARCH.format(score="min(message_text.rank)", group="GROUP BY m.conversation")


def search(
    connection: sqlite3.Connection, words: str, limit: int = 50, best_only: bool = False
) -> tuple[SearchHit, ...]:
    """Find messages with all these words outside the trash, best first, or only the best one of
    each conversation. The last word may be a prefix of at least two letters, because a single
    letter would match a tenth of all words."""
    query = _query(words)
    if not query:
        return ()
    rows = connection.execute(_BEST if best_only else _ALL, {"query": query, "limit": limit})
    return tuple(
        SearchHit(conversation, title, message, Role(role), *_snippet(marked))
        for conversation, title, message, role, marked in rows
    )


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


@dataclass(frozen=True, slots=True)
class _Term:
    """A word of the query: in FTS5's syntax, and its tokens. The last token may be a prefix."""

    query: str
    tokens: tuple[str, ...]
    prefix: bool

    def pattern(self) -> tuple[str, re.Pattern[str]]:
        """A string that must be in a folded line, which is much faster to search for, and a regular
        expression that matches the tokens one after another."""
        folded = [_fold(token) for token in self.tokens]
        tokens = r"[\W_]+".join(map(re.escape, folded))
        after = "" if self.prefix else r"(?![^\W_])"
        return max(folded, key=len), re.compile(rf"(?<![^\W_]){tokens}{after}")

    def frequencies(self, words: WordList) -> Iterator[int]:
        """Approximate number of occurrences of each token in a document."""
        for index, token in enumerate(self.tokens):
            last = index == len(self.tokens) - 1
            yield words.frequency(token.encode(), self.prefix and last)


def _terms(words: str) -> list[_Term]:
    quoted, prefix = _quoted(words)
    terms = []
    with Tokeniser() as tokeniser:
        for index, query in enumerate(quoted):
            tokens = tuple(tokeniser.split(query))
            is_prefix = prefix and index == len(quoted) - 1
            if tokens:
                terms.append(_Term(query + ("*" if is_prefix else ""), tokens, is_prefix))
    return terms


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


def _with_line(
    hit: DocumentHit,
    first_line: int,
    pieces: Iterable[str],
    terms: Sequence[_Term],
    weights: Sequence[float],
) -> DocumentHit | None:
    """Add the line with the most and rarest terms to a hit; None if no line has a term."""
    found = _lines_with(terms, weights, pieces)
    lines = [(weight, *line) for weight, line in nlargest(MAX_LINES, found, key=itemgetter(0))]
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as memory:
        memory.execute(
            "CREATE VIRTUAL TABLE lines USING fts5("
            "text, weight UNINDEXED, number UNINDEXED, start UNINDEXED,"
            f" tokenize='{TOKENISER}')"
        )
        memory.executemany(
            "INSERT INTO lines(weight, number, start, text) VALUES (?, ?, ?, ?)", lines
        )
        row = memory.execute(_BEST_LINE, (" OR ".join(term.query for term in terms),)).fetchone()
    if row is None:
        return None
    line, start, marked, highlighted = row
    snippet, matches = _snippet(marked)
    offset = start + highlighted.find(_OPEN)
    return replace(hit, line=first_line - 1 + line, offset=offset, snippet=snippet, matches=matches)


_BEST_LINE = f"""
SELECT number, start, snippet(lines, 0, '{_OPEN}', '{_CLOSE}', '…', {SNIPPET_WORDS}),
  highlight(lines, 0, '{_OPEN}', '{_CLOSE}')
FROM lines WHERE lines MATCH ? ORDER BY weight DESC, rank, rowid LIMIT 1
"""
_NO_MARKS = {ord(_OPEN): " ", ord(_CLOSE): " "}


_Line = tuple[int, int, str]
"""A line's number, its first character in the document, and its text."""


def _lines_with(
    terms: Sequence[_Term], weights: Sequence[float], pieces: Iterable[str]
) -> Iterator[tuple[float, _Line]]:
    """Yield lines that have a term, each with the sum of its terms' weights. A long line is cut to
    the text around its first term."""
    weighted = [(*term.pattern(), weight) for term, weight in zip(terms, weights, strict=True)]
    number, offset = 1, 0
    for text in whole_lines(pieces):
        folded, start = _fold(text), offset
        offset += len(text)
        present = [each for each in weighted if each[0] in folded]
        if not present:
            number += text.count("\n")
            continue
        for line, folded_line in zip(text.split("\n"), folded.split("\n"), strict=True):
            found = [
                (match, weight)
                for part, pattern, weight in present
                if part in folded_line and (match := pattern.search(folded_line))
            ]
            if found:
                at = min(match.start() for match, _ in found)
                first = max(0, at - MAX_LINE // 2) if len(line) > MAX_LINE else 0
                shown = line[first : first + MAX_LINE].translate(_NO_MARKS)
                yield sum(weight for _, weight in found), (number, start + first, shown)
            start += len(line) + 1
            number += 1
        number -= 1  # the last line continues in the next piece, or is empty


_MARKS = dict.fromkeys(range(0x300, 0x370))
"""Combining diacritics of Latin, Greek and Cyrillic letters."""


def _fold(text: str) -> str:
    """Remove case and diacritics. Line breaks stay the same."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKD", text.casefold()).translate(_MARKS)


def _query(words: str) -> str:
    quoted, prefix = _quoted(words)
    return " ".join(quoted) + ("*" if prefix else "")


def _quoted(words: str) -> tuple[list[str], bool]:
    """Quote each word, so that FTS5 finds no operators in it. Also returns whether the last word
    may be a prefix. Raises StoreError."""
    check_text(words)
    quoted = [
        '"' + word.replace('"', '""') + '"'
        for word in words.replace("\0", " ").split()
        if any(character.isalnum() for character in word)
    ]
    last = quoted[-1][1:-1] if quoted else ""
    return quoted, len(last) > 1 or not last.isascii()


def _snippet(marked: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """A snippet's text without its marks, and the marked ranges."""
    text, matches, start = "", [], 0
    for piece in re.split(f"([{_OPEN}{_CLOSE}])", marked):
        if piece == _OPEN:
            start = len(text)
        elif piece == _CLOSE:
            matches.append((start, len(text)))
        else:
            text += piece
    return text, tuple(matches)
