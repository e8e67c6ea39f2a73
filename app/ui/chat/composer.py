"""Below the conversation: notices, chips, the box a question is written in with what can be chosen
in it, and the keep setter."""

from __future__ import annotations

import re
from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.events import Paste as PasteEvent
from textual.widgets import Static, TextArea

from app.protocol.options import Mode
from app.ui.attach.chips import Chip, Chips, Item
from app.ui.attach.file_job import FileJob
from app.ui.attach.skipped_screen import SkippedScreen
from app.ui.chat.chrome import Notice
from app.ui.chat.compose_box import ComposeBox
from app.ui.keep.next_mode import NextMode
from app.ui.keep.slider import KeepSlider
from app.ui.state.draft import Draft

WHOLE_TEXT_PATTERN = re.compile(r"\b(how many|count|list all|every)\b", re.IGNORECASE)
WHOLE_TEXT_ADVICE = "Counting and listing need all of the text: ^T reads it in full."


class Composer(Vertical):
    """Where the next question is written."""

    def __init__(self, next_mode: NextMode) -> None:
        super().__init__(id="compose")
        self.notice = Notice()
        self.chips = Chips()
        self.box = ComposeBox()
        self.slider = KeepSlider()
        self._next_mode = next_mode

    def compose(self) -> ComposeResult:
        yield self.notice
        yield self.chips
        yield self.box.choices
        with Horizontal(id="entry"):
            yield Static("❯", id="prompt", markup=False)
            yield self.box
        yield self.slider

    @property
    def draft(self) -> Draft:
        return Draft(self._next_mode, self.box.text, self.chips.attached)

    def show(self, draft: Draft, readings: Sequence[FileJob] = ()) -> None:
        """Instead of all that is written here; `readings` are still to become chips."""
        if draft.text != self.box.text:
            self._write(draft.text)
        self.show_next_mode(draft.next_mode)
        items: tuple[Item, ...] = (*draft.attached, *readings)
        if items != self.chips.items:
            self.chips.show(items)

    def append_typed(self, typed: str) -> None:
        """What was chosen in the box, and is of no use, behind what is written there."""
        text, end = self.box.text, self.box.document.end
        with self.prevent(TextArea.Changed):
            gap = " " if text and not text[-1].isspace() else ""
            self.box.insert(gap + typed, end, maintain_selection_offset=bool(text))
            self.box.choices.dismiss()

    def show_next_mode(self, next_mode: NextMode) -> None:
        self._next_mode = next_mode
        self._update_suggestion()

    def clear_sent(self, typed: str) -> None:
        """What was sent is no draft any more; what was typed after it stays."""
        self.box.add_to_history(typed.strip())
        self._write(self.box.text.removeprefix(typed))
        self.chips.show(())
        self.notice.show("")
        self._update_suggestion()

    def insert_paste(self, event: PasteEvent) -> None:
        """A paste while something else has the focus is meant for the box all the same."""
        self.box.focus()
        self.box.insert_paste(event)

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        self.notice.show("")
        self._update_suggestion()

    def on_chip_show_skipped(self, event: Chip.ShowSkipped) -> None:
        event.stop()
        if event.item.skipped or event.item.lossy:
            self.app.push_screen(SkippedScreen(event.item))
        else:
            self.notice.show(f"Nothing of '{event.item.name}' was skipped.")

    def _write(self, text: str) -> None:
        """As if it had stood there before: what was said to the user stays."""
        with self.prevent(TextArea.Changed):
            self.box.replace_all(text)

    def _update_suggestion(self) -> None:
        asks_for_all = WHOLE_TEXT_PATTERN.search(self.box.text) is not None
        wanted = asks_for_all and self._next_mode.mode is not Mode.FULL
        self.notice.suggest(WHOLE_TEXT_ADVICE if wanted else "")
