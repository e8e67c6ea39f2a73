"""Selecting messages in the chat screen, and the keys for it."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.binding import Binding, BindingType
from textual.events import DescendantBlur, DescendantFocus
from textual.screen import Screen

from app.ui.attach.chips import Chip
from app.ui.chat.chrome import NewTextMarker
from app.ui.chat.composer import ComposeBox, Composer
from app.ui.chat.file_chooser import FileChooser
from app.ui.chat.message_actions import MessageActions
from app.ui.keys import forward_key
from app.ui.transcript.message import MessageView
from app.ui.transcript.transcript import Transcript


class MessageSelection(Screen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(
            "tab", "messages", "Messages", id="chat.messages",
            tooltip="Select a message, the last one first, and back",
        ),
        Binding(
            "shift+tab", "above", "Attached", id="chat.above",
            tooltip="To the attachments, if there are any; otherwise like Tab",
        ),
        Binding(
            "ctrl+f", "files", "Files", id="chat.files",
            tooltip="Which files the model got, or gets always or never",
        ),
        Binding(
            "ctrl+b", "to_end", "Bottom", id="chat.bottom", tooltip="To the end of the conversation"
        ),
    ]  # fmt: skip

    transcript: Transcript
    composer: Composer
    actions: MessageActions
    new_text_marker: NewTextMarker
    file_chooser: FileChooser

    def show_hints(self) -> None:
        """Show the keys that work now."""
        raise NotImplementedError

    def action_messages(self) -> None:
        """To the last message, or from the messages to the box."""
        messages = self.transcript.messages
        if self.focused is self.composer.box and messages:
            self.transcript.select(messages[-1])
        else:
            self.composer.box.focus()

    def action_above(self) -> None:
        """To the next chip above the box, and from the first one back to the box."""
        chips = [*self.composer.chips.query(Chip)]
        targets = [*chips, self.composer.box]
        index = targets.index(self.focused) if self.focused in targets else 0
        if chips and index > 0:
            targets[index - 1].focus()
        else:
            self.action_messages()

    def action_files(self) -> None:
        selected = self.transcript.selected
        self.file_chooser.open(None if selected is None else selected.turn)

    @on(DescendantFocus)
    @on(DescendantBlur)
    def _focus_moved(self) -> None:
        self.show_hints()

    @on(MessageView.Move)
    def _go(self, event: MessageView.Move) -> None:
        if (message := self.transcript.neighbour(event.view, event.step)) is not None:
            self.transcript.select(message)

    @on(MessageView.StepVersion)
    def _version(self, event: MessageView.StepVersion) -> None:
        self.actions.step_version(event.view, event.step)

    @on(MessageView.Action)
    def _act(self, event: MessageView.Action) -> None:
        self.actions.run_action(event.view, event.name)

    @on(MessageView.KeyForComposer)
    def _typed(self, event: MessageView.KeyForComposer) -> None:
        self.composer.box.focus()
        if event.key is not None:
            forward_key(event.key, self.composer.box)

    @on(ComposeBox.UndidNothing)
    def _undid_nothing(self) -> None:
        self.actions.undo()

    @on(Transcript.UnreadChanged)
    def _news(self) -> None:
        self.new_text_marker.display = self.transcript.has_unread

    @on(NewTextMarker.Clicked)
    def action_to_end(self) -> None:
        self.transcript.follow_end()
