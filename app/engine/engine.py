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

from app.engine.backend import blas
from app.engine.cache.snapshot_folder import remove_other_snapshots, remove_snapshot
from app.engine.turn.scored_turns import ScoredTurns
from app.protocol.commands import (
    Ask,
    CachePolicy,
    CalibrateCosts,
    Cancel,
    Close,
    Command,
    DropConversation,
    Load,
    PruneSnapshots,
    Reselect,
)
from app.protocol.events import (
    Closed,
    Event,
    Failed,
    Finished,
    GpuLost,
    HostsLost,
    Listener,
    LoadingAlone,
    PairLost,
)
from app.protocol.stats import FinishReason, Phase

if TYPE_CHECKING:
    from app.engine.backend.device import Backend
    from app.engine.backend.memory_probes import MemoryProbe
    from app.engine.backend.power import PowerProbe
    from app.engine.loaded_pair import LoadedPair
    from app.engine.memory.monitor import MemoryMonitor
    from app.engine.model.loader import ModelPair
    from app.engine.pair_loader import Connect
    from app.engine.sharded.model import ShardsLost

IDLE_DELAY = 0.5
"""Seconds without a command after which idle work starts."""

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
        self._loaded: LoadedPair | None = None
        self._loaded_by: Load | None = None
        self._lost: ShardsLost | None = None
        """If the target is still to be loaded on this machine alone."""
        self._scored = ScoredTurns()
        self._cache_policy = CachePolicy()
        self._monitor: MemoryMonitor | None = None
        self._refusal: Failed | None = None
        """Why no command that needs MLX or the GPU succeeds any more, if it is so."""

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
        self._start()
        while not isinstance(command := self._next(), Close):
            if self._refusal is None:
                self._dispatch(command)
            else:
                self._refuse(command, self._refusal)
        if self._monitor is not None:
            self._monitor.close()
        with suppress(Exception):  # a lost GPU's errors, which a new process does not have
            self._unload_pair()
        with suppress(Exception):
            if (mx := sys.modules.get("mlx.core")) is not None:
                mx.clear_streams()  # MLX asks this of every thread before it ends
        self._emit(Closed())

    def _next(self) -> _Queued:
        """The next command. Until one comes, does idle work: background prefill, saving caches."""
        wait: float | None = IDLE_DELAY
        while True:
            with suppress(queue.Empty):
                return self._commands.get(timeout=wait)
            while self._commands.empty() and self._idle_step():
                pass
            wait = self._recheck_delay

    @property
    def _recheck_delay(self) -> float | None:
        """Seconds until idle work that waits for power or memory is tried again; None if there is
        none."""
        waits = self._loaded is not None and self._loaded.caches.has_waiting_work
        return RECHECK_INTERVAL if waits else None

    def _idle_step(self) -> bool:
        """One step of idle work; False if there is none."""
        try:
            return self._loaded is not None and self._loaded.idle_step()
        except Exception as error:  # only when the GPU is lost
            from app.engine.turn.failures import to_failed

            _log.error("the GPU is lost", exc_info=error)
            failure = to_failed(None, error)
        self._lose_gpu(failure)
        return False

    def _start(self) -> None:
        """Import MLX, or refuse all that needs it."""
        blas.load_openblas()
        try:
            from app.engine.backend import mlx_patches
        except (ImportError, OSError) as error:
            problem = f"MLX cannot be loaded ({' '.join(str(error).split())[:200]})"
            self._refusal = Failed(None, problem, "run `specchat doctor` to see what is missing")
            return
        from app.engine.backend import memory
        from app.engine.backend.memory_probes import system_probe
        from app.engine.memory.monitor import MemoryMonitor

        mlx_patches.install()
        memory.set_limits()
        changed = partial(self._commands.put, _CheckMemory())
        self._monitor = MemoryMonitor(self._probe or system_probe(), changed)
        self._monitor.start()

    def _refuse(self, command: _Queued, refusal: Failed) -> None:
        if isinstance(command, DropConversation | PruneSnapshots):
            self._delete(command)
        elif isinstance(command, Load | Ask | CalibrateCosts):
            self._emit(replace(refusal, turn=command.turn if isinstance(command, Ask) else None))

    def _emit(self, event: Event) -> None:
        if isinstance(event, Finished | Failed) and event.turn is not None:
            # Before calling the listener, which may send another turn with the same number.
            with self._lock:
                self._pending.pop(event.turn, None)
                self._cancelled.discard(event.turn)
        try:
            self._listener(event)
        except BaseException as error:  # the thread must outlive it
            _log.warning("A listener failed at %s", type(event).__name__, exc_info=error)

    def _dispatch(self, command: _Queued) -> None:
        from app.engine.turn.failures import OUT_OF_MEMORY, to_failed

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
                if self._loaded is not None:
                    self._loaded.caches.close()
                    self._loaded.apply(command)
                    self._loaded.costs.report()
            elif isinstance(command, CalibrateCosts):
                self._require_pair().calibrate_now()
            elif isinstance(command, DropConversation | PruneSnapshots):
                self._delete(command)
            elif isinstance(command, _CheckHosts):
                self._check_hosts()
            elif isinstance(command, _CheckMemory) and self._loaded is not None:
                self._loaded.check_memory()
        except BaseException as error:  # the thread must outlive it; no signal is raised here
            failure = to_failed(turn, error)
            if failure.gpu_lost:
                _log.error("the GPU is lost", exc_info=error)
        else:
            return
        finally:
            self._turn = None
        # Only after the except block: the error's traceback keeps the turn's arrays alive.
        if failure.problem == OUT_OF_MEMORY and self._loaded is not None:
            with suppress(Exception):  # out of memory is reported in any case
                self._loaded.drop_everything()
        if failure.gpu_lost:
            self._lose_gpu(failure, command)
        else:
            self._emit(failure)

    def _lose_gpu(self, failure: Failed, command: _Queued | None = None) -> None:
        """Drop the pair without saving its caches, which needs the GPU, and refuse this command
        and all that follow."""
        self._refusal = failure
        if self._loaded is not None:
            self._loaded.abandon()
        self._forget_pair()
        if command is not None:
            self._refuse(command, failure)
        self._emit(GpuLost(failure.problem, failure.advice))

    def _load(self, command: Load) -> None:
        from app.engine.model.loader import LoadStopped
        from app.engine.pair_loader import load_pair

        def stopped() -> bool:
            """Whether another pair was requested since."""
            return self._loads_started < self._loads_requested or self._closing.is_set()

        started_at = time.perf_counter()
        self._loads_started += 1
        if stopped():
            raise LoadStopped
        self._lost = None
        self._unload_pair()
        pair = load_pair(
            command, self._step, stopped, self._backend, self._connect, self._remembered
        )
        loaded, self._loaded_by = self._keep_loaded(pair), command
        if (shards := pair.target.shards) is not None:
            shards.on_lost = partial(self._commands.put, _CheckHosts())
            if shards.lost is not None:  # before that
                shards.on_lost()
        loaded.report_loaded(time.perf_counter() - started_at)

    @property
    def _remembered(self) -> Path | None:
        """Where it is remembered what loading found out."""
        folder = self._cache_policy.costs_folder
        return None if folder is None else Path(folder)

    def _keep_loaded(self, pair: ModelPair) -> LoadedPair:
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
        )
        return self._loaded

    def _require_pair(self) -> LoadedPair:
        """Raises TurnError if there is none."""
        from app.engine.turn.turn import TurnError

        if self._loaded is None:
            raise TurnError("No model is loaded", "load a model first")
        return self._loaded

    def _ask(self, command: Ask) -> None:
        from app.engine.model.loader import LoadStopped
        from app.engine.progress import TurnClock
        from app.engine.sharded.model import ShardsLost

        sent = self._pending.get(command.turn)
        clock = TurnClock(
            command.turn,
            self._emit,
            self._stopped,
            sent,
            lambda: self._require_pair().pressure.poll(),
        )
        if (lost := self._lost) is None:
            try:
                self._require_pair().run_turn(command, clock, self._scored)
                return
            except ShardsLost as error:
                lost = error
        lost.__traceback__ = None  # it keeps the turn's caches alive
        rest, cancelled = command, Finished(command.turn, FinishReason.CANCELLED, "", (), None)
        if clock.interrupted is not None:
            rest, cancelled = clock.interrupted.rest, clock.interrupted.cancelled
        try:
            with clock.timed(Phase.LOAD):
                loaded = self._load_on_this_machine(lost, command.turn)
        except LoadStopped:
            self._emit(cancelled)
            self._commands.put(_CheckHosts())
            return
        loaded.run_turn(rest, clock, self._scored)

    def _check_hosts(self) -> None:
        """Another machine is gone while nothing is asked."""
        from app.engine.model.loader import LoadStopped
        from app.engine.turn.turn import TurnError

        shards = None if self._loaded is None else self._loaded.pair.target.shards
        lost = self._lost or (None if shards is None else shards.lost)
        if lost is not None:
            with suppress(TurnError, LoadStopped):  # PairLost says it, or another pair follows
                self._load_on_this_machine(lost, None)

    def _load_on_this_machine(self, lost: ShardsLost, turn: int | None) -> LoadedPair:
        """Load the target here that was spread over machines. Raises TurnError if it does not load;
        there is no pair any more then. Raises LoadStopped if the turn is cancelled or, without one,
        another pair requested."""
        from app.engine.backend import memory
        from app.engine.model.loader import LoadStopped
        from app.engine.pair_loader import load_pair
        from app.engine.turn.failures import why_not_alone
        from app.engine.turn.turn import TurnError

        def stopped() -> bool:
            another = turn is None and self._loads_started < self._loads_requested
            return another or self._stopped() or self._closing.is_set()

        assert self._loaded_by is not None
        command = self._loaded_by = replace(self._loaded_by, hosts=None)
        name, self._lost = command.names[0], lost
        if stopped():
            raise LoadStopped
        self._emit(LoadingAlone(str(lost)))
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
            self._lost, advice = None, why_not_alone(name, error)
            self._emit(PairLost(str(lost), advice))
            raise TurnError(str(lost), advice) from None
        self._lost = None
        self._emit(HostsLost(turn, f"{lost}, so {name} continues on this machine alone."))
        loaded.costs.report()
        return loaded

    def _stopped(self) -> bool:
        """Whether the running turn should stop; False when there is none."""
        return self._turn is not None and (self._turn in self._cancelled or self._closing.is_set())

    def _has_pending(self) -> bool:
        """Whether a command is waiting."""
        return not self._commands.empty()

    def _delete(self, command: DropConversation | PruneSnapshots) -> None:
        """From the disk, too, whether a pair is loaded or not."""
        if isinstance(command, PruneSnapshots):
            remove_other_snapshots(Path(command.snapshot_folder), command.conversations)
            return
        self._scored.drop(command.conversation)
        if self._loaded is not None:
            self._loaded.caches.drop(command.conversation, on_disk=True)
        for folder in {command.snapshot_folder, self._cache_policy.snapshot_folder}:
            if folder is not None:
                remove_snapshot(Path(folder), command.conversation)

    def _reselect(self, command: Reselect) -> None:
        if (scored := self._scored.find(command.turn)) is not None:
            self._emit(scored.select(command.keep_ratio)[1])

    def _unload_pair(self) -> None:
        if self._loaded is not None:
            from app.engine.backend import memory

            try:
                self._loaded.close()
            except Exception as error:  # what it holds is freed in any case
                memory.reraise_gpu_lost(error)
                _log.warning("closing a pair failed", exc_info=error)
        self._forget_pair()

    def _forget_pair(self) -> None:
        self._loaded = None
        self._scored.clear()
        gc.collect()
