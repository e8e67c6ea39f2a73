"""The store of conversations, the public interface of this package.

Every method may be called from any thread. One that changes something returns when the change is on
the disk; all of them raise StoreError, one sentence for the user.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self, TypeVar

from app.protocol.options import Mode
from app.protocol.prompt import Role
from app.store import backup, conversations, document_index, drafts, messages, quarantine
from app.store.attachments import Attachments, Source
from app.store.database import Readers, single_transaction, transaction
from app.store.document_index import Indexer
from app.store.errors import DamagedError, StoreError
from app.store.limits import ATTACHMENT_LIMIT, TRASH_DAYS
from app.store.records import (
    AnswerStats,
    Attachment,
    Conversation,
    ConversationSize,
    DeletedMessages,
    Draft,
    FoundDocuments,
    Message,
    Overrides,
    ReadMap,
    SearchHit,
    State,
    Tree,
)
from app.store.reply_writer import ReplyWriter
from app.store.search import search, search_documents
from app.store.startup import Paths, open_database
from app.store.writer import Task, Writer

_BACKUP_SECONDS = 3600.0
"""How often a running program checks whether the daily backup is due."""

T = TypeVar("T")


def utc_now() -> datetime:
    return datetime.now(UTC)


class Store:
    """Use as a context manager, or call `close`, which stops the replies that are being written."""

    def __init__(
        self,
        folder: Path,
        *,
        attachment_limit: int = ATTACHMENT_LIMIT,
        trash_days: float = TRASH_DAYS,
        lock_timeout: float = 0.0,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """Open or create the store in `folder`. `attachment_limit` is the largest size of a
        document, in bytes. What has been in the trash for more than `trash_days` is deleted. If
        another process still has the lock after `lock_timeout` seconds, this store can read, and
        write single transactions (rename, delete, import), but no answers."""
        paths = Paths(folder)
        self._now = clock
        self._paths = paths
        self._attachments = Attachments(paths.attachments, attachment_limit)
        opened = open_database(paths, clock(), lock_timeout)
        self.notices: list[str] = opened.notices
        """Sentences for the user about how the store was opened."""
        self.trash_days = trash_days
        """For display; the trash is emptied when a store is opened."""
        self.read_only = opened.read_only
        """Why new questions cannot be saved, or None."""
        self._secondary = opened.secondary
        self._lock = opened.lock
        self._readers = Readers(paths.database)
        self._replies: list[ReplyWriter] = []
        """The unfinished ones."""
        self._writer: Writer | None = None
        self._indexer: Indexer | None = None
        if self.read_only is not None:
            self.notices.append(str(self.read_only))
        if opened.connection is not None:
            self._purge(opened.connection, trash_days)
            self._writer = Writer(opened.connection, self._flag_for_check)
            self._writer.submit(self._purge_backups, 0)
            self._writer.submit(self._back_up_daily, 0)
            self._start_indexer(self._writer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish pending writes and release the lock. May be called again."""
        for reply in self._replies:
            # If this fails, the next start marks the reply as stopped.
            with contextlib.suppress(StoreError):
                reply.close()
        if self._indexer is not None:
            self._indexer.close()
        self._readers.close()  # before the writer, which as the last one tidies up the WAL
        if self._writer is not None:
            self._writer.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- conversations

    def create(
        self, title: str = "", overrides: Overrides = conversations.NO_OVERRIDES
    ) -> Conversation:
        """A new, empty conversation. Without a title, it is titled after its first question."""
        messages.check_text(title)
        return self._conversation(lambda c: conversations.create(c, title, self._now(), overrides))

    def conversations(self, trashed: bool = False) -> tuple[Conversation, ...]:
        """Pinned ones first, then the last used ones; or those in the trash."""
        return self._read(lambda c: conversations.list_all(c, trashed))

    def conversation_ids(self) -> tuple[int, ...]:
        """Of those that are not in the trash; much faster than reading them."""
        return self._read(conversations.list_ids)

    def last_used(self) -> Conversation | None:
        """The last used one that is not in the trash."""
        return self._read(conversations.last_used)

    def conversation(self, id: int) -> Conversation:
        return self._read(lambda c: conversations.conversation(c, id))

    def sizes(self) -> dict[int, ConversationSize]:
        """Of all conversations with a question, by their ids."""
        return self._read(conversations.sizes)

    def rename(self, id: int, title: str) -> None:
        self._write_once(lambda c: conversations.rename(c, id, title))

    def pin(self, id: int, pinned: bool = True) -> None:
        self._write_once(lambda c: conversations.pin(c, id, pinned))

    def set_overrides(self, id: int, overrides: Overrides) -> None:
        """Replaces all overrides of this conversation."""
        self._write(lambda c: conversations.set_overrides(c, id, overrides))

    def trash(self, id: int) -> None:
        """Move a conversation to the trash; `restore` undoes that until it expires."""
        self._write_once(lambda c: conversations.trash(c, id, self._now()))

    def restore(self, id: int) -> None:
        self._write_once(lambda c: conversations.trash(c, id, None))

    def empty_trash(self) -> None:
        """Permanently, also in backups. The documents are deleted at the next start."""
        self._write(lambda c: self._forget(c, datetime.max.replace(tzinfo=UTC)))
        self._require_writer().submit(self._purge_backups, 0)

    def duplicate(self, id: int) -> Conversation:
        """A copy of the conversation, with all branches."""
        return self._write_once(lambda c: conversations.duplicate(c, id, self._now()))

    # -- messages

    def branch(self, conversation: int, limit: int | None = None) -> tuple[Message, ...]:
        """The current branch, oldest first, or only its last `limit` messages."""

        def read(connection: sqlite3.Connection) -> tuple[Message, ...]:
            last = conversations.conversation(connection, conversation).current
            return () if last is None else messages.branch(connection, last, limit)

        return self._read(read)

    def message(self, id: int) -> Message:
        return self._read(lambda c: messages.message(c, id))

    def answer_stats(self, limit: int = 1000) -> tuple[AnswerStats, ...]:
        """The statistics of the last `limit` answers, newest first, of every conversation."""
        return self._read(lambda c: messages.answer_stats(c, limit))

    def versions(self, id: int) -> tuple[int, ...]:
        """The ids of all versions of this message, including itself."""
        return self._read(lambda c: messages.versions(c, id))

    def forks(self, conversation: int) -> dict[int, tuple[int, ...]]:
        """The versions of each message of a conversation that has several."""
        return self._read(lambda c: messages.forks(c, conversation))

    def read_map(self, id: int) -> ReadMap | None:
        """What was read for this answer, if known."""
        return self._read(lambda c: messages.read_map(c, id))

    def add_message(
        self,
        conversation: int,
        role: Role,
        text: str,
        attachments: Sequence[Attachment] = (),
    ) -> Message:
        """Continue the current branch."""

        def add(connection: sqlite3.Connection) -> int:
            last = conversations.conversation(connection, conversation).current
            return self._add(connection, conversation, last, role, text, attachments)

        return self._message(add)

    def edit(self, id: int, text: str, attachments: Sequence[Attachment] | None = None) -> Message:
        """Another version of message `id`, with its attachments unless others are passed."""

        def fork(connection: sqlite3.Connection) -> int:
            old = messages.message(connection, id)
            chosen = old.attachments if attachments is None else attachments
            return self._add(connection, old.conversation, old.parent, old.role, text, chosen)

        return self._message(fork)

    def begin_reply(
        self, question: int, mode: Mode | None = None, keep: float | None = None
    ) -> ReplyWriter:
        """A new, empty answer to message `question`, which may have others, asked for in this mode
        and at this keep."""

        def begin(connection: sqlite3.Connection) -> int:
            conversation = messages.message(connection, question).conversation
            now = self._now()
            role, state = Role.ASSISTANT, State.PARTIAL
            id = messages.add(
                connection, conversation, question, role, state, "", now, mode=mode, keep=keep
            )
            conversations.advance(connection, conversation, id, now)
            return id

        writer = self._require_writer()
        reply = ReplyWriter(writer, writer.run(begin), attach=self._attachments.add)
        self._replies = [*(r for r in self._replies if not r.ended), reply]
        return reply

    def continue_reply(self, id: int, known_ids: bool) -> ReplyWriter:
        """Continue an answer that was cut off or stopped. Without `known_ids`, its token ids are of
        another model, and the new one supplies them again."""

        def resume(connection: sqlite3.Connection) -> Message:
            messages.resume_reply(connection, id)
            found = messages.message(connection, id)
            conversations.trash(connection, found.conversation, None)
            return found

        writer = self._require_writer()
        before = writer.run(resume)
        before = before if known_ids else replace(before, token_ids=None)
        reply = ReplyWriter(writer, id, before, self._attachments.add)
        self._replies = [*(r for r in self._replies if not r.ended), reply]
        return reply

    def set_branch(self, id: int) -> None:
        """Make the newest branch through message `id` the current one."""

        def go(connection: sqlite3.Connection) -> None:
            conversation = messages.message(connection, id).conversation
            last = messages.newest_leaf(connection, id)
            conversations.set_current(connection, conversation, last)

        self._write(go)

    def delete_message(self, id: int) -> DeletedMessages:
        """Delete a message and everything after it. If it was on the current branch, another
        version becomes current, or the branch ends before it."""
        return self._write(lambda c: conversations.delete_message(c, id, self._now()))

    def restore_messages(self, removed: DeletedMessages) -> None:
        """Undo `delete_message`."""
        self._write(lambda c: conversations.restore_messages(c, removed))

    def pin_passages(self, id: int, pins: Mapping[int, tuple[tuple[int, int], ...]]) -> None:
        """Set the characters that are always read of the attachments of message `id`, by index."""
        self._write(lambda c: messages.pin(c, id, pins))

    def search(self, words: str, limit: int = 50, best_only: bool = False) -> tuple[SearchHit, ...]:
        """Messages with all these words, the last of which may be a prefix, best first; or only the
        best one of each conversation."""
        messages.check_text(words)
        return self._read(lambda c: search(c, words, limit, best_only))

    def search_documents(self, words: str, limit: int = 20) -> FoundDocuments:
        """Documents of questions with all these words, as in `search`, best first."""
        messages.check_text(words)
        return self._read(lambda c: search_documents(c, self._attachments.iter_text, words, limit))

    def unindexed_documents(self) -> int:
        """How many documents `search_documents` cannot find yet."""
        return self._read(document_index.count_unindexed)

    def wait_for_index(self, timeout: float | None = None) -> bool:
        """Wait until this store has indexed its documents; False after `timeout` seconds."""
        return self._indexer is None or self._indexer.wait(timeout)

    # -- drafts

    def draft(self, conversation: int | None) -> Draft:
        """The unsent draft of a conversation, or (None) of a new one."""
        return self._read(lambda c: drafts.draft(c, conversation))

    def last_draft(self) -> Draft | None:
        """The draft saved last, which shows where the user was."""
        return self._read(drafts.last)

    def save_draft(self, draft: Draft) -> None:
        self._require_attachments(draft.attachments)
        self._write(lambda c: drafts.save(c, draft))

    # -- attachments

    def set_attachment_limit(self, limit: int) -> None:
        """Set the largest size of a document, in bytes."""
        self._attachments.limit = limit

    def attach(self, name: str, source: Source) -> Attachment:
        """Store a document, durably, for a later message."""
        return self.attach_all([(name, source)])[0]

    def attach_all(self, documents: Sequence[tuple[str, Source]]) -> tuple[Attachment, ...]:
        """The same for several, by name and content: much faster than one by one."""
        if not self._secondary:
            self._require_writer()
        for name, _ in documents:
            messages.check_text(name)
        return self._attachments.add(documents)

    def iter_bytes(self, attachment: Attachment) -> Iterator[bytes]:
        """Its original bytes, in chunks. They are only valid if nothing is raised to the end."""
        return self._attachments.iter_bytes(attachment)

    def text(self, attachment: Attachment) -> str:
        """Its text, without a byte order mark."""
        return "".join(self._attachments.iter_text(attachment))

    # -- whole conversations, for export and import

    def tree(self, id: int) -> Tree:
        return self._read(lambda c: conversations.tree(c, id))

    def add_tree(self, tree: Tree) -> Conversation:
        """A new conversation with these messages. Their attachments must be stored already."""
        self._require_attachments([a for message in tree.messages for a in message.attachments])
        added = self._write_once(
            lambda c: conversations.conversation(c, conversations.add_tree(c, tree))
        )
        self._index_soon()
        return added

    # -- inside

    def _read(self, task: Task[T]) -> T:
        try:
            with self._readers.reading() as connection:
                return task(connection)
        except DamagedError:
            self._flag_for_check()
            raise

    def _write(self, task: Task[T]) -> T:
        return self._require_writer().run(task)

    def _write_once(self, task: Task[T]) -> T:
        """A single transaction, which is also possible while another process is the writer."""
        if not self._secondary:
            return self._write(task)
        with single_transaction(self._paths.database) as connection:
            return task(connection)

    def _require_writer(self) -> Writer:
        """The writer. Raises StoreError if there is none."""
        if self._writer is None:
            assert self.read_only is not None
            raise StoreError(self.read_only.problem, self.read_only.advice)
        return self._writer

    def _flag_for_check(self) -> None:
        """SQLite has found damage: have the next start check and repair the database."""
        if self.read_only is None:
            with contextlib.suppress(OSError):
                self._paths.needs_check.touch()

    def _message(self, task: Task[int]) -> Message:
        added = self._write(lambda c: messages.message(c, task(c)))
        self._index_soon()
        return added

    def _conversation(self, task: Task[int]) -> Conversation:
        return self._write(lambda c: conversations.conversation(c, task(c)))

    def _add(
        self,
        connection: sqlite3.Connection,
        conversation: int,
        parent: int | None,
        role: Role,
        text: str,
        attachments: Sequence[Attachment],
    ) -> int:
        self._require_attachments(attachments)
        now = self._now()
        id = messages.add(
            connection, conversation, parent, role, State.DONE, text, now, attachments
        )
        conversations.advance(connection, conversation, id, now)
        if role is Role.USER:
            conversations.set_default_title(connection, conversation, text)
        return id

    def _require_attachments(self, attachments: Sequence[Attachment]) -> None:
        for attachment in attachments:
            if not self._attachments.has(attachment.sha256):
                raise StoreError(
                    f"The document '{attachment.name}' is no longer stored", "attach it again"
                )

    def _purge(self, connection: sqlite3.Connection, trash_days: float) -> None:
        """Delete what has expired, and documents that nothing refers to. If that fails, the next
        start tries again."""
        with contextlib.suppress(StoreError, OSError):
            with transaction(connection):
                self._forget(connection, self._now() - timedelta(days=trash_days))
                used = messages.attachment_digests(connection) | drafts.attachment_digests(
                    connection
                )
            self.notices += quarantine.purge(self._paths.quarantine, self._now())
            # A damaged database may be repaired later: its documents stay as long as it does.
            if quarantine.is_empty(self._paths.quarantine):
                self._attachments.delete_unused(used)

    def _forget(self, connection: sqlite3.Connection, before: datetime) -> None:
        """Delete what went into the trash before then. Raises OSError."""
        if gone := conversations.expired(connection, before):
            backup.note_purge(self._paths.backups, gone)
            conversations.purge(connection, gone)

    def _purge_backups(self, _: sqlite3.Connection) -> None:
        try:
            backup.purge(self._paths.backups)
        except (OSError, sqlite3.Error, StoreError) as error:
            self.notices.append(f"What was deleted is still in backups ({error}).")

    def _start_indexer(self, writer: Writer) -> None:
        self._indexer = Indexer(
            self._attachments,
            writer,
            lambda: self._read(document_index.unindexed),
            lambda: not all(reply.ended for reply in self._replies),
        )
        self._index_soon()

    def _index_soon(self) -> None:
        if self._indexer is not None:  # there may be new documents
            self._indexer.start()

    def _back_up_daily(self, _: sqlite3.Connection) -> None:
        try:
            if backup.is_due(self._paths.backups, self._now()):
                backup.back_up(self._paths.database, self._paths.backups, self._now())
        except (OSError, sqlite3.Error) as error:
            self.notices.append(f"The daily backup was not made ({error}).")
        with contextlib.suppress(StoreError):  # the store may be closing
            self._require_writer().submit(self._back_up_daily, _BACKUP_SECONDS)
