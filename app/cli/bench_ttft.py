"""`specchat bench ttft`: what is asked for, checked before anything is built."""

from __future__ import annotations

import argparse
import sys

from app.bench.ttft import Asked, ttft
from app.cli.parsing import parse_fraction, parse_list, parse_prompt_length
from app.errors import UserError


def bench_ttft(options: argparse.Namespace) -> int:
    """Returns the exit status. Raises UserError."""
    if not 0.0 < options.scale <= 1.0:
        raise UserError(f"{options.scale:g} is no scale", "give a fraction of the layers, up to 1")
    if options.draft and not options.target:
        raise UserError("A draft alone is no pair", "name the target, too, with --target")
    asked = Asked(
        options.shape,
        options.scale,
        options.bits,
        parse_list(options.length, parse_prompt_length),
        parse_list(options.keep, lambda text: parse_fraction(text, "keep")),
        options.runs,
        options.target,
        options.draft,
    )
    return ttft(asked, options.json, sys.stdout)
