"""The process of one rank: `python -m app.extras.hosts.shard FD MODEL FILES`.

`specchat worker` starts it, and the first machine starts one for its own shard. It reads the keys
of its connection, if there are any, from standard input, and reports when it is ready to join the
other ranks. Once the first machine sends what to load, it joins them, loads its shard, and runs the
operations that arrive over the connection. Nothing can interrupt a collective operation, so a
second thread reports once a second that the process is alive, and ends it if the first machine is
lost.
"""

from __future__ import annotations

import errno
import faulthandler
import os
import queue
import random
import re
import select
import shutil
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.extras.hosts.wire import Connection, Message, Seals, WireError

ALIVE_SECONDS = 1.0
"""Interval of keep-alive messages."""
OWN, OWNER = "own", re.compile("own|[0-9a-f]{12}")
"""Owner of snapshots of which a rank stores parts: this machine, or another machine's number."""
LOST_SECONDS = 4.0
"""Seconds of silence after which a process counts as lost."""
JOIN_SECONDS = 20.0
"""Time limit for the ranks to join each other. MLX holds the interpreter's lock (GIL) while it
waits, so nothing else runs in the process."""
RING_PORTS = 20_000, 32_768
_LINUX = sys.platform == "linux"
# `getsockopt` for statistics of a connection: level, option, size; and the offsets of the counts.
_TCP_INFO = (socket.IPPROTO_TCP, 11, 136) if _LINUX else (socket.IPPROTO_TCP, 0x106, 112)
_COUNTS = (120, 128) if _LINUX else (64, 88)
_PEER_CLOSED = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class ShardProcess:
    """Starts and ends the process of a rank. The process takes over `connection`, and loads its
    shard of the model in the folder `model`. `ring` is the content of MLX's file of addresses."""

    MODULE = "app.extras.hosts.shard"

    def __init__(self, connection: Connection, rank: int, ring: str, model: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="specchat-hosts-", ignore_cleanup_errors=True
        )
        addresses = Path(self._folder.name) / "ring.json"
        addresses.write_text(ring, encoding="utf-8")
        descriptor, seals = connection.socket.fileno(), connection.seals
        arguments = [str(descriptor), str(model), self._folder.name]
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.MODULE, *arguments],
            env=os.environ | {"MLX_RANK": str(rank), "MLX_HOSTFILE": str(addresses)},
            pass_fds=[descriptor],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[3],
            start_new_session=True,  # Ctrl+C in the terminal must reach only this process
        )
        assert self._process.stdin is not None
        with (
            suppress(BrokenPipeError),
            self._process.stdin as keys,
        ):  # not as an argument, because every user can see those
            keys.write(b"" if seals is None else seals.to_json().encode())

    def wait(self) -> None:
        self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def free_port(address: str) -> int:
    """A port that is free now, and that the system does not assign by itself.

    MLX binds it seconds later. A port that the system chose (`bind` to 0) could be assigned to
    another connection in between. Linux assigns ports from 32,768, macOS from 49,152.
    """
    while True:
        port = random.randrange(*RING_PORTS)
        try:
            with socket.socket() as sock:
                sock.bind((address, port))
                return port
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise


# --------------------------------------------------------------------------- the process


def main() -> None:
    keys = sys.stdin.read()
    sock = socket.socket(fileno=int(sys.argv[1]))
    connection = Connection(sock, Seals.from_json(keys) if keys else None)
    messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
    samples: dict[str, Callable[[], Any]] = {}
    """Functions that measure the memory (set once MLX is imported) and the ring (once joined)."""
    threading.Thread(target=_listen, args=(connection, messages), daemon=True).start()
    threading.Thread(target=_say_alive, args=(connection, samples), daemon=True).start()
    try:
        _work(connection, messages, samples)
    except WireError:
        pass
    except Exception as error:  # reported by the first machine
        _report(connection, error, samples)
    os._exit(0)  # the layers' exchange may never end


def _listen(connection: Connection, messages: queue.SimpleQueue[Message]) -> None:
    try:
        while True:
            message = connection.receive(LOST_SECONDS)
            if not message.get("alive"):
                messages.put(message)
    except WireError:
        os._exit(0)


def _say_alive(connection: Connection, samples: dict[str, Callable[[], Any]]) -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        try:
            sampled = {name: sample() for name, sample in tuple(samples.items())}
            connection.send({"alive": True, **sampled})
        except WireError:
            break
        time.sleep(ALIVE_SECONDS)
    os._exit(0)


def _work(
    connection: Connection,
    messages: queue.SimpleQueue[Message],
    samples: dict[str, Callable[[], Any]],
) -> None:
    from app.engine.backend import blas

    blas.load_openblas()
    import mlx.core as mx

    from app.engine.backend import memory, mlx_patches
    from app.extras.hosts.runner import ShardRunner, load_shard
    from app.paths import shard_snapshots_path

    mlx_patches.install()
    memory.set_limits()
    samples["memory"] = memory.sample
    folder, files = sys.argv[2:4]
    connection.send({"ready": True})
    load = messages.get()
    # All ranks are ready, so joining is quick. If not, a thread that needs no GIL ends the process.
    faulthandler.dump_traceback_later(JOIN_SECONDS, exit=True)
    before = sockets()
    try:
        group = mx.distributed.init(strict=True, backend="ring")
    except RuntimeError as error:
        raise RuntimeError(f"the machines do not reach each other ({error})") from error
    finally:
        faulthandler.cancel_dump_traceback_later()
    shutil.rmtree(files, ignore_errors=True)  # the parent may be killed
    ring = Ring(before)
    samples["ring"] = lambda: [ring.closed, ring.bytes]
    connection.send({"joined": True})
    model, described = load_shard(folder, load["name"], group, load["step"], load["kv_bits"])
    connection.send({"described": described, "memory": memory.sample()})
    owner = OWN if group.rank() == 0 else str(load["owner"])
    if not OWNER.fullmatch(owner):
        raise ValueError("its number is not one")
    snapshots = shard_snapshots_path(owner) / f"{group.rank()}-of-{group.size()}"
    operations = ShardRunner(model, group.rank(), snapshots).operations
    while True:
        message = messages.get()
        name, number = message.pop("operation"), message.pop("number", None)
        reply = operations[name](**message) or {}
        if number is not None:
            if name == "fill":  # the engine asks for free memory before the next step
                reply |= {"memory": memory.sample()}
            connection.send({"number": number, **reply})


def _report(
    connection: Connection, error: Exception, samples: dict[str, Callable[[], Any]]
) -> None:
    from app.engine.backend.memory import cause_of

    try:
        ring = {"ring": samples["ring"]()} if "ring" in samples else {}
        connection.send({"failed": dict(cause_of(error)), **ring})
        time.sleep(ALIVE_SECONDS)  # wait until the message has been read
    except WireError:
        return


# --------------------------------------------------------------------------- MLX's ring

# MLX waits for its connections without a time limit, so their state is read from the system.


def sockets() -> dict[int, tuple[int, int]]:
    """Open sockets of this process: device and inode by descriptor."""
    found = {}
    for name in os.listdir("/dev/fd"):
        with suppress(OSError, ValueError):  # closed in the meantime
            status = os.fstat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                found[int(name)] = (status.st_dev, status.st_ino)
    return found


class Ring:
    """Connections to the neighbours: all sockets that are not in `before`."""

    def __init__(self, before: dict[int, tuple[int, int]]) -> None:
        self._sockets = []
        for descriptor, reference in sockets().items():
            if before.get(descriptor) != reference:
                with suppress(OSError):  # a listening socket, or one that was closed
                    opened = socket.socket(fileno=os.dup(descriptor))
                    opened.getpeername()
                    self._sockets.append(opened)

    @property
    def closed(self) -> bool:
        """Whether a neighbour has closed its end."""
        poll = select.poll()
        for each in self._sockets:
            poll.register(each, _PEER_CLOSED)
        return any(event & _PEER_CLOSED for _, event in poll.poll(0))

    @property
    def bytes(self) -> int | None:
        """Bytes sent and received so far; None if the system does not count them."""
        try:
            return sum(map(_bytes, self._sockets)) if self._sockets else None
        except (OSError, struct.error):
            return None


def _bytes(sock: socket.socket) -> int:
    level, option, size = _TCP_INFO
    data = sock.getsockopt(level, option, size)
    return sum(struct.unpack_from("=Q", data, offset)[0] for offset in _COUNTS)


if __name__ == "__main__":
    main()
