"""The engine thread: it takes turns and commands from a queue and runs them one by one.

Everything in MLX happens on this thread: loading, scoring, prefill, decoding, freeing. MLX is also
imported there, so that the screen can draw first. The thread holds the loaded pair, which is the
target and, if there is one, the draft.

Turns with a low priority (requests to the server) run after all others. While the queue is empty,
the thread does idle work: it reads skipped text and saves caches.
"""

from __future__ import annotations

import gc
import itertools
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from app.engine.backend import blas
from app.engine.cache.snapshot_folder import remove_other_snapshots, remove_snapshot
from app.engine.progress import LoadStopped, TurnClock, TurnError
from app.engine.recovery import Recovery, TargetLost, UnfinishedAnswer
from app.protocol.commands import (
    Ask,
    CachePolicy,
    CalibrateCosts,
    Close,
    Command,
    DropConversation,
    Load,
    PruneSnapshots,
)
from app.protocol.engine import MakeAsk, TurnHandle
from app.protocol.events import (
    Closed,
    CommandFailed,
    Event,
    Failed,
    Finished,
    GpuLost,
    Listener,
    Loaded,
    TurnEvent,
)
from app.protocol.reasons import Failure, FailureKind
from app.protocol.stats import FinishReason, Phase
from app.util.formatting import one_line

if TYPE_CHECKING:
    from app.engine.backend.device import Backend
    from app.engine.backend.memory_probes import MemoryProbe, PowerProbe
    from app.engine.loaded_pair import LoadedPair
    from app.engine.memory.pressure import MemoryMonitor
    from app.engine.model.loader import ModelPair
    from app.engine.pair_loader import LoadSpread
    from app.engine.scorers.choice import ChooseScorer

IDLE_DELAY = 0.5
"""Seconds without a command after which idle work starts."""

RECHECK_INTERVAL = 30.0
"""Seconds after which idle work that waits for AC power or free memory is tried again."""

_log = logging.getLogger(__name__)


class _CheckMemory:
    """Queued by the memory monitor when the pressure level changes."""


class _Recover:
    """Queued when the target may be lost."""


@dataclass(frozen=True, slots=True)
class _Reselect:
    """Computes the selection of a finished turn for another keep."""

    turn: TurnHandle
    keep_ratio: float


_Queued = Command | TurnHandle | _Reselect | _CheckMemory | _Recover

FOREGROUND, BACKGROUND = 0, 1
"""Priorities in the queue: the lower number runs first."""


class MlxEngine:
    """Implements the `Engine` protocol with MLX. The first command starts the thread.

    `step` is the prefill step in tokens (default: it is chosen for each model). `probe` measures
    memory, `power` tells whether the machine is on battery, and `backend` describes the device; the
    defaults are those of this machine. `load_spread` loads a target over several machines.
    `choose_scorer` replaces the choice of a scorer in benchmarks."""

    def __init__(
        self,
        step: int | None = None,
        probe: MemoryProbe | None = None,
        power: PowerProbe | None = None,
        backend: Backend | None = None,
        load_spread: LoadSpread | None = None,
        choose_scorer: ChooseScorer | None = None,
    ) -> None:
        self._step, self._probe, self._power = step, probe, power
        self._backend, self._load_spread = backend, load_spread
        self._choose_scorer = choose_scorer
        self._waiting: queue.PriorityQueue[tuple[int, int, _Queued]] = queue.PriorityQueue()
        self._order, self._numbers = itertools.count(), itertools.count(1)
        self._lock = threading.Lock()
        self._turn: TurnHandle | None = None
        """The running turn, or the finished turn whose selection is computed for another keep."""
        self._loads_requested = self._loads_started = 0
        """How many `Load` commands were sent, and how many started. If more were sent than started,
        the running load stops."""
        self._closing = threading.Event()
        self._listeners: tuple[Listener, ...] = ()
        # A daemon thread: the process can exit without waiting for the running step.
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self.pair: tuple[Load, Loaded] | None = None
        self._loaded: LoadedPair | None = None
        self._loaded_by: Load | None = None
        self._recovery: Recovery | None = None
        """Set when the target is lost, until another one is loaded or cannot be."""
        self._cache_policy = CachePolicy()
        self._monitor: MemoryMonitor | None = None
        self._refusal: Failure | None = None
        """Set when MLX or the GPU cannot be used. Commands that need them then fail with it."""

    def listen(self, listener: Listener) -> Callable[[], None]:
        def remove() -> None:
            self._listeners = tuple(each for each in self._listeners if each is not listener)

        self._listeners += (listener,)
        return remove

    def ask(self, ask: Ask | MakeAsk, listener: Listener, background: bool = False) -> TurnHandle:
        make_ask = (lambda: ask) if isinstance(ask, Ask) else ask
        turn = TurnHandle(next(self._numbers), make_ask, listener)
        self._put(turn, BACKGROUND if background else FOREGROUND)
        return turn

    def reselect(self, turn: TurnHandle, keep_ratio: float) -> None:
        self._put(_Reselect(turn, keep_ratio))

    def send(self, command: Command) -> None:
        if isinstance(command, Load):
            with self._lock:
                self._loads_requested += 1
        elif isinstance(command, Close):
            self._closing.set()
        self._put(command)

    def _put(self, queued: _Queued, priority: int = FOREGROUND) -> None:
        with self._lock:
            self._waiting.put((priority, next(self._order), queued))
            if self._thread.ident is None:
                self._thread.start()

    def join(self, timeout: float | None = None) -> None:
        if self._thread.ident is not None:
            self._thread.join(timeout)

    # ---------------------------------------------------------------------- on the thread

    def _work(self) -> None:
        self._start()
        while not isinstance(command := self._next(), Close):
            if self._refusal is None:
                self._dispatch(command)
            else:
                self._refuse(command, self._refusal)
        if self._monitor is not None:
            self._monitor.close()
        with suppress(Exception):  # raised if the GPU is lost
            self._unload_pair()
        with suppress(Exception):
            if (mx := sys.modules.get("mlx.core")) is not None:
                mx.clear_streams()  # MLX requires this before a thread ends
        self._emit(Closed())

    def _next(self) -> _Queued:
        """Return the next command. Until one arrives, do idle work."""
        wait: float | None = IDLE_DELAY
        while True:
            with suppress(queue.Empty):
                return self._waiting.get(timeout=wait)[-1]
            while self._waiting.empty() and self._idle_step():
                pass
            wait = self._recheck_delay

    @property
    def _recheck_delay(self) -> float | None:
        """Seconds until idle work that waits for AC power or memory is tried again. None: no work
        waits."""
        waits = self._loaded is not None and self._loaded.caches.has_waiting_work
        return RECHECK_INTERVAL if waits else None

    def _idle_step(self) -> bool:
        """Do one step of idle work. Returns False if there was none."""
        try:
            return self._loaded is not None and self._loaded.idle_step()
        except Exception as error:  # idle work raises only if the GPU is lost
            from app.engine.backend.memory import to_failed

            _log.error("the GPU is lost", exc_info=error)
            failure = to_failed(None, error).failure
        self._lose_gpu(failure)
        return False

    def _start(self) -> None:
        """Import MLX and start the memory monitor; set `_refusal` if MLX cannot be imported."""
        blas.load_openblas()
        try:
            from app.engine.backend import mlx_patches
        except (ImportError, OSError) as error:
            self._refusal = Failure(FailureKind.MLX_MISSING, {"error": one_line(error)})
            return
        from app.engine.backend import memory
        from app.engine.backend.memory_probes import system_probe
        from app.engine.memory.pressure import MemoryMonitor

        mlx_patches.install()
        memory.set_limits()
        changed = partial(self._put, _CheckMemory())
        self._monitor = MemoryMonitor(self._probe or system_probe(), changed)
        self._monitor.start()

    def _refuse(self, command: _Queued, refusal: Failure) -> None:
        """Report `refusal` for a command that needs MLX. Deletions run without it."""
        if isinstance(command, DropConversation | PruneSnapshots):
            self._delete(command)
        elif isinstance(command, Load | CalibrateCosts):
            self._emit(CommandFailed(refusal))
        elif isinstance(command, TurnHandle):
            self._turn = command
            self._emit(Failed(command.number, refusal))
            self._turn = None

    def _emit(self, event: Event) -> None:
        """Send an event of the running turn to its listener, any other to every listener."""
        if isinstance(event, Loaded) and self._loaded_by is not None:
            self.pair = self._loaded_by, event
        listeners = self._listeners
        if isinstance(event, TurnEvent) and self._turn is not None:
            listeners = (self._turn.listener,)
        for listener in listeners:
            try:
                listener(event)
            except BaseException as error:  # the thread must survive
                _log.warning("A listener failed at %s", type(event).__name__, exc_info=error)

    def _dispatch(self, command: _Queued) -> None:
        """Run a command. Exceptions become events."""
        from app.engine.backend.memory import to_failed

        turn = self._turn = command if isinstance(command, TurnHandle) else None
        try:
            if isinstance(command, Load):
                self._load(command)
            elif isinstance(command, TurnHandle):
                self._run(command)
            elif isinstance(command, _Reselect):
                self._reselect(command)
            elif isinstance(command, CachePolicy):
                self._cache_policy = command
                if self._loaded is not None:
                    self._loaded.caches.close()
                    self._loaded.apply(command)
                    self._loaded.report_costs()
            elif isinstance(command, CalibrateCosts):
                self._require_pair().calibrate_now()
            elif isinstance(command, DropConversation | PruneSnapshots):
                self._delete(command)
            elif isinstance(command, _Recover):
                self._recover_between_turns()
            elif isinstance(command, _CheckMemory) and self._loaded is not None:
                self._loaded.check_memory()
        except BaseException as error:  # the thread must survive; signals go to the main thread
            failed = to_failed(None if turn is None else turn.number, error)
            gpu_lost = failed.failure.kind is FailureKind.GPU_LOST
            if gpu_lost:
                _log.error("the GPU is lost", exc_info=error)
        else:
            self._turn = None
            return
        # Free memory outside the except block: the traceback keeps the turn's arrays alive.
        if failed.failure.kind is FailureKind.OUT_OF_MEMORY and self._loaded is not None:
            with suppress(Exception):  # the original failure is the one to report
                self._loaded.drop_everything()
        if gpu_lost:
            self._lose_gpu(failed.failure, command)
        else:
            self._emit(failed)
        self._turn = None

    def _lose_gpu(self, failure: Failure, command: _Queued | None = None) -> None:
        """Drop the pair, and refuse this command and all later ones. Caches are not saved, because
        that needs the GPU."""
        self._refusal = failure
        if self._loaded is not None:
            self._loaded.abandon()
        self._forget_pair()
        if command is not None:
            self._refuse(command, failure)
        self._emit(GpuLost(failure))

    def _load(self, command: Load) -> None:
        from app.engine.pair_loader import load_pair

        def stopped() -> bool:
            """Whether a newer `Load` is queued or the engine is closing."""
            return self._loads_started < self._loads_requested or self._closing.is_set()

        started_at = time.perf_counter()
        self._loads_started += 1
        if stopped():
            raise LoadStopped
        self._recovery = None
        self._unload_pair()
        pair = load_pair(
            command, self._step, stopped, self._backend, self._load_spread, self._remembered
        )
        loaded, self._loaded_by = self._keep_loaded(pair), command
        pair.target.watch(partial(self._put, _Recover()))
        loaded.report_loaded(time.perf_counter() - started_at)

    @property
    def _remembered(self) -> Path | None:
        """Folder with test results of models, so that each model is tested only once, or None."""
        folder = self._cache_policy.costs_folder
        return None if folder is None else Path(folder)

    def _keep_loaded(self, pair: ModelPair) -> LoadedPair:
        """Wrap `pair` and make it the loaded one."""
        from app.engine.loaded_pair import LoadedPair

        assert self._monitor is not None
        self._loaded = LoadedPair(
            pair,
            self._cache_policy,
            self._monitor,
            self._emit,
            self._power,
            self._stopped,
            self._has_pending,
            self._choose_scorer,
        )
        return self._loaded

    def _require_pair(self) -> LoadedPair:
        """The loaded pair. Raises TurnError if there is none."""
        if self._loaded is None:
            raise TurnError(FailureKind.NO_MODEL)
        return self._loaded

    def _run(self, turn: TurnHandle) -> None:
        """Run a turn. If the target is lost, recover it and continue the turn."""
        cancelled = Finished(turn.number, FinishReason.CANCELLED, "", (), None)
        if self._stopped():
            self._emit(cancelled)
            return
        ask = turn.make_ask()
        clock = TurnClock(
            turn.number,
            self._emit,
            self._stopped,
            turn.asked_at,
            lambda: self._require_pair().pressure.poll(),
            self._others_wait,
        )
        answer = None
        if self._recovery is None:
            try:
                self._require_pair().run_turn(ask, clock)
                return
            except TargetLost as error:
                self._recovery = self._require_pair().pair.target.recovery
                answer = error.answer
        assert self._recovery is not None
        if answer is not None:
            ask, cancelled = self._recovery.rest(answer), answer.written
            clock.emit = partial(self._emit_rest, self._recovery, answer)
        try:
            with clock.timed(Phase.LOAD):
                loaded = self._recover(self._recovery, is_between_turns=False)
        except LoadStopped:
            self._emit(cancelled)
            self._put(_Recover())
            return
        loaded.run_turn(ask, clock, is_rest=True)

    def _emit_rest(self, recovery: Recovery, answer: UnfinishedAnswer, event: Event) -> None:
        """Emit an event of the turn that continues `answer`."""
        self._emit(recovery.whole(answer, event) if isinstance(event, Finished) else event)

    def _recover_between_turns(self) -> None:
        if self._recovery is None and self._loaded is not None:
            self._recovery = self._loaded.pair.target.recovery
        if self._recovery is not None:
            with suppress(TurnError, LoadStopped):  # said in an event, or another Load is queued
                self._recover(self._recovery, is_between_turns=True)

    def _recover(self, recovery: Recovery, is_between_turns: bool) -> LoadedPair:
        """Replace the lost target. Raises TurnError if that fails; then no pair is loaded. Raises
        LoadStopped if the turn is cancelled or, between turns, if another pair is requested."""
        from app.engine.backend import memory
        from app.engine.pair_loader import load_pair

        def stopped() -> bool:
            another = is_between_turns and self._loads_started < self._loads_requested
            return another or self._stopped() or self._closing.is_set()

        if stopped():
            raise LoadStopped
        assert self._loaded_by is not None
        command = self._loaded_by = recovery.load(self._loaded_by)
        self._emit(recovery.started)
        loaded_before = self.pair
        self._unload_pair()
        try:
            pair = load_pair(
                command, self._step, stopped, self._backend, remembered=self._remembered
            )
            loaded = self._keep_loaded(pair)
        except LoadStopped:
            raise
        except Exception as error:  # MLX raises any type
            memory.reraise_gpu_lost(error)
            failed = recovery.failed(memory.cause_of(error))
            self._recovery = None
            self._emit(failed)
            raise TurnError(failed.failure.kind, failed.failure.data) from None
        self._recovery = None
        if loaded_before is not None:
            self.pair = command, loaded_before[1]
        self._emit(recovery.done)
        loaded.report_costs()
        return loaded

    def _stopped(self) -> bool:
        """Whether the running turn should stop; False between turns."""
        turn = self._turn
        return turn is not None and (turn.is_cancelled or self._closing.is_set())

    def _others_wait(self) -> bool:
        """Whether turns are queued that were not cancelled."""
        queued = (item for _, _, item in tuple(self._waiting.queue))
        return any(isinstance(each, TurnHandle) and not each.is_cancelled for each in queued)

    def _has_pending(self) -> bool:
        return not self._waiting.empty()

    def _delete(self, command: DropConversation | PruneSnapshots) -> None:
        """Drop caches and snapshots. Snapshots are deleted even if no pair is loaded."""
        if isinstance(command, PruneSnapshots):
            remove_other_snapshots(Path(command.snapshot_folder), command.conversations)
            return
        if self._loaded is not None:
            self._loaded.drop(command.conversation)
        for folder in {command.snapshot_folder, self._cache_policy.snapshot_folder}:
            if folder is not None:
                remove_snapshot(Path(folder), command.conversation)

    def _reselect(self, command: _Reselect) -> None:
        self._turn = command.turn
        if self._loaded is not None:
            self._loaded.reselect(command.turn.number, command.keep_ratio)

    def _unload_pair(self) -> None:
        if self._loaded is not None:
            from app.engine.backend import memory

            try:
                self._loaded.close()
            except Exception as error:  # `_forget_pair` frees the pair anyway
                memory.reraise_gpu_lost(error)
                _log.warning("closing a pair failed", exc_info=error)
        self._forget_pair()

    def _forget_pair(self) -> None:
        self._loaded = self.pair = None
        gc.collect()
