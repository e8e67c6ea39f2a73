"""How a spread target starts: what is waited for, for how long, and what stops it.

Ranks are threads without MLX, except where MLX itself is waited for.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.engine.progress import LoadError, LoadStopped
from app.extras.hosts import cluster, control, worker
from app.extras.hosts.cluster import Cluster, largest
from app.extras.hosts.shard import free_port
from app.extras.hosts.wire import Connection, Message, WireError
from app.protocol.commands import Load
from app.protocol.reasons import FailureKind
from tests import tiny
from tests.extras.hosts import fakes
from tests.extras.hosts.fakes import DESCRIBED, FakeShard
from tests.extras.hosts.machines import LOOPBACK, workers
from tests.patience import PATIENCE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("model"), "llama", 0)


def never() -> bool:
    return False


def after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


@pytest.fixture
def load(folder: Path) -> Iterator[Load]:
    with workers(2) as hosts:
        yield Load(str(folder), hosts=hosts)


# --------------------------------------------------------------------------- stopping


@pytest.fixture
def silence(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A worker that answers nothing from some moment on."""
    moment, end, accepted = request.param, threading.Event(), 0
    reply, accept = worker.Session._reply, worker.accept

    def silent(self: worker.Session, answer: Any, message: Message) -> Message:
        if message["do"] == moment:
            end.wait(20)
        return reply(self, answer, message)

    def silently(sock: socket.socket, key: str) -> Connection:
        nonlocal accepted
        accepted += 1
        if moment == "connect" or (moment == "attach" and accepted > 2):
            end.wait(20)
        return accept(sock, key)

    class Silent(FakeShard):
        def ready(self) -> None:
            if moment == "ready":
                self.ended.wait()
            super().ready()

    monkeypatch.setattr(worker.Session, "_reply", silent)
    monkeypatch.setattr(worker, "accept", silently)
    fakes.use(monkeypatch, Silent)
    yield
    end.set()


MOMENTS = ("connect", "hello", "model", "prepare", "attach", "start", "ready")


@pytest.mark.parametrize("silence", MOMENTS, indirect=True)
def test_it_is_stopped_at_once_while_a_worker_is_silent(load: Load, silence: None) -> None:
    started_at = time.monotonic()
    with pytest.raises(LoadStopped):
        Cluster(load, after(0.3))
    assert time.monotonic() - started_at < 5 * PATIENCE


@pytest.mark.parametrize("silence", ["connect", "prepare", "ready"], indirect=True)
def test_all_that_comes_before_loading_has_one_limit(
    load: Load, silence: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "START_SECONDS", 0.3)
    started_at = time.monotonic()
    with pytest.raises(LoadError, match=FailureKind.MACHINES_NOT_READY):
        Cluster(load, never)
    assert time.monotonic() - started_at < 5 * PATIENCE


def test_a_connection_that_comes_after_it_was_stopped_is_closed(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, closed, connect = list[Connection](), threading.Event(), control.connect

    def late(address: str, port: int, key: str) -> Connection:
        made.append(connect(address, port, key))
        closed.wait(5)
        return made[-1]

    monkeypatch.setattr(control, "connect", late)
    with pytest.raises(LoadStopped):
        Cluster(load, after(0.2))
    assert made[0].socket.fileno() >= 0
    closed.set()
    fakes.wait_until(lambda: made[0].socket.fileno() < 0)


def test_whoever_was_reached_is_free_again(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load.hosts is not None
    closed, close = list[str](), control.HostControl.close

    def noted(self: control.HostControl) -> None:
        closed.append(self.host.name)
        close(self)

    monkeypatch.setattr(control.HostControl, "close", noted)
    first, second = load.hosts.others
    hosts = replace(load.hosts, others=(first, replace(second, key="other")))
    with pytest.raises(LoadError) as raised:
        Cluster(replace(load, hosts=hosts), never)
    assert raised.value.failure.kind is FailureKind.NO_WORKER
    assert "its key is another one" in raised.value.failure.data["error"]
    assert closed == [first.name]


# --------------------------------------------------------------------------- joining


def test_no_rank_joins_the_others_before_all_are_ready(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: dict[str, list[float]] = {"ready": [], "go": []}

    class Late(FakeShard):
        def ready(self) -> None:
            time.sleep(0.4 * self.rank)
            times["ready"].append(time.monotonic())
            super().ready()

        def until(self, key: str) -> None:
            super().until(key)
            times["go"].append(time.monotonic())

    fakes.use(monkeypatch, Late)
    Cluster(load, never).close()
    assert len(times["ready"]) == len(times["go"]) == 3
    assert max(times["ready"]) < min(times["go"])


class Joining(FakeShard):
    """Is silent while it joins the others, as MLX has it, and later."""

    seconds = 1.0

    def work(self) -> None:
        self.ready()
        self.until("name")
        time.sleep(self.seconds)
        self.connection.send({"joined": True})
        self.connection.send({"described": DESCRIBED})


def test_one_that_joins_the_others_may_be_silent_for_longer(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "LOST_SECONDS", 0.5)
    fakes.use(monkeypatch, Joining)
    loaded = Cluster(load, never)
    fakes.wait_until(lambda: loaded.lost is not None)  # afterwards it may not
    loaded.close()
    monkeypatch.setattr(cluster, "JOIN_SECONDS", 0.1)
    with pytest.raises(LoadError, match=FailureKind.MACHINE_LOST) as raised:
        Cluster(load, never)
    assert raised.value.failure.data["error"] == "it did not reach the others"


def test_what_a_rank_says_before_it_ends_is_the_reason(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(FakeShard):
        def work(self) -> None:
            super().work()
            self.until("operation")
            self.connection.send({"failed": {"error": "no room"}})
            self.kill()

    fakes.use(monkeypatch, Failing)
    loaded = Cluster(load, never)
    loaded.send(cluster.Operation("mark", 1))
    fakes.wait_until(lambda: loaded.lost is not None)
    assert loaded.lost is not None
    assert loaded.lost.data["error"] == "no room"
    loaded.close()


def test_of_each_number_the_largest_counts(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    class Different(FakeShard):
        def work(self) -> None:
            self.ready()
            self.until("name")
            size = {"bytes_per_token": 8.0 * self.rank, "max_window_bytes": 5.0 - self.rank}
            transient = {"heads": self.rank, "on_cpu": self.rank == 1}
            self.connection.send({"joined": True})
            mine = DESCRIBED | {"cache_size": size, "transient": transient}
            self.connection.send({"described": mine | {"dense_only": self.rank == 2}})

    fakes.use(monkeypatch, Different)
    loaded = Cluster(load, never)
    assert loaded.described == DESCRIBED | {
        "cache_size": {"bytes_per_token": 16.0, "max_window_bytes": 5.0},
        "transient": {"heads": 2, "on_cpu": True},
        "dense_only": True,
    }
    loaded.close()
    assert largest([{"a": "x"}, {"a": "y"}]) == {"a": "x"}


@pytest.mark.slow
def test_a_rank_that_waits_too_long_for_the_others_ends_itself(tmp_path: Path) -> None:
    """MLX holds the interpreter's lock meanwhile, so that no thread of Python could."""
    here, there = socket.socketpair()
    entries = [[f"{LOOPBACK}:{free_port(LOOPBACK)}"] for _ in range(2)]
    (tmp_path / "hosts.json").write_text(json.dumps(entries))
    script = "from app.extras.hosts import shard; shard.JOIN_SECONDS = 0.5; shard.main()"
    variables = {"MLX_RANK": "0", "MLX_HOSTFILE": str(tmp_path / "hosts.json")}
    with there:
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(there.fileno()), "no-model", str(tmp_path)],
            pass_fds=[there.fileno()],
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    connection = Connection(here)
    try:
        threading.Thread(target=_keep_alive, args=(connection,), daemon=True).start()
        while "ready" not in connection.receive(20):
            pass
        connection.send({"name": "x", "kv_bits": None, "step": None})
        assert process.wait(10) == 1
    finally:
        process.kill()
        process.wait()
        connection.close()


def _keep_alive(connection: Connection) -> None:
    try:
        while True:
            connection.send({"alive": True})
            time.sleep(0.2)
    except WireError:
        return


@pytest.mark.slow
def test_a_machine_that_imports_mlx_much_later_is_waited_for(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen, delay = subprocess.Popen, 8

    def delayed(command: list[str], **more: Any) -> Any:
        if more["env"]["MLX_RANK"] == "1":
            late = (
                "import sys, time; from app.extras.hosts import shard; work = shard._work\n"
                f"shard._work = lambda *all: (time.sleep({delay}), work(*all)); shard.main()"
            )
            command = [command[0], "-c", late, *command[3:]]
        return popen(command, **more)

    monkeypatch.setattr(subprocess, "Popen", delayed)
    assert load.hosts is not None
    hosts = replace(load.hosts, others=load.hosts.others[:1])
    loaded = Cluster(replace(load, hosts=hosts), never)
    assert loaded.lost is None
    assert loaded.described["ranks"] == 2
    loaded.close()
