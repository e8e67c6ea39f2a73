"""The store of conversations: the public interface of this package.

All methods may be called from any thread. Methods that change something return when the change is
on disk. All methods raise StoreError, whose text is a sentence for the user.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Concatenate, ParamSpec, Self, TypeVar

from app.protocol.options import Mode
from app.protocol.prompt import Role
from app.store import backup, document_index, recovery
from app.store import conversations as conversation_rows
from app.store import messages as message_rows
from app.store.attachments import DocumentFiles
from app.store.database import Readers, Task, Writer, folder_error, single_transaction, transaction
from app.store.document_index import Indexer
from app.store.records import (
    ATTACHMENT_LIMIT,
    TRASH_DAYS,
    AttachmentRecord,
    ConversationRecord,
    DamagedError,
    DeletedMessages,
    DraftRecord,
    FoundDocuments,
    MessageRecord,
    Overrides,
    State,
    StoreError,
    Tree,
)
from app.store.reply_writer import ReplyWriter
from app.store.search import search as search_messages
from app.store.search import search_documents
from app.util.atomic_files import Lock

P = ParamSpec("P")
T = TypeVar("T")
_Query = Callable[Concatenate[sqlite3.Connection, P], T]
_Method = Callable[Concatenate["Store", P], T]


def utc_now() -> datetime:
    return datetime.now(UTC)


def _reads(query: _Query[P, T]) -> _Method[P, T]:
    """Make a method of `Store` that runs a query on a read-only connection."""

    def method(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return store._read(lambda connection: query(connection, *args, **kwargs))

    return method


def _writes(query: _Query[P, T]) -> _Method[P, T]:
    """Make a method of `Store` that runs a query in one transaction. It also works while another
    process is the writer."""

    def method(store: Store, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return store._write_once(lambda connection: query(connection, *args, **kwargs))

    return method


class Store:
    """A store. Use it as a context manager, or call `close`, which stops unfinished replies."""

    def __init__(
        self,
        folder: Path,
        *,
        attachment_limit: int = ATTACHMENT_LIMIT,
        trash_days: float = TRASH_DAYS,
        lock_timeout: float = 0.0,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """Open or create the store in `folder`. `attachment_limit` is the maximum size of a
        document, in bytes. What has been in the trash for more than `trash_days` is deleted. If
        another process still has the lock after `lock_timeout` seconds, this store can read and
        make single changes (rename, delete, import), but cannot save answers."""
        paths = recovery.Paths(folder)
        self._now = clock
        self._paths = paths
        self._attachments = DocumentFiles(paths.attachments, attachment_limit)
        opened = recovery.open_database(paths, clock(), lock_timeout)
        self.notices: list[str] = opened.notices
        """Sentences for the user about what happened when the store was opened."""
        self.trash_days = trash_days
        """Days that the trash keeps, for display. The trash is emptied when a store is opened."""
        self.read_only = opened.read_only
        """Why new questions cannot be saved, or None."""
        self.secondary = opened.secondary
        self._lock = opened.lock
        self._readers = Readers(paths.database)
        self._replies: list[ReplyWriter] = []
        """Unfinished replies."""
        self._backup_tried: date | None = None
        self._writer: Writer | None = None
        self._indexer: Indexer | None = None
        if self.read_only is not None:
            self.notices.append(str(self.read_only))
        if opened.connection is not None:
            self._purge(opened.connection, trash_days)
            self._writer = Writer(opened.connection, self._flag_for_check)
            self._writer.submit(self._back_up)
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
        self._readers.close()  # before the writer, which removes the WAL as the last connection
        if self._writer is not None:
            self._writer.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- conversations

    conversations = _reads(conversation_rows.list_all)
    conversation_ids = _reads(conversation_rows.list_ids)
    last_used = _reads(conversation_rows.last_used)
    conversation = _reads(conversation_rows.conversation)
    sizes = _reads(conversation_rows.sizes)
    rename = _writes(conversation_rows.rename)
    pin = _writes(conversation_rows.pin)
    set_overrides = _writes(conversation_rows.set_overrides)
    tree = _reads(conversation_rows.tree)
    documents = _reads(conversation_rows.documents)

    def create(self, title: str = "", overrides: Overrides | None = None) -> ConversationRecord:
        """Add an empty conversation. Without a title, it gets one from its first question."""

        def create(connection: sqlite3.Connection) -> ConversationRecord:
            chosen = overrides or Overrides()
            id = conversation_rows.create(connection, title, self._now(), chosen)
            return conversation_rows.conversation(connection, id)

        return self._write(create)

    def trash(self, id: int) -> None:
        """Move a conversation to the trash; `restore` undoes that until it expires."""
        self._write_once(lambda c: conversation_rows.trash(c, id, self._now()))

    def restore(self, id: int) -> None:
        self._write_once(lambda c: conversation_rows.trash(c, id, None))

    def empty_trash(self) -> None:
        """Delete everything in the trash permanently, also from the backup. Documents are deleted
        at the next start."""
        self._write(lambda c: self._forget(c, datetime.max.replace(tzinfo=UTC)))
        self._require_writer().submit(self._back_up)

    def duplicate(self, id: int) -> ConversationRecord:
        """Copy a conversation with all its branches."""
        return self._write_once(lambda c: conversation_rows.duplicate(c, id, self._now()))

    def add_tree(self, tree: Tree) -> ConversationRecord:
        """Add a conversation with these messages. Their attachments must be stored already."""
        self._require_attachments([a for message in tree.messages for a in message.attachments])
        added = self._write_once(
            lambda c: conversation_rows.conversation(c, conversation_rows.add_tree(c, tree))
        )
        self._index_soon()
        return added

    # -- messages

    branch = _reads(conversation_rows.branch)
    message = _reads(message_rows.message)
    answer_stats = _reads(message_rows.answer_stats)
    forks = _reads(message_rows.forks)
    read_map = _reads(message_rows.read_map)
    set_branch = _writes(conversation_rows.set_branch)
    restore_messages = _writes(conversation_rows.restore_messages)
    pin_passages = _writes(message_rows.pin)
    search = _reads(search_messages)
    unindexed_documents = _reads(lambda connection: len(document_index.unindexed(connection)))

    def add_message(
        self,
        conversation: int,
        role: Role,
        text: str,
        attachments: Sequence[AttachmentRecord] = (),
    ) -> MessageRecord:
        """Add a message at the end of the current branch."""

        def add(connection: sqlite3.Connection) -> MessageRecord:
            last = conversation_rows.conversation(connection, conversation).current
            return self._add(connection, conversation, last, role, text, attachments)

        added = self._write(add)
        self._index_soon()
        return added

    def begin(
        self,
        question: str,
        attachments: Sequence[AttachmentRecord] = (),
        overrides: Overrides | None = None,
    ) -> MessageRecord:
        """Add a conversation with its first question; nothing if the disk is full."""

        def begin(connection: sqlite3.Connection) -> MessageRecord:
            chosen = overrides or Overrides()
            id = conversation_rows.create(connection, "", self._now(), chosen)
            return self._add(connection, id, None, Role.USER, question, attachments)

        added = self._write(begin)
        self._index_soon()
        return added

    def edit(
        self, id: int, text: str, attachments: Sequence[AttachmentRecord] | None = None
    ) -> MessageRecord:
        """Add another version of message `id`, with the same attachments unless others are
        passed."""

        def fork(connection: sqlite3.Connection) -> MessageRecord:
            old = message_rows.message(connection, id)
            chosen = old.attachments if attachments is None else attachments
            return self._add(connection, old.conversation, old.parent, old.role, text, chosen)

        added = self._write(fork)
        self._index_soon()
        return added

    def begin_reply(
        self, question: int, mode: Mode | None = None, keep: float | None = None
    ) -> ReplyWriter:
        """Add an empty answer to message `question`, which may have other answers. `mode` and
        `keep` are those with which it is requested."""

        def begin(connection: sqlite3.Connection) -> int:
            conversation, now = message_rows.message(connection, question).conversation, self._now()
            role, state = Role.ASSISTANT, State.PARTIAL
            answer = MessageRecord(
                0, conversation, question, role, state, now, "", mode=mode, keep=keep
            )
            id = message_rows.add(connection, answer)
            conversation_rows.advance(connection, conversation, id, now)
            return id

        writer = self._require_writer()
        reply = self._keep(ReplyWriter(writer, writer.run(begin), self._attachments.add))
        if self._now().date() != self._backup_tried:  # the first question of a day
            writer.submit(self._back_up)
        return reply

    def continue_reply(self, id: int, known_ids: bool) -> ReplyWriter:
        """Continue an answer that was cut off or stopped. Without `known_ids`, its token ids belong
        to another model, and the new model supplies them again."""

        def resume(connection: sqlite3.Connection) -> MessageRecord:
            message_rows.resume_reply(connection, id)
            found = message_rows.message(connection, id)
            conversation_rows.trash(connection, found.conversation, None)
            return found

        writer = self._require_writer()
        before = writer.run(resume)
        before = before if known_ids else replace(before, token_ids=None)
        return self._keep(ReplyWriter(writer, id, self._attachments.add, before))

    def delete_message(self, id: int) -> DeletedMessages:
        """Delete a message and everything after it. If it was on the current branch, another
        version becomes current, or the branch ends before it."""
        return self._write(lambda c: conversation_rows.delete_message(c, id, self._now()))

    def search_documents(self, words: str, limit: int = 20) -> FoundDocuments:
        """Find attached documents with all these words, as in `search`, best first."""
        return self._read(lambda c: search_documents(c, self._attachments.iter_text, words, limit))

    def wait_for_index(self, timeout: float | None = None) -> bool:
        """Wait until this store has indexed its documents; False after `timeout` seconds."""
        return self._indexer is None or self._indexer.wait(timeout)

    # -- drafts

    draft = _reads(conversation_rows.draft)
    last_draft = _reads(conversation_rows.last_draft)

    def save_draft(self, draft: DraftRecord) -> None:
        self._require_attachments(draft.attachments)
        self._write(lambda c: conversation_rows.save_draft(c, draft))

    # -- attachments

    def set_attachment_limit(self, limit: int) -> None:
        """Set the maximum size of a document, in bytes."""
        self._attachments.limit = limit

    def attach(self, name: str, content: bytes) -> AttachmentRecord:
        """Store a document durably, for a later message."""
        return self.attach_all([(name, content)])[0]

    def attach_all(self, documents: Sequence[tuple[str, bytes]]) -> tuple[AttachmentRecord, ...]:
        """Store several documents, given by name and content. Much faster than one by one."""
        if not self.secondary:
            self._require_writer()
        for name, _ in documents:
            message_rows.check_text(name)
        return self._attachments.add(documents)

    def iter_bytes(self, attachment: AttachmentRecord) -> Iterator[bytes]:
        """Yield the original bytes in chunks. They are valid only if iterating raises nothing."""
        return self._attachments.iter_bytes(attachment)

    def text(self, attachment: AttachmentRecord) -> str:
        """A document's text, without a byte order mark."""
        return "".join(self._attachments.iter_text(attachment))

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
        """Run a single transaction. This also works while another process is the writer."""
        if not self.secondary:
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
        """Make the next start check and repair the database. Called if SQLite has found damage."""
        if self.read_only is None:
            with contextlib.suppress(OSError):
                self._paths.needs_check.touch()

    def _keep(self, reply: ReplyWriter) -> ReplyWriter:
        """Remember an unfinished reply, which `close` stops."""
        self._replies = [*(each for each in self._replies if not each.ended), reply]
        return reply

    def _add(
        self,
        connection: sqlite3.Connection,
        conversation: int,
        parent: int | None,
        role: Role,
        text: str,
        attachments: Sequence[AttachmentRecord],
    ) -> MessageRecord:
        self._require_attachments(attachments)
        now, attached = self._now(), tuple(attachments)
        new = MessageRecord(
            0, conversation, parent, role, State.DONE, now, text, attachments=attached
        )
        id = message_rows.add(connection, new)
        conversation_rows.advance(connection, conversation, id, now)
        if role is Role.USER:
            conversation_rows.set_default_title(connection, conversation, text)
        return message_rows.message(connection, id)

    def _require_attachments(self, attachments: Sequence[AttachmentRecord]) -> None:
        for attachment in attachments:
            if not self._attachments.has(attachment.sha256):
                raise StoreError(
                    f"The document '{attachment.name}' is no longer stored", "attach it again"
                )

    def _purge(self, connection: sqlite3.Connection, trash_days: float) -> None:
        """Delete what has expired, and documents without references. If that fails, the next start
        tries again."""
        with contextlib.suppress(StoreError, OSError):
            with transaction(connection):
                self._forget(connection, self._now() - timedelta(days=trash_days))
                used = message_rows.attachment_digests(connection)
                used |= conversation_rows.draft_digests(connection)
            self.notices += recovery.purge_broken(self._paths, self._now())
            # A damaged database may be repaired later, so its documents are kept as long as it is.
            if not recovery.has_broken(self._paths):
                self._attachments.delete_unused(used)

    def _forget(self, connection: sqlite3.Connection, before: datetime) -> None:
        """Delete what was moved to the trash before `before`. Raises OSError."""
        if conversation_rows.purge(connection, before):
            backup.mark_outdated(self._paths.backup)

    def _back_up(self, _: sqlite3.Connection) -> None:
        """Back up once a day, and when deleted data must be removed from the backup."""
        self._backup_tried = self._now().date()
        try:
            if backup.is_due(self._paths.backup, self._now()):
                backup.back_up(self._paths.database, self._paths.backup, self._now())
        except (OSError, sqlite3.Error) as error:
            what = "The daily backup was not made"
            if backup.is_outdated(self._paths.backup):
                what = "Deleted conversations are still in the backup"
            self.notices.append(f"{what} ({error}).")

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


TEMPORARY_PREFIX = "specchat-unsaved-"


class TemporaryStore(Store):
    """A store in a temporary folder that only this user can read, without backups. It is deleted
    when it is closed, at exit or, after a crash, when the next temporary store is opened."""

    def __init__(self, first_id: int = 1) -> None:
        """The ids of conversations and messages begin at `first_id`. Raises StoreError."""
        _delete_abandoned()
        try:  # mode 700
            self._directory = tempfile.TemporaryDirectory(
                prefix=TEMPORARY_PREFIX, ignore_cleanup_errors=True
            )
        except OSError as error:
            raise folder_error(Path(tempfile.gettempdir()), error) from error
        super().__init__(Path(self._directory.name), attachment_limit=sys.maxsize)
        self._write(lambda connection: _start_ids(connection, first_id))

    def close(self) -> None:
        super().close()
        self._directory.cleanup()

    def copy_from(self, store: Store, id: int) -> ConversationRecord:
        """Copy a conversation from another store, with its ids and documents, unless it is here
        already. Raises StoreError."""
        if any(each.id == id for each in self.conversations()):
            return self.conversation(id)
        tree = store.tree(id)
        for message in tree.messages:
            for attachment in message.attachments:
                with contextlib.suppress(OSError):  # reported when the document is read
                    self._attachments.copy_from(store._attachments, attachment.sha256)
        self._write(lambda c: conversation_rows.add_tree(c, tree, keep_ids=True))
        return self.conversation(id)

    def _back_up(self, _: sqlite3.Connection) -> None:
        """Do nothing: a temporary store is not backed up."""

    def _start_indexer(self, writer: Writer) -> None:
        """Do nothing: documents of a temporary store are not searched."""


def _start_ids(connection: sqlite3.Connection, first_id: int) -> None:
    connection.executemany(
        "INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)",
        [(table, first_id - 1) for table in ("conversations", "messages")],
    )


def _delete_abandoned() -> None:
    """Delete folders of processes that were killed: those whose lock is free."""
    for folder in Path(tempfile.gettempdir()).glob(f"{TEMPORARY_PREFIX}*"):
        with contextlib.suppress(OSError):
            if (folder / "lock").exists():
                Lock(folder / "lock").release()
                shutil.rmtree(folder)
