"""The lower part of the chat: notices, chips, the compose box and the keep slider."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.events import Paste as PasteEvent
from textual.widgets import Static, TextArea

from app.estimate.guard import asks_for_every_token
from app.protocol.options import Mode
from app.ui.attach.attachment import FileJob
from app.ui.attach.chips import Chip, Chips, Item, SkippedScreen
from app.ui.chat.chrome import Notice
from app.ui.chat.compose_box import ComposeBox
from app.ui.keep.next_mode import NextMode
from app.ui.keep.slider import KeepSlider
from app.ui.state.draft import Draft

WHOLE_TEXT_ADVICE = "Counting and listing need the whole text: {} reads it in full."


class Composer(Vertical):
    """Where the next question is typed."""

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

    def show(self, draft: Draft, jobs: Sequence[FileJob] = ()) -> None:
        """Show a draft instead of what is here; `jobs` are files that are still being read."""
        if draft.text != self.box.text:
            self._write(draft.text)
        self.show_next_mode(draft.next_mode)
        items: tuple[Item, ...] = (*draft.attached, *jobs)
        if items != self.chips.items:
            self.chips.show(items)

    def append_typed(self, typed: str) -> None:
        """Append a typed path that could not be attached."""
        text, end = self.box.text, self.box.document.end
        with self.prevent(TextArea.Changed):
            gap = " " if text and not text[-1].isspace() else ""
            self.box.insert(gap + typed, end, maintain_selection_offset=bool(text))
            self.box.choices.dismiss()

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
        """What was typed after it stays."""
        self._write(text + self.box.text.removeprefix(typed))

    def insert_paste(self, event: PasteEvent) -> None:
        """Insert a paste that arrived while another widget had the focus."""
        self.box.focus()
        self.box.insert_paste(event)

    def on_text_area_changed(self, event: TextArea.Changed) -> None:
        self.notice.show("")
        self._update_suggestion()

    def on_chip_show_skipped(self, event: Chip.ShowSkipped) -> None:
        event.stop()
        if event.item.skipped or event.item.doubtful:
            self.app.push_screen(SkippedScreen(event.item))
        else:
            self.notice.show(f"Nothing in '{event.item.name}' was skipped.")

    def _write(self, text: str) -> None:
        """Set the text without clearing the notice."""
        with self.prevent(TextArea.Changed):
            self.box.replace_all(text)

    def _update_suggestion(self) -> None:
        mode = self._next_mode.mode
        if mode is Mode.FULL or asks_for_every_token(self.box.text) is None:
            self.notice.suggest("")
        else:
            self.notice.suggest(WHOLE_TEXT_ADVICE.format("auto" if mode is Mode.AUTO else "^T"))
