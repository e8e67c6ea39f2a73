"""The first machine's connections to the processes of the ranks."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from app.hosts.shard import JOIN_SECONDS, LOST_SECONDS
from app.hosts.wire import Connection, Message, WireError
from app.protocol.reasons import Data


class RankMemory(NamedTuple):
    """Memory of a rank's process in bytes: available, MLX's upper limit, and in use by MLX."""

    available: float
    ceiling: float
    active: float

    def free(self, share: float) -> float:
        """Bytes that are left below this share of the ceiling."""
        return min(self.available, share * self.ceiling - self.active)


class RingState(NamedTuple):
    """Whether a neighbour has closed its end, and the bytes exchanged so far; None where they are
    not counted."""

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
        """What is wrong, a clause, or an empty text. `states` are those of all ranks."""
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
    """A connection to one rank's process. Its messages go into `replies`, with its number;
    `on_lost` gets a name and a reason once the rank is silent, gone, or failed after loading."""

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
        """Whether the process ended because a neighbour closed the ring, which is then the one to
        report."""
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
        """Time limit for silence. Until a rank has joined the others, MLX blocks its process."""
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
