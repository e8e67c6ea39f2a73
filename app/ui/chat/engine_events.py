"""What the engine says: to the turn, the bar or the notice that it is about."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from textual.message import Message

from app.protocol.cost_model import Costs
from app.protocol.events import (
    BackgroundProgress,
    Closed,
    CostsUpdated,
    EngineWarning,
    Event,
    Failed,
    Loaded,
    MemoryFreed,
    MemoryReport,
    PressureChanged,
    Reloaded,
    Selected,
    SnapshotFailed,
    SnapshotProgress,
    Unloaded,
)
from app.ui.text import as_sentence, with_full_stop

if TYPE_CHECKING:
    from app.ui.chat.screen import ChatScreen


class CostsMeasured(Message):
    """The engine has timed the pair, as it was asked to."""

    def __init__(self, costs: Costs) -> None:
        super().__init__()
        self.costs = costs


class EngineEventHandler:
    def __init__(self, screen: ChatScreen) -> None:
        self._screen, self._desk = screen, screen.open_chats
        self.closed = False
        """Whether the engine has ended."""

    def apply(self, event: Event) -> int | None:
        """Take in one event; returns the turn to be drawn anew."""
        match event:
            case Loaded():
                self._screen.loader.on_load_result(event)
            case Failed(turn=None):
                if not self._screen.loader.on_load_result(event):
                    self._screen.notice.show(failure_text(event))
            case MemoryReport():
                self._screen.header.show_memory(event.stats, event.level)
            case EngineWarning():
                self._screen.notice.show(event.message)
            case PressureChanged():
                self._screen.header.show_memory(event.stats, event.level)
                self._screen.notice.show(event.message)
            case Unloaded() | MemoryFreed():
                self._screen.notice.suggest(event.message)
            case Reloaded():
                self._screen.notice.suggest("")
            case Closed():
                self.closed = True
            case SnapshotFailed() | SnapshotProgress():
                self._desk.on_snapshot_event(event)
            case CostsUpdated():
                self._screen.cost_estimate.costs = event.costs
                self._screen.footer.show_meter(self._screen.cost_estimate.meter())
                if event.requested:
                    self._screen.post_message(CostsMeasured(event.costs))
            case BackgroundProgress():
                self._desk.on_background_prefill(event)
            case _:
                return self._apply_to_turn(event, event.turn)
        return None

    def apply_after_exit(self, events: Iterable[Event]) -> None:
        """When the screen is gone: only what is to be kept."""
        for event in events:
            turn = getattr(event, "turn", None)
            if isinstance(event, Closed):
                self.closed = True
            elif turn is not None:
                self._desk.apply(event, turn)

    def _apply_to_turn(self, event: Event, number: int | None) -> int | None:
        if number is None or self._desk.apply(event, number):
            return number
        if isinstance(event, Selected):
            self._screen.keep_preview.on_selected(event)
        elif isinstance(event, Failed):
            self._screen.notice.show(failure_text(event))
        return None


def failure_text(failed: Failed) -> str:
    """What went wrong and what to do, as two sentences."""
    return f"{with_full_stop(failed.problem)} {as_sentence(failed.advice)}"
