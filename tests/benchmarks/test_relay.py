"""The relay delays and slows down data in both directions, and closes both ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks.relay import LOOPBACK, Relay

pytestmark = pytest.mark.benchmarks

LIMIT = 20.0


@contextmanager
def connected(
    relay: Relay, sender: int = 0, receiver: int = 1
) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection that one machine makes to another."""
    with socket.create_server((LOOPBACK, 0)) as listening:
        listening.settimeout(LIMIT)
        port = relay.open(sender, receiver, listening.getsockname()[1])
        with socket.create_connection((LOOPBACK, port)) as near:
            far, _ = listening.accept()
            with far:
                near.settimeout(LIMIT)
                far.settimeout(LIMIT)
                yield near, far


def receive(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (part := sock.recv(1 << 20)):
        data += part
    return data


def seconds(one: socket.socket, other: socket.socket, size: int) -> float:
    """Seconds from sending `size` bytes until all of them have arrived."""
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    started_at = time.perf_counter()
    thread = threading.Thread(target=one.sendall, args=(data,))
    thread.start()
    assert receive(other, size) == data
    thread.join(LIMIT)
    return time.perf_counter() - started_at


@pytest.mark.parametrize("back", [False, True])
def test_delay_and_rate_are_respected_each_way(back: bool) -> None:
    with Relay(0.05, 10e6) as relay, connected(relay) as ends:
        one, other = reversed(ends) if back else ends
        assert 0.05 <= min(seconds(one, other, 1) for _ in range(3)) < 0.2
        size = 2_000_000
        assert 0.25 <= min(seconds(one, other, size) for _ in range(2)) < 0.6


@pytest.mark.parametrize("back", [False, True])
def test_closing_one_end_closes_the_other_after_all_data(back: bool) -> None:
    with Relay(0.02, 10e6) as relay, connected(relay) as ends:
        one, other = reversed(ends) if back else ends
        one.sendall(b"last words")
        one.shutdown(socket.SHUT_WR)
        assert receive(other, 100) == b"last words"
        other.sendall(b"and an answer")
        other.close()
        assert receive(one, 100) == b"and an answer"


def test_a_receiver_that_listens_later_is_reached() -> None:
    """MLX's ring connects to ranks that do not listen yet."""
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
    with (
        Relay(0.0, 10e6) as relay,
        socket.create_connection((LOOPBACK, relay.open(0, 1, port))) as near,
    ):
        near.sendall(b"early")
        with socket.create_server((LOOPBACK, port)) as listening:
            listening.settimeout(LIMIT)
            far, _ = listening.accept()
            with far:
                far.settimeout(LIMIT)
                assert receive(far, 5) == b"early"
