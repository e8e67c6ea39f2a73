"""Parses `--hosts` and SPECCHAT_HOSTS (which may contain keys), and stores the workers' keys."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.cli.status import HOSTS_VARIABLE
from app.errors import UserError
from app.paths import config_path
from app.protocol.hosts import MAX_PORT, WORKER_PORT, Host, Hosts
from app.util.regular_files import read_file, write_private

KEYS_FILE = "host-keys.json"
MAX_BYTES = 1 << 20
"""Size limit of the file with the keys."""
_ADDRESS = re.compile(r"([\w.-]+)(?::(\d{1,5}))?", re.A)
_RUN_WORKER = "run `specchat worker` there, and type the line that it prints once on this machine"


def requested_hosts(text: str) -> Hosts:
    """Parse `text` with the stored keys, and store the keys in it. Raises UserError."""
    path = config_path() / KEYS_FILE
    keys = read_keys(path)
    hosts = parse_hosts(text, keys)
    used = keys | {host.name: host.key for host in hosts.others}
    if used != keys:
        try:
            write_private(path, json.dumps(used, indent=2) + "\n")
        except OSError as error:
            raise UserError(
                f"The keys of other machines cannot be written to '{path}' ({error.strerror})",
                "make that folder writable",
            ) from None
    return hosts


def refuse_keys(text: str) -> None:
    """Raise UserError if `text`, from a command line, contains keys: every user of a machine can
    see the arguments of its processes."""
    if "@" in text:
        raise UserError(
            "A key in a command is visible to every user of this machine",
            f"write {HOSTS_VARIABLE}=KEY@ADDRESS before the command, once: specchat stores the key",
        )


def read_keys(path: Path) -> dict[str, str]:
    """Keys of workers, by `ADDRESS[:PORT]`. Raises UserError."""
    try:
        keys = json.loads(read_file(path, MAX_BYTES))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        keys = None
    found: dict[str, Any] = keys if isinstance(keys, dict) else {"": None}
    used = found.items()
    if not all(isinstance(key, str) and key and _ADDRESS.fullmatch(name) for name, key in used):
        raise UserError(
            f"The keys of other machines in '{path}' cannot be read",
            "delete that file, and enter each worker's connection line again",
        )
    return found


def parse_hosts(text: str, keys: Mapping[str, str]) -> Hosts:
    """Parse workers separated by commas: `KEY@ADDRESS[:PORT]`, or `ADDRESS[:PORT]` if the key is
    stored. Raises UserError."""
    if not text.strip():
        raise UserError("--hosts names no machine", _RUN_WORKER)
    hosts = Hosts(tuple(_worker(part.strip(), keys) for part in text.split(",")))
    names = [host.name for host in hosts.others]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{name} is named twice", "name each machine once")
    return hosts


def _worker(text: str, keys: Mapping[str, str]) -> Host:
    key, at, where = text.rpartition("@")  # an error never quotes the key
    address, port = _split(where)
    if not at:
        return _known(address, port, keys)
    if not key:
        raise UserError(f"The key before @{where} is missing", _RUN_WORKER)
    return Host(address, port or WORKER_PORT, key)


def _split(where: str) -> tuple[str, int | None]:
    """Address and port. Raises UserError."""
    if _is_ipv6(where):
        raise UserError(
            f"{where!r} cannot be used: MLX's ring does not support IPv6",
            "start the worker at an IPv4 address",
        )
    found = _ADDRESS.fullmatch(where)
    if found is None:
        advice = "use KEY@ADDRESS or KEY@ADDRESS:PORT, as `specchat worker` prints it"
        raise UserError(f"{where!r} is not a valid address", advice)
    port = int(found[2]) if found[2] else None
    if port is not None and not 1 <= port <= MAX_PORT:
        raise UserError(f"{port} is not a valid port", f"use one from 1 to {MAX_PORT:,}")
    return found[1], port


def _is_ipv6(text: str) -> bool:
    """Whether `text` is an IPv6 address, or one in brackets, with or without a port."""
    bracketed = re.fullmatch(r"\[(.*)\](?::\d*)?", text)
    try:
        ipaddress.IPv6Address(bracketed[1] if bracketed else text)
    except ValueError:
        return False
    return True


def _known(address: str, port: int | None, keys: Mapping[str, str]) -> Host:
    """The worker at this address, with its stored key. Raises UserError."""
    stored = [(_split(each), key) for each, key in keys.items()]
    there = {at or WORKER_PORT: key for (name, at), key in stored if name == address}
    if port is None and WORKER_PORT not in there and len(there) == 1:
        (port,) = there
    host = Host(address, port or WORKER_PORT)
    if host.port not in there:
        raise UserError(f"The key of {host.name} is not known", _RUN_WORKER)
    return replace(host, key=there[host.port])
