"""Starts and ends the process of a rank (`shard.py`)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from app.hosts.wire import Connection


class ShardProcess:
    """The process of a rank, which goes on with `connection` and loads its part of the `model` in
    this folder. `files` are written, and their paths put into variables of these names."""

    def __init__(
        self,
        connection: Connection,
        environment: dict[str, str],
        files: dict[str, str],
        model: Path,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(
            prefix="specchat-hosts-", ignore_cleanup_errors=True
        )
        for name, content in files.items():
            path = Path(self._folder.name) / name
            path.write_text(content, encoding="utf-8")
            environment = environment | {name: str(path)}
        descriptor, seals = connection.socket.fileno(), connection.seals
        arguments = [str(descriptor), str(model), self._folder.name]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "app.hosts.shard", *arguments],
            env=os.environ | environment,
            pass_fds=[descriptor],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
            start_new_session=True,  # Ctrl+C in the terminal is for the first process
        )
        assert self._process.stdin is not None
        with (
            suppress(BrokenPipeError),
            self._process.stdin as keys,
        ):  # no argument: all can see those
            keys.write(b"" if seals is None else seals.to_json().encode())

    def wait(self) -> None:
        self._process.wait()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def free_port(address: str) -> int:
    """One that nothing listens on just now."""
    with socket.socket() as sock:
        sock.bind((address, 0))
        port: int = sock.getsockname()[1]
        return port
