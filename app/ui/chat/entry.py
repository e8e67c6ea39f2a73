"""Below the conversation: notices, chips, the box a question is written in, and the keep setter."""

from __future__ import annotations

import re

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.events import Paste as PasteEvent
from textual.widgets import Static, TextArea

from app.engine.messages import Mode
from app.ui.chat.bars import Notice
from app.ui.chat.chips import Chips
from app.ui.chat.compose import ComposeBox
from app.ui.chat.draft import Draft
from app.ui.keep.next_mode import NextMode
from app.ui.keep.setter import KeepSetter

WHOLE_TEXT_WORDS = re.compile(r"\b(how many|count|list all|every)\b", re.IGNORECASE)
WHOLE_TEXT_ADVICE = "Counting and listing need all of the text: ^T reads it in full."


class Entry(Vertical):
    """Where the next question is written."""

    def __init__(self, next_mode: NextMode) -> None:
        super().__init__(id="compose")
        self.notice = Notice()
        self.chips = Chips()
        self.box = ComposeBox()
        self.setter = KeepSetter()
        self._next_mode = next_mode

    def compose(self) -> ComposeResult:
        yield self.notice
        yield self.chips
        with Horizontal(id="entry"):
            yield Static("❯", id="prompt", markup=False)
            yield self.box
        yield self.setter

    @property
    def draft(self) -> Draft:
        return Draft(self._next_mode, self.box.text, self.chips.pastes)

    def show(self, draft: Draft) -> None:
        """Instead of all that is written here."""
        if draft.text != self.box.text:
            self._write(draft.text)
        self.show_next(draft.next_mode)
        if draft.pastes != self.chips.pastes:
            self.chips.show(draft.pastes)

    def show_next(self, next_mode: NextMode) -> None:
        self._next_mode = next_mode
        self._suggest()

    def take(self, typed: str) -> None:
        """What was sent is no draft any more; what was typed after it stays."""
        self.box.remember(typed.strip())
        self._write(self.box.text.removeprefix(typed))
        self.chips.show(())
        self.notice.say("")
        self._suggest()

    def receive(self, event: PasteEvent) -> None:
        """A paste while something else has the focus is meant for the box all the same."""
        self.box.focus()
        self.box.receive(event)

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        self.notice.say("")
        self._suggest()

    def on_compose_box_long_paste(self, event: ComposeBox.LongPaste) -> None:
        event.stop()
        self.chips.add(event.text)
        self.notice.say("")

    def on_compose_box_erased_nothing(self) -> None:
        self.chips.remove_last()

    def _write(self, text: str) -> None:
        """As if it had stood there before: what was said to the user stays."""
        with self.prevent(TextArea.Changed):
            self.box.replace_all(text)

    def _suggest(self) -> None:
        asks_for_all = WHOLE_TEXT_WORDS.search(self.box.text) is not None
        wanted = asks_for_all and self._next_mode.mode is not Mode.FULL
        self.notice.suggest(WHOLE_TEXT_ADVICE if wanted else "")
