"""Attaching: from a path to a chip, and its tokens. All that takes time happens beside the screen,
and what comes of it goes to the conversation that it was begun in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from app.errors import UserError
from app.ingest.records import Cancelled
from app.models.token_count import TokenCounter
from app.protocol.prompt import Document
from app.ui.attach.attachment import Attached, same, together
from app.ui.attach.chips import Item
from app.ui.attach.file_job import Read, Reading
from app.ui.background import in_background
from app.ui.state.repository import OpenChat

if TYPE_CHECKING:
    from app.ui.chat.screen import ChatScreen

Ask = Callable[[str], Awaitable[None]]


class Attaching:
    def __init__(self, screen: ChatScreen, ask: Ask, target: str, read: Read = Reading.run) -> None:
        """`ask` is given what was sent once everything that goes with it is there; `target` is the
        folder of the model that tokens are counted for."""
        self._screen, self._desk, self._ask = screen, screen.desk, ask
        self.read = read
        self._readings: dict[Reading, OpenChat] = {}
        self._counter = TokenCounter(Path(target))
        self._counting: list[tuple[Document, ...]] = []
        self._uncountable = False
        self._held: tuple[OpenChat, str] | None = None
        self.own_begun: Callable[[], None] = lambda: None
        """Called before something of the user's own is attached."""

    # -------------------------------------------------------------------------- reading

    def attach(self, path: str, typed: str) -> None:
        """Begin to read a file or a folder for the conversation on the screen."""
        self.own_begun()
        reading = Reading(path, typed, self._screen.settings.limits())
        self._readings[reading] = self._desk.shown
        self._screen.entry.chips.add(reading)
        self._screen.run_worker(self._read(reading))

    def paste(self, text: str) -> None:
        chips = self._screen.entry.chips
        self.own_begun()
        new = chips.paste(text)
        if not self._is_twice(new, chips.attached):
            chips.add(new)

    def remove(self, item: Item) -> None:
        """Take a chip away; what is still being read is read no further."""
        if isinstance(item, Reading):
            item.cancelled.set()
            self._readings.pop(item, None)
            self.let_go()
        self._screen.entry.chips.take_away(item)
        self._screen.entry.box.focus()

    def readings(self, chat: OpenChat) -> tuple[Reading, ...]:
        """What is being read for a conversation."""
        return tuple(reading for reading, of in self._readings.items() if of is chat)

    def move(self, before: OpenChat, after: OpenChat) -> None:
        """What was begun for one conversation is for another."""
        for reading in self.readings(before):
            self._readings[reading] = after

    def put_away(self) -> None:
        """At the end of the program: what is not read yet is written again at the next start."""
        shown = self._desk.shown
        for reading, chat in [*self._readings.items()]:
            reading.cancelled.set()
            _write_again(chat, reading)
            if chat is not shown:
                self._desk.leave(chat)
                del self._readings[reading]

    async def _read(self, reading: Reading) -> None:
        try:
            new = await in_background(lambda: self.read(reading))
        except Cancelled:
            return
        except UserError as error:
            self._failed(reading, error)
            return
        chat = self._readings.pop(reading, None)
        if chat is None:  # taken away meanwhile
            return
        if chat is not self._desk.shown:
            if same(new, chat.draft.attached) is None:
                chat.draft = replace(chat.draft, attached=together(chat.draft.attached, [new]))
                self._desk.leave(chat)
            return
        chips = self._screen.entry.chips
        if self._is_twice(new, chips.attached):
            chips.take_away(reading)
        else:
            chips.replace(reading, new)
            self._remark(new)
        await self._ask_held(chat)

    def _failed(self, reading: Reading, error: UserError) -> None:
        """Nothing that was typed is lost."""
        chat = self._readings.pop(reading, None)
        if chat is None:
            return
        if chat is self._desk.shown:
            self._screen.entry.chips.take_away(reading)
            self._screen.entry.put_back(reading.typed)
        else:
            _write_again(chat, reading)
            self._desk.leave(chat)
        self._held = None
        self._screen.notice.say(str(error))

    def _is_twice(self, new: Attached, attached: tuple[Attached, ...]) -> bool:
        old = same(new, attached)
        if old is not None:
            what = "What it holds" if new.name == old.name else f"What '{new.name}' holds"
            self._screen.notice.say(f"{what} is attached already, with '{old.name}'.")
        return old is not None

    def _remark(self, new: Attached) -> None:
        if new.odd and not new.is_folder:
            self._screen.notice.say(f"{new.name} is not all UTF-8: what is not reads as \\xff.")

    # -------------------------------------------------------------------------- asking meanwhile

    async def ask(self, typed: str) -> None:
        """Ask what is written; later, if something that goes with it is still being read."""
        readings = self.readings(self._desk.shown)
        if not readings or not typed.strip():
            await self._ask(typed)
            return
        self._held = self._desk.shown, typed
        name = readings[-1].name
        self._screen.notice.say(f"It is asked as soon as '{name}' is read. Esc takes that back.")

    def let_go(self) -> bool:
        """Do not ask what waits for that; whether there was anything."""
        held, self._held = self._held, None
        if held is not None:
            self._screen.notice.say("Not asked yet. Enter asks it.")
        return held is not None

    async def _ask_held(self, chat: OpenChat) -> None:
        if self._held is None or self._held[0] is not chat or self.readings(chat):
            return
        typed, self._held = self._held[1], None
        if self._screen.entry.box.text.startswith(typed):
            await self._ask(typed)

    # -------------------------------------------------------------------------- counting

    @property
    def uncountable(self) -> bool:
        """Whether the model's tokenizer cannot be used here."""
        return self._uncountable

    def count_for(self, target: str) -> None:
        """Count anew, for another model."""
        self._counter, self._uncountable, self._counting = TokenCounter(Path(target)), False, []
        chips = self._screen.entry.chips
        for each in chips.attached:
            chips.replace(each, replace(each, tokens=None))
        self.count()

    def count(self) -> None:
        """Count the tokens of what is attached, where they are not known."""
        for each in self._screen.entry.chips.attached:
            begun = any(documents is each.documents for documents in self._counting)
            if each.tokens is None and not begun and not self._uncountable:
                self._counting.append(each.documents)
                self._screen.run_worker(self._count(each.documents))

    async def _count(self, documents: tuple[Document, ...]) -> None:
        chips, counter = self._screen.entry.chips, self._counter

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


def _write_again(chat: OpenChat, reading: Reading) -> None:
    chat.draft = replace(chat.draft, text=f"{chat.draft.text} {reading.typed}".lstrip())
