"""Messages between machines: plain values and NumPy arrays over TCP.

Both ends first prove that they know the same key. Each message carries two authentication tags, one
after its sizes and one at its end, so that a changed, dropped or repeated message is detected, and
no room is made for one. Nothing is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from app.util.json_amount import is_too_much

Message = dict[str, Any]
"""Plain values by key. Arrays are allowed only at the top level."""

GREETING, BUSY = b"specchat hosts 3\n", b"specchat is busy\n"
"""What a worker says first. After either, NONCE_BYTES follow."""
NONCE_BYTES = TAG_BYTES = 32
ANSWER_SECONDS = 10.0
"""Time limit for proving the key, in both directions together."""
CHECK_SECONDS = 0.1
"""Interval between two calls of a `check`."""
MAX_TEXT, MAX_ARRAYS = 1 << 24, 1 << 30
"""Limits of a message's plain values and of its arrays, in bytes."""
MAX_JSON = 100_000, 2_000_000
"""Maximum lists and objects in a message's plain values, and values in these."""
_DTYPES = {"int32", "int64", "uint8", "float32", "bool"}
_SIZES = struct.Struct("!IQ")


class WireError(ConnectionError):
    """The other end has disconnected or violates the protocol. The text is a clause."""


@dataclass(slots=True)
class Seal:
    """Computes the authentication tags of one direction. A tag covers its own number."""

    key: bytes
    count: int = 0

    def tag(self, *parts: bytes) -> bytes:
        """The next tag (TAG_BYTES)."""
        self.count += 1
        digest = hmac.new(self.key, self.count.to_bytes(8, "big"), hashlib.sha256)
        for part in parts:
            digest.update(part)
        return digest.digest()


@dataclass(frozen=True, slots=True)
class Seals:
    """The seal for messages to send, and the one for messages received."""

    sent: Seal
    received: Seal

    def to_json(self) -> str:
        """Encode the seals for another process that takes over the connection."""
        return json.dumps([[seal.key.hex(), seal.count] for seal in (self.sent, self.received)])

    @classmethod
    def from_json(cls, text: str) -> Seals:
        return cls(*(Seal(bytes.fromhex(key), count) for key, count in json.loads(text)))


class Connection:
    """Sends from any thread and receives on one. Without `seals` (for a process on this machine),
    messages have no tags."""

    def __init__(self, sock: socket.socket, seals: Seals | None = None) -> None:
        self.socket, self.seals = sock, seals
        self._sending = threading.Lock()
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Message) -> int:
        """Send a message; return its number of bytes. Raises WireError."""
        plain, arrays = dict[str, Any](), list[np.ndarray[Any, Any]]()
        described = []
        for key, value in message.items():
            if isinstance(value, np.ndarray):
                described.append([key, value.dtype.name, list(value.shape)])
                arrays.append(np.ascontiguousarray(value))
            else:
                plain[key] = value
        text = json.dumps([plain, described]).encode()
        sizes = _SIZES.pack(len(text), sum(array.nbytes for array in arrays))
        data = b"".join([text, *(array.tobytes() for array in arrays)])
        try:
            with self._sending:
                tags = (b"", b"")
                if self.seals is not None:
                    tags = self.seals.sent.tag(sizes), self.seals.sent.tag(data)
                self.socket.sendall(b"".join((sizes, tags[0], data, tags[1])))
        except OSError as error:
            raise WireError(_reason(error)) from error
        return len(sizes) + len(data)

    def receive(
        self, seconds: float | None = None, check: Callable[[], None] | None = None
    ) -> Message:
        """Wait for the next message. `check` is called while waiting and may raise. Raises
        WireError, also if nothing arrives for `seconds`."""
        try:
            self.socket.settimeout(seconds)
        except OSError as error:
            raise WireError("the connection is closed") from error
        sizes = self._exactly(_SIZES.size, check)
        self._check_tag(check, sizes)
        text_size, arrays_size = _SIZES.unpack(sizes)
        if text_size > MAX_TEXT or arrays_size > MAX_ARRAYS:
            raise WireError("it sent something else than expected")
        text, data = self._exactly(text_size, check), self._exactly(arrays_size, check)
        self._check_tag(check, text, data)
        try:
            source = text.decode()
            if is_too_much(source, *MAX_JSON):
                raise ValueError("too many values")
            plain, described = json.loads(source)
            if not isinstance(plain, dict):
                raise TypeError(plain)
            start = 0
            for key, name, shape in described:
                if name not in _DTYPES or min(shape, default=0) < 0:
                    raise ValueError(name)
                dtype = np.dtype(name)
                size = math.prod(shape) * dtype.itemsize
                array = np.frombuffer(data[start : start + size], dtype).reshape(shape)
                plain[key] = array
                start += size
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise WireError("it sent something else than expected") from error
        message: Message = plain
        return message

    def _check_tag(self, check: Callable[[], None] | None, *parts: bytes) -> None:
        if self.seals is not None:
            expected = self.seals.received.tag(*parts)
            if not hmac.compare_digest(self._exactly(TAG_BYTES, check), expected):
                raise WireError("a message was changed on the way")

    def _exactly(self, count: int, check: Callable[[], None] | None) -> bytes:
        data = bytearray()
        try:
            while len(data) < count:
                if check is not None:
                    self._wait(check)
                part = self.socket.recv(min(count - len(data), 1 << 20))
                if not part:
                    raise WireError("it closed the connection")
                data += part
        except WireError:
            raise
        except OSError as error:
            raise WireError(_reason(error)) from error
        return bytes(data)

    def _wait(self, check: Callable[[], None]) -> None:
        """Wait for data. Raises TimeoutError, or what `check` raises."""
        poll, seconds = select.poll(), self.socket.gettimeout()
        poll.register(self.socket, select.POLLIN)
        end = math.inf if seconds is None else time.monotonic() + seconds
        check()
        while not poll.poll(CHECK_SECONDS * 1000):
            check()
            if time.monotonic() > end:
                raise TimeoutError

    def close(self) -> None:
        with suppress(OSError):  # wakes a thread that waits in `receive`, which closing does not
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def connect(address: str, port: int, key: str) -> Connection:
    """Connect to a worker. Raises WireError."""
    try:
        sock = socket.create_connection((address, port), ANSWER_SECONDS)
    except UnicodeError as error:
        raise WireError("its name has no address") from error
    except OSError as error:
        raise WireError(_reason(error)) from error
    with _closed_on_error(sock):
        return _prove_first(sock, key)


def accept(sock: socket.socket, key: str) -> Connection:
    """Accept a connection after the other end has proved that it knows the key. Raises
    WireError."""
    with _closed_on_error(sock):
        return _prove_worker(sock, key)


def refuse(sock: socket.socket) -> None:
    """Close a connection of one that is too many, and say so."""
    with sock, suppress(OSError):
        sock.setblocking(False)
        sock.send(BUSY + bytes(NONCE_BYTES))


@contextmanager
def _closed_on_error(sock: socket.socket) -> Iterator[None]:
    """Close the socket and raise WireError if the block fails."""
    try:
        yield
    except WireError:
        sock.close()
        raise
    except OSError as error:
        sock.close()
        raise WireError(_reason(error)) from error


def _prove_first(sock: socket.socket, key: str) -> Connection:
    end = time.monotonic() + ANSWER_SECONDS
    first = _receive(sock, len(GREETING) + NONCE_BYTES, "it is not a specchat worker", end)
    if first.startswith(BUSY):
        raise WireError("too many others are connecting to it")
    if not first.startswith(GREETING):
        raise WireError("it is not a specchat worker, or has another version")
    theirs, own = first[len(GREETING) :], secrets.token_bytes(NONCE_BYTES)
    sock.sendall(own + _proof(key, b"first", theirs, own))
    proof = _receive(sock, 32, "its key is another one", end)
    if not hmac.compare_digest(proof, _proof(key, b"worker", theirs, own)):
        raise WireError("its key is another one")
    sock.settimeout(ANSWER_SECONDS)
    of_first, of_worker = _session_seals(key, theirs, own)
    return Connection(sock, Seals(of_first, of_worker))


def _prove_worker(sock: socket.socket, key: str) -> Connection:
    end = time.monotonic() + ANSWER_SECONDS
    own = secrets.token_bytes(NONCE_BYTES)
    sock.settimeout(ANSWER_SECONDS)
    sock.sendall(GREETING + own)
    answer = _receive(sock, NONCE_BYTES + 32, "it closed the connection", end)
    theirs, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(key, b"first", own, theirs)):
        raise WireError("it has another key")
    sock.sendall(_proof(key, b"worker", own, theirs))
    sock.settimeout(ANSWER_SECONDS)
    of_first, of_worker = _session_seals(key, own, theirs)
    return Connection(sock, Seals(sent=of_worker, received=of_first))


def _session_seals(key: str, workers: bytes, firsts: bytes) -> tuple[Seal, Seal]:
    """Seals for the first machine's messages and for the worker's. `workers` and `firsts` are the
    random numbers that each has sent."""
    ends = (b"messages of first", b"messages of worker")
    of_first, of_worker = (Seal(_proof(key, end, workers, firsts)) for end in ends)
    return of_first, of_worker


def _proof(key: str, end: bytes, nonce: bytes, other: bytes) -> bytes:
    """32 bytes that prove knowledge of the key."""
    return hmac.digest(key.encode(), end + nonce + other, hashlib.sha256)


def _receive(sock: socket.socket, count: int, if_closed: str, end: float) -> bytes:
    """Receive `count` bytes before the time `end`. Raises WireError."""
    data = b""
    try:
        while len(data) < count:
            sock.settimeout(max(end - time.monotonic(), 1e-3))
            part = sock.recv(count - len(data))
            if not part:
                raise WireError(if_closed)
            data += part
    except WireError:
        raise
    except TimeoutError as error:
        raise WireError(_reason(error)) from error
    except OSError as error:
        raise WireError(if_closed) from error
    return data


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return (error.strerror or str(error) or "the connection broke").rstrip(".").lower()
