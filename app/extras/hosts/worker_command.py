"""`specchat worker`: holds a shard of another machine's model."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NoReturn

from app.cli.options import whole
from app.cli.status import HOSTS_VARIABLE
from app.errors import UserError
from app.extras.hosts.machine import own_addresses
from app.extras.hosts.worker import Worker
from app.paths import config_path
from app.protocol.hosts import MAX_PORT, WORKER_PORT, Host
from app.util.regular_files import make_secret, read_secret
from app.util.sanitize import sanitize_line

KEY_FILE = "worker-key"
EVERY_ADDRESS = ("", "0.0.0.0", "::", "0")
REMARK = "Token ids are sent unencrypted. Ctrl+C stops the worker."


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Holds a shard of a model that is too large for one machine. The first machine connects"
        " with the key that the worker prints. It sends token ids, never files; nothing is"
        " encrypted."
    )
    command.add_argument(
        "address",
        metavar="ADDRESS",
        nargs="?",
        help="this machine's address to listen on; without it, this machine's addresses are listed",
    )
    command.add_argument(
        "--port",
        type=whole("port", 0, MAX_PORT),
        default=WORKER_PORT,
        help="the port to listen on; 0: any free port (default %(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Serve first machines at the address until interrupted."""
    if args.address is None:
        raise _which_address("The address to listen on is missing")
    address = args.address.removeprefix("[").removesuffix("]")
    if address in EVERY_ADDRESS:
        raise _which_address("A worker listens on one address only")
    for number in (signal.SIGTERM, signal.SIGHUP):  # its shard's process would stay
        signal.signal(number, _end)
    key = _key(config_path() / KEY_FILE)
    lending = Worker(address, args.port, key, _say)
    try:
        hosts = f"{key}@{Host(address, lending.port).name}"
        sys.stdout.write(f"On the first machine, type: {HOSTS_VARIABLE}={hosts} specchat\n")
        sys.stdout.flush()
        sys.stderr.write(f"{REMARK}\n")
        lending.run()
    finally:
        lending.close()
    return 0


def _which_address(problem: str) -> UserError:
    commands = [f"`specchat worker {each}` ({interface})" for each, interface in own_addresses()]
    if not commands:
        return UserError(problem, "connect this machine to a network first: it has none")
    return UserError(problem, " or ".join(commands))


def _end(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


def _key(path: Path) -> str:
    """This machine's key, which is created once. Raises UserError."""
    try:
        if key := read_secret(path):
            return key
    except (OSError, UnicodeDecodeError):
        raise UserError(
            f"The worker's key in '{path}' cannot be read", "delete that file"
        ) from None
    try:
        return make_secret(path)
    except OSError as error:
        raise UserError(
            f"The worker's key cannot be written to '{path}' ({error.strerror})",
            "make that folder writable",
        ) from None


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {sanitize_line(text)}\n")
