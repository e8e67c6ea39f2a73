"""Attaching: from a path to a chip, and its tokens. All that takes time happens beside the screen,
and what comes of it goes to the conversation that it was begun in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from app.errors import UserError
from app.ingest.records import Cancelled
from app.models.token_count import TokenCounter
from app.protocol.prompt import Document
from app.ui.attach.attachment import Attachment, find_duplicate, merge
from app.ui.attach.chips import Item
from app.ui.attach.file_job import FileJob, ReadFile
from app.ui.background import in_background
from app.ui.chat.context import ChatContext
from app.ui.state.repository import OpenChat

Ask = Callable[[str], Awaitable[None]]


class Attachments:
    def __init__(
        self, context: ChatContext, ask: Ask, target: str, read: ReadFile = FileJob.run
    ) -> None:
        """`ask` is given what was sent once everything that goes with it is there; `target` is the
        folder of the model that tokens are counted for."""
        self._context, self._open_chats, self._ask = context, context.open_chats, ask
        self.read = read
        self._jobs: dict[FileJob, OpenChat] = {}
        self._counter = TokenCounter(Path(target))
        self._counting: list[tuple[Document, ...]] = []
        self._uncountable = False
        self._deferred: tuple[OpenChat, str] | None = None
        self.on_user_attachment: Callable[[], None] = lambda: None
        """Called before something of the user's own is attached."""

    # -------------------------------------------------------------------------- reading

    def attach(self, path: str, typed: str) -> None:
        """Begin to read a file or a folder for the conversation on the screen."""
        self.on_user_attachment()
        reading = FileJob(path, typed, self._context.settings.limits())
        self._jobs[reading] = self._open_chats.shown
        self._context.composer.chips.add(reading)
        self._context.screen.run_worker(self._read(reading))

    def paste(self, text: str) -> None:
        chips = self._context.composer.chips
        self.on_user_attachment()
        new = chips.paste(text)
        if not self._is_duplicate(new, chips.attached):
            chips.add(new)

    def remove(self, item: Item) -> None:
        """Take a chip away; what is still being read is read no further."""
        if isinstance(item, FileJob):
            item.cancelled.set()
            self._jobs.pop(item, None)
            self.cancel_deferred()
        self._context.composer.chips.remove_item(item)
        self._context.composer.box.focus()

    def jobs(self, chat: OpenChat) -> tuple[FileJob, ...]:
        """What is being read for a conversation."""
        return tuple(reading for reading, of in self._jobs.items() if of is chat)

    def reassign(self, before: OpenChat, after: OpenChat) -> None:
        """What was begun for one conversation is for another."""
        for reading in self.jobs(before):
            self._jobs[reading] = after

    def shutdown(self) -> None:
        """At the end of the program: what is not read yet is written again at the next start."""
        shown = self._open_chats.shown
        for reading, chat in [*self._jobs.items()]:
            reading.cancelled.set()
            _restore_typed(chat, reading)
            if chat is not shown:
                self._open_chats.stash(chat)
                del self._jobs[reading]

    async def _read(self, reading: FileJob) -> None:
        try:
            new = await in_background(lambda: self.read(reading))
        except Cancelled:
            return
        except UserError as error:
            self._failed(reading, error)
            return
        chat = self._jobs.pop(reading, None)
        if chat is None:  # taken away meanwhile
            return
        if chat is not self._open_chats.shown:
            if find_duplicate(new, chat.draft.attached) is None:
                chat.draft = replace(chat.draft, attached=merge(chat.draft.attached, [new]))
                self._open_chats.stash(chat)
            return
        chips = self._context.composer.chips
        if self._is_duplicate(new, chips.attached):
            chips.remove_item(reading)
        else:
            chips.replace(reading, new)
            self._warn_if_lossy(new)
        await self._ask_deferred(chat)

    def _failed(self, reading: FileJob, error: UserError) -> None:
        """Nothing that was typed is lost."""
        chat = self._jobs.pop(reading, None)
        if chat is None:
            return
        if chat is self._open_chats.shown:
            self._context.composer.chips.remove_item(reading)
            self._context.composer.append_typed(reading.typed)
        else:
            _restore_typed(chat, reading)
            self._open_chats.stash(chat)
        self._deferred = None
        self._context.notice.show(str(error))

    def _is_duplicate(self, new: Attachment, attached: tuple[Attachment, ...]) -> bool:
        old = find_duplicate(new, attached)
        if old is not None:
            what = "What it holds" if new.name == old.name else f"What '{new.name}' holds"
            self._context.notice.show(f"{what} is attached already, with '{old.name}'.")
        return old is not None

    def _warn_if_lossy(self, new: Attachment) -> None:
        if new.lossy and not new.is_folder:
            self._context.notice.show(f"{new.name} is not all UTF-8: what is not reads as \\xff.")

    # -------------------------------------------------------------------------- asking meanwhile

    async def ask(self, typed: str) -> None:
        """Ask what is written; later, if something that goes with it is still being read."""
        readings = self.jobs(self._open_chats.shown)
        if not readings or not typed.strip():
            await self._ask(typed)
            return
        self._deferred = self._open_chats.shown, typed
        name = readings[-1].name
        self._context.notice.show(f"It is asked as soon as '{name}' is read. Esc takes that back.")

    def cancel_deferred(self) -> bool:
        """Do not ask what waits for that; whether there was anything."""
        held, self._deferred = self._deferred, None
        if held is not None:
            self._context.notice.show("Not asked yet. Enter asks it.")
        return held is not None

    async def _ask_deferred(self, chat: OpenChat) -> None:
        if self._deferred is None or self._deferred[0] is not chat or self.jobs(chat):
            return
        typed, self._deferred = self._deferred[1], None
        if self._context.composer.box.text.startswith(typed):
            await self._ask(typed)

    # -------------------------------------------------------------------------- counting

    @property
    def uncountable(self) -> bool:
        """Whether the model's tokenizer cannot be used here."""
        return self._uncountable

    def recount_for(self, target: str) -> None:
        """Count anew, for another model."""
        self._counter, self._uncountable, self._counting = TokenCounter(Path(target)), False, []
        chips = self._context.composer.chips
        for each in chips.attached:
            chips.replace(each, replace(each, tokens=None))
        self.count()

    def count(self) -> None:
        """Count the tokens of what is attached, where they are not known."""
        for each in self._context.composer.chips.attached:
            begun = any(documents is each.documents for documents in self._counting)
            if each.tokens is None and not begun and not self._uncountable:
                self._counting.append(each.documents)
                self._context.screen.run_worker(self._count(each.documents))

    async def _count(self, documents: tuple[Document, ...]) -> None:
        chips, counter = self._context.composer.chips, self._counter

        def gone() -> bool:
            return all(each.documents is not documents for each in chips.attached)

        texts = [document.text for document in documents]
        try:
            tokens = await in_background(lambda: counter.count(texts, gone))
        except UserError:  # the size says something too
            self._uncountable = True
            return
        finally:
            self._counting = [each for each in self._counting if each is not documents]
        for each in chips.attached:
            if tokens is not None and counter is self._counter and each.documents is documents:
                chips.replace(each, replace(each, tokens=tokens))


def _restore_typed(chat: OpenChat, reading: FileJob) -> None:
    chat.draft = replace(chat.draft, text=f"{chat.draft.text} {reading.typed}".lstrip())
