"""`specchat doctor --stress`: what was asked for, checked before the first of many processes."""

from __future__ import annotations

from argparse import Namespace
from typing import TextIO

from app.bench.stress import Stress
from app.bench.stress import stress as stressed
from app.chat.pairs import pair
from app.cli.lengths import tokens_of
from app.errors import UserError
from app.paths import logs_path

LEAST = 256
"""Tokens."""


def stress(options: Namespace, out: TextIO) -> int:
    tokens = tokens_of(options.length)
    if tokens is None or tokens < LEAST:
        raise UserError(
            f"--length {options.length} is no length of a prompt", f"give {LEAST} or more, say 32k"
        )
    if options.runs < 1:
        raise UserError(f"--runs {options.runs} is no number of runs", "give 1 or more")
    pair(options.target, options.draft)  # raises for models that are not here
    return stressed(Stress(options.runs, tokens, options.target, options.draft), logs_path(), out)
