"""The store of conversations: the one face of this room.

Every method may be called from any thread. One that changes something returns when the change is on
the disk; all of them raise StoreError, one sentence for the user.
"""

from __future__ import annotations

import codecs
import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from app.protocol.prompt import Role
from app.sessions import backup, conversations, drafts, messages, quarantine
from app.sessions.attachments import Attachments, Source
from app.sessions.database import Readers, single_transaction, transaction
from app.sessions.errors import DamagedError, StoreError
from app.sessions.limits import ATTACHMENT_LIMIT, TRASH_DAYS
from app.sessions.records import (
    AnswerStats,
    Attachment,
    Conversation,
    ConversationSize,
    DeletedMessages,
    Draft,
    Message,
    Overrides,
    ReadMap,
    SearchHit,
    State,
    Tree,
)
from app.sessions.reply_writer import ReplyWriter
from app.sessions.search import search
from app.sessions.startup import Paths, open_database
from app.sessions.writer import Task, Writer

_BACKUP_SECONDS = 3600.0
"""How often a running program looks whether the day's backup is due."""

T = TypeVar("T")


def utc_now() -> datetime:
    return datetime.now(UTC)


class Store:
    """Use as a context manager, or `close` it: that stops the replies still being written."""

    def __init__(
        self,
        folder: Path,
        *,
        attachment_limit: int = ATTACHMENT_LIMIT,
        trash_days: float = TRASH_DAYS,
        lock_timeout: float = 0.0,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """Open what `folder` holds, or begin it. `attachment_limit` is the most bytes of one
        document; what is in the trash for longer than `trash_days` is deleted for good. While
        another program holds the store this one waits `patience` seconds; then it reads, and makes
        changes that are complete at once: it renames, deletes, imports, but keeps no answers."""
        places = Paths(folder)
        self._now = clock
        self._paths = places
        self._attachments = Attachments(places.attachments, attachment_limit)
        opened = open_database(places, clock(), lock_timeout)
        self.notices: list[str] = opened.notices
        """What the user should know about how the store was opened, a sentence each."""
        self.trash_days = trash_days
        """To be told; what expires does so when a store is opened."""
        self.read_only = opened.read_only
        """Why nothing that is asked here can be kept, or None."""
        self._secondary = opened.secondary
        self._lock = opened.lock
        self._readers = Readers(places.database)
        self._replies: list[ReplyWriter] = []
        """Those that have not ended, even if nobody else knows them any more."""
        self._writer: Writer | None = None
        if self.read_only is not None:
            self.notices.append(str(self.read_only))
        if opened.connection is not None:
            self._purge(opened.connection, trash_days)
            self._writer = Writer(opened.connection, self._flag_for_check)
            self._writer.submit(self._back_up_daily, 0)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Finish what is being written and let another instance write. May be called again."""
        for reply in self._replies:
            # What cannot be marked as stopped now is at the next start.
            with contextlib.suppress(StoreError):
                reply.close()
        if self._writer is not None:
            self._writer.close()
        self._readers.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- conversations

    def create(
        self, title: str = "", overrides: Overrides = conversations.NO_OVERRIDES
    ) -> Conversation:
        """A new, empty conversation. Without a title its first question gives it one."""
        messages.check_text(title)
        return self._conversation(lambda c: conversations.create(c, title, self._now(), overrides))

    def conversations(self, trashed: bool = False) -> tuple[Conversation, ...]:
        """Pinned ones first, then the last used ones; or those in the trash."""
        return self._read(lambda c: conversations.list_all(c, trashed))

    def last_used(self) -> Conversation | None:
        """The one that was used last, of those that are not in the trash."""
        return self._read(conversations.last_used)

    def conversation(self, id: int) -> Conversation:
        return self._read(lambda c: conversations.conversation(c, id))

    def sizes(self) -> dict[int, ConversationSize]:
        """Of every conversation that has a question, by its id."""
        return self._read(conversations.sizes)

    def rename(self, id: int, title: str) -> None:
        self._write_once(lambda c: conversations.rename(c, id, title))

    def pin(self, id: int, pinned: bool = True) -> None:
        self._write_once(lambda c: conversations.pin(c, id, pinned))

    def set_overrides(self, id: int, overrides: Overrides) -> None:
        """What holds for this conversation alone, instead of all that was chosen before."""
        self._write(lambda c: conversations.set_overrides(c, id, overrides))

    def trash(self, id: int) -> None:
        """Delete a conversation; until it expires, `restore` undoes that."""
        self._write_once(lambda c: conversations.trash(c, id, self._now()))

    def restore(self, id: int) -> None:
        self._write_once(lambda c: conversations.trash(c, id, None))

    def empty_trash(self) -> None:
        """For good. The documents go at the next start."""
        self._write(lambda c: conversations.purge(c, datetime.max.replace(tzinfo=UTC)))

    def duplicate(self, id: int) -> Conversation:
        """The same conversation once more, with every branch."""
        return self._write_once(lambda c: conversations.duplicate(c, id, self._now()))

    # -- messages

    def branch(self, conversation: int, limit: int | None = None) -> tuple[Message, ...]:
        """The current branch, oldest first; of it only the last `limit` messages, if given."""

        def read(connection: sqlite3.Connection) -> tuple[Message, ...]:
            last = conversations.conversation(connection, conversation).current
            return () if last is None else messages.branch(connection, last, limit)

        return self._read(read)

    def message(self, id: int) -> Message:
        return self._read(lambda c: messages.message(c, id))

    def answer_stats(self, limit: int = 1000) -> tuple[AnswerStats, ...]:
        """The figures of the last `limit` answers, newest first, of every conversation."""
        return self._read(lambda c: messages.answer_stats(c, limit))

    def versions(self, id: int) -> tuple[int, ...]:
        """The ids of the messages that stand at the same place of the tree, itself among them."""
        return self._read(lambda c: messages.versions(c, id))

    def forks(self, conversation: int) -> dict[int, tuple[int, ...]]:
        """The same of every message of a conversation that has others beside it."""
        return self._read(lambda c: messages.forks(c, conversation))

    def read_map(self, id: int) -> ReadMap | None:
        """What was read for this answer, if that is known."""
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
        """Fork: another version of message `id`, with its attachments unless others are given."""

        def fork(connection: sqlite3.Connection) -> int:
            old = messages.message(connection, id)
            kept = old.attachments if attachments is None else attachments
            return self._add(connection, old.conversation, old.parent, old.role, text, kept)

        return self._message(fork)

    def begin_reply(self, question: int) -> ReplyWriter:
        """An answer to message `question`, empty as yet; to try again, begin another one."""

        def begin(connection: sqlite3.Connection) -> int:
            conversation = messages.message(connection, question).conversation
            now = self._now()
            id = messages.add(
                connection, conversation, question, Role.ASSISTANT, State.PARTIAL, "", now
            )
            conversations.advance(connection, conversation, id, now)
            return id

        writer = self._require_writer()
        reply = ReplyWriter(writer, writer.run(begin))
        self._replies = [*(r for r in self._replies if not r.ended), reply]
        return reply

    def continue_reply(self, id: int, known_ids: bool) -> ReplyWriter:
        """Write on an answer that was cut off or stopped. Without `known_ids` the ids that it has
        are not worth anything to what writes on, which gives all of them again."""

        def resume(connection: sqlite3.Connection) -> Message:
            messages.resume_reply(connection, id)
            found = messages.message(connection, id)
            conversations.trash(connection, found.conversation, None)
            return found

        writer = self._require_writer()
        before = writer.run(resume)
        reply = ReplyWriter(writer, id, before if known_ids else replace(before, token_ids=None))
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
        """Delete a message and all that follows on it. Where it was on the current branch, that
        goes to another version of it, or ends before it. It is gone for good when it expires."""
        return self._write(lambda c: conversations.delete_message(c, id, self._now()))

    def restore_messages(self, removed: DeletedMessages) -> None:
        """Undo `remove`."""
        self._write(lambda c: conversations.restore_messages(c, removed))

    def pin_passages(self, id: int, pins: Mapping[int, tuple[tuple[int, int], ...]]) -> None:
        """Characters that are always read, of attachments (from 0) of message `id`."""
        self._write(lambda c: messages.pin(c, id, pins))

    def search(self, words: str, limit: int = 50, best_only: bool = False) -> tuple[SearchHit, ...]:
        """Messages with all these words, the last of which may be unfinished; the best first, or
        only the best one of each conversation."""
        messages.check_text(words)
        return self._read(lambda c: search(c, words, limit, best_only))

    # -- drafts

    def draft(self, conversation: int | None) -> Draft:
        """What was written for a conversation, or for a new one, and not sent."""
        return self._read(lambda c: drafts.draft(c, conversation))

    def last_draft(self) -> Draft | None:
        """The one that was kept last, which tells where the user was."""
        return self._read(drafts.last)

    def save_draft(self, draft: Draft) -> None:
        self._require_attachments(draft.attachments)
        self._write(lambda c: drafts.save(c, draft))

    # -- attachments

    def set_attachment_limit(self, limit: int) -> None:
        """From now on one document may have this many bytes at most."""
        self._attachments.limit = limit

    def attach(self, name: str, source: Source) -> Attachment:
        """Keep a document, durably, for a message to come."""
        if not self._secondary:
            self._require_writer()
        messages.check_text(name)
        return self._attachments.add(name, source)

    def iter_bytes(self, attachment: Attachment) -> Iterator[bytes]:
        """Its original bytes, some at a time. What came is right only if nothing is raised."""
        return self._attachments.iter_bytes(attachment)

    def text(self, attachment: Attachment) -> str:
        """Its text, without a byte order mark, as `app.ingest` gives it."""
        decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        text = [decoder.decode(piece) for piece in self.iter_bytes(attachment)]
        return "".join([*text, decoder.decode(b"", final=True)])

    # -- whole conversations, for export and import

    def tree(self, id: int) -> Tree:
        return self._read(lambda c: conversations.tree(c, id))

    def add_tree(self, tree: Tree) -> Conversation:
        """A new conversation with these messages. Their attachments must be here."""
        self._require_attachments([a for message in tree.messages for a in message.attachments])
        return self._write_once(
            lambda c: conversations.conversation(c, conversations.add_tree(c, tree))
        )

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
        """A change that is whole in one transaction. SQLite takes it beside another instance, too,
        which is only alone in what goes on: opening, mending, answers that are being written."""
        if not self._secondary:
            return self._write(task)
        with single_transaction(self._paths.database) as connection:
            return task(connection)

    def _require_writer(self) -> Writer:
        """The writer. Raises StoreError when there is none."""
        if self._writer is None:
            assert self.read_only is not None
            raise StoreError(self.read_only.problem, self.read_only.advice)
        return self._writer

    def _flag_for_check(self) -> None:
        """Let the next start do that: SQLite has found damage."""
        if self.read_only is None:
            with contextlib.suppress(OSError):
                self._paths.needs_check.touch()

    def _message(self, task: Task[int]) -> Message:
        return self._write(lambda c: messages.message(c, task(c)))

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
                    f"The document '{attachment.name}' is not here any more", "attach it again"
                )

    def _purge(self, connection: sqlite3.Connection, trash_days: float) -> None:
        """Delete what has expired, and the documents nobody refers to. When that does not work, the
        next start tries again."""
        with contextlib.suppress(StoreError, OSError):
            with transaction(connection):
                conversations.purge(connection, self._now() - timedelta(days=trash_days))
                used = messages.attachment_digests(connection) | drafts.attachment_digests(
                    connection
                )
            self.notices += quarantine.purge(self._paths.quarantine, self._now())
            # A broken database may be repaired one day: its documents stay as long as it does.
            if quarantine.is_empty(self._paths.quarantine):
                self._attachments.delete_unused(used)

    def _back_up_daily(self, _: sqlite3.Connection) -> None:
        try:
            if backup.is_due(self._paths.backups, self._now()):
                backup.back_up(self._paths.database, self._paths.backups, self._now())
        except (OSError, sqlite3.Error) as error:
            self.notices.append(f"The daily backup was not made ({error}).")
        with contextlib.suppress(StoreError):  # the store may be closing
            self._require_writer().submit(self._back_up_daily, _BACKUP_SECONDS)
