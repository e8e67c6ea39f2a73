"""`specchat worker`: holds a shard of another machine's model.

It reports its versions and free memory, and whether it has a model. For one first machine at a time
it starts the process of a rank (`shard.py`), which then communicates with that machine directly. It
receives token ids and positions, never a file, and reads only models that are on this machine.
"""

from __future__ import annotations

import platform
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from app.errors import UserError
from app.extras.hosts.machine import FREE_SHARE, content_fingerprint, machine_name, versions
from app.extras.hosts.shard import LOST_SECONDS, ShardProcess, free_port
from app.extras.hosts.wire import Connection, Message, WireError, accept, refuse
from app.models.cache import resolve_model
from app.models.check import check_model
from app.util.sanitize import sanitize_line

MAX_UNPROVED, MAX_UNPROVED_PER_ADDRESS = 32, 2
"""Maximum connections whose other end has not proved the key yet, in total and per address."""
PAUSE_SECONDS = 0.1
"""Pause after a failure to accept a connection."""
NOTICED_SECONDS = 1.0
"""Time within which a worker notices that a first machine has disconnected."""
ENDING_SECONDS = 15.0
"""Time within which the process of a rank ends. It may have to free 100 GB."""
IDLE_SECONDS = 60.0
"""Seconds of silence after which a first machine is disconnected."""
PREPARED_SECONDS = 30.0
"""The same for a first machine that has reserved the worker, until the rank's process runs. That
process notices by itself if the first machine is lost."""


class Worker:
    """Listens on `address`, and calls `say` with a line for each event."""

    def __init__(self, address: str, port: int, key: str, say: Callable[[str], None]) -> None:
        """Raises UserError."""
        self.address, self._key, self.say = address, key, say
        self._listening = _listen(address, port)
        self.port: int = self._listening.getsockname()[1]
        self._sessions: set[Session] = set()
        self._user: Session | None = None
        """The session whose model is loaded."""
        self._freed = threading.Condition()
        self._unproved: Counter[str] = Counter()
        """Number of connections that have not proved the key, by address."""
        self._counting = threading.Lock()
        self._closed = threading.Event()

    def run(self) -> None:
        """Accept connections until `close`."""
        while not self._closed.is_set():
            try:
                sock, other = self._listening.accept()
            except OSError:  # the connection failed, or too many files are open: keep accepting
                self._closed.wait(PAUSE_SECONDS)
                continue
            if not self._admit(other[0]):
                refuse(sock)
                continue
            try:
                threading.Thread(target=self._answer, args=(sock, other[0]), daemon=True).start()
            except RuntimeError:  # too many threads
                self._dismiss(other[0])
                sock.close()

    def _admit(self, other: str) -> bool:
        """Count one more unproved connection from this address; False if there are too many."""
        with self._counting:
            full = self._unproved.total() >= MAX_UNPROVED
            if full or self._unproved[other] >= MAX_UNPROVED_PER_ADDRESS:
                return False
            self._unproved[other] += 1
            return True

    def _dismiss(self, other: str) -> None:
        with self._counting:
            self._unproved[other] -= 1
            self._unproved += Counter()  # drops entries of 0

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
            self.say(f"{other} was refused: {error}.")
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
        session = Session(self, connection, other)
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

    def reserve(self, session: Session) -> bool:
        """Reserve the worker for a session; False if another one has it. Waits for a session that
        is ending."""
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
            f"The worker cannot listen at {address}: MLX's ring does not support IPv6",
            "name an IPv4 address of this machine",
        )
    listening = socket.socket()
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen()
    except (OSError, UnicodeError, TypeError, ValueError) as error:  # not a valid address
        listening.close()
        reason = getattr(error, "strerror", None) or "not a valid address"
        raise UserError(
            f"The worker cannot listen at {address}, port {port} ({reason})",
            "name an address of this machine, or another --port",
        ) from None
    return listening


class Session:
    """Answers the requests of one first machine."""

    def __init__(self, worker: Worker, connection: Connection, other: str) -> None:
        self._worker, self._control, self._other = worker, connection, other
        self._ticket = secrets.token_hex(16)
        self._prepared = False
        self._model_folder: Path | None = None
        self._data: Connection | None = None
        self._attached = threading.Event()
        self._process: ShardProcess | None = None
        self._lock = threading.Lock()
        """Guards the process and `ending`."""
        self.ending = False

    def attach(self, ticket: str, connection: Connection) -> bool:
        with self._lock:
            if self.ending or self._data is not None or not self._is_ticket(ticket):
                return False
            self._data = connection
        self._attached.set()
        return True

    def _is_ticket(self, ticket: object) -> bool:
        return secrets.compare_digest(str(ticket).encode(), self._ticket.encode())

    def run(self, first: Message) -> None:
        """Answer until the first machine disconnects, or the process of its rank ends."""
        answers = {
            "hello": self._hello,
            "echo": lambda message: {"data": message["data"]},
            "model": self._model,
            "prepare": self._prepare,
            "start": self._start,
        }
        message = first
        try:
            while True:
                if answer := answers.get(str(message.get("do"))):
                    self._control.send(self._reply(answer, message))
                message = self._control.receive(self._idle_seconds)
        except WireError:
            self.ending = True
            if self._process is not None:
                self._worker.say(f"{self._other} disconnected.")

    @property
    def _idle_seconds(self) -> float | None:
        if self._process is not None:
            return None
        return PREPARED_SECONDS if self._prepared else IDLE_SECONDS

    def _reply(self, answer: Callable[[Message], Message], message: Message) -> Message:
        try:
            return answer(message)
        except (KeyError, TypeError, ValueError, AttributeError):
            return {"problem": "it does not know the request"}
        except OSError as error:
            return {"problem": f"its process could not be started ({error.strerror})"}

    def end(self) -> None:
        with self._lock:
            self.ending = True
        for connection in (self._control, self._data):
            if connection is not None:
                connection.close()
        if self._process is not None:
            self._process.kill()

    def _hello(self, message: Message) -> Message:
        return {
            "versions": versions(),
            "name": platform.node(),
            "machine": machine_name(),
            "total": psutil.virtual_memory().total,
            "free": psutil.virtual_memory().available * FREE_SHARE,
        }

    def _model(self, message: Message) -> Message:
        """Compare a model with the first machine's. Only an identical model is loaded."""
        name = sanitize_line(str(message["name"]))
        try:
            folder = resolve_model(str(message["name"]))
            check_model(folder)
            same = content_fingerprint(folder) == message["fingerprint"]
        except UserError as error:
            return {"problem": error.problem, "advice": error.advice}
        except OSError as error:
            return {"problem": f"{name} cannot be read ({error.strerror})", "advice": ""}
        if not same:
            return {
                "problem": f"its {name} differs from this machine's",
                "advice": "download the same model on both",
            }
        self._model_folder = folder
        return {}

    def _prepare(self, message: Message) -> Message:
        """Reserve the worker; the reply has a port for the ring, and a ticket for `attach`."""
        if not self._worker.reserve(self):
            return {"problem": "another machine uses it", "advice": "try again when it is free"}
        self._prepared = True
        return {"port": free_port(self._worker.address), "ticket": self._ticket}

    def _start(self, message: Message) -> Message:
        rank, ring = int(message["rank"]), str(message["ring"])
        if self._model_folder is None or not self._prepared:
            return {"problem": "it was asked to start before its model was checked"}
        if not self._attached.wait(LOST_SECONDS) or self._data is None:
            return {"problem": "the second connection was not opened"}
        with self._lock:
            if self.ending or self._process is not None:
                return {"problem": "its process is already running"}
            data = self._data
            self._process = ShardProcess(data, rank, ring, self._model_folder)
        data.socket.close()  # the process has its own copy
        threading.Thread(target=self._watch, args=(self._process,), daemon=True).start()
        shown = sanitize_line(str(message["name"]))
        self._worker.say(f"{self._other} uses this machine for a shard of {shown}.")
        return {}

    def _watch(self, process: ShardProcess) -> None:
        """End the session when its process ends."""
        process.wait()
        self._control.close()
