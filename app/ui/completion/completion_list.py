"""The list that opens above the compose box: files after `@`, commands after `/`.

What is in it is known as soon as a key was taken, since the next one, typed ahead, may take the
first line. Only a folder's names come later: a key for the list waits for them a moment.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widgets import OptionList, TextArea
from textual.widgets.option_list import Option

from app.errors import UserError
from app.ui.background import in_background
from app.ui.completion.commands import Command, command_word, commands, matching
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
    from app.ingest.dir_listing import DirListing

WAIT_SECONDS = 0.5
"""That a key waits for the names of a folder."""
NAME_CELLS, KEY_CELLS = 16, 6
EDGES = 7
"""Cells beside an option: the padding and the scrollbar."""

Completion = PathCompletion | Command


class CompletionList(OptionList, can_focus=False, inherit_bindings=False):
    """Hidden until something can be chosen. The keys come from the box, which keeps the focus."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "take", "Take", id="choice.take", tooltip="Attach it, or run the command"),
        Binding(
            "tab", "complete", "Go on", id="choice.complete", tooltip="Go into a folder; else as ⏎"
        ),
        Binding("up", "move(-1)", "Up", id="choice.up", tooltip="The one above"),
        Binding("down", "move(1)", "Down", id="choice.down", tooltip="The one below"),
        Binding("escape", "dismiss", "Close", id="choice.close", tooltip="Close the list"),
    ]

    @dataclass
    class FileChosen(Message):
        """A file or a folder is to be attached; `typed` stood for it in the box."""

        path: str
        typed: str

    def __init__(self, box: TextArea) -> None:
        super().__init__(id="choices", compact=True, markup=False)
        self.paths = PathCompleter(start_folder())
        self._box = box
        self._choices: list[Completion] = []
        self._word = ""
        self._shown: tuple[str, str] | None = None
        self._dismissed: tuple[int, int] | None = None
        self._listings: dict[str, DirListing | UserError] = {}
        self._listing: set[str] = set()
        self._listed = asyncio.Event()

    # -------------------------------------------------------------------------- what is offered

    @property
    def is_open(self) -> bool:
        return self._shown is not None

    async def handles(self, key: str) -> bool:
        """Whether a key is for the list now. Waits a moment while the names are looked up."""
        if not self.is_open or key not in self._bindings.key_to_bindings:
            return False
        if not self._listed.is_set() and key != "escape":
            try:
                await asyncio.wait_for(self._listed.wait(), WAIT_SECONDS)
            except TimeoutError:
                return True
        return self.is_open and (bool(self._choices) or (key == "escape" and self.display))

    def update_for_cursor(self, typing: bool) -> None:
        """The cursor is elsewhere, or there is another text. Only `typing` opens the list."""
        command = self._command_word()
        row, column = self._box.cursor_location
        path = word_before(self._box.document.get_line(row)[:column])
        if command is None and path is None:
            self.close()
            self._dismissed = None
            return
        start = (row, 0 if command is not None else column - len(path or ""))
        if not self.is_open and (not typing or start == self._dismissed):
            return
        self._dismissed = None
        if command is not None:
            self._word = "/" + command
            self._listed.set()
            self._offer("/", matching(command, self._commands()))
        else:
            self._word = "@" + (path or "")
            self._look_into(path or "")

    def command(self, text: str) -> Command | None:
        """The one that is meant by a text that is its whole name."""
        word = command_word(text.strip())
        return next((each for each in self._commands() if each.name == word), None)

    def close(self) -> None:
        self._shown, self._choices = None, []
        self._listings.clear()
        self._listed.set()
        self.display = False

    def dismiss(self) -> None:
        """Close, and do not open again for the word at the cursor."""
        row, column = self._box.cursor_location
        path = word_before(self._box.document.get_line(row)[:column])
        command = self._command_word()
        self._dismissed = (row, 0 if command is not None else column - len(path or ""))
        self.close()

    def _command_word(self) -> str | None:
        if self._box.document.line_count > 1:
            return None
        line = self._box.document.get_line(0)
        return command_word(line) if self._box.cursor_location[1] == len(line) else None

    def _commands(self) -> list[Command]:
        return commands(self._box, (self.screen, self.app))

    # -------------------------------------------------------------------------- folders

    def _look_into(self, word: str) -> None:
        folder = self.paths.folder(word)
        listing = self._listings.get(folder)
        if listing is None:
            self._listed.clear()
            self._show("@", [], "reading the folder…")
            if folder not in self._listing:
                self._listing.add(folder)
                self.run_worker(self._list(folder))
            return
        self._listed.set()
        if isinstance(listing, UserError):
            self._offer("@", [], str(listing))
        else:
            more = f"Only {MAX_ENTRIES:,} names were looked at." if listing.truncated else ""
            self._offer("@", self.paths.completions(word, listing), more)

    async def _list(self, folder: str) -> None:
        def names() -> DirListing:
            from app.ingest.dir_listing import list_folder  # here: the screen is drawn before that

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

    def _offer(
        self, kind: str, choices: list[PathCompletion] | list[Command], said: str = ""
    ) -> None:
        if choices or said:
            self._show(kind, choices, said)
        else:
            self._shown, self._choices = (kind, ""), []
            self.display = False

    def _show(self, kind: str, choices: list[PathCompletion] | list[Command], said: str) -> None:
        self._choices = [*choices]
        self._shown = (kind, said)
        width = max(20, self.screen.size.width - EDGES)
        options = [Option(_line(each).truncate(width, ellipsis=True)) for each in choices]
        if said:
            line = Content.styled(sanitize_line(said), "$ink-dim")
            options.append(Option(line.truncate(width, ellipsis=True), disabled=True))
        self.set_options(options)
        self.highlighted = 0 if choices else None
        self.display = True

    # -------------------------------------------------------------------------- choosing

    def action_move(self, step: int) -> None:
        if self._choices:
            self.highlighted = ((self.highlighted or 0) + step) % len(self._choices)

    def action_dismiss(self) -> None:
        self.dismiss()

    async def action_take(self) -> None:
        await self._take(self._chosen)

    async def action_complete(self) -> None:
        chosen = self._chosen
        if isinstance(chosen, PathCompletion) and chosen.is_folder and chosen.typed.isprintable():
            self._write("@" + chosen.typed)
            self.update_for_cursor(typing=True)
        else:
            await self._take(chosen)

    @on(OptionList.OptionSelected)
    async def _clicked(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        if event.option_index < len(self._choices):
            await self._take(self._choices[event.option_index])

    @property
    def _chosen(self) -> Completion | None:
        place = self.highlighted
        return None if place is None or place >= len(self._choices) else self._choices[place]

    async def _take(self, chosen: Completion | None) -> None:
        if chosen is None:
            return
        self._write("")
        self.close()
        if isinstance(chosen, Command):
            await chosen.run()
        else:
            # By way of the box: so it comes before what is sent after it.
            typed = sanitize_line("@" + chosen.typed)
            self._box.post_message(self.FileChosen(chosen.path, typed))

    def _write(self, text: str) -> None:
        """Instead of the word at the cursor."""
        row, column = self._box.cursor_location
        self._box._replace_via_keyboard(text, (row, column - len(self._word)), (row, column))


def _line(choice: Completion) -> Content:
    if isinstance(choice, Command):
        name, key = f"/{choice.name}", f"{choice.key:<{KEY_CELLS}}"
        return Content.assemble(f"{name:<{NAME_CELLS}}", key, (choice.description, "$ink-dim"))
    name = sanitize_line(choice.name) + "/" * choice.is_folder
    return Content.assemble(name, (f"  {choice.note}" if choice.note else "", "$ink-dim"))
