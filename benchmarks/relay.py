"""A slow link between processes on one machine: a relay of TCP connections with a delay and a rate.

What a machine sends leaves one piece after the other at the rate, all its connections together, and
arrives `delay` later. The relay is a process of its own, so that no other Python thread holds it
up: `python -m benchmarks.relay`, driven by `Relay`.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

PIECE = 1 << 16
"""Bytes that are read at once."""
MAX_BUFFERED = 1 << 24
"""Bytes of a direction on their way: what comes after them waits in its sender."""
RETRY_SECONDS = 0.05
"""Between two attempts to reach a receiver that does not listen yet."""
PATIENCE_SECONDS = 60.0
LOOPBACK = "127.0.0.1"


class Relay:
    """The relay's process: `delay` in seconds one way, `rate` in bytes a second."""

    def __init__(self, delay: float, rate: float) -> None:
        self.delay, self.rate = delay, rate
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "benchmarks.relay", str(delay), str(rate)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
            env={"PYTHONPATH": str(Path(__file__).parents[1])},
        )

    def open(self, sender: int, receiver: int, port: int) -> int:
        """A port at which machine `sender` reaches `port` of machine `receiver`, both ways."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{sender} {receiver} {port}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ------------------------------------------------------------------------- the process


@dataclass(slots=True)
class _Line:
    """What a machine sends over. `free_at` is when the last piece has left."""

    rate: float
    free_at: float = 0.0

    def send(self, size: int, now: float) -> float:
        """When the last of `size` more bytes has left."""
        self.free_at = max(self.free_at, now) + size / self.rate
        return self.free_at


@dataclass(slots=True)
class _Flow:
    """One direction of a connection. `pieces` arrive when their time has come; an empty one is the
    end."""

    source: socket.socket
    sink: socket.socket
    line: _Line
    pieces: deque[tuple[float, memoryview]] = field(default_factory=deque)
    waiting: int = 0
    ended: bool = False
    """Whether the source has said everything."""
    blocked: bool = False
    """Whether the sink takes no more for now."""

    def read(self, delay: float) -> None:
        try:
            data = self.source.recv(PIECE)
        except BlockingIOError:
            return
        self.ended = not data
        self.waiting += len(data)
        due = self.line.send(len(data), time.perf_counter()) + delay
        self.pieces.append((due, memoryview(data)))

    def write(self, now: float) -> bool:
        """What is due. Returns whether the direction has ended."""
        while self.pieces and self.pieces[0][0] <= now:
            due, data = self.pieces[0]
            if not data:
                self.sink.shutdown(socket.SHUT_WR)
                self.pieces.clear()
                return True
            try:
                sent = self.sink.send(data)
            except BlockingIOError:
                self.blocked = True
                return False
            self.waiting -= sent
            if sent < len(data):
                self.pieces[0] = (due, data[sent:])
            else:
                self.pieces.popleft()
        return False


@dataclass(frozen=True, slots=True)
class _Way:
    """A listening port: who sends to it, and where it leads."""

    sender: int
    receiver: int
    port: int


class _Loop:
    """Everything happens on one thread, each thing when it is due."""

    def __init__(self, delay: float, rate: float) -> None:
        self._delay = delay
        self._lines: defaultdict[int, _Line] = defaultdict(lambda: _Line(rate))
        self._ways: dict[socket.socket, _Way] = {}
        self._arriving: list[tuple[socket.socket, _Way, float]] = []
        """Connections whose receiver is not reached yet, and when to stop trying."""
        self._pairs: list[list[_Flow]] = []
        """Both directions of each connection, or what is left of them."""

    def run(self) -> None:
        """Until standard input ends."""
        while True:
            now = time.perf_counter()
            flows = [flow for pair in self._pairs for flow in pair]
            reads: list[socket.socket | int] = [0, *self._ways]
            reads += [f.source for f in flows if not f.ended and f.waiting < MAX_BUFFERED]
            writes = [f.sink for f in flows if f.blocked]
            readable, _, _ = select.select(reads, writes, [], self._until_next(flows, now))
            if 0 in readable and not self._command():
                return
            for listening in self._ways.keys() & set(readable):
                accepted, _ = listening.accept()
                way = self._ways[listening]
                self._arriving.append((accepted, way, now + PATIENCE_SECONDS))
            self._reach()
            self._pairs = [left for pair in self._pairs if (left := self._move(pair, readable))]

    def _until_next(self, flows: list[_Flow], now: float) -> float | None:
        due = [flow.pieces[0][0] for flow in flows if flow.pieces and not flow.blocked]
        if self._arriving:
            due.append(now + RETRY_SECONDS)
        return max(min(due) - now, 0.0) if due else None

    def _command(self) -> bool:
        line = sys.stdin.readline()
        if not line:
            return False
        listening = socket.create_server((LOOPBACK, 0))
        self._ways[listening] = _Way(*map(int, line.split()))
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        return True

    def _reach(self) -> None:
        """MLX's ring connects before the other end listens: keep trying for it."""
        for each in list(self._arriving):
            one, way, until = each
            try:
                other = socket.create_connection((LOOPBACK, way.port))
            except OSError:
                if time.perf_counter() > until:
                    one.close()
                    self._arriving.remove(each)
                continue
            self._arriving.remove(each)
            for end in (one, other):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            there = _Flow(one, other, self._lines[way.sender])
            self._pairs.append([there, _Flow(other, one, self._lines[way.receiver])])

    def _move(self, pair: list[_Flow], readable: list[socket.socket | int]) -> list[_Flow]:
        """Returns the directions that have not ended; after the last one, both ends are closed."""
        try:
            for flow in pair:
                if flow.source in readable:
                    flow.read(self._delay)
            left = list(self._going_on(pair))
        except OSError:  # an end is gone
            left = []
        if not left:
            for flow in pair:
                for end in (flow.source, flow.sink):
                    with suppress(OSError):
                        end.close()
        return left

    def _going_on(self, pair: list[_Flow]) -> Iterator[_Flow]:
        for flow in pair:
            flow.blocked = False
            if not flow.write(time.perf_counter()):
                yield flow


def _before_others() -> None:
    """A link takes no time of the machines that it connects: where the system allows it, this
    process runs whenever it has something to do. Ranks wait in busy loops, on all cores."""
    if hasattr(os, "sched_setscheduler"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


if __name__ == "__main__":
    _before_others()
    with suppress(KeyboardInterrupt):
        _Loop(float(sys.argv[1]), float(sys.argv[2])).run()
