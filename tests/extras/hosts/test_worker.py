"""What a worker does for one that knows its key and what it does not, and what others cannot do."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from app.extras.hosts import worker
from app.extras.hosts.machine import content_fingerprint
from app.extras.hosts.wire import BUSY, Connection, Message, WireError, connect
from app.extras.hosts.worker import Worker
from tests import tiny
from tests.extras.hosts import fakes
from tests.extras.hosts.machines import KEY, LOOPBACK

RANK: dict[str, Any] = {"rank": 1, "ring": "[]", "name": "x"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("model"), "llama", 0)


@pytest.fixture
def running() -> Iterator[Worker]:
    with closing(Worker(LOOPBACK, 0, KEY, lambda line: None)) as worker:
        threading.Thread(target=worker.run, daemon=True).start()
        yield worker


def connected(running: Worker) -> Connection:
    return connect(LOOPBACK, running.port, KEY)


def asked(control: Connection, do: str, **message: Any) -> Message:
    control.send({"do": do, **message})
    return control.receive(10)


def prepared(running: Worker, folder: Path) -> tuple[Connection, Message]:
    """A first machine that may start its rank."""
    control = connected(running)
    fingerprint = content_fingerprint(folder)
    assert asked(control, "model", name=str(folder), fingerprint=fingerprint) == {}
    return control, asked(control, "prepare")


def started(running: Worker, folder: Path) -> tuple[Connection, Connection]:
    control, reply = prepared(running, folder)
    data = connected(running)
    data.send({"ticket": reply["ticket"]})
    assert asked(control, "start", **RANK) == {}
    return control, data


def test_the_first_machine_sets_only_the_rank_and_the_ring(
    running: Worker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other variable, since some name libraries to load."""
    environments: list[dict[str, str]] = []

    def popen(command: list[str], env: dict[str, str], **more: Any) -> Any:
        environments.append(env)
        raise OSError(errno.EAGAIN, "no more")

    monkeypatch.setattr(subprocess, "Popen", popen)
    control, reply = prepared(running, folder)
    with closing(control), closing(connected(running)) as data:
        data.send({"ticket": reply["ticket"]})
        sent = RANK | {"environment": {"MLX_MPI_LIBNAME": "/x.so"}, "files": {"../x": "text"}}
        assert "could not be started" in asked(control, "start", **sent)["problem"]
    assert environments[0].items() - os.environ.items() == {
        ("MLX_RANK", "1"),
        ("MLX_HOSTFILE", environments[0]["MLX_HOSTFILE"]),
    }


def test_only_the_model_that_was_compared_is_loaded(
    running: Worker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = fakes.use(monkeypatch)
    with closing(connected(running)) as control:
        asked(control, "prepare")
        other = asked(control, "model", name=str(folder), fingerprint="of another")
        assert "differs from this machine's" in other["problem"]
        assert "before its model was checked" in asked(control, "start", **RANK)["problem"]
    control, data = started(running, folder)
    assert [shard.model for shard in shards] == [folder]
    assert "is already running" in asked(control, "start", **RANK)["problem"]
    control.close()
    data.close()


# --------------------------------------------------------------------------- who holds it


def test_one_that_never_starts_its_rank_does_not_hold_the_worker(
    running: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "PREPARED_SECONDS", 1.0)
    monkeypatch.setattr(worker, "NOTICED_SECONDS", 0.1)
    with closing(connected(running)) as first, closing(connected(running)) as second:
        assert "port" in asked(first, "prepare")
        assert asked(second, "prepare")["problem"] == "another machine uses it"
        fakes.wait_until(lambda: "port" in asked(second, "prepare"))


def test_one_that_asks_nothing_is_disconnected(
    running: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "IDLE_SECONDS", 0.2)
    with closing(connected(running)) as control:
        assert "versions" in asked(control, "hello")
        fakes.wait_until(lambda: not running._sessions)


def test_a_running_rank_may_be_used_for_as_long_as_it_lives(
    running: Worker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(worker, "PREPARED_SECONDS", 0.2)
    shards = fakes.use(monkeypatch)
    control, data = started(running, folder)
    time.sleep(0.5)
    assert running._user is not None
    shards[0].ended.set()
    fakes.wait_until(lambda: running._user is None)
    control.close()
    data.close()


def test_a_session_whose_rank_still_ends_is_waited_for(
    running: Worker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Large(fakes.FakeShard):
        def kill(self) -> None:
            time.sleep(1.0)
            super().kill()

    monkeypatch.setattr(worker, "NOTICED_SECONDS", 0.5)
    fakes.use(monkeypatch, Large)
    for connection in started(running, folder):
        connection.close()
    control, reply = prepared(running, folder)
    assert "port" in reply, reply
    control.close()


# --------------------------------------------------------------------------- without the key


def test_a_connection_that_cannot_be_accepted_does_not_end_it(
    running: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        """A socket without a file for one more connection, twice."""

        def __init__(self, sock: socket.socket) -> None:
            self._sock, self._errors = sock, [errno.EMFILE, errno.ECONNABORTED]

        def accept(self) -> tuple[socket.socket, Any]:
            if self._errors:
                raise OSError(self._errors.pop(), "not now")
            return self._sock.accept()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._sock, name)

    monkeypatch.setattr(running, "_listening", Full(running._listening))
    for _ in range(2):  # the first one is still waited for without the errors
        connected(running).close()


def test_two_of_an_address_may_wait_without_having_proved_the_key(running: Worker) -> None:
    before = {*threading.enumerate()}
    idle = [socket.create_connection((LOOPBACK, running.port)) for _ in range(40)]
    try:
        fakes.wait_until(lambda: sum(_is_refused(sock) for sock in idle) == 40 - 2)
        with pytest.raises(WireError, match="too many others are connecting to it"):
            connected(running)
        new = {*threading.enumerate()} - before
        threads = [each for each in new if "_answer" in each.name]
        assert len(threads) <= worker.MAX_UNPROVED_PER_ADDRESS
    finally:
        for sock in idle:
            sock.close()
    fakes.wait_until(lambda: not running._unproved)
    connected(running).close()


def _is_refused(sock: socket.socket) -> bool:
    sock.setblocking(False)
    with suppress(BlockingIOError):
        return sock.recv(len(BUSY), socket.MSG_PEEK) == BUSY
    return False
