"""Connections between machines: who gets in, what arrives, and what does not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

from app.engine.progress import LoadStopped
from app.extras.hosts import wire
from app.extras.hosts.wire import Connection, Seals, WireError, accept, connect
from tests.patience import PATIENCE
from tests.tables import table

LOOPBACK = "127.0.0.1"


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server((LOOPBACK, 0)) as server:
        yield server


def port_of(server: socket.socket) -> int:
    port: int = server.getsockname()[1]
    return port


def accepting(server: socket.socket, key: str) -> list[object]:
    """The accepted connection, or the error, later; in a thread."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(accept(server.accept()[0], key))
        except WireError as error:
            found.append(error)

    threading.Thread(target=run, daemon=True).start()
    return found


def first_of(found: list[object]) -> object:
    end = time.monotonic() + 10 * PATIENCE
    while not found:
        assert time.monotonic() < end
        time.sleep(0.01)
    return found[0]


def pair() -> tuple[Connection, Connection]:
    a, b = socket.socketpair()
    return Connection(a), Connection(b)


def test_both_ends_prove_that_they_know_the_key(listening: socket.socket) -> None:
    found = accepting(listening, "key")
    first = connect(LOOPBACK, port_of(listening), "key")
    assert first.socket.gettimeout() == wire.ANSWER_SECONDS, "not what was left of the proof's"
    first.send({"do": "hello"})
    other = first_of(found)
    assert isinstance(other, Connection)
    assert other.receive(5) == {"do": "hello"}


def test_another_key_is_refused_on_both_ends(listening: socket.socket) -> None:
    found = accepting(listening, "key")
    with pytest.raises(WireError, match="its key is another one") as refused:
        connect(LOOPBACK, port_of(listening), "other")
    error = first_of(found)
    assert "another key" in str(error)
    for each in (refused.value, error):
        assert isinstance(each, WireError)
        assert each.__cause__ is not each, "who follows the causes would never end"


def test_what_is_no_worker_is_recognised(listening: socket.socket) -> None:
    def answer() -> None:
        other, _ = listening.accept()
        other.sendall(b"HTTP/1.1 400 Bad Request\r\n" + b" " * 100)

    threading.Thread(target=answer, daemon=True).start()
    with pytest.raises(WireError, match="not a specchat worker"):
        connect(LOOPBACK, port_of(listening), "key")


def test_a_worker_that_is_not_there_is_named_so() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = port_of(server)
    with pytest.raises(WireError, match="refused"):
        connect(LOOPBACK, port, "key")


def test_who_says_nothing_is_not_waited_for(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "ANSWER_SECONDS", 0.2)
    found = accepting(listening, "key")
    with socket.create_connection((LOOPBACK, port_of(listening))):
        first_of(found)
    with pytest.raises(WireError, match="in time"):
        connect(LOOPBACK, port_of(listening), "key")
    assert "in time" in str(first_of(found))


def test_who_sends_a_byte_at_a_time_gets_no_longer(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "ANSWER_SECONDS", 0.4)
    found, began = accepting(listening, "key"), time.monotonic()
    with socket.create_connection((LOOPBACK, port_of(listening))) as slow:
        while not found and time.monotonic() - began < 5:
            with suppress(OSError):
                slow.send(b"x")
            time.sleep(0.1)
    assert "in time" in str(first_of(found))
    assert time.monotonic() - began < 3 * PATIENCE


def test_a_connection_that_breaks_after_the_proof_is_closed(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(sock: socket.socket, seals: object) -> Connection:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(wire, "Connection", broken)
    found = accepting(listening, "key")
    with pytest.raises(WireError, match="invalid argument"):
        connect(LOOPBACK, port_of(listening), "key")
    assert isinstance(first_of(found), WireError)


def authenticated(listening: socket.socket) -> tuple[Connection, Connection]:
    found = accepting(listening, "key")
    first, other = connect(LOOPBACK, port_of(listening), "key"), first_of(found)
    assert isinstance(other, Connection)
    return first, other


def captured(first: Connection, message: dict[str, object]) -> bytes:
    """The bytes of a message that does not arrive."""
    here, there = socket.socketpair()
    with here, there:
        Connection(here, first.seals).send(message)
        return there.recv(1 << 16)


def test_messages_are_authenticated_each_way_and_in_another_process(
    listening: socket.socket,
) -> None:
    first, other = authenticated(listening)
    first.send({"a": 1, "array": np.arange(3, dtype=np.int32)})
    assert other.receive(5)["a"] == 1
    assert other.seals is not None
    again = Connection(other.socket.dup(), Seals.from_json(other.seals.to_json()))
    again.send({"b": 2})
    assert first.receive(5) == {"b": 2}
    first.send({"c": 3})
    assert again.receive(5) == {"c": 3}


@table("what", ["changed", "repeated", "omitted", "turned round", "untagged"])
def test_messages_that_were_tampered_with_end_the_connection(
    what: str, listening: socket.socket
) -> None:
    first, other = authenticated(listening)
    data = captured(first, {"tokens": [1, 2, 3]})
    match what:
        case "changed":
            first.socket.sendall(data.replace(b"2", b"4"))
        case "repeated":
            first.socket.sendall(data)
            assert other.receive(5) == {"tokens": [1, 2, 3]}
            first.socket.sendall(data)
        case "omitted":
            first.send({"tokens": [4]})
        case "turned round":
            assert other.seals is not None
            first.socket.sendall(captured(other, {"tokens": [1]}))
        case "untagged":
            first.socket.sendall(data[:-32] + bytes(32))
    with pytest.raises(WireError, match="changed on the way"):
        other.receive(5)


def test_no_room_is_made_for_a_size_that_somebody_else_sent(listening: socket.socket) -> None:
    first, other = authenticated(listening)
    data = captured(first, {"tokens": [1, 2, 3]})
    sizes = wire._SIZES.pack(wire.MAX_TEXT, wire.MAX_ARRAYS)
    first.socket.sendall(sizes + data[len(sizes) :])
    with pytest.raises(WireError, match="changed on the way"):
        other.receive(5)


def test_what_waits_can_be_stopped_within_a_message() -> None:
    here, there = pair()
    here.socket.sendall(wire._SIZES.pack(100, 0) + b"[")
    end = time.monotonic() + 0.2

    def check() -> None:
        if time.monotonic() > end:
            raise LoadStopped

    with pytest.raises(LoadStopped):
        there.receive(5, check)
    with pytest.raises(WireError, match="in time"):
        there.receive(0.05, lambda: None)


def test_values_and_arrays_arrive_as_they_were_sent() -> None:
    here, there = pair()
    arrays = {
        "ids": np.arange(7, dtype=np.int32),
        "logits": np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32),
        "none": np.zeros(0, np.int32),
    }
    here.send({"operation": "forward", "cache": 3, "positions": None, **arrays})
    received = there.receive(5)
    assert (received["operation"], received["cache"], received["positions"]) == ("forward", 3, None)
    for name, array in arrays.items():
        assert received[name].dtype == array.dtype
        np.testing.assert_array_equal(received[name], array)


@table(
    "data",
    [
        b"\xff" * 64,  # sizes beyond any message
        wire._SIZES.pack(4, 0) + b"nope",
        wire._SIZES.pack(2, 0) + b"[]",
        wire._SIZES.pack(8, 0) + b"[[], []]",
        wire._SIZES.pack(29, 8) + b'[{}, [["a", "object", [1]]]]  ' + b"\0" * 8,
        wire._SIZES.pack(28, 8) + b'[{}, [["a", "int32", [9]]]] ' + b"\0" * 8,
        wire._SIZES.pack(29, 8) + b'[{}, [["a", "int32", [-1]]]] ' + b"\0" * 8,
    ],
)
def test_what_is_no_message_ends_the_connection(data: bytes) -> None:
    a, b = socket.socketpair()
    with a:
        a.sendall(data)
        a.shutdown(socket.SHUT_WR)
        with pytest.raises(WireError, match=r"something else|closed"):
            Connection(b).receive(5)


def test_a_silent_end_and_a_closed_one_are_noticed() -> None:
    here, there = pair()
    with pytest.raises(WireError, match="in time"):
        there.receive(0.05)
    here.close()
    with pytest.raises(WireError, match="closed"):
        there.receive(5)
    with pytest.raises(WireError):
        there.send({"x": np.zeros(1 << 20, np.uint8)})
