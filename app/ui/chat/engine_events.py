"""Passes the engine's events to the turn, the bar or the notice they are about."""

from __future__ import annotations

from collections.abc import Iterable

from textual.message import Message

from app.chat import wording
from app.protocol.cost_model import Costs
from app.protocol.events import (
    BackgroundProgress,
    Closed,
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
from app.ui.chat.context import ChatContext
from app.ui.chat.cost_estimate import CostEstimate
from app.ui.chat.keep_preview import KeepPreview
from app.ui.chat.model_loading import PairLoader


class CostsMeasured(Message):
    """The engine has measured the pair's costs, as requested."""

    def __init__(self, costs: Costs) -> None:
        super().__init__()
        self.costs = costs


class EngineLost(Message):
    """The engine has lost the GPU: it answers nothing any more in this process."""

    def __init__(self, problem: str) -> None:
        super().__init__()
        self.problem = problem


class EngineEventHandler:
    def __init__(
        self,
        context: ChatContext,
        loader: PairLoader,
        cost_estimate: CostEstimate,
        keep_preview: KeepPreview,
    ) -> None:
        self._context, self._open_chats = context, context.open_chats
        self._loader, self._cost_estimate = loader, cost_estimate
        self._keep_preview = keep_preview

    def apply(self, event: Event) -> int | None:
        """Handle one event; returns the number of the turn to redraw."""
        match event:
            case Loaded():
                self._loader.on_load_result(event)
            case Failed(turn=None):
                if not self._loader.on_load_result(event):
                    self._context.notice.show(wording.failure(event.failure).text)
            case MemoryReport():
                self._context.header.show_memory(event.stats, event.level)
            case EngineWarning():
                self._context.notice.show(wording.notice(event))
            case PressureChanged():
                self._context.header.show_memory(event.stats, event.level)
                self._context.notice.show(wording.notice(event))
            case Unloaded() | MemoryFreed():
                self._context.notice.suggest(wording.notice(event))
            case LoadingAlone() | HostsLost() | PairLost():
                self._loader.on_machine_lost(event)
            case Reloaded():
                self._context.notice.suggest("")
            case Closed():
                self._context.engine_closed = True
            case GpuLost():
                self._context.engine_closed = True
                self._context.screen.post_message(EngineLost(wording.problem(event.failure)))
            case SnapshotFailed() | SnapshotProgress():
                self._open_chats.on_snapshot_event(event)
            case CostsUpdated():
                self._cost_estimate.costs = event.costs
                self._context.refresh_meter()
                if event.requested:
                    self._context.screen.post_message(CostsMeasured(event.costs))
            case BackgroundProgress():
                self._open_chats.on_background_prefill(event)
            case _:
                return self._apply_to_turn(event)
        return None

    def apply_after_exit(self, events: Iterable[Event]) -> None:
        """Once the screen is gone, only what has to be saved."""
        for event in events:
            if isinstance(event, Closed):
                self._context.engine_closed = True
            else:
                self._open_chats.apply(event)

    def _apply_to_turn(self, event: Event) -> int | None:
        if (turn := self._open_chats.apply(event)) is not None:
            self._keep_preview.on_progress(event, turn)
            return turn.number
        if isinstance(event, Selected):
            self._keep_preview.on_selected(event)
        elif isinstance(event, Failed):
            self._context.notice.show(wording.failure(event.failure).text)
        return None
