"""The first machine's side: all machines load their shards of a target, and do what the engine
sends.

Its own shard is in a process of its own, too: where another machine is gone, the layers' exchange
never ends, and only ending the process does.
"""

from __future__ import annotations

import itertools
import json
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

from app.engine.loader import LoadError, LoadStopped
from app.engine.sharded_model import Operation, ShardsLost
from app.hosts.shard import ALIVE_SECONDS, LOST_SECONDS
from app.hosts.versions import content_fingerprint, versions
from app.hosts.wire import Connection, Message, WireError, connect
from app.hosts.worker import ShardProcess, free_port
from app.protocol.commands import Load
from app.protocol.hosts import Host, Hosts, Link

CHECK_SECONDS = 0.1
"""Between two looks whether loading was stopped, or a machine lost."""
START_SECONDS = 30.0
"""In which a machine has to do what is asked of it before it loads."""
THIS_MACHINE = "this machine"
FilesOf = Callable[[int, dict[str, str]], dict[str, str]]
"""Gives a rank other files than all have: `bench hosts` has the ring's data go through a relay."""


class HostControl:
    """What the first machine and a worker say to each other before a model is loaded. Raises
    LoadError."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._connection = self._connect()
        self.about = self.ask({"do": "hello"})
        own, theirs = versions(), self.about["versions"]
        for package, version in own.items():
            if theirs.get(package) != version:
                other = theirs.get(package, "none")
                self.close()
                raise LoadError(
                    f"{host.name} has {package} {other}, and this machine {version}",
                    "install the same versions on both",
                )

    def _connect(self) -> Connection:
        try:
            return connect(self.host.address, self.host.port, self.host.key)
        except WireError as error:
            raise LoadError(
                f"{self.host.name} does not answer as a specchat worker ({error})",
                "run `specchat worker` there, and use the line that it prints",
            ) from error

    def ask(self, message: Message) -> Message:
        try:
            self._connection.send(message)
            reply = self._connection.receive(START_SECONDS)
        except WireError as error:
            raise LoadError(
                f"{self.host.name} does not answer any more ({error})", "start its worker again"
            ) from error
        if problem := reply.get("problem"):
            advice = reply.get("advice") or "look at its worker's terminal"
            raise LoadError(f"{self.host.name} cannot help: {problem}", advice)
        return reply

    @property
    def own_address(self) -> str:
        """Where the worker reaches this machine."""
        address: str = self._connection.socket.getsockname()[0]
        return address

    def attach(self, ticket: str) -> Connection:
        """The connection to the process of its rank."""
        connection = self._connect()
        with suppress(WireError):
            connection.send({"ticket": ticket})
        return connection

    def close(self) -> None:
        self._connection.close()


class RankMemory(NamedTuple):
    """Bytes that are available to a rank's process, that MLX should take there, and that it has
    taken."""

    available: float
    ceiling: float
    active: float

    def free(self, share: float) -> float:
        """Below this share of the ceiling."""
        return min(self.available, share * self.ceiling - self.active)


class Rank:
    """One rank's process, as the first machine sees it. What it sends goes into `replies`, with its
    number; `on_lost` gets a reason once it is silent or gone."""

    def __init__(
        self,
        number: int,
        name: str,
        connection: Connection,
        replies: queue.SimpleQueue[tuple[int, Message]],
        on_lost: Callable[[str, str], None],
    ) -> None:
        self.number, self.name, self.memory = number, name, RankMemory(0.0, 0.0, 0.0)
        self._connection, self._replies, self._on_lost = connection, replies, on_lost
        self.sent_bytes = 0
        threading.Thread(target=self._receive, name=f"rank {number}", daemon=True).start()

    def send(self, message: Message) -> None:
        try:
            self.sent_bytes += self._connection.send(message)
        except WireError as error:
            self._on_lost(self.name, str(error))

    def _receive(self) -> None:
        try:
            while True:
                message = self._connection.receive(LOST_SECONDS)
                if (memory := message.pop("memory", None)) is not None:
                    self.memory = RankMemory(*memory)
                if not message.get("alive"):
                    self._replies.put((self.number, message))
        except WireError as error:
            self._on_lost(self.name, str(error))

    def close(self) -> None:
        self._connection.close()


class Cluster:
    """All ranks of one loaded target. Meets the engine's `Shards`."""

    def __init__(
        self,
        command: Load,
        stopped: Callable[[], bool],
        files_of: FilesOf = lambda rank, files: files,
    ) -> None:
        """Raises LoadError."""
        assert command.hosts is not None
        self._files_of = files_of
        self.lost: ShardsLost | None = None
        self.on_lost: Callable[[], None] = lambda: None
        self.ranks: list[Rank] = []
        self._controls: list[HostControl] = []
        self._process: ShardProcess | None = None
        self._replies: queue.SimpleQueue[tuple[int, Message]] = queue.SimpleQueue()
        self._numbers = itertools.count(1)
        self._forgotten: deque[int] = deque()
        self._losing, self._closed = threading.Lock(), threading.Event()
        try:
            self._start(command, command.hosts)
            self.described = self._wait_until_loaded(stopped)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self._say_alive, name="alive", daemon=True).start()

    # ------------------------------------------------------------------ starting

    def _start(self, command: Load, hosts: Hosts) -> None:
        name, folder = command.names[0], Path(command.target)
        self._controls = [HostControl(host) for host in hosts.others]
        try:
            fingerprint = content_fingerprint(folder)
        except OSError as error:
            raise LoadError(f"The model in {folder} cannot be read ({error.strerror})") from error
        asked = {"do": "model", "name": hosts.model or command.target, "fingerprint": fingerprint}
        folders = [str(folder), *(each.ask(asked)["folder"] for each in self._controls)]
        prepared = [each.ask({"do": "prepare"}) for each in self._controls]
        own = hosts.own_ips or (self._controls[0].own_address,)
        ports = [free_port(own[0]), *(each["port"] for each in prepared)]
        ips = [own, *(each.ips or (each.address,) for each in hosts.others)]
        pairs = zip(self._controls, prepared, strict=True)
        connections = [each.attach(reply["ticket"]) for each, reply in pairs]
        files, common = link_settings(hosts, ips, ports)
        for number, control in enumerate(self._controls, 1):
            environment = common | {"MLX_RANK": str(number)}
            own_files = self._files_of(number, files)
            start = {"do": "start", "name": name, "environment": environment, "files": own_files}
            control.ask(start)
        here, there = socket.socketpair()
        with there:
            own_files = self._files_of(0, files)
            self._process = ShardProcess(there, common | {"MLX_RANK": "0"}, own_files)
        names = [THIS_MACHINE, *(host.name for host in hosts.others)]
        everyone = zip(names, [Connection(here), *connections], folders, strict=True)
        load: Message = {
            "link": str(hosts.link),
            "name": name,
            "kv_bits": command.kv_bits,
            "step": None,
        }
        load["split"] = list(hosts.split)
        load["owner"] = f"{uuid.getnode():012x}"
        for number, (each, connection, path) in enumerate(everyone):
            rank = Rank(number, each, connection, self._replies, self._lose)
            self.ranks.append(rank)
            rank.send(load | {"folder": path})

    def _wait_until_loaded(self, stopped: Callable[[], bool]) -> dict[str, Any]:
        """What the ranks say of their shards: the most of each."""
        described: dict[int, Message] = {}
        spoken = time.monotonic()
        while len(described) < len(self.ranks):
            if stopped():
                raise LoadStopped
            if time.monotonic() - spoken > ALIVE_SECONDS:
                spoken = time.monotonic()
                self._to_all({"alive": True})
            with suppress(queue.Empty):
                number, message = self._replies.get(timeout=CHECK_SECONDS)
                if (failed := message.get("failed")) is not None:
                    raise self._failed(number, failed)
                described[number] = message["described"]
                continue
            if self.lost is not None:
                raise LoadError(str(self.lost), self.lost.advice)
        first, *others = (described[rank.number] for rank in self.ranks)
        for other in others:
            first["weight_bytes"] = max(first["weight_bytes"], other["weight_bytes"])
            first["dense_only"] = first["dense_only"] or other["dense_only"]
        return first

    def _failed(self, number: int, failed: Message) -> LoadError:
        name = self.ranks[number].name
        where = "" if number == 0 else f"On {name}: "
        advice = failed["advice"] or "look whether the machines reach each other, and try again"
        return LoadError(f"{where}{failed['problem']}", advice)

    # ------------------------------------------------------------------ the engine's side

    def send(self, operation: Operation) -> None:
        self._do(operation, None)

    def run(self, operation: Operation) -> list[dict[str, Any]]:
        number = next(self._numbers)
        self._do(operation, number)
        replies: dict[int, Message] = {}
        while len(replies) < len(self.ranks):
            if self.lost is not None:
                raise self.lost
            with suppress(queue.Empty):
                rank, message = self._replies.get(timeout=CHECK_SECONDS)
                if (failed := message.get("failed")) is not None:
                    self._lose(self.ranks[rank].name, f"it failed, {failed['problem']}")
                elif message.get("number") == number:
                    replies[rank] = message
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

    # ------------------------------------------------------------------ who is there

    def _say_alive(self) -> None:
        while not self._closed.wait(ALIVE_SECONDS):
            self._to_all({"alive": True})

    def _lose(self, name: str, reason: str) -> None:
        """On any thread; only the first one counts: the others follow from it."""
        with self._losing:
            if self.lost is not None or self._closed.is_set():
                return
            who = "The part on this machine" if name == THIS_MACHINE else name
            problem = f"{who} does not answer any more ({reason})"
            self.lost = ShardsLost(problem, "start its worker again, and load the model again")
        self.on_lost()


def connect_hosts(command: Load, stopped: Callable[[], bool]) -> Cluster:
    """Meets the engine's `Connect`."""
    return Cluster(command, stopped)


def link_settings(
    hosts: Hosts, ips: Sequence[Sequence[str]], ports: Sequence[int]
) -> tuple[dict[str, str], dict[str, str]]:
    """The files and variables that MLX reads, the same on all machines: by rank their addresses,
    and a port of each that is free."""
    variables = dict(hosts.variables)
    if hosts.link is Link.JACCL:
        devices = [hosts.own_rdma, *(host.rdma for host in hosts.others)]
        files = {"MLX_IBV_DEVICES": json.dumps([list(each) for each in devices])}
        return files, variables | {"MLX_JACCL_COORDINATOR": f"{ips[0][0]}:{ports[0]}"}
    ring = [[f"{ip}:{port}" for ip in own[:1]] for own, port in zip(ips, ports, strict=True)]
    return {"MLX_HOSTFILE": json.dumps(ring)}, variables
