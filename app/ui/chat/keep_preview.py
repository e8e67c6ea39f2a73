"""Previewing another keep on a scored turn, from the slider or the spans view."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.chat import reading_words
from app.chat.conversation import Turn
from app.chat.turn_progress import TurnProgress
from app.protocol.citations import Citation
from app.protocol.engine import Engine
from app.protocol.events import (
    Event,
    FellBackToDense,
    ImportanceMap,
    Planned,
    Selected,
)
from app.protocol.stats import Reading
from app.store.records import DocumentHit
from app.ui.chat.cost_estimate import ALL_CACHED, CostEstimate
from app.ui.chat.slider import KeepSlider
from app.ui.state.open_chats import OpenChats
from app.ui.transcript.panel import would_read
from app.ui.transcript.transcript import Transcript

if TYPE_CHECKING:
    from app.ui.spans.passages import ReadDocument
    from app.ui.spans.screen import SpansScreen


class KeepPreview:
    """Previews another keep on a turn whose scores the engine still has. One `Reselect` is sent at
    a time. If the keep changes meanwhile, only the last value is sent next, so holding down a key
    builds no queue."""

    def __init__(
        self,
        engine: Engine,
        open_chats: OpenChats,
        transcript: Transcript,
        slider: KeepSlider,
        cost_estimate: CostEstimate,
    ) -> None:
        self._engine, self._open_chats = engine, open_chats
        self._transcript, self._slider = transcript, slider
        self._cost_estimate = cost_estimate
        self._chosen: Turn | None = None
        """The turn to ask again at the keep of the slider; None: it is for the next message."""
        self._turn: Turn | None = None
        self._progress: TurnProgress | None = None
        self._next_keep: float | None = None
        self._in_flight = False
        self._spans: SpansScreen | None = None
        self._spans_turn: Turn | None = None

    def open_slider(self, next_keep: float) -> None:
        """Choose the keep to ask the selected answer again with, or else that of the next message,
        and preview it on the selected or the last turn."""
        if self._slider.display:
            return
        selected = self._transcript.selected
        self._chosen = None if selected is None else selected.turn
        keep = next_keep if self._chosen is None else self._chosen.progress.keep
        self._slider.open(keep)
        self._preview(keep)
        self._show_estimate(keep)

    def try_keep(self, keep: float) -> None:
        """The slider was moved."""
        self.move(keep)
        self._show_estimate(keep)

    def pop_chosen(self) -> Turn | None:
        """The slider was closed: the turn for which it was open, or None for the next message."""
        chosen, self._chosen = self._chosen, None
        return chosen

    def _show_estimate(self, keep: float) -> None:
        """Estimate the next message if there is no turn to preview on."""
        if self._chosen is None and self._turn is None:
            self._slider.effect = self._cost_estimate.text_at(keep)

    def spans_screen(
        self, turn: Turn, hit: DocumentHit | None = None, citation: Citation | None = None
    ) -> SpansScreen | None:
        """A screen that shows which parts of a turn's documents were read. It opens at the `hit` of
        a search or at a `citation`. None if the turn has no documents."""
        from app.ui.spans.screen import SpansScreen

        progress = turn.progress
        selected = progress.would_select
        documents = self._documents(turn, selected)
        if not documents:
            return None
        self._begin(turn)
        shown = None if selected is None else selected.keep_ratio
        status = _reading_status(progress)
        self._spans = SpansScreen(
            documents, progress.keep, self._try_keep, shown, status, hit, citation
        )
        self._spans_turn = turn
        return self._spans

    @property
    def _try_keep(self) -> Callable[[float], None] | None:
        return self.move if self._turn else None

    def on_progress(self, event: Event, of: Turn) -> None:
        """Update what is shown of the documents, after an event of the running turn `of`."""
        turn = self._spans_turn
        changes = Planned | ImportanceMap | Selected | FellBackToDense
        if turn is not None and isinstance(event, changes) and of is turn:
            self._show_progress(turn)

    def _show_progress(self, turn: Turn) -> None:
        progress = turn.progress
        documents = self._documents(turn, progress.would_select)
        if self._spans is not None and documents:
            status = _reading_status(progress)
            self._spans.show_progress(documents, progress.keep, self._try_keep, status)

    def move(self, keep: float) -> None:
        if not self._open_chats.busy:
            self._next_keep = keep
            self._send_next()

    def on_finished(self) -> None:
        """The last turn can be previewed now. If the slider was opened meanwhile, preview its
        keep."""
        if self._spans_turn is not None:
            self._begin(self._spans_turn)
            self._show_progress(self._spans_turn)
        elif self._slider.display and self._turn is None:
            self._preview(self._slider.keep)

    def _preview(self, keep: float) -> None:
        turn = self._chosen or self._open_chats.shown.conversation.last
        self._begin(turn)
        self.move(keep)
        if self._turn is None and turn is not None:
            self._show_last(turn.progress)

    def _show_last(self, progress: TurnProgress) -> None:
        """What was read for an answer whose scores the engine no longer has."""
        if progress.statistics is None:
            return
        if progress.reading is Reading.SPARSE:
            self._slider.settle(progress.keep)
        self._slider.effect = (
            f"read {reading_words.read_amount(progress.statistics)} for this answer"
        )

    def on_selected(self, selected: Selected) -> None:
        """A selection for a finished turn. After `end` it is ignored."""
        turn, progress = self._turn, self._progress
        chat = self._open_chats.shown
        if turn is None or progress is None or not chat.is_of_last_turn(selected):
            return
        selected = turn.of_whole_files(selected)
        progress.apply(selected, 0.0)
        self._draw(turn)
        cached = self._open_chats.is_fully_cached(turn)
        self._slider.settle(selected.keep_ratio)
        self._slider.effect = ALL_CACHED if cached else would_read(selected)
        if self._spans is not None:
            self._spans.show(self._documents(turn, selected), selected.keep_ratio)
        self._in_flight = False
        self._send_next()

    def end(self) -> None:
        self._spans = self._spans_turn = None
        turn, progress = self._turn, self._progress
        self._turn = self._progress = None
        if turn is not None and progress is not None:
            progress.preview = None
            self._draw(turn)
            self._transcript.anchor()

    def _begin(self, turn: Turn | None) -> None:
        self._turn = self._progress = None
        if turn is not None and self._open_chats.can_preview(turn):
            self._turn, self._progress = turn, turn.progress
        self._next_keep, self._in_flight = None, False

    def _send_next(self) -> None:
        asked = self._open_chats.shown.asked
        if asked and self._turn and not self._in_flight and self._next_keep is not None:
            keep, self._next_keep = self._next_keep, None
            self._in_flight = True
            self._engine.reselect(asked, keep)

    def _draw(self, turn: Turn) -> None:
        if (view := self._transcript.view(turn.number)) is not None:
            view.answer.tick()

    def _documents(self, turn: Turn, selected: Selected | None = None) -> list[ReadDocument]:
        from app.ui.spans.passages import read_documents

        chat = self._open_chats.shown
        messages = chat.conversation.documents_by_message(turn)
        return read_documents(messages, turn.progress, selected, turn.citations)


def _reading_status(progress: TurnProgress) -> str:
    """What a turn does with the documents; empty once it has ended."""
    if progress.finished:
        return ""
    if progress.selected is None and progress.reading is not Reading.DENSE:
        return "still choosing what to read"
    return f"reading {reading_words.share_read(progress)}"
