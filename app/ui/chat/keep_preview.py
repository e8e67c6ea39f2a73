"""Trying another keep on the last answer, in the setter or in the spans view."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.chat.conversation import Turn
from app.protocol.commands import Command
from app.protocol.events import Selected
from app.ui.keep.keep_preview import ALL_CACHED, KeepTrial
from app.ui.keep.slider import KeepSlider
from app.ui.prefill.panel_render import would_read
from app.ui.state.open_chats import OpenChats
from app.ui.transcript.transcript import Transcript

if TYPE_CHECKING:
    from app.ui.spans.passages import ReadDocument
    from app.ui.spans.screen import SpansScreen


class KeepPreview:
    """One keep is tried at a time, and only on what the engine still has the scores of."""

    def __init__(
        self,
        desk: OpenChats,
        transcript: Transcript,
        setter: KeepSlider,
        send: Callable[[Command], None],
    ) -> None:
        self._desk, self._transcript, self._setter, self._send = desk, transcript, setter, send
        self._trial = KeepTrial()
        self._turn: Turn | None = None
        self._spans: SpansScreen | None = None

    @property
    def active(self) -> bool:
        """Whether there is a turn that a keep is tried on."""
        return self._turn is not None

    def open_setter(self, keep: float, turn: Turn | None = None) -> None:
        """Of a turn, or the last one."""
        self._begin(turn or self._desk.shown.conversation.last)
        self._setter.open(keep)
        self.move(keep)

    def spans(self, turn: Turn) -> SpansScreen | None:
        """What was read of a turn's documents; None when there are none."""
        from app.ui.spans.screen import SpansScreen

        progress = self._desk.shown.progress[turn.number]
        choice = progress.would_select
        documents = self._documents(turn, choice)
        if not documents:
            return None
        self._begin(turn)
        move, shown = (
            self.move if self._turn else None,
            None if choice is None else choice.keep_ratio,
        )
        self._spans = SpansScreen(documents, progress.keep, move, shown)
        return self._spans

    def move(self, keep: float) -> None:
        if not self._desk.busy and (request := self._trial.move(keep)) is not None:
            self._send(request)

    def on_selected(self, selected: Selected) -> None:
        """A selection came of a turn that is over. One that comes after `end` shows nothing."""
        request, turn = self._trial.answered(selected), self._turn
        if turn is not None and turn.number == selected.turn:
            self._draw(turn)
            cached = self._desk.is_fully_cached(turn)
            self._setter.effect = ALL_CACHED if cached else would_read(selected)
            if self._spans is not None:
                self._spans.show(self._documents(turn, selected), selected.keep_ratio)
        if request is not None:
            self._send(request)

    def end(self) -> None:
        self._spans = None
        self._trial.end()
        turn, self._turn = self._turn, None
        if turn is not None:
            self._draw(turn)
            self._transcript.anchor()

    def _begin(self, turn: Turn | None) -> None:
        self._turn = turn if turn is not None and self._desk.can_preview(turn) else None
        if self._turn is None:
            self._trial.begin(None, None)
        else:
            self._trial.begin(self._turn.number, self._desk.shown.progress[self._turn.number])

    def _draw(self, turn: Turn) -> None:
        if (view := self._transcript.view(turn.number)) is not None:
            view.tick()

    def _documents(self, turn: Turn, selected: Selected | None = None) -> list[ReadDocument]:
        from app.ui.spans.passages import read_documents

        chat = self._desk.shown
        messages = chat.conversation.documents_by_message(turn)
        return read_documents(messages, chat.progress[turn.number], selected)
