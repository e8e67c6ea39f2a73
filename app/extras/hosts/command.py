"""`specchat hosts`: shows the machines that a target is spread over."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence

from app.cli.machines import chosen_hosts
from app.cli.status import FAILED
from app.errors import UserError
from app.extras.hosts.control import look_at_hosts
from app.extras.hosts.hostfile import KEYS_FILE, parse_hosts, read_keys
from app.paths import config_path
from app.protocol.hosts import HostMachine, Hosts
from app.util import formatting
from app.util.sanitize import sanitize_line
from app.util.tables import TextTable


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
    machines = look_at_hosts(chosen_hosts(args.machines or args.hosts) or _known())
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
