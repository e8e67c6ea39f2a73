"""`specchat worker`: lends this machine to a first one, which spreads a target over both.

It says which versions and how much memory there are, and whether a model is there. For one first
machine at a time it starts the process of its rank (`shard.py`), which talks to that one by itself.
It gets token ids and positions, never a file, and reads only models that are here.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from app.errors import UserError
from app.hosts.session import Session
from app.hosts.shard import LOST_SECONDS
from app.hosts.wire import Connection, Message, WireError, accept

MAX_UNPROVED, MAX_UNPROVED_PER_ADDRESS = 32, 2
"""Connections at once whose other end has not proved yet that it knows the key."""
PAUSE_SECONDS = 0.1
"""After a connection that could not be accepted."""
NOTICED_SECONDS = 1.0
"""In which a worker notices that a first machine has left."""
ENDING_SECONDS = 15.0
"""In which its rank's process ends: it may have to free 100 GB."""


class Worker:
    """Listens on `address`. `say` gets one line for each thing that happens."""

    def __init__(self, address: str, port: int, key: str, say: Callable[[str], None]) -> None:
        """Raises UserError."""
        self._address, self._key, self._say = address, key, say
        self._listening = _listen(address, port)
        self.port: int = self._listening.getsockname()[1]
        self._sessions: set[Session] = set()
        self._user: Session | None = None
        """The one whose model is loaded."""
        self._freed = threading.Condition()
        self._unproved: Counter[str] = Counter()
        """Connections without proof, by address."""
        self._counting = threading.Lock()
        self._closed = threading.Event()

    def run(self) -> None:
        """Until `close`."""
        while not self._closed.is_set():
            try:
                sock, other = self._listening.accept()
            except OSError:  # of one connection, or for want of files: others may still come
                self._closed.wait(PAUSE_SECONDS)
                continue
            if not self._admit(other[0]):
                sock.close()
                continue
            try:
                threading.Thread(target=self._answer, args=(sock, other[0]), daemon=True).start()
            except RuntimeError:  # there are too many threads
                self._dismiss(other[0])
                sock.close()

    def _admit(self, other: str) -> bool:
        """Whether one more connection from this address may take its time for the proof."""
        with self._counting:
            full = self._unproved.total() >= MAX_UNPROVED
            if full or self._unproved[other] >= MAX_UNPROVED_PER_ADDRESS:
                return False
            self._unproved[other] += 1
            return True

    def _dismiss(self, other: str) -> None:
        with self._counting:
            self._unproved[other] -= 1
            self._unproved += Counter()  # without those at 0

    def close(self) -> None:
        self._closed.set()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for session in tuple(self._sessions):
            session.end()

    def _answer(self, sock: socket.socket, other: str) -> None:
        try:
            try:
                connection = accept(sock, self._key)
            finally:
                self._dismiss(other)
        except WireError as error:
            self._say(f"{other} was refused: {error}.")
            return
        try:
            first = connection.receive(LOST_SECONDS)
        except WireError:
            connection.close()
            return
        if (ticket := first.get("ticket")) is not None:  # a session's second connection
            session = self._user
            if session is None or not session.attach(ticket, connection):
                connection.close()
            return
        self._serve(connection, other, first)

    def _serve(self, connection: Connection, other: str, first: Message) -> None:
        session = Session(connection, self._address, other, self._say, self._take)
        self._sessions.add(session)
        try:
            if not self._closed.is_set():
                session.run(first)
        finally:
            session.end()
            self._sessions.discard(session)
            with self._freed:
                if self._user is session:
                    self._user = None
                self._freed.notify_all()

    def _take(self, session: Session) -> bool:
        """Let a session load a model, unless another one has. One that ends is waited for."""
        asked_at = time.monotonic()
        with self._freed:
            while (user := self._user) is not None and user is not session:
                patience = ENDING_SECONDS if user.ending else NOTICED_SECONDS
                if self._closed.is_set() or time.monotonic() - asked_at > patience:
                    return False
                self._freed.wait(PAUSE_SECONDS)
            self._user = session
            return True


def _listen(address: str, port: int) -> socket.socket:
    if ":" in address:
        raise UserError(
            f"The worker cannot listen at {address}: MLX's ring knows no IPv6",
            "name an IPv4 address of this machine",
        )
    listening = socket.socket()
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen()
    except (OSError, UnicodeError, TypeError, ValueError) as error:  # no address looks like that
        listening.close()
        reason = getattr(error, "strerror", None) or "no name of a machine"
        raise UserError(
            f"The worker cannot listen at {address}, port {port} ({reason})",
            "name an address of this machine, or another --port",
        ) from None
    return listening
