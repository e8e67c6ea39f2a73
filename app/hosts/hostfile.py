"""The value of `--hosts` or of SPECCHAT_HOSTS: workers, with their keys in the latter, or a file in
the format of `mlx.launch`; and the keys that were given once."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.errors import UserError
from app.paths import config_path
from app.protocol.hosts import MAX_PORT, MLX_VARIABLES, WORKER_PORT, Host, Hosts, Link
from app.util.regular_files import read_file, write_private

VARIABLE = "SPECCHAT_HOSTS"
KEYS_FILE = "host-keys.json"
MAX_BYTES = 1 << 20
"""Size limit of a file with machines or keys."""
_BACKENDS = {"": Link.RING, "ring": Link.RING, "jaccl": Link.JACCL, "jaccl-ring": Link.JACCL}
_ADDRESS = re.compile(r"([\w.-]+)(?::(\d{1,5}))?", re.A)
_RUN_WORKER = "run `specchat worker` there, and use the line that it prints once"


def requested_hosts(text: str) -> Hosts:
    """Parse `text` with the stored keys, and store the keys in it. Raises UserError."""
    path = config_path() / KEYS_FILE
    keys = read_keys(path)
    hosts = parse_hosts(text, keys)
    used = keys | {spelled(host.address, host.port): host.key for host in hosts.others}
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
    """Raise UserError when `text`, from a command line, contains keys: all users of a machine see
    the arguments of its processes."""
    if "@" in text and not _is_path(text):
        raise UserError(
            "A key in a command can be seen by every user of this machine",
            f"write {VARIABLE}=KEY@ADDRESS before the command, once: specchat stores the key",
        )


def read_keys(path: Path) -> dict[str, str]:
    """Keys of workers, by `ADDRESS[:PORT]`. Raises UserError."""
    try:
        keys = _read_json(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        keys = None
    found: dict[str, Any] = keys if isinstance(keys, dict) else {"": None}
    used = found.items()
    if not all(isinstance(key, str) and key and _ADDRESS.fullmatch(name) for name, key in used):
        raise UserError(
            f"The keys of other machines in '{path}' cannot be read",
            "delete that file, and use the line of each `specchat worker` again",
        )
    return found


def parse_hosts(text: str, keys: Mapping[str, str]) -> Hosts:
    """Workers with commas between them, `KEY@ADDRESS[:PORT]` or `ADDRESS[:PORT]` of a stored key,
    or the path of a file. Raises UserError."""
    if not text.strip():
        raise UserError("--hosts names no machine", _RUN_WORKER)
    if _is_path(text):
        hosts = _from_file(Path(text).expanduser(), keys)
    else:
        hosts = Hosts(tuple(_worker(part.strip(), keys) for part in text.split(",")))
    spelt = [spelled(host.address, host.port) for host in hosts.others]
    for each in spelt:
        if spelt.count(each) > 1:
            raise UserError(f"{each} is named twice", "name each machine once")
    return hosts


def spelled(address: str, port: int) -> str:
    """`ADDRESS[:PORT]`, as the user types it."""
    return address if port == WORKER_PORT else f"{address}:{port}"


# --------------------------------------------------------------------------- typed workers


def _is_path(text: str) -> bool:
    try:
        if Path(text).expanduser().is_file():
            return True
    except (OSError, ValueError, RuntimeError):
        return False
    return "@" not in text and ("/" in text or text.endswith(".json"))


def _worker(text: str, keys: Mapping[str, str]) -> Host:
    key, at, where = text.rpartition("@")  # an error never quotes the key
    address, port = _split(where)
    if not at:
        return _known([(address, port)], keys)
    if not key:
        raise UserError(f"The key before @{where} is missing", _RUN_WORKER)
    return Host(address, port or WORKER_PORT, key)


def _split(where: str) -> tuple[str, int | None]:
    """Address and port. Raises UserError."""
    if _is_ipv6(where):
        raise UserError(
            f"{where!r} cannot be used: MLX's ring knows no IPv6",
            "start the worker at an IPv4 address",
        )
    found = _ADDRESS.fullmatch(where)
    if found is None:
        advice = "use the line that `specchat worker` prints, KEY@ADDRESS or KEY@ADDRESS:PORT"
        raise UserError(f"{where!r} is not the address of a machine", advice)
    port = int(found[2]) if found[2] else None
    if port is not None and not 1 <= port <= MAX_PORT:
        raise UserError(f"{port} is not a port", f"use one from 1 to {MAX_PORT:,}")
    return found[1], port


def _is_ipv4(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def _is_ipv6(text: str) -> bool:
    """Whether it is an IPv6 address, also in brackets that a port may follow."""
    bracketed = re.fullmatch(r"\[(.*)\](?::\d*)?", text)
    try:
        ipaddress.IPv6Address(bracketed[1] if bracketed else text)
    except ValueError:
        return False
    return True


def _known(names: Sequence[tuple[str, int | None]], keys: Mapping[str, str]) -> Host:
    """The worker at the first of these addresses whose key is stored. Raises UserError."""
    stored = [(_split(each), key) for each, key in keys.items()]
    for address, port in names:
        there = {at or WORKER_PORT: key for (name, at), key in stored if name == address}
        if port is None and WORKER_PORT not in there and len(there) == 1:
            (port,) = there
        if key := there.get(port or WORKER_PORT):
            return Host(address, port or WORKER_PORT, key)
    address, port = names[0]
    shown = spelled(address, port or WORKER_PORT)
    raise UserError(f"The key of {shown} is not known", _RUN_WORKER)


# --------------------------------------------------------------------------- files


def _read_json(path: Path) -> Any:
    """Raises OSError, ValueError or RecursionError."""
    return json.loads(read_file(path, MAX_BYTES).decode("utf-8-sig"))


def _from_file(path: Path, keys: Mapping[str, str]) -> Hosts:
    """Read a file whose first entry is this machine. Raises UserError."""
    try:
        data = _read_json(path)
    except FileNotFoundError:
        advice = "use KEY@ADDRESS, or the path of a file as `mlx.distributed_config` writes it"
        raise UserError(f"There is no file '{path}'", advice) from None
    except OSError as error:
        raise UserError(f"'{path}' cannot be read ({error.strerror})", "use another file") from None
    except (ValueError, RecursionError):
        raise _fault(path, "it is not JSON") from None
    try:
        return _machines(data, keys)
    except ValueError as error:
        raise _fault(path, str(error)) from None


def _fault(path: Path, what: str) -> UserError:
    return UserError(
        f"The machines in '{path}' cannot be used ({what})",
        "correct the file, or write it again with `mlx.distributed_config`",
    )


def _machines(data: Any, keys: Mapping[str, str]) -> Hosts:
    """Raises UserError, or ValueError with a clause on what is wrong with the file."""
    content = data if isinstance(data, dict) else {"hosts": data}
    entries, backend = content.get("hosts"), content.get("backend", "")
    if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
        raise ValueError("it has no list of hosts")
    if not isinstance(backend, str) or backend not in _BACKENDS:
        raise ValueError(f"the backend {backend!r} is neither ring nor jaccl")
    if len(entries) < 2:
        raise ValueError("it needs an entry for this machine, the first, and one for each other")
    link, variables, rdma = _BACKENDS[backend], _variables(content.get("envs", [])), ""
    if link is Link.JACCL:
        variables |= {"MLX_JACCL_RING": "1"} if backend == "jaccl-ring" else {}
        rows = [each.get("rdma") for each in entries]
        if not all(isinstance(row, list) and len(row) == len(rows) for row in rows):
            raise ValueError(f"each entry needs `rdma` with {len(rows)} devices")
        rdma = json.dumps(rows)  # MLX itself refuses devices that it cannot use
    ips = [_ips(number, entry) for number, entry in enumerate(entries, 1)]
    others = []
    for number in range(1, len(entries)):
        worker = _known([(name, None) for name in _names(number + 1, entries[number], ips)], keys)
        others.append(replace(worker, ips=ips[number]))
    return Hosts(tuple(others), ips[0], link, rdma, tuple(variables.items()))


def _names(number: int, entry: dict[str, Any], ips: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """Addresses of a machine: the first is used unless the key of another one is stored."""
    ssh = entry.get("ssh", "")
    if not isinstance(ssh, str):
        raise ValueError(f"`ssh` of entry {number} is not a name")
    name = ssh.rpartition("@")[2]
    if not ips[number - 1] and not name:
        raise ValueError(f"entry {number} has neither `ips` nor `ssh`")
    if name and not _ADDRESS.fullmatch(name):
        raise ValueError(f"`ssh` of entry {number} is not a name or an IPv4 address")
    return (*ips[number - 1], *([name] if name else []))


def _ips(number: int, entry: dict[str, Any]) -> tuple[str, ...]:
    ips = entry.get("ips", [])
    if not isinstance(ips, list) or not all(isinstance(ip, str) and _is_ipv4(ip) for ip in ips):
        raise ValueError(f"`ips` of entry {number} is not a list of IPv4 addresses")
    return tuple(ips)


def _variables(envs: Any) -> dict[str, str]:
    """Variables for MLX. Others are refused: they could change what runs on the machines."""
    if not isinstance(envs, list):
        raise ValueError("`envs` is not a list")
    found = dict[str, str]()
    for each in envs:
        name, equals, value = each.partition("=") if isinstance(each, str) else ("", "", "")
        if name not in MLX_VARIABLES or not equals or "\0" in value:
            names = ", ".join(sorted(MLX_VARIABLES))
            raise ValueError(f"{each!r} in `envs` is not NAME=VALUE with one of {names}")
        found[name] = value
    return found
