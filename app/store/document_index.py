"""Indexes the words of attached documents, in the table `document_words`, for the search.

Each document has a row with a compressed list of its distinct words. A search scans all rows (about
1.5 ms per megabyte of text). A deleted document leaves nothing behind, which a full-text index of
texts outside the database cannot guarantee. SQLite's tokeniser splits the words, so documents are
found by the same words as messages. Of scripts that do not separate words, such as Chinese, each
two characters that follow each other are a word.
"""

from __future__ import annotations

import re
import sqlite3
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby

from app.store.attachments import DocumentFiles
from app.store.database import Writer
from app.store.records import AttachmentRecord, StoreError
from app.store.schema import IRREGULAR
from app.util.words import NO_SPACES

TOKENISER = "unicode61 remove_diacritics 2"
"""The same tokeniser as in `message_text`."""
MAX_WORDS = 1_000_000
"""Maximum indexed words of a document. Less frequent words are dropped."""
MAX_WORD_LENGTH = 100
"""Maximum characters of an indexed word. Longer ones, such as encoded data, are dropped."""
MAX_PIECE = 1 << 20
"""Maximum characters of a line in memory."""
BATCH_CHARACTERS = 1 << 20
BATCH_DOCUMENTS = 100
"""A batch of documents is saved once it has reached one of these sizes."""
BUSY_SECONDS = 2.0
"""Seconds between two checks whether an answer is still being written."""
_FREQUENCIES = 5
"""Number of groups of words: those that occur once, 2 or 3 times, 4 to 7, 8 to 15, or more
often."""
_NEXT_GROUP = "\f"
_PAIRS = b"\t"
"""Stands between a character and those that follow it somewhere."""


UNSPACED_RUN = re.compile(f"[{NO_SPACES}]+")
_IRREGULAR = re.compile(f"[{''.join(map(chr, IRREGULAR))}]")


def regular(text: str) -> str:
    """A text without ligatures and characters that nobody sees."""
    is_regular = text.isascii() or _IRREGULAR.search(text) is None
    return text if is_regular else text.translate(IRREGULAR)


def pairs(run: str) -> list[str]:
    """Each two characters of a run of text without spaces."""
    return [run[at : at + 2] for at in range(len(run) - 1)]


class Tokeniser:
    """SQLite's tokeniser, in an in-memory database. Use as a context manager, on one thread."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.executescript(
            "CREATE VIRTUAL TABLE piece USING fts5("
            f"text, content='', columnsize=0, tokenize='{TOKENISER}');"
            "CREATE VIRTUAL TABLE words USING fts5vocab(piece, row);"
            "CREATE VIRTUAL TABLE places USING fts5vocab(piece, instance);"
        )

    def __enter__(self) -> Tokeniser:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def counts(self, text: str) -> Counter[str]:
        """Number of occurrences of each word. The last character of a run of text without spaces is
        a word, too."""
        text, counts = regular(text), Counter[str]()
        if not text.isascii() and (runs := UNSPACED_RUN.findall(text)):
            for run in runs:
                counts.update(pairs(run))
            counts.update(run[-1] for run in runs)
            text = UNSPACED_RUN.sub(" ", text)
        counts.update(dict(self._query(text, "SELECT term, cnt FROM words")))
        return counts

    def split(self, text: str) -> list[str]:
        """The words of a text with spaces, in order."""
        return [term for (term,) in self._query(text, "SELECT term FROM places ORDER BY offset")]

    def _query(self, text: str, sql: str) -> list[tuple]:  # type: ignore[type-arg]
        self._connection.execute("INSERT INTO piece(rowid, text) VALUES (1, ?)", (text,))
        found = self._connection.execute(sql).fetchall()
        self._connection.execute("INSERT INTO piece(piece) VALUES ('delete-all')")
        return found


class WordList:
    """The distinct words of a document."""

    def __init__(self, packed: bytes) -> None:
        """Raises zlib.error if `packed` is damaged."""
        self._words = zlib.decompress(packed)

    def __len__(self) -> int:
        """Bytes of the unpacked list."""
        return len(self._words)

    def frequency(self, word: bytes, prefix: bool = False) -> int:
        """About how often a word (in UTF-8), or a word with this prefix, occurs: 0, 1, 2, 4, 8 or
        16 times."""
        return self._frequency_at(self._words.find(b"\n" + word + (b"" if prefix else b"\n")))

    def pair_frequency(self, first: bytes, second: bytes) -> int:
        """The same for two characters of a script that does not separate words."""
        at = -1
        while (at := self._words.find(b"\n" + first + _PAIRS, at + 1)) >= 0:
            if self._words.find(second, at, self._words.find(b"\n", at + 1)) >= 0:
                break
        return self._frequency_at(at)

    def _frequency_at(self, at: int) -> int:
        return 0 if at < 0 else 1 << (_FREQUENCIES - 1 - self._words.count(b"\f", 0, at))


def pack(counts: Counter[str]) -> bytes:
    """Pack words in the format that `WordList` reads."""
    groups: list[list[str]] = [[] for _ in range(_FREQUENCIES)]
    for word, count in counts.most_common(MAX_WORDS) if len(counts) > MAX_WORDS else counts.items():
        if len(word) <= MAX_WORD_LENGTH:
            groups[min(count.bit_length(), _FREQUENCIES) - 1].append(word)
    # The most frequent words come first, so that `find` finds one of these for a prefix.
    packed = ("\n".join(("", *_lines(group), "")) for group in reversed(groups))
    return zlib.compress(_NEXT_GROUP.join(packed).encode())


def _lines(words: list[str]) -> Iterator[str]:
    """Words in order. Pairs of characters that have the same first one are a line together, which
    takes half the space."""
    for first, same in groupby(sorted(words), key=lambda word: word[:1]):
        if UNSPACED_RUN.match(first) is None:
            yield from same
            continue
        listed = [*same]
        if first in listed:
            yield first
        if seconds := "".join(word[1:] for word in listed):
            yield first + _PAIRS.decode() + seconds


def delete_unused(connection: sqlite3.Connection) -> None:
    """Delete the words of documents to which no message refers."""
    used = "SELECT sha256 FROM attachments"
    connection.execute(f"DELETE FROM document_words WHERE sha256 NOT IN ({used})")


def unindexed(connection: sqlite3.Connection) -> tuple[AttachmentRecord, ...]:
    """Documents that are not indexed yet, newest first."""
    rows = connection.execute(
        "SELECT a.sha256, a.name, a.size FROM attachments a JOIN messages m ON m.id = a.message"
        " WHERE m.role = 'user' AND a.sha256 NOT IN (SELECT sha256 FROM document_words)"
        " GROUP BY a.sha256 ORDER BY max(m.id) DESC"
    )
    return tuple(AttachmentRecord(*row) for row in rows)


class Indexer:
    """Saves the words of documents, on a thread that runs until all are indexed.

    It reads and counts outside of transactions, and pauses while an answer is written. Documents
    that are not indexed when the program ends are indexed after the next start.
    """

    def __init__(
        self,
        attachments: DocumentFiles,
        writer: Writer,
        pending: Callable[[], Sequence[AttachmentRecord]],
        is_busy: Callable[[], bool],
    ) -> None:
        """`pending` lists documents that are not indexed; it may raise StoreError."""
        self._attachments, self._writer = attachments, writer
        self._pending, self._is_busy = pending, is_busy
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wanted = False
        self._closed = threading.Event()
        self._unreadable: set[str] = set()
        """SHA-256 of documents whose files are missing or damaged. The next start tries again."""

    def start(self) -> None:
        """Index new documents, if there are any."""
        with self._lock:
            self._wanted = True
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._work, name="indexer", daemon=True)
                self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all documents are indexed; False after `timeout` seconds."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)
        return thread is None or not thread.is_alive()

    def close(self) -> None:
        """Stop within one piece of a document."""
        self._closed.set()
        self.wait()

    def _work(self) -> None:
        while True:
            with self._lock:
                if self._closed.is_set() or not self._wanted:
                    self._thread = None
                    return
                self._wanted = False
            with suppress(StoreError):  # such as a full disk: the next start tries again
                self._index_all()

    def _index_all(self) -> None:
        pending = [each for each in self._pending() if each.sha256 not in self._unreadable]
        if not pending:
            return
        rows: list[tuple[str, bytes]] = []
        characters = 0
        with Tokeniser() as tokeniser:
            for document in pending:
                while self._is_busy() and not self._closed.wait(BUSY_SECONDS):
                    pass
                try:
                    counts = self._count(tokeniser, document)
                except StoreError:
                    self._unreadable.add(document.sha256)
                    continue
                if self._closed.is_set():
                    break
                rows.append((document.sha256, pack(counts)))
                characters += document.size
                if characters >= BATCH_CHARACTERS or len(rows) >= BATCH_DOCUMENTS:
                    self._save(rows)
                    rows, characters = [], 0
        self._save(rows)

    def _count(self, tokeniser: Tokeniser, document: AttachmentRecord) -> Counter[str]:
        """Count the words of a document. Stops early after `close`."""
        counts: Counter[str] = Counter()
        for piece in whole_lines(self._attachments.iter_text(document)):
            if self._closed.is_set():
                break
            counts.update(tokeniser.counts(piece))
        return counts

    def _save(self, rows: Sequence[tuple[str, bytes]]) -> None:
        def task(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT OR IGNORE INTO document_words VALUES (?, ?)", rows)
            delete_unused(connection)  # a question may have been deleted in the meantime

        if rows:
            self._writer.run(task)


def whole_lines(pieces: Iterable[str]) -> Iterator[str]:
    """Regroup a text into pieces that end at a line end. Lines of more than MAX_PIECE characters
    are cut, at a space if they have one."""
    rest = ""
    for piece in pieces:
        rest += piece
        end = rest.rfind("\n") + 1
        if not end and len(rest) >= MAX_PIECE:
            end = rest.rfind(" ") + 1 or len(rest)
        if end:
            yield rest[:end]
            rest = rest[end:]
    yield rest
