"""A question or an answer that can be selected, and the keys for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Click, Key
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Static

from app.chat.conversation import Turn, TurnPart
from app.ui.keys import run_own_binding
from app.ui.transcript.lazy_container import LazyContainer

VersionIndex = tuple[int, int]
"""The version's number, from 1, and the number of versions."""


class MessageView(LazyContainer, can_focus=True):
    """A message, which is selected while it has the focus. Printable keys go to the compose box."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "run('up')", "Up", id="message.up", tooltip="Previous or next message"),
        Binding(
            "down", "run('down')", "Down", id="message.down", tooltip="Previous or next message"
        ),
        Binding(
            "left", "run('previous_version')", "Previous version", id="message.previous_version",
            tooltip="Previous version, where the conversation branches",
        ),
        Binding(
            "right", "run('next_version')", "Next version", id="message.next_version",
            tooltip="Next version, where the conversation branches",
        ),
        Binding(
            "space", "details", "Details", id="message.details",
            tooltip="Show or hide the details (or click the first line)",
        ),
        Binding(
            "enter", "unfold", "Thinking", id="message.thinking",
            tooltip="Show or hide the thinking (the details, if there is none)",
        ),
        Binding(
            "ctrl+y", "run('copy')", "Copy", id="message.copy",
            tooltip="Copy the message as Markdown",
        ),
        Binding(
            "ctrl+k", "run('code')", "Copy code", id="message.code",
            tooltip="Copy a code block (press again for the next one)",
        ),
        Binding(
            "ctrl+e", "run('edit')", "Edit", id="message.edit",
            tooltip="Edit the question and ask it on a new branch",
        ),
        Binding(
            "ctrl+a", "run('again')", "Again", id="message.again",
            tooltip="Regenerate with the same settings",
        ),
        Binding(
            "ctrl+r", "run('full')", "Again in full", id="message.full",
            tooltip="Ask again, and read in full",
        ),
        Binding(
            "ctrl+s", "run('spans')", "What was read", id="message.spans",
            tooltip="Show what was read for this answer",
        ),
        Binding(
            "ctrl+x", "run('citations')", "Citations", id="message.citations",
            tooltip="Show the passages that the answer is from",
        ),
        Binding(
            "ctrl+d", "run('delete')", "Delete", id="message.delete",
            tooltip="Delete the message and everything after it",
        ),
        Binding(
            "ctrl+z", "run('undo')", "Undo", id="message.undo",
            tooltip="Undo the last deletion",
        ),
        Binding(
            "pageup", "screen.scroll_transcript(-1)", "Page up", id="message.page_up",
            tooltip="Scroll the conversation",
        ),
        Binding(
            "pagedown", "screen.scroll_transcript(1)", "Page down", id="message.page_down",
            tooltip="Scroll the conversation",
        ),
        Binding("escape", "leave", "Back", id="message.leave"),
    ]  # fmt: skip

    @dataclass
    class Act(Message):
        """Run the action of this name on the message."""

        view: MessageView
        name: str

    @dataclass
    class KeyForComposer(Message):
        """A key for the compose box; None only moves the focus there."""

        key: Key | None

    def __init__(self, turn: Turn, part: TurnPart, classes: str) -> None:
        super().__init__(classes=classes)
        self.turn, self.part = turn, part
        self.version: VersionIndex = 1, 1
        self._typing = False
        """Whether the focus is moving to the compose box, which gets the next keys too."""

    def content(self) -> Sequence[Widget]:
        raise NotImplementedError

    @property
    def text(self) -> str:
        return self.turn.question.text if self.part is TurnPart.QUESTION else self.turn.text

    def hints(self, is_last: bool) -> list[str]:
        """The keys that work on it, the most important first."""
        if self.part is TurnPart.ANSWER:
            hints = [
                "Space details",
                "^Y copy",
                "^A again",
                "^R in full",
                "^G other keep",
                "^S what was read",
            ]
            more = ["^X citations", "^K code", "^E edit"]
        else:
            hints, more = ["^Y copy", "^E edit"], ["^A again", "^R in full"]
        if is_last and self.turn.can_continue:
            hints.insert(0, "F4 continue")
        if self.version[1] > 1:
            hints.insert(0, f"←→ {self.version[0]}/{self.version[1]}")
        return [*hints, "^D delete", *more, "Esc back"]

    def show_version(self, version: VersionIndex) -> None:
        if version != self.version:
            self.version = version
            for speaker in self.query(Speaker):
                speaker.show()

    async def on_key(self, event: Key) -> None:
        if not self._typing and await run_own_binding(self, event):
            return
        if event.is_printable or event.key == "backspace":
            event.stop()
            event.prevent_default()
            self._typing = True
            self.post_message(self.KeyForComposer(event))

    def on_blur(self) -> None:
        self._typing = False

    def on_click(self, event: Click) -> None:
        event.stop()

    def action_run(self, name: str) -> None:
        self.post_message(self.Act(self, name))

    def action_leave(self) -> None:
        self.post_message(self.KeyForComposer(None))

    def action_details(self) -> None:
        """Show or hide the details of an answer; a question has none."""

    def action_unfold(self) -> None:
        self.action_details()


class Speaker(Static):
    """The heading of a message; where the conversation branches also `‹ 2/3 ›`, with arrows to
    click."""

    def __init__(self, who: Content, view: MessageView | None, note: str = "") -> None:
        super().__init__(classes="speaker")
        self._who, self._view, self._note = who, view, note

    def on_mount(self) -> None:
        self.show()

    def show(self) -> None:
        number, of = (1, 1) if self._view is None else self._view.version
        mark = f"  ‹ {number}/{of} ›" if of > 1 else ""
        notes = (self._note, "not bold $ink-dim")
        self.update(Content.assemble(self._who, (mark, "not bold $accent"), notes))

    def on_click(self, event: Click) -> None:
        if self._view is None or self._view.version[1] < 2:
            return
        number, of = self._view.version
        start = self._who.cell_length + 2
        end = start + len(f"‹ {number}/{of} ›")
        if start - 1 <= event.x <= end:
            event.stop()
            is_left = event.x < (start + end) / 2
            self._view.action_run("previous_version" if is_left else "next_version")
