"""The lower part of the chat: notices, chips, the compose box and the keep slider."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.events import Key, Paste
from textual.message import Message
from textual.widgets import Static, TextArea

from app.chat.conversation import Turn
from app.estimate.guard import asks_for_every_token
from app.ingest.records import Changes
from app.protocol.options import Mode
from app.ui.attach.attachment import Attachment, FileJob, part_of
from app.ui.attach.chips import Chip, Chips, Item, SkippedScreen, is_long
from app.ui.attach.dropped import dropped_paths, may_be_paths
from app.ui.background import in_background, start_task
from app.ui.chat.chrome import Notice
from app.ui.chat.slider import KeepSlider
from app.ui.completion import CompletionList, ends_in_path, typed_paths, without_paths
from app.ui.keys import WORD_BINDINGS, odd_character, run_own_binding
from app.ui.state.draft import NextMode, UnsentMessage
from app.ui.terminal import Clipboard
from app.util.sanitize import sanitize

EDITING = "Editing an earlier question: ⏎ asks it on a new branch, Esc cancels."
DISK_SECONDS = 1.0
"""Maximum time for checking whether a file that is named or pasted exists."""
ATTACH_ADVICE = "{} is not attached: type @ before it to attach it."
WHOLE_TEXT_ADVICE = "This question seems to need the whole text: {} reads it in full."


class ComposeBox(TextArea):
    """The text box, which grows with its text. Enter sends, Ctrl+J starts a line, Up and Down
    browse the history."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "send", "Send", id="compose.send", tooltip="Send the question"),
        Binding(
            "ctrl+j,shift+enter", "newline", "New line", id="compose.newline",
            tooltip="Start a new line",
        ),
        Binding(
            "up", "earlier", "Earlier question", id="compose.earlier",
            tooltip="Browse earlier questions (from the first or last line)",
        ),
        Binding(
            "down", "later", "Later question", id="compose.later",
            tooltip="Browse earlier questions (from the first or last line)",
        ),
        Binding(
            "backspace", "erase", "Erase", id="compose.erase",
            tooltip="Remove the last attachment (if the box is empty)",
        ),
        Binding(
            "@", "type('@')", "Attach", id="compose.attach",
            tooltip="Attach a file or folder: type @ and its name",
        ),
        Binding(
            "/", "type('/')", "Commands", id="compose.commands",
            tooltip="List all commands (if the box is empty)",
        ),
        Binding("ctrl+a", "again_or_start", show=False),
        Binding("alt+enter", "newline", show=False),
        Binding("ctrl+home", "go('start')", show=False),
        Binding("ctrl+end", "go('end')", show=False),
        *WORD_BINDINGS,
        Binding(
            "ctrl+v", "paste_system", "Paste", id="compose.paste",
            tooltip="Paste from the system's clipboard",
        ),
        Binding(
            "pageup", "screen.scroll_transcript(-1)", "Scroll up", id="compose.scroll_up",
            tooltip="Scroll the conversation",
        ),
        Binding(
            "pagedown", "screen.scroll_transcript(1)", "Scroll down", id="compose.scroll_down",
            tooltip="Scroll the conversation",
        ),
    ]  # fmt: skip

    @dataclass
    class Submitted(Message):
        """Enter was pressed with this text. When this is handled, more may have been typed."""

        text: str

    @dataclass
    class LongPaste(Message):
        """A paste that becomes a chip."""

        text: str

    @dataclass
    class Dropped(Message):
        """Paths of existing files and folders were pasted, and nothing else."""

        paths: Sequence[str]

    @dataclass
    class UnknownCommand(Message):
        """Enter was pressed with a command that does not exist; a sentence says so."""

        sentence: str

    @dataclass
    class ErasedNothing(Message):
        """Backspace in an empty box."""

    @dataclass
    class UndidNothing(Message):
        """Ctrl+Z with no edit to undo."""

    clipboard: Clipboard | None = None
    """The system's clipboard, if there is one."""

    def __init__(self) -> None:
        super().__init__(
            soft_wrap=True,
            compact=True,
            tab_behavior="focus",
            highlight_cursor_line=False,
            placeholder="Ask, paste a document, or type @ for a file",
        )
        self.choices = CompletionList(self)
        self._holds = 0
        self._released = asyncio.Event()
        self._released.set()
        self._typing = False
        self._history: list[str] = []
        self._history_index = 0
        self._unsent = ""

    def add_to_history(self, text: str) -> None:
        """Add a sent question to the history."""
        if not self._history or self._history[-1] != text:
            self._history.append(text)
        self._history_index = len(self._history)
        self._unsent = ""

    def set_history(self, texts: Iterable[str]) -> None:
        """Replace the history; the newest question comes last."""
        self._history, self._history_index, self._unsent = [], 0, ""
        for text in texts:
            self.add_to_history(text)

    def hold(self) -> None:
        """Keys and pastes wait until `release`: they belong to the conversation that is opening."""
        self._holds += 1
        self._released.clear()

    def release(self) -> None:
        self._holds -= 1
        if not self._holds:
            self._released.set()

    def replace_all(self, text: str) -> None:
        self._typing = False
        self.text = text
        self.move_cursor(self.document.end)

    async def insert_paste(self, event: Paste) -> None:
        """Paths are attached, unless they follow an `@`. A short paste becomes text, in which
        control characters are shown as symbols, because they will be sent like that. A long one is
        passed on unchanged."""
        event.stop()
        event.prevent_default()
        self._typing = False
        if paths := await self._dropped(event.text):
            self.post_message(self.Dropped(paths))
        elif is_long(event.text):
            self.post_message(self.LongPaste(event.text))
        elif event.text:
            text = sanitize(event.text.replace("\r\n", "\n").replace("\r", "\n"))
            self._replace_via_keyboard(text, *self.selection)

    async def _dropped(self, text: str) -> Sequence[str]:
        row, column = self.selection.start
        if not may_be_paths(text) or self.document[row][:column].endswith("@"):
            return ()
        look = in_background(lambda: dropped_paths(text))
        with suppress(TimeoutError):
            return await asyncio.wait_for(look, DISK_SECONDS)
        return ()

    async def _on_paste(self, event: Paste) -> None:
        await self._released.wait()
        await self.insert_paste(event)

    async def _on_key(self, event: Key) -> None:
        await self._released.wait()
        if await self.choices.handles(event.key):
            self._typing = False
            event.stop()
            event.prevent_default()
            await run_own_binding(self.choices, event)
            return
        if character := odd_character(event):
            self.action_type(character)
            return
        self._typing = event.is_printable or event.key == "backspace"
        if not await run_own_binding(self, event) and not event.is_printable:
            await run_own_binding(self.screen, event)

    def watch_selection(self) -> None:
        """`Changed` would come too late: the next key may arrive before it."""
        if self.is_mounted:
            self.choices.update_for_cursor(self._typing)

    def on_blur(self) -> None:
        self.choices.close()

    async def action_send(self) -> None:
        """Run a command if the text is its full name; otherwise send the text."""
        command = self.choices.command(self.text)
        if command is None:
            self.choices.close()
            self.post_message(self.Submitted(self.text))
        elif isinstance(command, str):
            self.choices.close()
            self.post_message(self.UnknownCommand(command))
        else:
            with self.prevent(TextArea.Changed):  # which would clear what the command says
                self.replace_all("")
            await command.run()

    def action_type(self, character: str) -> None:
        """Insert a character as if it was typed; the palette and the command list use it too."""
        self._typing = True
        self._replace_via_keyboard(character, *self.selection)

    async def action_paste_system(self) -> None:
        """Paste from the system's clipboard or, if it cannot be read, what was copied in the
        app."""
        text = None
        if self.clipboard is not None:
            text = await asyncio.wrap_future(self.clipboard.read())
        if text is None:
            self.action_paste()
        else:
            await self.insert_paste(Paste(text))

    def action_newline(self) -> None:
        self._replace_via_keyboard("\n", *self.selection)

    def action_go(self, where: str) -> None:
        self.move_cursor(getattr(self.document, where))

    def action_erase(self) -> None:
        if self.text:
            self.action_delete_left()
        else:
            self.post_message(self.ErasedNothing())

    async def action_again_or_start(self) -> None:
        """Ask again; in a box with text, go to the start of the line."""
        if self.text:
            self.action_cursor_line_start()
        else:
            await self.run_action("screen.ask_again")

    def action_undo(self) -> None:
        if self.history._undo_stack:
            super().action_undo()
        else:
            self.post_message(self.UndidNothing())

    def action_earlier(self) -> None:
        if not self.navigator.is_first_wrapped_line(self.cursor_location):
            self.action_cursor_up()
        elif self._history_index > 0:
            if self._history_index == len(self._history):
                self._unsent = self.text
            self._browse_history(self._history_index - 1)

    def action_later(self) -> None:
        if not self.navigator.is_last_wrapped_line(self.cursor_location):
            self.action_cursor_down()
        elif self._history_index < len(self._history):
            self._browse_history(self._history_index + 1)

    def _browse_history(self, index: int) -> None:
        self._history_index = index
        at_end = index == len(self._history)
        self.replace_all(self._unsent if at_end else self._history[index])


class Composer(Vertical):
    """Where the next question is typed."""

    def __init__(self, next_mode: NextMode) -> None:
        super().__init__(id="compose")
        self.notice = Notice()
        self.chips = Chips()
        self.box = ComposeBox()
        self.slider = KeepSlider()
        self._next_mode = next_mode
        self.edited: Turn | None = None
        """The turn whose question is being edited: it is here instead of the draft."""
        self._set_aside: UnsentMessage | None = None
        """The draft, while a question is edited."""
        self.known_names: Callable[[], Container[str]] = tuple
        """Names of the files of the conversation."""
        self._typed_paths: tuple[str, ...] = ()
        self._typed_path = ""
        """The first of them that is a file or folder that is not attached."""

    def compose(self) -> ComposeResult:
        yield self.notice
        yield self.chips
        yield self.box.choices
        with Horizontal(id="entry"):
            yield Static("❯", id="prompt", markup=False)
            yield self.box
        yield self.slider

    @property
    def draft(self) -> UnsentMessage:
        return UnsentMessage(self._next_mode, self.box.text, self.chips.attached)

    def show(self, draft: UnsentMessage, jobs: Sequence[FileJob] = ()) -> None:
        """Show a draft instead of what is here; `jobs` are files that are still being read."""
        if draft.text != self.box.text:
            self._write(draft.text)
        self.show_next_mode(draft.next_mode)
        items: tuple[Item, ...] = (*draft.attached, *jobs)
        if items != self.chips.items:
            self.chips.show(items)

    def put_back(self, job: FileJob) -> None:
        """Show what was typed for a file that could not be attached."""
        text, box = self.box.text, self.box
        first, last, typed = job.put_back(text)
        start, end = (
            (before.count("\n"), len(before) - before.rfind("\n") - 1)
            for before in (text[:first], text[:last])
        )
        with self.prevent(TextArea.Changed):
            box.replace(typed, start, end, maintain_selection_offset=bool(text))
            box.choices.dismiss()

    def show_next_mode(self, next_mode: NextMode) -> None:
        self._next_mode = next_mode
        self._update_suggestion()

    def clear_sent(self, typed: str) -> None:
        """Remove the submitted text; what was typed after it stays."""
        self.box.add_to_history(typed.strip())
        self._write(self.box.text.removeprefix(typed))
        self.chips.show(())
        self.notice.show("")
        self._update_suggestion()

    def replace_typed(self, typed: str, text: str) -> None:
        """Replace submitted text; what was typed after it stays."""
        self._write(text + self.box.text.removeprefix(typed))

    def edit(self, turn: Turn) -> None:
        """Edit the question of a turn, which is then asked on a new branch."""
        self.cancel_edit()
        self.edited, self._set_aside = turn, self.draft
        self.show(UnsentMessage(self._next_mode).prepend(turn.question, ()))
        self.box.focus()
        self.notice.show(EDITING)

    def resume_edit(self, turn: Turn) -> None:
        """Return to editing a question that could not be asked."""
        self.edited, self._set_aside = turn, UnsentMessage(self._next_mode)
        self.notice.show(EDITING)

    def cancel_edit(self) -> bool:
        """Show the draft again; returns whether a question was being edited."""
        draft, self.edited, self._set_aside = self._set_aside, None, None
        if draft is not None:
            self.show(draft)
            self.notice.show("")
        return draft is not None

    def insert_paste(self, event: Paste) -> None:
        """Insert a paste that arrived while another widget had the focus."""
        self.box.focus()
        self.box.post_message(Paste(event.text))

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        self.notice.show("")
        self._update_suggestion()

    def on_completion_list_file_chosen(self) -> None:
        self._update_suggestion()  # its path is no longer in the box

    def on_compose_box_unknown_command(self, event: ComposeBox.UnknownCommand) -> None:
        event.stop()
        self.notice.show(event.sentence)

    def on_chip_show_skipped(self, event: Chip.ShowSkipped) -> None:
        event.stop()
        item = event.item
        if isinstance(item, Changes) or item.skipped or item.doubtful or item.changes:
            self.app.push_screen(SkippedScreen(item))
        else:
            self.notice.show(f"Nothing in '{item.name}' was skipped.")

    def on_chip_choose_part(self, event: Chip.ChoosePart) -> None:
        event.stop()
        if event.item.whole is None and len(event.item.documents) > 1:
            self.notice.show(f"To attach a part of '{event.item.name}', type @ and its file.")
        else:
            start_task(self, lambda: self._choose_part(event.item))

    async def _choose_part(self, item: Attachment) -> None:
        from app.ingest.excerpt import outline_of  # slow to import
        from app.ui.attach.part_screen import WHOLE, PartScreen

        whole = item.whole or item
        outline = await in_background(lambda: outline_of(whole.documents[0]))
        is_part = item.whole is not None
        wanted = await self.app.push_screen_wait(PartScreen(whole.name, outline, is_part))
        if wanted is None:
            return
        new = whole if wanted == WHOLE else await in_background(lambda: part_of(item, wanted))
        for each in self.chips.attached:
            if each.documents is item.documents:  # its tokens may have been counted since
                self.chips.replace(each, new)

    def _write(self, text: str) -> None:
        """Set the text without clearing the notice."""
        with self.prevent(TextArea.Changed):
            self.box.replace_all(text)

    def _update_suggestion(self) -> None:
        mode, text = self._next_mode.mode, self.box.text
        if (paths := typed_paths(text)) != self._typed_paths:
            self._typed_paths, self._typed_path = paths, ""
            if paths:
                start_task(self, lambda: self._find_typed_path(paths), "typed path", exclusive=True)
        if self._typed_path:
            self.notice.suggest(ATTACH_ADVICE.format(self._typed_path))
        elif (
            mode is Mode.FULL
            or ends_in_path(text)
            or asks_for_every_token(without_paths(text)) is None
        ):
            self.notice.suggest("")
        else:
            how = "auto mode" if mode is Mode.AUTO else "^T"
            self.notice.suggest(WHOLE_TEXT_ADVICE.format(how))

    async def _find_typed_path(self, paths: tuple[str, ...]) -> None:
        known = self.known_names()
        found = await in_background(lambda: self.box.choices.paths.first_existing(paths, known))
        if found and paths == self._typed_paths:
            self._typed_path = found
            self._update_suggestion()
