"""Loads conversations from the store and saves them. No widgets.

Everything that waits for the disk runs on one thread, in the order of the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from app.chat.conversation import Conversation
from app.chat.model_pairs import ModelPair, model_pair
from app.chat.saved_requests import SavedRequests
from app.chat.stored_conversation import StoredConversation, StoredTurn
from app.errors import UserError
from app.protocol.commands import Ask, Load
from app.protocol.engine import TurnHandle
from app.protocol.events import Event, TurnEvent
from app.protocol.options import Sampling
from app.protocol.prompt import Document
from app.settings.definitions import Settings
from app.store import records
from app.store.records import FIRST_UNSAVED_ID, StoreError
from app.ui.attach.attachment import Attachment, documents_of
from app.ui.state.draft import NextMode, UnsentMessage, from_record, next_mode_for, to_record

if TYPE_CHECKING:
    from app.store.store import Store, TemporaryStore

T = TypeVar("T")


@dataclass(eq=False)
class OpenChat:
    """A conversation on the screen, or one that is answered in the background."""

    chat: StoredConversation
    draft: UnsentMessage
    title: str = ""
    asked: TurnHandle | None = None
    """The last turn that the engine was asked here."""
    sent_attachments: tuple[Attachment, ...] = ()
    """The attachments of the last question sent here, in case it is taken back."""

    @property
    def id(self) -> int | None:
        """Id in the user's store; None for a conversation that is new or not saved."""
        id = self.chat.id
        return None if id is None or id >= FIRST_UNSAVED_ID else id

    @property
    def conversation(self) -> Conversation:
        return self.chat.conversation

    def is_of_last_turn(self, event: Event) -> bool:
        """Whether it comes from the last turn that the engine was asked here."""
        asked = self.asked
        return asked is not None and isinstance(event, TurnEvent) and event.turn == asked.number

    @property
    def unsent_draft(self) -> UnsentMessage:
        """The queued question, which is not stored yet, followed by the draft."""
        queued = self.conversation.queued
        return self.draft if queued is None else self.draft.prepend(queued, self.sent_attachments)


class ChatRepository:
    """Loads and saves conversations. Without a `folder`, or if its store cannot be written, they
    are in a temporary store until the program ends. Methods that wait are coroutines, and raise
    UserError."""

    def __init__(self, folder: Path | None, load: Load, settings: Settings) -> None:
        self._folder, self._load, self._settings = folder, load, settings
        self._store: Store | None = None
        self._models = ModelPair(load.names[0], "", load.names[1])
        self._temporary: TemporaryStore | None = None
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._stored_attachments: dict[Document, records.AttachmentRecord] = {}
        self._requests = SavedRequests()
        self._last_draft: tuple[int | None, UnsentMessage] | None = None
        self._notices_shown = 0
        self.opening = folder is not None
        self.open_error: UserError | None = None
        """Why the store could not be opened, or None."""
        self.stored: tuple[str, ...] | None = None
        """The conversations outside the trash when the store was opened, as the engine names them;
        None if that is unknown."""
        self.is_first_run = False
        """Whether the store has never held a conversation or a draft."""
        if folder is None:
            self._open_temporary()

    @property
    def readable(self) -> bool:
        return self._store is not None

    @property
    def writable(self) -> bool:
        """Whether conversations are saved."""
        return self._store is not None and self._store.read_only is None

    @property
    def status(self) -> str:
        """A few words if conversations are not saved."""
        if self._folder is None or self.opening or self.writable:
            return ""
        elsewhere = self._store is not None and self._store.secondary
        return "not saved (open in another window)" if elsewhere else "not saved"

    def unread_notices(self) -> list[str]:
        """Messages of the store that have not been shown yet."""
        if self._store is None:
            return []
        unread = self._store.notices[self._notices_shown :]
        self._notices_shown += len(unread)
        return unread

    @property
    def trash_days(self) -> int:
        return self._settings.storage.trash_days

    def apply_settings(self, settings: Settings) -> None:
        """Apply settings to conversations opened and files attached from now on."""
        self._settings = settings
        if self._store is not None:
            self._store.set_attachment_limit(settings.attachment_bytes)

    async def set_models(self, load: Load, open_chats: Iterable[OpenChat]) -> None:
        """Use another model pair from now on."""
        chats = tuple(open_chats)

        def task() -> None:
            self._load = load
            self._models = _resolve_models(load)
            for chat in chats:
                chat.chat.set_models(self._models)

        await self._on_disk(task)

    def new(self, next_mode: NextMode) -> OpenChat:
        """A new conversation, which is stored with its first question."""
        store = self._store if self.writable else self._temporary
        chat = StoredConversation(store, None, self._models, self._sampling)
        return OpenChat(chat, UnsentMessage(next_mode))

    async def open(self, next_mode: NextMode) -> OpenChat:
        """Open the store and the conversation where the user was. If that fails, set `open_error`
        and return a new conversation."""
        try:
            opened = await self._on_disk(lambda: self._open(next_mode))
        except UserError as error:
            self.open_error = error
            opened = self.new(next_mode)
        self.opening = False  # not after a cancellation: then nothing was opened
        return opened

    async def load_chat(self, id: int | None, next_mode: NextMode) -> OpenChat:
        """A conversation, or (None) a new one, with its draft. `next_mode` is the default."""
        return await self._on_disk(lambda: self._load_chat(id, next_mode))

    async def known_document(self, known: records.KnownDocument) -> tuple[Document, ...]:
        """The documents of a file or folder, as they were sent with an earlier question."""

        def read(store: Store) -> tuple[Document, ...]:
            stored = store.message(known.message).attachments[known.start : known.end]
            return tuple(_document(store, each) for each in stored)

        return await self.read(read)

    async def store_turn(
        self, chat: OpenChat, ask: Callable[[StoredConversation], StoredTurn]
    ) -> StoredTurn:
        """Store a new turn, and the draft without its question."""
        return await self._on_disk(lambda: self._commit(chat, ask))

    async def change_branch(self, chat: OpenChat, change: Callable[[StoredConversation], T]) -> T:
        """Run a change that makes another branch the current one."""

        def task() -> T:
            result = change(chat.chat)
            chat.chat.load_progress()
            self._read_title(chat)
            return result

        return await self._on_disk(task)

    async def set_overrides(self, chat: OpenChat, overrides: records.Overrides) -> None:
        """Set what holds for this conversation only."""
        await self._on_disk(lambda: chat.chat.set_overrides(overrides))

    async def save_request(self, ask: Ask, events: Sequence[Event]) -> None:
        """Store what another program has asked."""
        await self._on_disk(
            lambda: self._requests.save(self._open_store, self._models, ask, events)
        )

    async def write(self, task: Callable[[Store], T]) -> T:
        """Run a task that writes to the store, which must be readable."""
        return await self._on_disk(lambda: task(self._open_store))

    async def read(self, task: Callable[[Store], T]) -> T:
        """Run a task that only reads; it does not wait for other tasks."""
        return await asyncio.to_thread(lambda: task(self._open_store))

    def save_draft(self, chat: OpenChat) -> Future[None] | None:
        """Start saving what is unsent; None if it is saved already, or cannot be."""
        id, unsent = chat.id, chat.unsent_draft
        if not self.writable or (id, unsent) == self._last_draft:
            return None
        # A question being stored may give the conversation its id before this task runs.
        return self._disk.submit(lambda: self._save_draft(chat.id, unsent))

    def close(self) -> None:
        """Finish pending tasks, and release the lock on the store."""
        self._disk.shutdown()
        for store in (self._store, self._temporary):
            if store is not None:
                store.close()

    # -------------------------------------------------------------------------- on the thread

    async def _on_disk(self, task: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._disk.submit(task))

    @property
    def _sampling(self) -> Sampling:
        return self._settings.sampling()

    @property
    def _open_store(self) -> Store:
        assert self._store is not None
        return self._store

    def _open(self, next_mode: NextMode) -> OpenChat:
        from app.store.store import Store  # on this thread, after the first drawing

        assert self._folder is not None
        self._models = _resolve_models(self._load)
        limit, days = self._settings.attachment_bytes, self.trash_days
        try:
            self._store = Store(self._folder, attachment_limit=limit, trash_days=days)
        except UserError as error:
            self.open_error = error
        if not self.writable:
            self._open_temporary()
        if self._store is None:
            return self.new(next_mode)
        self.stored = tuple(str(id) for id in self._store.conversation_ids())
        last = self._store.last_draft()
        stored = last or self._store.conversations() or self._store.conversations(trashed=True)
        self.is_first_run = self.writable and not stored
        return self._load_chat(None if last is None else last.conversation, next_mode)

    def _load_chat(self, id: int | None, next_mode: NextMode) -> OpenChat:
        if self._store is None:
            return self.new(next_mode)
        store = self._store
        if not self.writable and self._temporary is not None:
            if id is not None:
                self._temporary.copy_from(self._store, id)
            store = self._temporary
        conversation = StoredConversation(store, id, self._models, self._sampling)
        next_mode = next_mode_for(conversation.conversation.overrides, next_mode)
        chat = OpenChat(conversation, UnsentMessage(next_mode))
        if id is not None:
            chat.title = self._store.conversation(id).title
        conversation.load_progress()
        draft, documents = self._store.draft(id), []
        for attachment in draft.attachments:
            with suppress(StoreError):  # one lost document is no reason to lose the rest
                documents.append(_document(self._store, attachment))
        chat.draft = from_record(draft, documents, next_mode)
        return chat

    def _open_temporary(self) -> None:
        from app.store.store import TemporaryStore

        try:
            self._temporary = TemporaryStore(FIRST_UNSAVED_ID)
        except StoreError as error:  # the disk is full, say
            self.open_error = self.open_error or error

    def _commit(
        self, chat: OpenChat, ask: Callable[[StoredConversation], StoredTurn]
    ) -> StoredTurn:
        is_new = chat.id is None
        pending = ask(chat.chat)
        if self._store is not None and chat.id is not None and self.writable:
            with suppress(StoreError):  # reported when it is tried again, with the next change
                if is_new:
                    self._store.save_draft(records.DraftRecord(None))
                self._save_draft(chat.id, chat.unsent_draft)
            self._read_title(chat)
        return pending

    def _read_title(self, chat: OpenChat) -> None:
        if self._store is not None and chat.id is not None and self.writable:
            chat.title = self._store.conversation(chat.id).title

    def _save_draft(self, id: int | None, draft: UnsentMessage) -> None:
        store, new = self._open_store, {}
        known = {d: self._stored_attachments.get(d) for d in documents_of(draft.attached)}
        for document in (document for document, stored in known.items() if stored is None):
            with suppress(UnicodeEncodeError):
                new[document] = document.name, records.encode(document.text)
        known |= zip(new, store.attach_all([*new.values()]), strict=True)
        attached = {
            document: replace(stored, line=document.line, origin=document.origin)
            for document, stored in known.items()
            if stored is not None
        }
        store.save_draft(to_record(draft, id, tuple(attached.values())))
        self._stored_attachments = attached
        self._last_draft = id, draft


def _document(store: Store, attachment: records.AttachmentRecord) -> Document:
    """Raises StoreError."""
    name, line, origin = attachment.name, attachment.line, attachment.origin
    return Document(name, store.text(attachment), line=line, origin=origin)


def _resolve_models(load: Load) -> ModelPair:
    try:
        return model_pair(load)
    except UserError:  # the engine reports what is wrong with them
        return ModelPair(load.names[0], "", load.names[1])
