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
from dataclasses import replace
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
    HostsLost,
    Listener,
    Loaded,
    MemoryReport,
    Unloaded,
)
from app.protocol.memory import PressureLevel
from app.protocol.options import BackgroundPolicy
from app.protocol.stats import FinishReason

if TYPE_CHECKING:
    from app.engine.backend import Backend
    from app.engine.cache_pool import CachePool, PowerProbe
    from app.engine.conversation_cache import ScoredPrompt
    from app.engine.loader import Connect, ModelPair
    from app.engine.memory_manager import MemoryManager
    from app.engine.memory_monitor import MemoryMonitor
    from app.engine.memory_probes import MemoryProbe
    from app.engine.pair_costs import PairCosts
    from app.engine.pressure_response import PressureResponse
    from app.engine.progress import TurnClock
    from app.engine.sharded_model import ShardsLost

IDLE_DELAY = 0.5
"""Seconds without a command after which idle work starts."""

CALIBRATION_DELAY = 5.0
"""Further seconds after which a pair is calibrated: right after the start people paste and ask.
Keys and pastes are not commands, and do not delay it."""

RECHECK_INTERVAL = 30.0
"""Seconds after which work that waits for power or memory is tried again."""

_log = logging.getLogger(__name__)


class _CheckMemory:
    """Sent by the memory monitor to the engine thread."""


class _CheckHosts:
    """Sent to the engine thread when another machine is gone."""


_Queued = Command | _CheckMemory | _CheckHosts


class MlxEngine:
    """The engine on MLX; meets the `Engine` protocol. The thread starts with the first command.
    Without a `probe`, or `power`, the system's own is read, and without a `backend` models run as
    the device wants it. `connect` is for targets that are spread over machines."""

    def __init__(
        self,
        step: int | None = None,
        probe: MemoryProbe | None = None,
        power: PowerProbe | None = None,
        backend: Backend | None = None,
        connect: Connect | None = None,
    ) -> None:
        self._step, self._probe, self._power = step, probe, power
        self._backend, self._connect = backend, connect
        self._commands: queue.SimpleQueue[_Queued] = queue.SimpleQueue()
        self._lock = threading.RLock()  # a signal handler may cancel while its thread sends
        self._pending: dict[int, float] = {}
        """When each unfinished turn was sent."""
        self._cancelled: set[int] = set()
        self._turn: int | None = None
        """The running turn."""
        self._loads_requested = self._loads_started = 0
        """How many pairs were requested, and how many of them the thread has started to load."""
        self._closing = threading.Event()
        self._listener: Listener = lambda event: None
        # A daemon, so that a program that must end now need not wait for a step to finish.
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._pair: ModelPair | None = None
        self._loaded_by: Load | None = None
        self._scored: ScoredPrompt | None = None
        self._cache_policy = CachePolicy()
        self._caches: CachePool | None = None
        self._monitor: MemoryMonitor | None = None
        self._memory_manager: MemoryManager | None = None
        self._pressure: PressureResponse | None = None
        self._costs: PairCosts | None = None
        self._import_error = ""

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
                    self._loads_requested += 1
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
        dispatch = self._dispatch if self._start() else self._fail_without_mlx
        while not isinstance(command := self._next(), Close):
            dispatch(command)
        if self._monitor is not None:
            self._monitor.close()
        self._unload_pair()
        if (mx := sys.modules.get("mlx.core")) is not None:
            mx.clear_streams()  # MLX asks this of every thread before it ends
        self._emit(Closed())

    def _next(self) -> _Queued:
        """The next command. Until one comes, does idle work: background prefill, saving caches, and
        timing the pair."""
        with suppress(queue.Empty):
            return self._commands.get(timeout=IDLE_DELAY)
        while self._commands.empty() and self._idle_step():
            pass
        wait = CALIBRATION_DELAY if self._needs_calibration else self._recheck_delay
        while True:
            with suppress(queue.Empty):
                return self._commands.get(timeout=wait)
            while self._commands.empty() and self._idle_step(calibrate=True):
                pass
            wait = self._recheck_delay

    @property
    def _recheck_delay(self) -> float | None:
        """Seconds until idle work that waits for power or memory is tried again; None if there is
        none."""
        due = self._needs_calibration and self._cache_policy.background is not BackgroundPolicy.OFF
        waits = due or (self._caches is not None and self._caches.has_waiting_work)
        return RECHECK_INTERVAL if waits else None

    @property
    def _needs_calibration(self) -> bool:
        """Whether the pair is still to be timed."""
        return self._costs is not None and self._costs.needs_calibration

    def _idle_step(self, calibrate: bool = False) -> bool:
        """One step of idle work; False if there is none."""
        if self._caches is None or self._pressure is None:
            return False
        try:
            self._pressure.poll()
            calm = self._pressure.is_normal
            if calibrate and calm and self._calibrate_when_idle():
                return True
            return self._caches.step(background=calm)
        except Exception as error:  # not requested
            self._warn("Work between two answers failed", error, "Nothing is lost.")
            return False

    def _calibrate_when_idle(self) -> bool:
        """Time one run of a pair that was never timed here; False when it should not be timed."""
        costs, residents = self._costs, self._caches
        if (
            costs is None
            or not costs.needs_calibration
            or residents is None
            or not residents.idle_work_allowed
        ):
            return False
        try:
            costs.calibrate_once()
        except Exception as error:  # not requested: the pair's turns are timed, too
            self._warn("This model pair could not be timed", error, "Its next answers are timed.")
            return True
        if not costs.needs_calibration:
            self._report_memory()
        return True

    def _warn(self, problem: str, error: Exception, consequence: str) -> None:
        from app.engine.memory import describe_error

        _log.warning(problem, exc_info=error)
        self._emit(EngineWarning(f"{problem} ({describe_error(error)}). {consequence}"))

    def _start(self) -> bool:
        """Import MLX; False if that fails."""
        blas.load_openblas()
        try:
            from app.engine import mlx_patches
        except (ImportError, OSError) as error:
            self._import_error = " ".join(str(error).split())[:200]
            return False
        from app.engine import memory
        from app.engine.memory_monitor import MemoryMonitor
        from app.engine.memory_probes import system_probe

        mlx_patches.install()
        memory.set_limits()
        changed = partial(self._commands.put, _CheckMemory())
        self._monitor = MemoryMonitor(self._probe or system_probe(), changed)
        self._monitor.start()
        return True

    def _fail_without_mlx(self, command: _Queued) -> None:
        turn = command.turn if isinstance(command, Ask) else None
        problem = f"MLX cannot be loaded ({self._import_error})"
        self._emit(Failed(turn, problem, "run `specchat doctor` to see what is missing"))

    def _emit(self, event: Event) -> None:
        if isinstance(event, Finished | Failed) and event.turn is not None:
            # Before calling the listener, which may send another turn with the same number.
            with self._lock:
                self._pending.pop(event.turn, None)
                self._cancelled.discard(event.turn)
        try:
            self._listener(event)
        except Exception as error:  # the thread must outlive it, or nothing is answered any more
            _log.warning("A listener failed at %s", type(event).__name__, exc_info=error)

    def _dispatch(self, command: _Queued) -> None:
        from app.engine.failures import OUT_OF_MEMORY, to_failed

        turn = self._turn = command.turn if isinstance(command, Ask) else None
        try:
            if isinstance(command, Load):
                self._load(command)
            elif isinstance(command, Ask):
                self._ask(command)
            elif isinstance(command, Reselect):
                self._reselect(command)
            elif isinstance(command, CachePolicy):
                self._cache_policy = command
                self._reset_pair_state()
                if self._costs is not None:
                    self._costs.report()
            elif isinstance(command, CalibrateCosts):
                self._calibrate_now()
            elif isinstance(command, DropConversation) and self._caches is not None:
                self._caches.drop(command.conversation, on_disk=True)
            elif isinstance(command, _CheckHosts):
                self._check_hosts()
            elif isinstance(command, _CheckMemory) and self._pressure is not None:
                self._pressure.poll()
                self._pressure.after_turn()
        except Exception as error:  # the thread must outlive every failed command
            failure = to_failed(turn, error)
        else:
            return
        finally:
            self._turn = None
        # Only after the except block: the error's traceback keeps the turn's arrays alive.
        if failure.problem == OUT_OF_MEMORY and self._memory_manager is not None:
            with suppress(Exception):  # out of memory is reported in any case
                gc.collect()
                self._memory_manager.drop_idle(everything=True)
                self._report_memory()
        self._emit(failure)

    def _load(self, command: Load) -> None:
        from app.engine.conversation_cache import ConversationCache
        from app.engine.loader import LoadStopped, load_pair

        def stopped() -> bool:
            """Whether another pair was requested since."""
            return self._loads_started < self._loads_requested or self._closing.is_set()

        started_at = time.perf_counter()
        self._loads_started += 1
        if stopped():
            raise LoadStopped
        self._unload_pair()
        pair = self._pair = load_pair(command, self._step, stopped, self._backend, self._connect)
        self._loaded_by = command
        if pair.target.shards is not None:
            pair.target.shards.on_lost = partial(self._commands.put, _CheckHosts())
        self._reset_pair_state()
        draft = pair.draft.info if pair.draft else None
        seconds = time.perf_counter() - started_at
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
        if draft is not None and not pair.target.is_loaded:
            turns = f"{info.name} and {draft.name} do not fit together, so they take turns."
            self._emit(Unloaded(info.name, info.weight_bytes, turns))
        if self._costs is not None:
            self._costs.report()
        self._report_memory()

    def _ask(self, command: Ask) -> None:
        from app.engine.progress import TurnClock
        from app.engine.sharded_model import ShardsLost

        sent = self._pending.get(command.turn)
        pressed = self._pressure.poll if self._pressure is not None else lambda: False
        progress = TurnClock(command.turn, self._emit, self._stopped, sent, pressed)
        try:
            self._run_turn(command, progress)
        except ShardsLost as error:
            lost = error
        else:
            return
        rest = lost.rest or command
        lost.__traceback__ = None  # it keeps the turn's caches alive
        self._load_on_this_machine(lost, command.turn)
        self._run_turn(rest, progress)

    def _run_turn(self, command: Ask, progress: TurnClock) -> None:
        from app.engine.memory import NotEnoughMemory
        from app.engine.progress import Cancelled
        from app.engine.sharded_model import ShardsLost
        from app.engine.turn import MEMORY_EXHAUSTED, Turn, TurnError

        try:
            progress.check_cancel()
            if self._pair is None:
                raise TurnError("No model is loaded", "load a model first")
            assert self._caches is not None
            assert self._pressure is not None
            name, on_disk = command.conversation, command.on_disk
            remembered = self._caches.get_or_restore(name, progress, on_disk)
        except Cancelled as stop:
            if stop.ended is FinishReason.MEMORY:
                raise TurnError(*MEMORY_EXHAUSTED) from None
            self._emit(Finished(command.turn, FinishReason.CANCELLED, "", (), None))
            return
        pair_costs = self._costs
        assert pair_costs is not None
        known = pair_costs.costs, pair_costs.usual_confidence, self._caches
        turn = Turn(self._pair, command, remembered, progress, self._memory_manager, *known)
        try:
            turn.run()
        except (TurnError, NotEnoughMemory):  # between two steps: what was read is known
            raise
        except ShardsLost as lost:
            lost.rest = turn.continued()
            raise
        except BaseException:
            self._caches.drop(command.conversation)
            raise
        finally:
            self._scored = remembered.scored
            self._caches.enforce_budget()
            self._pressure.after_turn()
            self._report_memory()
        pair_costs.learn(turn.timings, turn.confidence)

    def _check_hosts(self) -> None:
        """Another machine is gone while nothing is asked."""
        shards = None if self._pair is None else self._pair.target.shards
        if shards is not None and shards.lost is not None:
            self._load_on_this_machine(shards.lost, None)

    def _load_on_this_machine(self, lost: ShardsLost, turn: int | None) -> None:
        """Load the target here that was spread over machines. Raises TurnError if it does not
        fit."""
        from app.engine.loader import LoadError, load_pair
        from app.engine.memory import NotEnoughMemory
        from app.engine.turn import TurnError

        assert self._loaded_by is not None
        command = self._loaded_by = replace(self._loaded_by, hosts=None)
        name = command.names[0]
        self._unload_pair()
        try:
            self._pair = load_pair(command, self._step, self._stopped, self._backend)
        except (LoadError, NotEnoughMemory) as error:
            advice = f"{name} does not load on this machine alone ({error}): choose a smaller model"
            raise TurnError(str(lost), f"{advice}, or load it again once all are there") from None
        self._reset_pair_state()
        self._emit(HostsLost(turn, f"{lost}, so {name} goes on on this machine alone."))
        if self._costs is not None:
            self._costs.report()

    def _stopped(self) -> bool:
        """Whether the running turn should stop; False when there is none."""
        return self._turn is not None and (self._turn in self._cancelled or self._closing.is_set())

    def _calibrate_now(self) -> None:
        from app.engine.turn import TurnError

        if self._costs is None:
            raise TurnError("No model is loaded", "load a model first")
        self._costs.calibrate_now()
        self._report_memory()
        self._costs.report(requested=True)

    def _has_pending(self) -> bool:
        """Whether a command is waiting."""
        return not self._commands.empty()

    def _reselect(self, command: Reselect) -> None:
        if self._scored is not None and self._scored.turn == command.turn:
            self._emit(self._scored.select(command.keep_ratio)[1])

    def _reset_pair_state(self) -> None:
        from app.engine.cache_pool import CachePool
        from app.engine.memory_manager import MemoryManager
        from app.engine.pair_costs import PairCosts
        from app.engine.pressure_response import PressureResponse

        if self._caches is not None:
            self._caches.close()
        if self._pair is not None and self._monitor is not None:
            folder = self._cache_policy.costs_folder
            self._costs = PairCosts(
                self._pair,
                Path(folder) if folder is not None else None,
                self._emit,
                self._has_pending,
            )
            residents = self._caches = CachePool(
                self._pair, self._cache_policy, self._emit, self._power, self._stopped
            )
            self._memory_manager = MemoryManager(self._pair, self._emit, residents, self._monitor)
            self._pressure = PressureResponse(
                self._pair, self._monitor, self._memory_manager, self._emit
            )

    def _report_memory(self) -> None:
        import mlx.core as mx

        from app.engine import memory

        mx.clear_cache()
        rung = self._monitor.level if self._monitor is not None else PressureLevel.NORMAL
        self._emit(MemoryReport(memory.memory_stats(), rung))

    def _unload_pair(self) -> None:
        if self._caches is not None:
            self._caches.close()
        if self._pair is not None and self._pair.target.shards is not None:
            self._pair.target.shards.close()
        self._pair = self._scored = self._caches = self._memory_manager = self._pressure = None
        self._costs = None
        gc.collect()
