"""Messages between machines: plain values and NumPy arrays over a TCP connection, each way after
both ends have proved that they know the same key. Nothing is encrypted."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import secrets
import socket
import struct
import threading
from contextlib import suppress
from typing import Any

import numpy as np

Message = dict[str, Any]
"""Keys to plain values, and arrays as values of the first level."""

GREETING = b"specchat hosts 1\n"
NONCE_BYTES = 32
ANSWER_SECONDS = 10.0
"""For which the other end may be silent while a connection is made."""
MAX_TEXT, MAX_ARRAYS = 1 << 24, 1 << 30
"""Bytes of a message's plain values and of its arrays."""
_DTYPES = {"int32", "int64", "uint8", "float32", "bool"}
_SIZES = struct.Struct("!IQ")


class WireError(ConnectionError):
    """The other end is gone, or does not say what it should: part of a sentence."""


class Connection:
    """Sends from any thread, receives on one."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
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
                self.socket.sendall(data)
        except OSError as error:
            raise WireError(_reason(error)) from error
        return len(data)

    def receive(self, seconds: float | None = None) -> Message:
        """The next message. Raises WireError, also if nothing comes for so long."""
        try:
            self.socket.settimeout(seconds)
        except OSError as error:
            raise WireError("the connection is closed") from error
        text_size, arrays_size = _SIZES.unpack(self._exactly(_SIZES.size))
        if text_size > MAX_TEXT or arrays_size > MAX_ARRAYS:
            raise WireError("it sent something else than expected")
        text, data = self._exactly(text_size), self._exactly(arrays_size)
        try:
            plain, described = json.loads(text)
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

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        try:
            while len(data) < count:
                part = self.socket.recv(min(count - len(data), 1 << 20))
                if not part:
                    raise WireError("it closed the connection")
                data += part
        except TimeoutError as error:
            raise WireError("it did not answer in time") from error
        except OSError as error:
            if isinstance(error, WireError):
                raise
            raise WireError(_reason(error)) from error
        return bytes(data)

    def close(self) -> None:
        with suppress(OSError):  # another thread may wait in `receive`, which closing does not end
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def connect(address: str, port: int, key: str) -> Connection:
    """To a worker. Raises Refused, or WireError."""
    try:
        sock = socket.create_connection((address, port), ANSWER_SECONDS)
    except OSError as error:
        raise WireError(_reason(error)) from error
    try:
        theirs = _receive_nonce(sock)
        own = secrets.token_bytes(NONCE_BYTES)
        sock.sendall(own + _proof(key, b"first", theirs, own))
        proof = _receive(sock, 32, "its key is another one")
        if not hmac.compare_digest(proof, _proof(key, b"worker", theirs, own)):
            raise WireError("its key is another one")
    except OSError as error:
        sock.close()
        raise error if isinstance(error, WireError) else WireError(_reason(error)) from error
    return Connection(sock)


def accept(sock: socket.socket, key: str) -> Connection:
    """A connection to this worker, once the other end has proved that it knows the key. Raises
    WireError."""
    own = secrets.token_bytes(NONCE_BYTES)
    try:
        sock.settimeout(ANSWER_SECONDS)
        sock.sendall(GREETING + own)
        answer = _receive(sock, NONCE_BYTES + 32, "it closed the connection")
        theirs, proof = answer[:NONCE_BYTES], answer[NONCE_BYTES:]
        if not hmac.compare_digest(proof, _proof(key, b"first", own, theirs)):
            raise WireError("it has another key")
        sock.sendall(_proof(key, b"worker", own, theirs))
    except OSError as error:
        sock.close()
        raise error if isinstance(error, WireError) else WireError(_reason(error)) from error
    return Connection(sock)


def _receive_nonce(sock: socket.socket) -> bytes:
    first = _receive(sock, len(GREETING) + NONCE_BYTES, "it is no specchat worker")
    if not first.startswith(GREETING):
        raise WireError("it is no specchat worker, or one of another version")
    return first[len(GREETING) :]


def _proof(key: str, end: bytes, nonce: bytes, other: bytes) -> bytes:
    """32 bytes that only who knows the key can make."""
    return hmac.digest(key.encode(), end + nonce + other, hashlib.sha256)


def _receive(sock: socket.socket, count: int, if_closed: str) -> bytes:
    data = b""
    try:
        while len(data) < count:
            part = sock.recv(count - len(data))
            if not part:
                raise WireError(if_closed)
            data += part
    except TimeoutError as error:
        raise WireError("it did not answer in time") from error
    except OSError as error:
        if isinstance(error, WireError):
            raise
        raise WireError(if_closed) from error
    return data


def _reason(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    return (error.strerror or str(error) or "the connection broke").rstrip(".").lower()
