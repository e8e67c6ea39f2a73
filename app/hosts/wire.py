"""Messages between machines: plain values and NumPy arrays over a TCP connection, each way after
both ends have proved that they know the same key. Each message carries a tag that only they can
make, so none can be changed, dropped or repeated on the way. Nothing is encrypted."""

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

Message = dict[str, Any]
"""Keys to plain values, and arrays as values of the first level."""

GREETING = b"specchat hosts 2\n"
NONCE_BYTES = TAG_BYTES = 32
ANSWER_SECONDS = 10.0
"""In which both ends have to prove that they know the key."""
CHECK_SECONDS = 0.1
"""Between two looks whether what waits should go on."""
MAX_TEXT, MAX_ARRAYS = 1 << 24, 1 << 30
"""Bytes of a message's plain values and of its arrays."""
_DTYPES = {"int32", "int64", "uint8", "float32", "bool"}
_SIZES = struct.Struct("!IQ")


class WireError(ConnectionError):
    """The other end is gone, or does not say what it should: part of a sentence."""


@dataclass(slots=True)
class Seal:
    """Makes the tags of one direction. The number of a message is part of its tag."""

    key: bytes
    count: int = 0

    def tag(self, *parts: bytes) -> bytes:
        """TAG_BYTES for the next message."""
        self.count += 1
        digest = hmac.new(self.key, self.count.to_bytes(8, "big"), hashlib.sha256)
        for part in parts:
            digest.update(part)
        return digest.digest()


@dataclass(frozen=True, slots=True)
class Seals:
    """One seal for messages that are sent, and one for those that are received."""

    sent: Seal
    received: Seal

    def to_json(self) -> str:
        """For another process that goes on with the connection."""
        return json.dumps([[seal.key.hex(), seal.count] for seal in (self.sent, self.received)])

    @classmethod
    def from_json(cls, text: str) -> Seals:
        return cls(*(Seal(bytes.fromhex(key), count) for key, count in json.loads(text)))


class Connection:
    """Sends from any thread, receives on one. Without `seals`, for a process of this machine,
    messages have no tags."""

    def __init__(self, sock: socket.socket, seals: Seals | None = None) -> None:
        self.socket, self.seals = sock, seals
        self._sending = threading.Lock()
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Message) -> int:
        """Returns the number of bytes. Raises WireError."""
        plain, arrays = dict[str, Any](), list[np.ndarray[Any, Any]]()
        described = []
        for key, value in message.items():
            if isinstance(value, np.ndarray):
                described.append([key, value.dtype.name, list(value.shape)])
                arrays.append(np.ascontiguousarray(value))
            else:
                plain[key] = value
        text = json.dumps([plain, described]).encode()
        parts = [_SIZES.pack(len(text), sum(array.nbytes for array in arrays)), text]
        data = b"".join([*parts, *(array.tobytes() for array in arrays)])
        try:
            with self._sending:
                tag = b"" if self.seals is None else self.seals.sent.tag(data)
                self.socket.sendall(data + tag)
        except OSError as error:
            raise WireError(_reason(error)) from error
        return len(data)

    def receive(
        self, seconds: float | None = None, check: Callable[[], None] | None = None
    ) -> Message:
        """The next message. Raises WireError, also if nothing comes for so long; and whatever
        `check` raises, which is called while it waits."""
        try:
            self.socket.settimeout(seconds)
        except OSError as error:
            raise WireError("the connection is closed") from error
        sizes = self._exactly(_SIZES.size, check)
        text_size, arrays_size = _SIZES.unpack(sizes)
        if text_size > MAX_TEXT or arrays_size > MAX_ARRAYS:
            raise WireError("it sent something else than expected")
        text, data = self._exactly(text_size, check), self._exactly(arrays_size, check)
        if self.seals is not None:
            expected = self.seals.received.tag(sizes, text, data)
            if not hmac.compare_digest(self._exactly(TAG_BYTES, check), expected):
                raise WireError("a message was changed on its way")
        try:
            plain, described = json.loads(text)
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
        """Until something comes. Raises TimeoutError, or what `check` raises."""
        poll, seconds = select.poll(), self.socket.gettimeout()
        poll.register(self.socket, select.POLLIN)
        end = math.inf if seconds is None else time.monotonic() + seconds
        check()
        while not poll.poll(CHECK_SECONDS * 1000):
            check()
            if time.monotonic() > end:
                raise TimeoutError

    def close(self) -> None:
        with suppress(OSError):  # another thread may wait in `receive`, which closing does not end
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def connect(address: str, port: int, key: str) -> Connection:
    """To a worker. Raises WireError."""
    try:
        sock = socket.create_connection((address, port), ANSWER_SECONDS)
    except UnicodeError as error:
        raise WireError("it has no address of that name") from error
    except OSError as error:
        raise WireError(_reason(error)) from error
    with _closed_on_error(sock):
        return _prove_first(sock, key)


def accept(sock: socket.socket, key: str) -> Connection:
    """A connection to this worker, once the other end has proved that it knows the key. Raises
    WireError."""
    with _closed_on_error(sock):
        return _prove_worker(sock, key)


@contextmanager
def _closed_on_error(sock: socket.socket) -> Iterator[None]:
    """Close it where the proofs inside fail. Raises WireError then."""
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
    first = _receive(sock, len(GREETING) + NONCE_BYTES, "it is no specchat worker", end)
    if not first.startswith(GREETING):
        raise WireError("it is no specchat worker, or one of another version")
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
    """The seals of the first machine's messages and of the worker's, from the random numbers that
    both sent."""
    ends = (b"messages of first", b"messages of worker")
    of_first, of_worker = (Seal(_proof(key, end, workers, firsts)) for end in ends)
    return of_first, of_worker


def _proof(key: str, end: bytes, nonce: bytes, other: bytes) -> bytes:
    """32 bytes that only who knows the key can make."""
    return hmac.digest(key.encode(), end + nonce + other, hashlib.sha256)


def _receive(sock: socket.socket, count: int, if_closed: str, end: float) -> bytes:
    """That many bytes, until `end` even if they come one by one. Raises WireError."""
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
