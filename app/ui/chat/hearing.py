"""What the engine says: to the turn, the bar or the notice that it is about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from app.engine.messages import (
    Closed,
    Event,
    Failed,
    Healed,
    Loaded,
    MadeRoom,
    MemoryReport,
    NotSaved,
    Parked,
    PressureChanged,
    Saved,
    Selected,
    Unparked,
)
from app.ui.chat.asking import Asking
from app.ui.words import ended, sentence

if TYPE_CHECKING:
    from app.ui.chat.screen import ChatScreen


class Hearing:
    def __init__(self, screen: ChatScreen, asking: Asking) -> None:
        self._screen, self._desk, self._asking = screen, screen.desk, asking
        self._ready = False
        self.broken = False
        """Whether nothing can be asked any more."""

    @property
    def loading(self) -> bool:
        return not self._ready and not self.broken

    def apply(self, event: Event) -> int | None:
        """Take in one event; returns the turn to be drawn anew."""
        match event:
            case Loaded():
                self._loaded(event)
            case Failed(turn=None):
                self._failed_outside(event)
            case MemoryReport():
                self._screen.header.show_memory(event.figures, event.rung)
            case PressureChanged():
                self._screen.header.show_memory(event.figures, event.rung)
                self._screen.notice.say(event.sentence)
            case Parked() | MadeRoom():
                self._screen.notice.suggest(event.sentence)
            case Unparked():
                self._screen.notice.suggest("")
            case Closed():
                self.broken = True
            case NotSaved() | Saved():
                self._desk.note(event)
            case Healed():
                pass
            case _:
                return self._apply_to_turn(event, event.turn)
        return None

    def apply_unseen(self, events: Iterable[Event]) -> None:
        """When the screen is gone: only what is to be kept."""
        for event in events:
            turn = getattr(event, "turn", None)
            if isinstance(event, Closed):
                self.broken = True
            elif turn is not None:
                self._desk.apply(event, turn)

    def _apply_to_turn(self, event: Event, number: int | None) -> int | None:
        if number is None or self._desk.apply(event, number):
            return number
        if isinstance(event, Selected):
            self._screen.trying.answered(event)
        elif isinstance(event, Failed):
            self._screen.notice.say(_in_words(event))
        return None

    def _loaded(self, loaded: Loaded) -> None:
        self._ready = True
        screen = self._screen
        screen.header.show_pair(loaded)
        screen.forecast.loaded(loaded)
        screen.transcript.opening.show_loaded(loaded)
        screen.show_hints()
        screen.call_later(self._asking.ask_waiting)

    def _failed_outside(self, failed: Failed) -> None:
        """Something that belongs to no turn: loading, before the pair was ready."""
        screen = self._screen
        if self._ready:
            screen.notice.say(_in_words(failed))
            return
        self.broken = True
        screen.transcript.opening.show_failed(failed)
        screen.show_hints()
        screen.call_later(self._asking.take_back, self._desk.shown)


def _in_words(failed: Failed) -> str:
    return f"{ended(failed.problem)} {sentence(failed.advice)}"
