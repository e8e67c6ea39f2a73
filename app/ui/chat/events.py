"""What each event of the engine changes in the chat."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from app.chat import wording
from app.protocol.cost_model import Costs
from app.protocol.events import (
    BackgroundProgress,
    Closed,
    CommandFailed,
    CostsUpdated,
    EngineWarning,
    Event,
    Failed,
    GpuLost,
    HostsLost,
    Loaded,
    LoadingAlone,
    MemoryFreed,
    MemoryReport,
    PairLost,
    PressureChanged,
    Reloaded,
    Selected,
    SnapshotFailed,
    SnapshotProgress,
    Unloaded,
)
from app.ui.chat.cost_estimate import CostEstimate
from app.ui.chat.model_loading import PairLoader
from app.ui.chat.view import ChatView
from app.ui.chat.widgets import ChatWidgets
from app.ui.state.asking import Readiness


@dataclass
class CostsMeasured(Message):
    """The engine has measured the pair's costs, as requested."""

    costs: Costs


@dataclass
class EngineLost(Message):
    """The engine has lost the GPU and cannot answer in this process any more."""

    problem: str


class EventRouter:
    def __init__(
        self,
        widgets: ChatWidgets,
        view: ChatView,
        readiness: Readiness,
        loader: PairLoader,
        cost_estimate: CostEstimate,
    ) -> None:
        self._header, self._notice = widgets.header, widgets.notice
        self._view, self._readiness, self._loader = view, readiness, loader
        self._open_chats, self._cost_estimate = readiness.open_chats, cost_estimate

    def apply(self, event: Event) -> int | None:
        """Returns the number of the turn to redraw."""
        match event:
            case Loaded():
                self._loader.on_load_result(event)
            case CommandFailed():
                if not self._loader.on_load_result(event):
                    self._view.say(wording.failure(event.failure).text)
            case MemoryReport():
                self._header.memory, self._header.pressure = event.stats, event.level
            case EngineWarning():
                self._view.say(wording.notice(event))
            case PressureChanged():
                self._header.memory, self._header.pressure = event.stats, event.level
                self._view.say(wording.notice(event))
            case Unloaded() | MemoryFreed():
                self._notice.suggest(wording.notice(event))
            case LoadingAlone() | HostsLost() | PairLost():
                self._loader.on_machine_lost(event)
            case Reloaded():
                self._notice.suggest("")
            case Closed():
                self._readiness.engine_closed = True
            case GpuLost():
                self._readiness.engine_closed = True
                self._view.app.post_message(EngineLost(wording.problem(event.failure)))
            case SnapshotFailed() | SnapshotProgress():
                self._open_chats.on_snapshot_event(event)
            case CostsUpdated():
                self._cost_estimate.costs = event.costs
                self._view.show_meter()
                if event.requested:
                    self._view.app.post_message(CostsMeasured(event.costs))
            case BackgroundProgress():
                self._open_chats.on_background_prefill(event)
            case _:
                return self._apply_to_turn(event)
        return None

    def _apply_to_turn(self, event: Event) -> int | None:
        if (turn := self._open_chats.apply(event)) is not None:
            self._view.keep_preview.on_progress(event, turn)
            return turn.number
        if isinstance(event, Selected):
            self._view.keep_preview.on_selected(event)
        elif isinstance(event, Failed):
            self._view.say(wording.failure(event.failure).text)
        return None
