"""The first machine's requests to a worker before a model is loaded, and the speed of its link."""

from __future__ import annotations

import platform
import queue
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import psutil

from app.chat import wording
from app.engine.progress import LoadError, LoadStopped
from app.extras.hosts.machine import FREE_SHARE, machine_name, versions
from app.extras.hosts.wire import CHECK_SECONDS, Connection, Message, Seal, WireError, connect
from app.protocol.hosts import Host, HostMachine, Hosts
from app.protocol.reasons import FailureKind

ASK_SECONDS = 30.0
"""Time limit for each answer of a worker."""
START_SECONDS = 60.0
"""Time limit until all machines are ready to load."""
SMALL, LARGE = 64, 4 << 20
"""Bytes of the messages that measure latency and rate."""
RUNS = 5

Check = Callable[[], None]
"""Called during a wait. Raises LoadError to end it."""


def start_check(stopped: Callable[[], bool]) -> Check:
    """A check that raises LoadStopped once `stopped`, and LoadError after START_SECONDS."""
    end = time.monotonic() + START_SECONDS

    def check() -> None:
        if stopped():
            raise LoadStopped
        if time.monotonic() > end:
            raise LoadError(FailureKind.MACHINES_NOT_READY, {"seconds": START_SECONDS})

    return check


class HostControl:
    """The first machine's connection to a worker. Methods raise LoadError, and what `check`
    raises."""

    def __init__(self, host: Host, check: Check = lambda: None) -> None:
        self.host, self._check = host, check
        self._connection = self._connect()
        try:
            self.about = self.ask({"do": "hello"})
            self._compare_versions(self.about["versions"])
        except BaseException:
            self.close()
            raise

    def _compare_versions(self, theirs: dict[str, str]) -> None:
        for package, version in versions().items():
            if theirs.get(package) != version:
                data = {"machine": self.host.name, "package": package, "own": version}
                data["other"] = theirs.get(package, "none")
                raise LoadError(FailureKind.VERSIONS_DIFFER, data)

    def _connect(self) -> Connection:
        """Connect, on another thread because an address look-up cannot be interrupted."""
        found: queue.SimpleQueue[Connection | Exception] = queue.SimpleQueue()
        unused = threading.Event()

        def run() -> None:
            try:
                found.put(connect(self.host.address, self.host.port, self.host.key))
            except Exception as error:  # raised below
                found.put(error)
            if unused.is_set():
                _close_all(found)

        threading.Thread(target=run, name="connect", daemon=True).start()
        while True:
            try:
                self._check()
            except BaseException:
                unused.set()
                _close_all(found)
                raise
            with suppress(queue.Empty):
                connected = found.get(timeout=CHECK_SECONDS)
                break
        if isinstance(connected, Connection):
            return connected
        if not isinstance(connected, WireError):
            raise connected
        data = {"machine": self.host.name, "error": str(connected)}
        raise LoadError(FailureKind.NO_WORKER, data) from connected

    def ask(self, message: Message) -> Message:
        try:
            self._connection.send(message)
            reply = self._connection.receive(ASK_SECONDS, self._check)
        except WireError as error:
            data = {"machine": self.host.name, "error": str(error)}
            raise LoadError(FailureKind.WORKER_GONE, data) from error
        if "problem" in reply:
            data = {"machine": self.host.name, "problem": str(reply["problem"])}
            data["advice"] = str(reply.get("advice", ""))
            raise LoadError(FailureKind.WORKER_REFUSES, data)
        return reply

    @property
    def own_address(self) -> str:
        """Address at which the worker reaches this machine."""
        address: str = self._connection.socket.getsockname()[0]
        return address

    @property
    def address(self) -> str:
        """The worker's numeric address, so that MLX's ring needs no name look-up."""
        address: str = self._connection.socket.getpeername()[0]
        return address

    def attach(self, ticket: str) -> Connection:
        """Open a second connection, which the worker passes to the process of its rank."""
        connection = self._connect()
        with suppress(WireError):
            connection.send({"ticket": ticket})
        return connection

    def close(self) -> None:
        self._connection.close()


def _close_all(found: queue.SimpleQueue[Connection | Exception]) -> None:
    with suppress(queue.Empty):
        while True:
            connection = found.get_nowait()
            if isinstance(connection, Connection):
                connection.close()


# --------------------------------------------------------------------------- measuring


def look_at_hosts(hosts: Hosts) -> list[HostMachine]:
    """Measure this machine and all `hosts`; this machine comes first. Takes seconds."""
    memory = psutil.virtual_memory()
    own = HostMachine(platform.node(), machine_name(), memory.total, memory.available * FREE_SHARE)
    return [own, *(_look_at(host) for host in hosts.others)]


def _look_at(host: Host) -> HostMachine:
    try:
        control = HostControl(host)
    except LoadError as error:
        return HostMachine(host.name, problem=wording.problem(error.failure))
    try:
        about = control.about
        latency, rate = _measure(control)
        return HostMachine(
            host.name, about["machine"], about["total"], about["free"], latency, rate
        )
    except LoadError as error:
        return HostMachine(host.name, problem=wording.problem(error.failure))
    finally:
        control.close()


def _measure(control: HostControl) -> tuple[float, float]:
    """Latency in seconds one way, and rate in bytes a second."""
    small, large = (_echo_seconds(control, size) for size in (SMALL, LARGE))
    # Unlike the layers' data, each message has a tag, which takes time to make and to check.
    started_at = time.perf_counter()
    Seal(b"").tag(bytes(LARGE))
    tags = 4 * (time.perf_counter() - started_at)
    return small / 2, 2 * LARGE / max(large - small - tags, (large - small) / 4, 1e-9)


def _echo_seconds(control: HostControl, size: int) -> float:
    data, seconds = np.zeros(size, np.uint8), []
    for _ in range(RUNS):
        started_at = time.perf_counter()
        control.ask({"do": "echo", "data": data})
        seconds.append(time.perf_counter() - started_at)
    return statistics.median(seconds)
