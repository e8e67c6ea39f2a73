"""The one engine thread: a queue of commands, the turn loop, cancel.

The thread owns MLX: it loads, scores, prefills, decodes and frees. MLX itself is imported there,
so that a screen can draw before it.
"""

from __future__ import annotations

import gc
import logging
import queue
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.engine import blas
from app.protocol.commands import (
    Ask,
    CachePolicy,
    CalibrateCosts,
    Cancel,
    Close,
    Command,
    DropConversation,
    Load,
    Reselect,
)
from app.protocol.events import (
    Closed,
    EngineWarning,
    Event,
    Failed,
    Finished,
    Listener,
    Loaded,
    MemoryReport,
    Unloaded,
)
from app.protocol.memory import PressureLevel
from app.protocol.options import Heal
from app.protocol.stats import FinishReason

if TYPE_CHECKING:
    from app.engine.backend import Backend
    from app.engine.cache_pool import CachePool
    from app.engine.conversation_cache import ScoredPrompt
    from app.engine.loader import Pair
    from app.engine.memory_manager import Room
    from app.engine.memory_monitor import Watch
    from app.engine.memory_probes import MemoryProbe
    from app.engine.pair_costs import PairCosts
    from app.engine.power import PowerProbe
    from app.engine.pressure_response import Relief

SETTLE = 0.5
"""Seconds without a command after which upkeep begins."""

QUIET = 5.0
"""More seconds without one, after which a pair is timed: in the first ones after the start people
paste and ask. Keys and pastes are no commands, and do not put it off."""

RECHECK = 30.0
"""Seconds after which what waits for power, or for memory, is tried again."""

_log = logging.getLogger(__name__)


class _MemoryChanged:
    """The watch's word to the engine's thread, between commands."""


class MlxEngine:
    """The engine on MLX; meets the `Engine` protocol. The thread starts with the first command.
    Without a `probe`, or `power`, the system's own is read, and without a `backend` models run as
    the device wants it."""

    def __init__(
        self,
        step: int | None = None,
        probe: MemoryProbe | None = None,
        power: PowerProbe | None = None,
        backend: Backend | None = None,
    ) -> None:
        self._step, self._probe, self._power = step, probe, power
        self._backend = backend
        self._commands: queue.SimpleQueue[Command | _MemoryChanged] = queue.SimpleQueue()
        self._lock = threading.RLock()  # a signal handler may cancel while its thread sends
        self._pending: dict[int, float] = {}
        """When the turns that are not over were asked for."""
        self._cancelled: set[int] = set()
        self._turn: int | None = None
        """The one that runs."""
        self._loads = self._begun = 0
        """How many pairs were asked for, and how many of these the thread has come to."""
        self._closing = threading.Event()
        self._listener: Listener = lambda event: None
        # A daemon, so that a program that must end now need not wait for a step to finish.
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._pair: Pair | None = None
        self._scored: ScoredPrompt | None = None
        self._upkeep = CachePolicy()
        self._residents: CachePool | None = None
        self._watch: Watch | None = None
        self._room: Room | None = None
        self._relief: Relief | None = None
        self._costs: PairCosts | None = None
        self._missing = ""

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    def send(self, command: Command) -> None:
        with self._lock:
            match command:
                case Cancel(turn):
                    # Not queued: it is seen at the next step border. One that comes too late must
                    # not stop a later turn of the same number.
                    self._cancelled |= {turn} & self._pending.keys()
                    return
                case Ask():
                    self._pending[command.turn] = time.perf_counter()
                case Load():
                    self._loads += 1
                case Close():
                    self._closing.set()
            self._commands.put(command)
            if self._thread.ident is None:
                self._thread.start()

    def join(self, timeout: float | None = None) -> None:
        if self._thread.ident is not None:
            self._thread.join(timeout)

    # ---------------------------------------------------------------------- on the thread

    def _work(self) -> None:
        carry_out = self._carry_out if self._start() else self._refuse
        while not isinstance(command := self._next(), Close):
            carry_out(command)
        if self._watch is not None:
            self._watch.close()
        self._free()
        if (mx := sys.modules.get("mlx.core")) is not None:
            mx.clear_streams()  # MLX asks this of every thread before it ends
        self._emit(Closed())

    def _next(self) -> Command | _MemoryChanged:
        """The next command; while none comes, the conversations' caches are looked after, and then
        the pair is timed."""
        with suppress(queue.Empty):
            return self._commands.get(timeout=SETTLE)
        while self._commands.empty() and self._look_after():
            pass
        wait = QUIET if self._untimed else self._recheck
        while True:
            with suppress(queue.Empty):
                return self._commands.get(timeout=wait)
            while self._commands.empty() and self._look_after(calibrate=True):
                pass
            wait = self._recheck

    @property
    def _recheck(self) -> float | None:
        """After how many seconds to look again; None where nothing waits to be done."""
        due = self._untimed and self._upkeep.heal is not Heal.NEVER
        waits = due or (self._residents is not None and self._residents.has_waiting_work)
        return RECHECK if waits else None

    @property
    def _untimed(self) -> bool:
        """Whether the pair is still to be timed."""
        return self._costs is not None and self._costs.untimed

    def _look_after(self, calibrate: bool = False) -> bool:
        """One step of upkeep; False when there is nothing to do."""
        if self._residents is None or self._relief is None:
            return False
        try:
            self._relief.pressed()
            calm = self._relief.calm
            if calibrate and calm and self._calibrate():
                return True
            return self._residents.step(background=calm)
        except Exception as error:  # nobody asked for it
            self._warn("Work between two answers failed", error, "Nothing is lost.")
            return False

    def _calibrate(self) -> bool:
        """Time one reading of a pair that was never timed here; False when that is not to be."""
        costs, residents = self._costs, self._residents
        if (
            costs is None
            or not costs.untimed
            or residents is None
            or not residents.idle_work_allowed
        ):
            return False
        try:
            costs.time_once()
        except Exception as error:  # nobody asked for it: the pair's turns will tell
            self._warn("This model pair could not be timed", error, "Its next answers are timed.")
            return True
        if not costs.untimed:
            self._report_memory()
        return True

    def _warn(self, what: str, error: Exception, follows: str) -> None:
        from app.engine.memory import describe

        _log.warning(what, exc_info=error)
        self._emit(EngineWarning(f"{what} ({describe(error)}). {follows}"))

    def _start(self) -> bool:
        """Import MLX; False when it is not to be had."""
        blas.load_openblas()
        try:
            from app.engine import mlx_patches
        except (ImportError, OSError) as error:
            self._missing = " ".join(str(error).split())[:200]
            return False
        from app.engine import memory
        from app.engine.memory_monitor import Watch
        from app.engine.memory_probes import system_probe

        mlx_patches.install()
        memory.set_limits()
        changed = partial(self._commands.put, _MemoryChanged())
        self._watch = Watch(self._probe or system_probe(), changed)
        self._watch.start()
        return True

    def _refuse(self, command: Command | _MemoryChanged) -> None:
        turn = command.turn if isinstance(command, Ask) else None
        problem = f"MLX cannot be loaded ({self._missing})"
        self._emit(Failed(turn, problem, "run `specchat doctor` to see what is missing"))

    def _emit(self, event: Event) -> None:
        if isinstance(event, Finished | Failed) and event.turn is not None:
            # Before the listener hears of it: it may ask again under the same number.
            with self._lock:
                self._pending.pop(event.turn, None)
                self._cancelled.discard(event.turn)
        self._listener(event)

    def _carry_out(self, command: Command | _MemoryChanged) -> None:
        from app.engine.failures import RAN_OUT, failed

        turn = self._turn = command.turn if isinstance(command, Ask) else None
        try:
            if isinstance(command, Load):
                self._load(command)
            elif isinstance(command, Ask):
                self._ask(command)
            elif isinstance(command, Reselect):
                self._reselect(command)
            elif isinstance(command, CachePolicy):
                self._upkeep = command
                self._settle_in()
                if self._costs is not None:
                    self._costs.report()
            elif isinstance(command, CalibrateCosts):
                self._measure()
            elif isinstance(command, DropConversation) and self._residents is not None:
                self._residents.drop(command.conversation, on_disk=True)
            elif isinstance(command, _MemoryChanged) and self._relief is not None:
                self._relief.pressed()
                self._relief.settle()
        except Exception as error:  # the thread must outlive every failed command
            failure = failed(turn, error)
        else:
            return
        finally:
            self._turn = None
        # Only now: what was worked on lives as long as the error that says where it was raised.
        if failure.problem == RAN_OUT and self._room is not None:
            with suppress(Exception):  # that memory ran out is said in any case
                gc.collect()
                self._room.drop_idle(everything=True)
                self._report_memory()
        self._emit(failure)

    def _load(self, command: Load) -> None:
        from app.engine.conversation_cache import ConversationCache
        from app.engine.loader import LoadStopped, load_pair

        def stopped() -> bool:
            """Whether another pair was asked for since."""
            return self._begun < self._loads or self._closing.is_set()

        begun = time.perf_counter()
        self._begun += 1
        if stopped():
            raise LoadStopped
        self._free()
        pair = self._pair = load_pair(command, self._step, stopped, self._backend)
        self._settle_in()
        draft = pair.draft.info if pair.draft else None
        seconds = time.perf_counter() - begun
        rereads = not ConversationCache(pair).target.can_insert_at(0)
        info, why = pair.target.info, pair.dense_only
        self._emit(
            Loaded(
                info,
                draft,
                why,
                seconds,
                blas.speedup_hint(pair.target.step.backend.on_cpu),
                rereads,
            )
        )
        if draft is not None and not pair.target.here:
            turns = f"{info.name} and {draft.name} do not fit together, so they take turns."
            self._emit(Unloaded(info.name, info.weight_bytes, turns))
        if self._costs is not None:
            self._costs.report()
        self._report_memory()

    def _ask(self, command: Ask) -> None:
        from app.engine.memory import NotEnoughMemory
        from app.engine.progress import Cancelled, Progress
        from app.engine.turn import USED_UP, Turn, TurnError

        with self._lock:
            sent = self._pending.get(command.turn)
        pressed = self._relief.pressed if self._relief is not None else lambda: False
        progress = Progress(command.turn, self._emit, self._stopped, sent, pressed)
        try:
            progress.check_cancel()
            if self._pair is None:
                raise TurnError("No model is loaded", "load a model first")
            assert self._residents is not None
            assert self._relief is not None
            remembered = self._residents.get_or_restore(command.conversation, progress)
        except Cancelled as stop:
            if stop.ended is FinishReason.MEMORY:
                raise TurnError(*USED_UP) from None
            self._emit(Finished(command.turn, FinishReason.CANCELLED, "", (), None))
            return
        assert self._costs is not None
        turn = Turn(self._pair, command, remembered, progress, self._room, self._costs.costs)
        try:
            turn.run()
        except (TurnError, NotEnoughMemory):  # between two steps: what was read is known
            raise
        except BaseException:
            self._residents.drop(command.conversation)
            raise
        finally:
            self._scored = remembered.scored
            self._residents.enforce_budget()
            self._relief.settle()
            self._report_memory()
        self._costs.learn(turn.clocked)

    def _stopped(self) -> bool:
        """Whether the turn that runs is to stop; False while none does."""
        return self._turn is not None and (self._turn in self._cancelled or self._closing.is_set())

    def _measure(self) -> None:
        from app.engine.turn import TurnError

        if self._costs is None:
            raise TurnError("No model is loaded", "load a model first")
        self._costs.measure()
        self._report_memory()
        self._costs.report(asked=True)

    def _hurried(self) -> bool:
        """Whether something else is to be done."""
        return not self._commands.empty()

    def _reselect(self, command: Reselect) -> None:
        if self._scored is not None and self._scored.turn == command.turn:
            self._emit(self._scored.select(command.keep_ratio)[1])

    def _settle_in(self) -> None:
        from app.engine.cache_pool import CachePool
        from app.engine.memory_manager import Room
        from app.engine.pair_costs import PairCosts
        from app.engine.pressure_response import Relief

        if self._residents is not None:
            self._residents.close()
        if self._pair is not None and self._watch is not None:
            folder = self._upkeep.costs_folder
            self._costs = PairCosts(
                self._pair, Path(folder) if folder is not None else None, self._emit, self._hurried
            )
            residents = self._residents = CachePool(
                self._pair, self._upkeep, self._emit, self._power, self._stopped
            )
            self._room = Room(self._pair, self._emit, residents, self._watch)
            self._relief = Relief(self._pair, self._watch, self._room, self._emit)

    def _report_memory(self) -> None:
        import mlx.core as mx

        from app.engine import memory

        mx.clear_cache()
        rung = self._watch.rung if self._watch is not None else PressureLevel.NORMAL
        self._emit(MemoryReport(memory.figures(), rung))

    def _free(self) -> None:
        if self._residents is not None:
            self._residents.close()
        self._pair = self._scored = self._residents = self._room = self._relief = None
        self._costs = None
        gc.collect()
