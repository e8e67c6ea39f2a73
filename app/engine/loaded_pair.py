"""The state of a loaded model pair (caches, memory, costs), its turns, and idle work."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx

from app.engine.backend import blas, memory
from app.engine.backend.memory import NotEnoughMemory
from app.engine.backend.memory_probes import PowerProbe
from app.engine.memory.cache_pool import CachePool, Scores
from app.engine.memory.conversation_cache import ConversationCache
from app.engine.memory.manager import MemoryManager, PressureResponse
from app.engine.memory.pressure import MemoryMonitor
from app.engine.model.loader import ModelPair
from app.engine.progress import TurnClock, TurnError
from app.engine.recovery import TargetLost
from app.engine.scorers.choice import ChooseScorer, choose_scorer
from app.engine.turn.calibration import calibrate
from app.engine.turn.context import TurnContext
from app.engine.turn.costs import PairCosts
from app.engine.turn.turn import run_turn
from app.protocol.commands import Ask, CachePolicy
from app.protocol.events import (
    CostsUpdated,
    EngineWarning,
    Event,
    Loaded,
    MemoryReport,
    Unloaded,
)
from app.protocol.reasons import Reason, ReasonCode

_log = logging.getLogger(__name__)


class LoadedPair:
    """Used on the engine thread. `stopped`: whether the running turn should stop. `has_pending`:
    whether a command is queued."""

    def __init__(
        self,
        pair: ModelPair,
        policy: CachePolicy,
        monitor: MemoryMonitor,
        emit: Callable[[Event], None],
        power: PowerProbe | None,
        stopped: Callable[[], bool],
        has_pending: Callable[[], bool],
        choose: ChooseScorer | None = None,
    ) -> None:
        self.pair, self._monitor, self._emit = pair, monitor, emit
        self._choose_scorer = choose or choose_scorer
        self._power, self._stopped, self._has_pending = power, stopped, has_pending
        self._scored: Scores = {}
        self.apply(policy)

    def apply(self, policy: CachePolicy) -> None:
        """Apply a policy. Caches start empty; scores stay."""
        folder = policy.costs_folder
        self.costs = PairCosts(self.pair, None if folder is None else Path(folder))
        self.caches = CachePool(
            self.pair,
            policy,
            self._emit,
            self._power,
            self._stopped,
            self._has_pending,
            self._scored,
        )
        self.memory_manager = MemoryManager(self.pair, self._emit, self.caches, self._monitor)
        self.pressure = PressureResponse(self.pair, self._monitor, self.memory_manager, self._emit)

    def report_loaded(self, seconds: float) -> None:
        """Emit `Loaded` and what is known about the pair."""
        target, draft = self.pair.target, self.pair.draft_info
        package = blas.missing_package(target.step.backend.on_cpu)
        hint = None if package is None else Reason(ReasonCode.SLOW_BLAS, {"package": package})
        empty = ConversationCache(self.pair).target
        rereads = not empty.can_insert_at(0)
        self._emit(Loaded(target.info, draft, self.pair.dense_only, seconds, hint, rereads))
        if ignored := target.info.sampling.ignored:
            reason = Reason(ReasonCode.SAMPLING_IGNORED, {"names": list(ignored)})
            self._emit(EngineWarning(reason))
        for info in (target.info, draft):
            if info is not None and info.short_factors_below:
                data = {"model": info.name, "tokens": info.short_factors_below}
                self._emit(EngineWarning(Reason(ReasonCode.LONG_FACTORS_ALWAYS, data)))
            if info is not None and info.ignored_window:
                data = {"model": info.name, "tokens": info.ignored_window}
                self._emit(EngineWarning(Reason(ReasonCode.WINDOW_IGNORED, data)))
        if draft is not None and not target.is_loaded:
            name = target.info.name
            reason = Reason(ReasonCode.LOADED_ALTERNATELY, {"other": draft.name})
            self._emit(Unloaded(name, target.info.weight_bytes, reason))
        self.report_costs()
        self.report_memory()

    def close(self) -> None:
        """Save unsaved caches, and end the processes of a sharded target."""
        try:
            self.caches.close()
        finally:
            self.pair.target.close()

    def abandon(self) -> None:
        """Like `close`, but saves nothing, because the GPU is lost."""
        self.caches.abandon()
        self.pair.target.close()

    # ------------------------------------------------------------------ a turn

    def run_turn(self, ask: Ask, clock: TurnClock, is_rest: bool = False) -> None:
        """Emit a turn's events up to `Finished`. Raises what `turn.run_turn` raises. `is_rest`: it
        began on another target, so that its timings are not those of the pair."""
        context = TurnContext(
            self.pair,
            clock,
            self.caches,
            self.memory_manager,
            self.costs.costs,
            self.costs.usual_confidence,
            self._choose_scorer,
        )
        try:
            measured = run_turn(ask, context)
        except (TurnError, NotEnoughMemory, TargetLost):  # the caches are consistent
            raise
        except BaseException as error:
            if memory.is_gpu_lost(error):
                self.caches.abandon()
            else:
                self.caches.drop(ask.conversation)
            raise
        finally:
            self.caches.enforce_budget()
            self.pressure.after_turn()
            self.report_memory()
        if not is_rest and (measured.timings or measured.confidence is not None):
            self.costs.add(measured.timings, measured.confidence)
            self.report_costs()

    def reselect(self, turn: int, keep_ratio: float) -> None:
        """Select from this turn's scores with another keep, if they are still stored."""
        if (selected := self.caches.select(turn, keep_ratio)) is not None:
            self._emit(selected)

    def drop(self, conversation: str) -> None:
        """Drop everything about a deleted conversation, including its snapshot."""
        self.caches.drop(conversation, on_disk=True)

    # ------------------------------------------------------------------ between turns

    def idle_step(self) -> bool:
        """Do one step of idle work. Returns False if there was none."""
        try:
            self.pressure.poll()
            return self.caches.step(background=self.pressure.is_normal)
        except BaseException as error:  # the engine thread must survive
            memory.reraise_gpu_lost(error)
            _log.warning("work between two answers failed", exc_info=error)
            reason = Reason(ReasonCode.IDLE_WORK_FAILED, memory.cause_of(error))
            self._emit(EngineWarning(reason))
            return False

    def calibrate_now(self) -> None:
        """Time the pair until done or a command is queued."""
        for timings in calibrate(self.pair, self._has_pending):
            self.costs.add(timings)
        self.report_memory()
        self.report_costs(requested=True)

    def report_costs(self, requested: bool = False) -> None:
        self._emit(CostsUpdated(self.costs.costs, requested))

    def check_memory(self) -> None:
        """Respond to a change of memory pressure between turns."""
        self.pressure.poll()
        self.pressure.after_turn()

    def drop_everything(self) -> None:
        """Drop all caches, after memory ran out."""
        gc.collect()
        self.memory_manager.drop_idle(everything=True)
        self.report_memory()

    def report_memory(self) -> None:
        mx.clear_cache()
        self._emit(MemoryReport(memory.memory_stats(), self._monitor.level))
