"""`--hosts`, and `specchat hosts`: the machines that a target is spread over."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from app.cli.status import FAILED, HOSTS_VARIABLE
from app.errors import UserError
from app.util import formatting
from app.util.sanitize import sanitize_line
from app.util.tables import TextTable

if TYPE_CHECKING:
    from app.engine.sharded.model import Shards
    from app.protocol.commands import Load
    from app.protocol.hosts import HostMachine, Hosts


def chosen_hosts(text: str | None) -> Hosts | None:
    """The machines named by `--hosts`, or else by the environment. Raises UserError."""
    if text is not None:
        from app.extras.hosts.hostfile import refuse_keys

        refuse_keys(text)
    else:
        text = os.environ.get(HOSTS_VARIABLE)
    if text is None:
        return None
    from app.extras.hosts.hostfile import requested_hosts

    return requested_hosts(text)


def connect(command: Load, stopped: Callable[[], bool]) -> Shards:
    """Implements the engine's `Connect`. Imports its packages only when a target is spread."""
    from app.extras.hosts.cluster import Cluster

    return Cluster(command, stopped)


class HostsLook:
    """Implements `Machines`. Imports its packages only when it measures."""

    def __init__(self, hosts: Hosts) -> None:
        self.hosts = hosts

    def look(self) -> list[HostMachine]:
        from app.extras.hosts.control import look_at_hosts

        return look_at_hosts(self.hosts)


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Prints the processor and memory of each machine, and the latency and speed of its link."
    )
    command.add_argument(
        "machines",
        metavar="HOSTS",
        nargs="?",
        help="machines, as for --hosts (default: all machines whose keys are stored)",
    )
    command.add_argument("--json", action="store_true", help="print as JSON")


def run(args: argparse.Namespace) -> int:
    """Print a table of this and the other machines. Return the exit status, 1 if one cannot be
    used."""
    machines = HostsLook(chosen_hosts(args.machines or args.hosts) or _known()).look()
    out = sys.stdout
    if args.json:
        out.write(json.dumps([dataclasses.asdict(each) for each in machines], indent=2) + "\n")
    else:
        out.write(f"{_table(machines)}\n")
    problems = [each.problem for each in machines if each.problem]
    if not args.json:
        out.writelines(f"\n{sanitize_line(problem)}.\n" for problem in problems)
    return FAILED if problems else 0


def _known() -> Hosts:
    """All machines whose keys are stored. Raises UserError."""
    from app.extras.hosts.hostfile import KEYS_FILE, parse_hosts, read_keys
    from app.paths import config_path

    keys = read_keys(config_path() / KEYS_FILE)
    if not keys:
        raise UserError(
            "No other machine is known",
            "run `specchat worker` on one, and type the line that it prints on this machine",
        )
    return parse_hosts(",".join(keys), keys)


def _table(machines: Sequence[HostMachine]) -> str:
    rows = [
        [sanitize_line(each.name), sanitize_line(each.processor), *_numbers(each)]
        for each in machines
    ]
    head = ["machine", "processor", "free", "memory", "latency", "rate"]
    return TextTable(head, rows, texts=2).plain()


def _numbers(machine: HostMachine) -> list[str]:
    if machine.problem:
        return ["-"] * 4
    memory = [formatting.size(round(machine.free)), formatting.size(machine.total)]
    if machine.latency is None or machine.rate is None:
        return [*memory, "-", "-"]
    return [*memory, f"{machine.latency * 1e3:.2f} ms", f"{formatting.size(round(machine.rate))}/s"]
