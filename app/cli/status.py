"""Exit statuses of the commands, and what the command line knows of a command before it runs."""

from __future__ import annotations

import signal
from typing import NamedTuple

FAILED = 1
"""A check found a fault, or standard output could not be written."""
BAD_INPUT = 2
RESTART = 75
"""Only a new process can use the GPU again. It is EX_TEMPFAIL of sysexits.h, after which service
managers start a server again."""
INTERRUPTED = 128 + signal.SIGINT
"""Stopped with Ctrl-C."""
PIPE_CLOSED = 128 + signal.SIGPIPE
"""The program that reads the output has ended."""

HOSTS_VARIABLE = "SPECCHAT_HOSTS"
"""Names the machines of `--hosts`."""


class Subcommand(NamedTuple):
    """A command: its module has `add_arguments(parser)`, which declares its options, and
    `run(args)`, which returns the exit status. `hosts`: whether it uses the machines of --hosts."""

    module: str
    help: str
    hosts: bool = False
