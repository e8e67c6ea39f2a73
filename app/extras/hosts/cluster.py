"""The first machine's side of a sharded target: loads a shard on every machine, and sends them the
engine's operations.

The first machine's own shard runs in a separate process, too: if another machine is lost, a
collective operation never returns, and only ending the process frees its weights.
"""

from __future__ import annotations

import itertools
import json
import math
import queue
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from app.engine.progress import LoadError, LoadStopped
from app.engine.recovery import TargetLost
from app.extras.hosts.control import Check, HostControl, start_check
from app.extras.hosts.machine import content_fingerprint
from app.extras.hosts.shard import (
    ALIVE_SECONDS,
    JOIN_SECONDS,
    LOST_SECONDS,
    ShardProcess,
    free_port,
)
from app.extras.hosts.sharded import Operation
from app.extras.hosts.wire import CHECK_SECONDS, Connection, Message, WireError
from app.protocol.commands import Load
from app.protocol.hosts import Hosts
from app.protocol.reasons import Data, Failure, FailureKind

THIS_MACHINE = "this machine"
CLOSED_SECONDS, STALLED_SECONDS = 2.0, 10.0
"""Time after which the ring counts as broken: closed, or without an exchange while the layers run.
A lost machine closes the ring, too, but is reported before that."""
_EXCHANGING = ("fill", "forward")
"""Operations during which the layers exchange results."""


class RankMemory(NamedTuple):
    """Memory of a rank's process in bytes: available, MLX's upper limit, and in use by MLX."""

    available: float
    ceiling: float
    active: float

    def free(self, share: float) -> float:
        """Free bytes below this share of the ceiling."""
        return min(self.available, share * self.ceiling - self.active)


class RingState(NamedTuple):
    """Whether a neighbour has closed its end, and the bytes exchanged so far; None if the system
    does not count them."""

    closed: bool = False
    bytes: int | None = None


class RingWatch:
    """Decides when the ring counts as broken: closed for `closed` seconds, or without an exchange
    for `stalled` seconds while the layers run."""

    def __init__(self, closed: float, stalled: float) -> None:
        self._closed, self._stalled = closed, stalled
        self._closed_since = self._still_since = math.inf
        self._bytes: int | None = None

    def problem(self, states: Sequence[RingState], exchanging: bool, now: float) -> str:
        """Say what is wrong, as a clause; an empty string if nothing is. `states`: one per rank."""
        closed = any(state.closed for state in states)
        self._closed_since = min(self._closed_since, now) if closed else math.inf
        counts = [state.bytes for state in states if state.bytes is not None]
        if not exchanging or len(counts) < len(states) or sum(counts) != self._bytes:
            self._bytes, self._still_since = sum(counts), now
        if now - self._closed_since >= self._closed:
            return "it was closed"
        if now - self._still_since >= self._stalled:
            return f"nothing came for {self._stalled:.0f} seconds"
        return ""


class Rank:
    """A connection to one rank's process. Puts its messages into `replies`, with the rank's number.
    Calls `on_lost` with a name and a reason if the rank is silent, ends, or fails after loading."""

    def __init__(
        self,
        number: int,
        name: str,
        connection: Connection,
        replies: queue.SimpleQueue[tuple[int, Message]],
        on_lost: Callable[[str, Data], None],
    ) -> None:
        self.number, self.name, self.memory = number, name, RankMemory(0.0, 0.0, 0.0)
        self.ring = RingState()
        self._ended_with_ring = False
        """Whether the process ended because a neighbour closed the ring; then the neighbour is
        reported."""
        self._connection, self._replies, self._on_lost = connection, replies, on_lost
        self.joining = self._joined = self._loaded = False
        self.sent_bytes = 0
        threading.Thread(target=self._receive, name=f"rank {number}", daemon=True).start()

    def send(self, message: Message) -> None:
        if self._ended_with_ring:
            return
        try:
            self.sent_bytes += self._connection.send(message)
        except WireError as error:
            self._on_lost(self.name, {"error": str(error)})

    def _receive(self) -> None:
        try:
            while not self._ended_with_ring:
                self._take(self._connection.receive(self._silent_seconds))
        except WireError as error:
            unreached = self.joining and not self._joined
            text = "it did not reach the others" if unreached else str(error)
            self._on_lost(self.name, {"error": text})

    @property
    def _silent_seconds(self) -> float:
        """Time limit for silence. It is longer until a rank has joined the others, because MLX
        blocks the process until then."""
        return LOST_SECONDS if self._joined else JOIN_SECONDS + LOST_SECONDS

    def _take(self, message: Message) -> None:
        if (memory := message.pop("memory", None)) is not None:
            self.memory = RankMemory(*memory)
        if (ring := message.pop("ring", None)) is not None:
            self.ring = RingState(*ring)
        if message.get("alive"):
            return
        self._joined |= "joined" in message
        self._loaded |= "described" in message
        self._replies.put((self.number, message))
        if self._loaded and (failed := message.get("failed")) is not None:
            self._ended_with_ring = self.ring.closed
            if not self._ended_with_ring:
                self._on_lost(self.name, failed)

    def close(self) -> None:
        self._connection.close()


class Cluster:
    """All ranks of one loaded target. Implements the engine's `Shards`."""

    def __init__(self, command: Load, stopped: Callable[[], bool]) -> None:
        """Raises LoadError."""
        assert command.hosts is not None
        self.lost: Failure | None = None
        self.on_lost: Callable[[], None] = lambda: None
        self.ranks: list[Rank] = []
        self._controls: list[HostControl] = []
        self._process: ShardProcess | None = None
        self._replies: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._said: dict[int, Message] = {}
        """What each rank has reported so far, by rank, until all have loaded."""
        self._numbers = itertools.count(1)
        self._forgotten: deque[int] = deque()
        self._losing, self._closed = threading.Lock(), threading.Event()
        self._exchanging = False
        self._ring = RingWatch(CLOSED_SECONDS, STALLED_SECONDS)
        threading.Thread(target=self._say_alive, name="alive", daemon=True).start()
        try:
            self._start(command, command.hosts, start_check(stopped))
            self.described = self._load(command, stopped)
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------ starting

    def _start(self, command: Load, hosts: Hosts, check: Check) -> None:
        """Start all processes, and wait until each can join the others."""
        name, folder = command.names[0], Path(command.target)
        for host in hosts.others:
            self._controls.append(HostControl(host, check))
        try:
            fingerprint = content_fingerprint(folder)
        except OSError as error:
            data = {"folder": str(folder), "error": error.strerror}
            raise LoadError(FailureKind.MODEL_UNREADABLE, data) from error
        asked = {"do": "model", "name": hosts.model or command.target, "fingerprint": fingerprint}
        for control in self._controls:
            control.ask(asked)
        prepared = [each.ask({"do": "prepare"}) for each in self._controls]
        own = self._controls[0].own_address
        ports = [free_port(own), *(each["port"] for each in prepared)]
        addresses = [own, *(each.address for each in self._controls)]
        ring = [f"{address}:{port}" for address, port in zip(addresses, ports, strict=True)]
        here, there = socket.socketpair()
        self._add(THIS_MACHINE, Connection(here))
        with there:
            self._process = ShardProcess(Connection(there), 0, self.ring_file(0, ring), folder)
        for number, control in enumerate(self._controls, 1):
            self._add(control.host.name, control.attach(prepared[number - 1]["ticket"]))
            start = {"do": "start", "name": name, "rank": number}
            control.ask(start | {"ring": self.ring_file(number, ring)})
        self._gather("ready", check)

    def ring_file(self, rank: int, ring: list[str]) -> str:
        """Content of MLX's file with the addresses of all ranks, for `rank`. A benchmark overrides
        this to put relays between them."""
        return json.dumps([[address] for address in ring])

    def _add(self, name: str, connection: Connection) -> None:
        self.ranks.append(Rank(len(self.ranks), name, connection, self._replies, self._lose))

    def _load(self, command: Load, stopped: Callable[[], bool]) -> Message:
        """Load all shards. Returns their description, with the maximum over ranks of each
        number."""

        def check() -> None:
            if stopped():
                raise LoadStopped

        for rank in self.ranks:
            rank.joining = True
        load: Message = {"name": command.names[0], "step": None, "kv_bits": command.kv_bits}
        self._to_all(load | {"owner": f"{uuid.getnode():012x}"})
        self._gather("joined", check)
        described: Message = largest(self._gather("described", check))
        return described

    def _gather(self, what: str, check: Check) -> list[Any]:
        """Wait for the value that each rank sends for `what`; return them by rank. Raises
        LoadError."""
        found: dict[int, Any] = {}
        while len(found) < len(self.ranks):
            check()
            with suppress(queue.Empty):
                number, message = self._replies.get(timeout=CHECK_SECONDS)
                if (failed := message.get("failed")) is not None:
                    raise self._failed(number, failed)
                self._said.setdefault(number, {}).update(message)
            found = {rank: said[what] for rank, said in self._said.items() if what in said}
            if self.lost is not None and self._replies.empty():
                raise LoadError(self.lost.kind, self.lost.data)
        return [found[rank.number] for rank in self.ranks]

    def _failed(self, number: int, failed: Message) -> LoadError:
        machine = None if number == 0 else self.ranks[number].name
        return LoadError(FailureKind.SHARD_FAILED, {"machine": machine, **failed})

    # ------------------------------------------------------------------ the engine's side

    def send(self, operation: Operation) -> None:
        self._do(operation, None)

    def run(self, operation: Operation) -> list[dict[str, Any]]:
        number = next(self._numbers)
        self._exchanging = operation.name in _EXCHANGING
        self._do(operation, number)
        replies: dict[int, Message] = {}
        try:
            while len(replies) < len(self.ranks):
                if self.lost is not None:
                    raise TargetLost(self.lost.kind, self.lost.data)
                with suppress(queue.Empty):
                    rank, message = self._replies.get(timeout=CHECK_SECONDS)
                    if message.get("number") == number:
                        replies[rank] = message
        finally:
            self._exchanging = False
        return [replies[rank.number] for rank in self.ranks]

    def _do(self, operation: Operation, number: int | None) -> None:
        while self._forgotten:
            self._to_all({"operation": "forget", "cache": self._forgotten.popleft()})
        message = {"operation": operation.name, "cache": operation.cache, **operation.arguments}
        self._to_all(message if number is None else message | {"number": number})

    def _to_all(self, message: Message) -> None:
        if self.lost is None:
            for rank in self.ranks:
                rank.send(message)

    def forget(self, cache: int) -> None:
        self._forgotten.append(cache)

    def free(self, share: float) -> float:
        return min(rank.memory.free(share) for rank in self.ranks)

    def close(self) -> None:
        self._closed.set()
        for rank in self.ranks:
            rank.close()
        for control in self._controls:
            control.close()
        if self._process is not None:
            self._process.kill()

    # ------------------------------------------------------------------ lost machines

    def _say_alive(self) -> None:
        while not self._closed.wait(ALIVE_SECONDS):
            self._to_all({"alive": True})
            self._watch_ring(time.monotonic())

    def _watch_ring(self, now: float) -> None:
        """Detect a broken ring, in which all processes are alive but wait for each other."""
        reason = self._ring.problem([rank.ring for rank in self.ranks], self._exchanging, now)
        if reason:
            self._end(FailureKind.RING_BROKEN, {"error": reason})

    def _lose(self, name: str, reason: Data) -> None:
        """Report a lost machine. Only the first call has an effect, because further losses follow
        from it. Thread-safe."""
        machine = None if name == THIS_MACHINE else name
        self._end(FailureKind.MACHINE_LOST, {"machine": machine, **reason})

    def _end(self, kind: FailureKind, data: Data) -> None:
        with self._losing:
            if self.lost is not None or self._closed.is_set():
                return
            self.lost = Failure(kind, data)
        self.on_lost()


def largest(values: Sequence[Any]) -> Any:
    """The maximum of numbers, key by key in dictionaries; the first of any other values."""
    first = values[0]
    if isinstance(first, dict):
        return {key: largest([each[key] for each in values]) for key in first}
    return max(values) if isinstance(first, int | float) else first
