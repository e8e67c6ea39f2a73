"""The words of the documents that came with questions, in `document_words`, for the search.

One row a document, with its distinct words in a compressed list: a search looks through all of
them (about 1.5 ms a megabyte of text), and a deleted document leaves nothing behind, which a
full-text index of texts that are not in the database cannot promise. SQLite's tokeniser makes the
words, so documents are found by the same words as messages.
"""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from app.store.attachments import DocumentFiles
from app.store.database import Writer
from app.store.records import AttachmentRecord, StoreError

TOKENISER = "unicode61 remove_diacritics 2"
"""As in `message_text`."""
MAX_WORDS = 1_000_000
"""Maximum number of words indexed of one document: its most frequent ones."""
MAX_WORD_LENGTH = 100
"""Characters; longer words, such as encoded data, are not indexed."""
MAX_PIECE = 1 << 20
"""Characters of a line that are in memory at a time."""
BATCH_CHARACTERS = 1 << 20
BATCH_DOCUMENTS = 100
"""Documents are saved in batches of at least one of these sizes."""
BUSY_SECONDS = 2.0
"""While an answer is written, how often the indexer looks whether it has ended."""
_FREQUENCIES = 5
"""Words are in groups: those that occur once, 2 or 3 times, 4 to 7, 8 to 15, or more often."""
_NEXT_GROUP = "\f"


class Tokeniser:
    """SQLite's tokeniser, in a database in memory. Use as a context manager, on one thread."""

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

    def counts(self, text: str) -> dict[str, int]:
        """How often each word occurs."""
        return dict(self._query(text, "SELECT term, cnt FROM words"))

    def split(self, text: str) -> list[str]:
        """The words in order."""
        return [term for (term,) in self._query(text, "SELECT term FROM places ORDER BY offset")]

    def _query(self, text: str, sql: str) -> list[tuple]:  # type: ignore[type-arg]
        self._connection.execute("INSERT INTO piece(rowid, text) VALUES (1, ?)", (text,))
        found = self._connection.execute(sql).fetchall()
        self._connection.execute("INSERT INTO piece(piece) VALUES ('delete-all')")
        return found


class WordList:
    """The distinct words of a document."""

    def __init__(self, packed: bytes) -> None:
        """Raises zlib.error if it is damaged."""
        self._words = zlib.decompress(packed)

    def __len__(self) -> int:
        """In bytes: about as many as distinct words, times their length."""
        return len(self._words)

    def frequency(self, word: bytes, prefix: bool = False) -> int:
        """About how often a word, in UTF-8, or a word with this prefix, occurs: 0, 1, 2, 4, 8 or
        16."""
        at = self._words.find(b"\n" + word + (b"" if prefix else b"\n"))
        return 0 if at < 0 else 1 << (_FREQUENCIES - 1 - self._words.count(b"\f", 0, at))


def pack(counts: Counter[str]) -> bytes:
    """Words as `WordList` has them."""
    groups: list[list[str]] = [[] for _ in range(_FREQUENCIES)]
    for word, count in counts.most_common(MAX_WORDS) if len(counts) > MAX_WORDS else counts.items():
        if len(word) <= MAX_WORD_LENGTH:
            groups[min(count.bit_length(), _FREQUENCIES) - 1].append(word)
    # The most frequent first: of the words with a prefix, `find` finds one of these.
    text = _NEXT_GROUP.join("\n".join(("", *sorted(group), "")) for group in reversed(groups))
    return zlib.compress(text.encode())


def delete_unused(connection: sqlite3.Connection) -> None:
    """Delete the words of documents that no message refers to any more."""
    used = "SELECT sha256 FROM attachments"
    connection.execute(f"DELETE FROM document_words WHERE sha256 NOT IN ({used})")


def unindexed(connection: sqlite3.Connection) -> tuple[AttachmentRecord, ...]:
    """Documents whose words are not saved yet, the newest first."""
    rows = connection.execute(
        "SELECT a.sha256, a.name, a.size FROM attachments a JOIN messages m ON m.id = a.message"
        " WHERE m.role = 'user' AND a.sha256 NOT IN (SELECT sha256 FROM document_words)"
        " GROUP BY a.sha256 ORDER BY max(m.id) DESC"
    )
    return tuple(AttachmentRecord(*row) for row in rows)


class Indexer:
    """Saves the words of documents, on a thread that lives while there are any left.

    It reads and counts outside of transactions, and waits while an answer is written. What it has
    not saved when the program ends, it does when it is started again.
    """

    def __init__(
        self,
        attachments: DocumentFiles,
        writer: Writer,
        pending: Callable[[], Sequence[AttachmentRecord]],
        is_busy: Callable[[], bool],
    ) -> None:
        """`pending` reads the documents without words; raises StoreError."""
        self._attachments, self._writer = attachments, writer
        self._pending, self._is_busy = pending, is_busy
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wanted = False
        self._closed = threading.Event()
        self._unreadable: set[str] = set()
        """Their files are missing or damaged; the next start tries again."""

    def start(self) -> None:
        """There may be new documents."""
        with self._lock:
            self._wanted = True
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._work, name="indexer", daemon=True)
                self._thread.start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to do; False if it takes longer than `timeout` seconds."""
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
        """Cut short when this is closed."""
        counts: Counter[str] = Counter()
        for piece in whole_lines(self._attachments.iter_text(document)):
            if self._closed.is_set():
                break
            counts.update(tokeniser.counts(piece))
        return counts

    def _save(self, rows: Sequence[tuple[str, bytes]]) -> None:
        def task(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT OR IGNORE INTO document_words VALUES (?, ?)", rows)
            delete_unused(connection)  # a question may have been deleted meanwhile

        if rows:
            self._writer.run(task)


def whole_lines(pieces: Iterable[str]) -> Iterator[str]:
    """The same text in pieces that end with a line; lines of more than MAX_PIECE characters are
    cut, at a space if they have one."""
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
