"""Saves an answer while it is generated."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from app.protocol.prompt import RetrievedPart
from app.store import conversations, messages
from app.store.database import Writer
from app.store.records import (
    AnswerStats,
    AttachmentRecord,
    MessageRecord,
    ReadMap,
    ReplyEnd,
    RetrievalRecord,
    State,
    StoreError,
    encode,
)

FLUSH_SECONDS = 0.5
"""Seconds between two commits. A token is on disk after at most twice this time."""

Attach = Callable[[Sequence[tuple[str, bytes]]], tuple[AttachmentRecord, ...]]
"""Stores documents, given by name and content."""


class ReplyWriter:
    """Saves one answer, from its first token to its end. `append` never waits for the disk: a
    thread commits the text within a second, whether or not more is appended."""

    def __init__(
        self, writer: Writer, message: int, attach: Attach, before: MessageRecord | None = None
    ) -> None:
        """`attach` stores documents. `before` is the message that is continued, if there is one."""
        self.message = message
        """The message id."""
        self.problem: StoreError | None = None
        """Why the last commit failed, or None. It is retried, and nothing is lost."""
        self.ended = False
        """Whether the end of the answer is on disk."""
        self._writer, self._attach = writer, attach
        self._retrieved: Sequence[RetrievedPart] | None = None
        """Retrieved parts that are not stored yet."""
        self._lock = threading.Lock()
        self._text = [before.text] if before else []
        self._thinking = [before.thinking] if before else []
        self._token_ids = [*(before.token_ids or ())] if before else []
        self._dirty = False
        """Whether something is not committed yet."""
        self._closed = threading.Event()
        threading.Thread(target=self._flush, name="reply", daemon=True).start()
        self._last_end: tuple[ReplyEnd, int | None] = ReplyEnd(State.STOPPED), None

    def append(self, text: str, token_ids: Iterable[int] = (), thinking: str = "") -> None:
        """Add generated text; `thinking` is the text between thinking tags."""
        with self._lock:
            if self.ended:
                raise RuntimeError("the reply has ended")
            self._text.append(text)
            self._thinking.append(thinking)
            self._token_ids.extend(token_ids)
            self._dirty = True

    def retrieve(self, parts: Sequence[RetrievedPart]) -> None:
        """Store retrieved parts as attachments of this answer."""
        with self._lock:
            self._retrieved, self._dirty = parts, True

    def finish(self, stats: AnswerStats | None = None, read_map: ReadMap | None = None) -> None:
        """Save the complete answer, and wait until it is on disk. After a StoreError this may be
        called again."""
        self.end(ReplyEnd(State.DONE, stats, read_map)).result()

    def end(self, end: ReplyEnd, revert_to: int | None = None) -> Future[None]:
        """Like `finish`, without waiting: the future is done once the end is on disk. If it raises
        a StoreError, `end` may be called again; `close` does so, too. With `revert_to`, the branch
        that ends with that message becomes the current one again."""
        if self.ended:
            raise RuntimeError("the reply has ended")
        self._last_end = end, revert_to

        def task(connection: sqlite3.Connection) -> None:
            self._write(connection)
            messages.end_reply(connection, self.message, end)
            if revert_to is not None:
                conversation = messages.message(connection, revert_to).conversation
                conversations.set_current(connection, conversation, revert_to)

        done: Future[None] = Future()

        def tell(written: Future[None]) -> None:
            error = written.exception()
            self.ended = error is None
            if error is None:
                self._closed.set()
                self.problem = None
                done.set_result(None)
            else:
                self._dirty = True
                done.set_exception(error)

        self._writer.submit(task).add_done_callback(tell)
        return done

    def close(self) -> None:
        """Stop an unfinished reply, or retry saving its end. Called when the program ends."""
        try:
            if not self.ended:
                self.end(*self._last_end).result()
        finally:
            self._closed.set()

    def _write(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            # Joined once, so that a long answer is not joined from its first token each time.
            self._text = ["".join(self._text)]
            self._thinking = ["".join(self._thinking)]
            text, thinking = self._text[0], self._thinking[0]
            token_ids = tuple(self._token_ids)
            self._dirty, retrieved = False, self._retrieved
        messages.write_reply(connection, self.message, text, thinking, token_ids)
        if retrieved is not None:
            files = self._attach(
                [(part.document.name, encode(part.document.text, "replace")) for part in retrieved]
            )
            attachments = map(_retrieved_attachment, files, retrieved)
            messages.retrieve(connection, self.message, attachments)
            self._retrieved = None

    def _flush(self) -> None:
        while not self._closed.wait(FLUSH_SECONDS):
            if self._dirty:
                try:
                    self._writer.run(self._write)
                    self.problem = None
                except StoreError as error:
                    self.problem, self._dirty = error, True


def _retrieved_attachment(file: AttachmentRecord, part: RetrievedPart) -> AttachmentRecord:
    why = RetrievalRecord(part.reason, part.tokens, part.words)
    return replace(file, pinned=part.document.pinned, line=part.document.line, retrieval=why)
