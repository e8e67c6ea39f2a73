"""The list that opens above the compose box: files after `@`, commands after `/`.

It is up to date as soon as a key is handled, since the next one, typed ahead, may choose its first
row. Only the names in a folder come later: a key for the list waits for them a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, TextArea
from textual.widgets.option_list import Option

from app.errors import UserError
from app.ui.background import in_background, start_task
from app.ui.completion.commands import (
    Command,
    HasCommands,
    command_word,
    commands,
    matching,
    typed_word,
    unknown_command,
)
from app.ui.completion.paths import (
    MAX_ENTRIES,
    MAX_SECONDS,
    PathCompleter,
    PathCompletion,
    start_folder,
    word_before,
)
from app.util.sanitize import sanitize_line

if TYPE_CHECKING:
    from app.ingest.walk import DirListing

KEY_WAIT_SECONDS = 0.5
"""How long a key waits for the names in a folder."""
NAME_CELLS, KEY_CELLS = 16, 8
MARGIN = 7
"""Cells beside an option: padding and scrollbar."""

Completion = PathCompletion | Command


class CompletionList(OptionList, can_focus=False, inherit_bindings=False):
    """Hidden until there is something to choose. The compose box forwards its keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "enter",
            "choose",
            "Choose",
            id="completion.choose",
            tooltip="Attach it, or run the command",
        ),
        Binding(
            "tab",
            "complete",
            "Complete",
            id="completion.complete",
            tooltip="Open a folder, else as ⏎",
        ),
        Binding("up", "move(-1)", "Up", id="completion.up", tooltip="Row above or below"),
        Binding("down", "move(1)", "Down", id="completion.down", tooltip="Row above or below"),
        Binding("escape", "dismiss", "Close", id="completion.close"),
    ]

    @dataclass
    class FileChosen(Message):
        """A file or a folder to attach; `typed` is what stood for it in the box."""

        path: str
        typed: str

    def __init__(self, box: TextArea) -> None:
        super().__init__(id="completions", compact=True, markup=False)
        self.paths = PathCompleter(start_folder())
        self._box = box
        self._completions: list[Completion] = []
        self._word = ""
        self.is_open = False
        self._dismissed: tuple[int, int] | None = None
        self._listings: dict[str, DirListing | UserError] = {}
        self._listing: set[str] = set()
        self._listed = asyncio.Event()
        self._known_commands: list[Command] | None = None

    # -------------------------------------------------------------------------- which completions

    async def handles(self, key: str) -> bool:
        """Whether the list uses this key now. Waits a moment while a folder is being read."""
        if not self.is_open or key not in self._bindings.key_to_bindings:
            return False
        if not self._listed.is_set() and key != "escape":
            try:
                await asyncio.wait_for(self._listed.wait(), KEY_WAIT_SECONDS)
            except TimeoutError:
                return True
        return self.is_open and (bool(self._completions) or (key == "escape" and self.display))

    def update_for_cursor(self, typing: bool) -> None:
        """Called when the text or the cursor has changed. Only `typing` opens the list."""
        command, path, start = self._word_at_cursor()
        if command is None and path is None:
            self.close()
            self._dismissed = None
            return
        if not self.is_open and (not typing or start == self._dismissed):
            return
        self._dismissed = None
        if command is not None:
            self._word = "/" + command
            self._listed.set()
            self._offer(matching(command, self._commands()))
        else:
            self._word = "@" + (path or "")
            self._complete_path(path or "")

    def command(self, text: str) -> Command | str | None:
        """The command that this text is, or why there is none; None for all other texts."""
        word = command_word(text)
        if word is None:
            return None
        every = self._commands()
        known = (each for each in every if each.name == word)
        return next(known, None) or unknown_command(word, every)

    def close(self) -> None:
        self.is_open, self._completions = False, []
        self._listings.clear()
        self._listed.set()
        self.display = False

    def dismiss(self) -> None:
        """Close, and do not open again for this word."""
        *_, self._dismissed = self._word_at_cursor()
        self.close()

    def _word_at_cursor(self) -> tuple[str | None, str | None, tuple[int, int]]:
        """The command or the path that is being typed, and where it starts."""
        row, column = self._box.cursor_location
        line = self._box.document.get_line(row)
        path, command = word_before(line[:column]), None
        if self._box.document.line_count == 1 and column == len(line):
            command = typed_word(line)
        return command, path, (row, 0 if command is not None else column - len(path or ""))

    def _commands(self) -> list[Command]:
        if self._known_commands is None and isinstance(self.screen, HasCommands):
            self._known_commands = commands(self.screen.command_owners())
        return self._known_commands or []

    # -------------------------------------------------------------------------- folders

    def _complete_path(self, word: str) -> None:
        folder = self.paths.folder(word)
        listing = self._listings.get(folder)
        if listing is None:
            self._listed.clear()
            self._offer([], "reading the folder…")
            if folder not in self._listing:
                self._listing.add(folder)
                start_task(self, lambda: self._list(folder))
            return
        self._listed.set()
        if isinstance(listing, UserError):
            self._offer([], str(listing))
        else:
            more = f"Only the first {MAX_ENTRIES:,} names." if listing.truncated else ""
            self._offer(self.paths.completions(word, listing), more)

    async def _list(self, folder: str) -> None:
        def names() -> DirListing:
            from app.ingest.walk import list_folder  # late: the first drawing would wait

            return list_folder(folder, MAX_ENTRIES, MAX_SECONDS)

        listing: DirListing | UserError
        try:
            listing = await in_background(names)
        except UserError as error:
            listing = error
        finally:
            self._listing.discard(folder)
        if self.is_open:
            self._listings[folder] = listing
            self.update_for_cursor(typing=True)

    # -------------------------------------------------------------------------- what is shown

    def _offer(self, completions: Sequence[Completion], message: str = "") -> None:
        """Without completions and message the list stays open, but is not shown."""
        self.is_open, self._completions = True, [*completions]
        width = max(20, self.screen.size.width - MARGIN)
        options = [Option(_render(each).truncate(width, ellipsis=True)) for each in completions]
        if message:
            line = Content.styled(sanitize_line(message), "$ink-dim")
            options.append(Option(line.truncate(width, ellipsis=True), disabled=True))
        self.set_options(options)
        self.highlighted = 0 if completions else None
        self.display = bool(options)

    # -------------------------------------------------------------------------- choosing

    def action_move(self, step: int) -> None:
        if self._completions:
            self.highlighted = ((self.highlighted or 0) + step) % len(self._completions)

    def action_dismiss(self) -> None:
        self.dismiss()

    async def action_choose(self) -> None:
        await self._choose(self._highlighted)

    async def action_complete(self) -> None:
        chosen = self._highlighted
        if isinstance(chosen, PathCompletion) and chosen.is_folder and chosen.typed.isprintable():
            self._write("@" + chosen.typed)
            self.update_for_cursor(typing=True)
        else:
            await self._choose(chosen)

    @on(OptionList.OptionSelected)
    async def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_index < len(self._completions):
            await self._choose(self._completions[event.option_index])

    @property
    def _highlighted(self) -> Completion | None:
        index = self.highlighted
        if index is None or index >= len(self._completions):
            return None
        return self._completions[index]

    async def _choose(self, chosen: Completion | None) -> None:
        if chosen is None:
            return
        with self._box.prevent(TextArea.Changed):  # which would clear what a command says
            self._write("")
        self.close()
        if isinstance(chosen, Command):
            await chosen.run()
        else:
            # Posted by the box, so that it arrives before what is sent after it.
            typed = sanitize_line("@" + chosen.typed)
            self._box.post_message(self.FileChosen(chosen.path, typed))

    def _write(self, text: str) -> None:
        """Replace the word at the cursor."""
        row, column = self._box.cursor_location
        self._box._replace_via_keyboard(text, (row, column - len(self._word)), (row, column))


def _render(choice: Completion) -> Content:
    if isinstance(choice, Command):
        name, key = f"/{choice.name}", f"{choice.key:<{KEY_CELLS}}"
        return Content.assemble(f"{name:<{NAME_CELLS}}", key, (choice.description, "$ink-dim"))
    name = sanitize_line(choice.name) + "/" * choice.is_folder
    return Content.assemble(name, (f"  {choice.note}" if choice.note else "", "$ink-dim"))
