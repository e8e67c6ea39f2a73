"""The exit statuses of `specchat`, apart from 0 for success."""

from __future__ import annotations

import signal

FAILED = 1
"""A check found a fault, or standard output could not be written."""
BAD_INPUT = 2
RESTART = 75
"""Only a new process can use the GPU again. It is EX_TEMPFAIL of sysexits.h, after which service
managers start a server again."""
INTERRUPTED = 128 + signal.SIGINT
"""Stopped with Ctrl-C."""
PIPE_CLOSED = 128 + signal.SIGPIPE
"""The program that reads the output has gone."""
