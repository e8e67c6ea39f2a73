"""What one first machine asks of a worker."""

from __future__ import annotations

import platform
import secrets
import threading
from collections.abc import Callable
from pathlib import Path

import psutil

from app.errors import UserError
from app.hosts.machine import FREE_SHARE, machine_name
from app.hosts.shard import LOST_SECONDS
from app.hosts.shard_process import ShardProcess, free_port
from app.hosts.versions import content_fingerprint, versions
from app.hosts.wire import Connection, Message, WireError
from app.models.check import check_model
from app.models.resolve import resolve_model
from app.protocol.hosts import MLX_FILES, MLX_VARIABLES
from app.util.sanitize import sanitize_line

IDLE_SECONDS = 60.0
"""For which a first machine may ask nothing."""
PREPARED_SECONDS = 30.0
"""The same while nobody else can use the worker, until the rank's process runs: that notices by
itself when the first machine is gone."""


class Session:
    """What one first machine asks for."""

    def __init__(
        self,
        connection: Connection,
        address: str,
        other: str,
        say: Callable[[str], None],
        take: Callable[[Session], bool],
    ) -> None:
        self._control, self._address, self._other, self._say = connection, address, other, say
        self._take = take
        self._ticket = secrets.token_hex(16)
        self._prepared = False
        self._model_folder: Path | None = None
        self._data: Connection | None = None
        self._attached = threading.Event()
        self._process: ShardProcess | None = None
        self._lock = threading.Lock()
        """For the process, and `ending`."""
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
        """Until the first machine leaves, or its rank's process ends."""
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
                self._say(f"{self._other} left.")

    @property
    def _idle_seconds(self) -> float | None:
        if self._process is not None:
            return None
        return PREPARED_SECONDS if self._prepared else IDLE_SECONDS

    def _reply(self, answer: Callable[[Message], Message], message: Message) -> Message:
        try:
            return answer(message)
        except (KeyError, TypeError, ValueError, AttributeError):
            return {"problem": "it was asked in another way than it knows"}
        except OSError as error:
            return {"problem": f"its part could not be started ({error.strerror})"}

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
        """Whether a model is here, the same as on the first machine. Only such a one is loaded."""
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
        self._model_folder = folder
        return {}

    def _prepare(self, message: Message) -> Message:
        """A port for the layers' exchange, and what the second connection has to show."""
        if not self._take(self):
            return {"problem": "another machine uses it", "advice": "wait until it has left"}
        self._prepared = True
        return {"port": free_port(self._address), "ticket": self._ticket}

    def _start(self, message: Message) -> Message:
        environment, files = message["environment"], message["files"]
        if not MLX_VARIABLES.issuperset(environment) or not MLX_FILES.issuperset(files):
            return {"problem": "it was sent variables that it does not accept"}
        if not all(isinstance(value, str) for value in (*environment.values(), *files.values())):
            return {"problem": "it was sent variables that are no texts"}
        if self._model_folder is None or not self._prepared:
            return {"problem": "it was asked to start before its model was compared"}
        if not self._attached.wait(LOST_SECONDS) or self._data is None:
            return {"problem": "the second connection did not come"}
        with self._lock:
            if self.ending or self._process is not None:
                return {"problem": "its part was started before"}
            data = self._data
            self._process = ShardProcess(data, environment, files, self._model_folder)
        data.socket.close()  # the process has it
        threading.Thread(target=self._watch, args=(self._process,), daemon=True).start()
        shown = sanitize_line(str(message["name"]))
        self._say(f"{self._other} uses this machine for a part of {shown}.")
        return {}

    def _watch(self, process: ShardProcess) -> None:
        """End the session with its process."""
        process.wait()
        self._control.close()
