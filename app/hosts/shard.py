"""The process of one rank: `python -m app.hosts.shard FD MODEL FILES`, started by `specchat
worker`, and by the first machine for itself. Standard input has the keys of the connection, if it
has some.

It says when it is ready to join the others, which it does once the first machine sends what to
load. Then it loads its shard, and does what comes over the connection. A thread beside the layers'
exchange, which nothing can interrupt, says once a second that the process lives, and ends it once
the first machine is gone.
"""

from __future__ import annotations

import faulthandler
import os
import queue
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from app.hosts.wire import Connection, Message, Seals, WireError

ALIVE_SECONDS = 1.0
"""Between two messages that only say that their sender lives."""
OWN, OWNER = "own", re.compile("own|[0-9a-f]{12}")
"""Whose snapshots a rank has parts of: this machine's, or another one's, by its number."""
LOST_SECONDS = 4.0
"""After which a silent one counts as gone."""
JOIN_SECONDS = 20.0
"""In which the ranks have to join each other. MLX holds the interpreter's lock while it waits for
them, so that nothing else runs in the process."""


def main() -> None:
    keys = sys.stdin.read()
    sock = socket.socket(fileno=int(sys.argv[1]))
    connection = Connection(sock, Seals.from_json(keys) if keys else None)
    messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
    samples: dict[str, Callable[[], Any]] = {}
    """How to read the memory, once MLX is imported, and the ring's state, once it is joined."""
    threading.Thread(target=_listen, args=(connection, messages), daemon=True).start()
    threading.Thread(target=_say_alive, args=(connection, samples), daemon=True).start()
    try:
        _work(connection, messages, samples)
    except WireError:
        pass
    except Exception as error:  # whatever goes wrong, the first machine says it
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
    from app.engine.sharded.runner import ShardRunner, load_shard
    from app.hosts.ring import Ring, sockets
    from app.hosts.traffic import Traffic
    from app.paths import shard_snapshots_path
    from app.protocol.hosts import Link

    mlx_patches.install()
    memory.set_limits()
    samples["memory"] = memory.sample
    folder, files = sys.argv[2:4]
    connection.send({"ready": True})
    load = messages.get()
    # All are ready, so it is quick. If not, a thread that needs no lock ends the process.
    faulthandler.dump_traceback_later(JOIN_SECONDS, exit=True)
    before = sockets()
    try:
        group = mx.distributed.init(strict=True, backend=Link(load["link"]))
    except RuntimeError as error:
        raise RuntimeError(f"the machines do not reach each other ({error})") from error
    finally:
        faulthandler.cancel_dump_traceback_later()
    shutil.rmtree(files, ignore_errors=True)  # who started this may be killed
    ring = Ring(before)
    samples["ring"] = lambda: [ring.closed, ring.bytes]
    connection.send({"joined": True})
    model, described = load_shard(
        folder, load["name"], group, load["step"], load["kv_bits"], load["split"]
    )
    connection.send({"described": described, "memory": memory.sample()})
    owner = OWN if group.rank() == 0 else str(load["owner"])
    if not OWNER.fullmatch(owner):
        raise ValueError("its number is not one")
    snapshots = shard_snapshots_path(owner) / f"{group.rank()}-of-{group.size()}"
    runner, traffic = ShardRunner(model, group.rank(), snapshots), Traffic()
    operations: dict[str, Callable[..., Any]] = {**runner.operations, "traffic": traffic.take}
    while True:
        message = messages.get()
        name, number = message.pop("operation"), message.pop("number", None)
        reply = operations[name](**message) or {}
        if number is not None:
            if name == "fill":  # before the next step it is asked what is free
                reply |= {"memory": memory.sample()}
            connection.send({"number": number, **reply})


def _report(
    connection: Connection, error: Exception, samples: dict[str, Callable[[], Any]]
) -> None:
    from app.engine.backend.memory import cause_of

    try:
        ring = {"ring": samples["ring"]()} if "ring" in samples else {}
        connection.send({"failed": dict(cause_of(error)), **ring})
        time.sleep(ALIVE_SECONDS)  # until it has been read
    except WireError:
        return


if __name__ == "__main__":
    main()
