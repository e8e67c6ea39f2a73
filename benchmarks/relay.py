"""Simulates a slow link between processes on one machine: relays TCP connections with a delay and a
limited rate.

All connections of a machine share its rate; data arrives `delay` after it was sent. The relay runs
in a process of its own (`python -m benchmarks.relay`, started by `Relay`), so that other Python
threads do not slow it down.
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
"""Maximum bytes per read."""
MAX_BUFFERED = 1 << 24
"""Maximum bytes in transit per direction; the sender then has to wait."""
RETRY_SECONDS = 0.05
"""Seconds between attempts to connect to a receiver that does not listen yet."""
PATIENCE_SECONDS = 60.0
LOOPBACK = "127.0.0.1"


class Relay:
    """The relay's process. `delay`: seconds one way. `rate`: bytes per second."""

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
        """Open a port through which machine `sender` connects to `port` of machine `receiver`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{sender} {receiver} {port}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    @property
    def pid(self) -> int:
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
    """A machine's outgoing line. `free_at`: when the last piece has left."""

    rate: float
    free_at: float = 0.0

    def send(self, size: int, now: float) -> float:
        """Send `size` bytes. Returns the time at which the last one has left."""
        self.free_at = max(self.free_at, now) + size / self.rate
        return self.free_at


@dataclass(slots=True)
class _Flow:
    """One direction of a connection. `pieces`: (time of arrival, data); empty data is the end."""

    source: socket.socket
    sink: socket.socket
    line: _Line
    pieces: deque[tuple[float, memoryview]] = field(default_factory=deque)
    waiting: int = 0
    ended: bool = False
    """Whether the source has closed its end."""
    blocked: bool = False
    """Whether the sink's buffer is full."""

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
        """Write all pieces that are due. Returns whether the direction has ended."""
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
    """The sender, receiver and destination port of a listening port."""

    sender: int
    receiver: int
    port: int


class _Loop:
    """The relay's event loop, on a single thread."""

    def __init__(self, delay: float, rate: float) -> None:
        self._delay = delay
        self._lines: defaultdict[int, _Line] = defaultdict(lambda: _Line(rate))
        self._ways: dict[socket.socket, _Way] = {}
        self._arriving: list[tuple[socket.socket, _Way, float]] = []
        """Accepted connections whose receiver does not listen yet, and the deadline."""
        self._pairs: list[list[_Flow]] = []
        """The open directions of each connection."""

    def run(self) -> None:
        """Run until standard input is closed."""
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
        """Connect to receivers. MLX's ring connects before the other end listens, so retry."""
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
        """Transfer data. Returns the directions that have not ended; closes the connection after
        the last one."""
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
    """Give this process real-time priority if allowed. A real link uses no CPU time of its
    machines, but ranks wait in busy loops on all cores."""
    if hasattr(os, "sched_setscheduler"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


if __name__ == "__main__":
    _before_others()
    with suppress(KeyboardInterrupt):
        _Loop(float(sys.argv[1]), float(sys.argv[2])).run()
