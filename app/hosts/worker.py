"""`specchat worker`: lends this machine to a first one, which spreads a target over both.

It says which versions and how much memory there are, and whether a model is there. For one first
machine at a time it starts the process of its rank (`shard.py`), which talks to that one by itself.
It gets token ids and positions, never a file, and reads only models that are here.
"""

from __future__ import annotations

import os
import platform
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from app.errors import UserError
from app.hosts.shard import LOST_SECONDS
from app.hosts.versions import content_fingerprint, versions
from app.hosts.wire import Connection, Message, WireError, accept
from app.models.check import check_model
from app.models.resolve import resolve_model
from app.util.sanitize import sanitize_line

FREE_SHARE = 0.9
"""Of what the system says is available, for a shard."""


class Worker:
    """Listens on `address`. `say` gets one line for each thing that happens."""

    def __init__(self, address: str, port: int, key: str, say: Callable[[str], None]) -> None:
        """Raises UserError."""
        self._address, self._key, self._say = address, key, say
        self._listening = _listen(address, port)
        self.port: int = self._listening.getsockname()[1]
        self._sessions: set[_Session] = set()
        self._user: _Session | None = None
        """The one whose model is loaded."""
        self._lock = threading.Lock()

    def run(self) -> None:
        """Until `close`."""
        while True:
            try:
                sock, other = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(sock, other[0]), daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for session in tuple(self._sessions):
            session.end()

    def _answer(self, sock: socket.socket, other: str) -> None:
        try:
            connection = accept(sock, self._key)
            first = connection.receive(LOST_SECONDS)
        except WireError as error:
            self._say(f"{other} was refused: {error}.")
            sock.close()
            return
        if (ticket := first.get("ticket")) is not None:  # a session's second connection
            session = self._user
            if session is None or not session.attach(ticket, connection):
                connection.close()
            return
        session = _Session(connection, self._address, other, self._say, self._take)
        self._sessions.add(session)
        try:
            session.run(first)
        finally:
            session.end()
            self._sessions.discard(session)
            if self._user is session:
                self._user = None

    def _take(self, session: _Session) -> bool:
        """Let a session load a model, unless another one has."""
        with self._lock:
            self._user = self._user or session
            return self._user is session


class _Session:
    """What one first machine asks for."""

    def __init__(
        self,
        connection: Connection,
        address: str,
        other: str,
        say: Callable[[str], None],
        take: Callable[[_Session], bool],
    ) -> None:
        self._control, self._address, self._other, self._say = connection, address, other, say
        self._take = take
        self._ticket = secrets.token_hex(16)
        self._data: Connection | None = None
        self._attached = threading.Event()
        self._process: ShardProcess | None = None

    def attach(self, ticket: str, connection: Connection) -> bool:
        if not secrets.compare_digest(str(ticket), self._ticket) or self._data is not None:
            return False
        self._data = connection
        self._attached.set()
        return True

    def run(self, first: Message) -> None:
        """Until the first machine leaves, or its rank's process ends."""
        threading.Thread(target=self._watch, daemon=True).start()
        answers = {
            "hello": self._hello,
            "echo": lambda message: {"data": message["data"]},
            "model": self._model,
            "prepare": self._prepare,
            "start": self._start,
        }
        message: Message | None = first
        try:
            while True:
                if message is not None and (answer := answers.get(str(message.get("do")))):
                    self._control.send(self._reply(answer, message))
                message = self._control.receive()
        except WireError:
            if self._process is not None:
                self._say(f"{self._other} left.")

    def _reply(self, answer: Callable[[Message], Message], message: Message) -> Message:
        try:
            return answer(message)
        except (KeyError, TypeError, ValueError, AttributeError):
            return {"problem": "it was asked in another way than it knows"}
        except OSError as error:
            return {"problem": f"its part could not be started ({error.strerror})"}

    def end(self) -> None:
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
        """Whether a model is here, the same as on the first machine."""
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
                "problem": f"its {name} is another one than on this machine",
                "advice": "download the same model on both",
            }
        return {"folder": str(folder)}

    def _prepare(self, message: Message) -> Message:
        """A port for the layers' exchange, and what the second connection has to show."""
        if not self._take(self):
            return {"problem": "another machine uses it", "advice": "wait until it has left"}
        return {"port": free_port(self._address), "ticket": self._ticket}

    def _start(self, message: Message) -> Message:
        names = (*message["environment"], *message["files"])
        if not all(name.startswith("MLX_") and name.isidentifier() for name in names):
            return {"problem": "only variables of MLX are accepted"}  # others could run anything
        if not self._attached.wait(LOST_SECONDS) or self._data is None:
            return {"problem": "the second connection did not come"}
        self._process = ShardProcess(self._data.socket, message["environment"], message["files"])
        self._data.socket.close()  # the process has it
        shown = sanitize_line(str(message["name"]))
        self._say(f"{self._other} uses this machine for a part of {shown}.")
        return {}

    def _watch(self) -> None:
        """End the session with its process, and one that never starts it."""
        while self._process is None:
            time.sleep(0.2)
            if self._control.socket.fileno() < 0:
                return
        self._process.wait()
        self._control.close()


class ShardProcess:
    """The process of a rank, which talks over `sock`. `files` are written, and their paths put into
    variables of these names."""

    def __init__(
        self, sock: socket.socket, environment: dict[str, str], files: dict[str, str]
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="specchat-hosts-")
        for name, content in files.items():
            path = Path(self._folder.name) / name
            path.write_text(content, encoding="utf-8")
            environment = environment | {name: str(path)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "app.hosts.shard", str(sock.fileno())],
            env=os.environ | environment,
            pass_fds=[sock.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
            start_new_session=True,  # Ctrl+C in the terminal is for the first process
        )

    def wait(self) -> None:
        self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def free_port(address: str) -> int:
    """One that nothing listens on just now."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as sock:
        sock.bind((address, 0))
        port: int = sock.getsockname()[1]
        return port


def machine_name() -> str:
    """What its processor is called."""
    with suppress(OSError, subprocess.SubprocessError):
        if sys.platform == "darwin":
            found = subprocess.run(
                ["sysctl", "-n", "machdep.cpu.brand_string"],
                capture_output=True,
                text=True,
                timeout=2,
                check=True,
            )
            return found.stdout.strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def own_addresses() -> list[tuple[str, str]]:
    """IPv4 addresses of this machine that others may reach it at, and their interfaces."""
    return [
        (each.address, interface)
        for interface, addresses in psutil.net_if_addrs().items()
        for each in addresses
        if each.family == socket.AF_INET and not each.address.startswith("127.")
    ]


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise UserError(
            f"The worker cannot listen at {address}, port {port} ({error.strerror})",
            "name an address of this machine, or another --port",
        ) from None
    return listening
