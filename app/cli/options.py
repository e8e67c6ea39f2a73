"""The options that several commands share, and the types of their values.

Types are passed to `add_argument`, so that every command refuses invalid values before it starts.
All types raise UserError.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from typing import Any

from app.errors import UserError

MIN_PROMPT_TOKENS = 256
"""Shortest prompt length that can be measured, in tokens."""
MAX_PROMPT_TOKENS = 1 << 30


# --------------------------------------------------------------------------- types


def whole(what: str, low: int, high: int) -> Callable[[str], int]:
    """A parser of whole numbers from `low` to `high`, inclusive."""

    def parse(text: str) -> int:
        value = int(text) if re.fullmatch(r"-?[0-9]{1,20}", text) else None
        if value is None or not low <= value <= high:
            advice = f"use a whole number from {low:,} to {high:,}"
            raise UserError(f"{text!r} is not a valid {what}", advice)
        return value

    return parse


def number(what: str, low: float, high: float) -> Callable[[str], float]:
    """A parser of numbers from `low` to `high`, inclusive."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise UserError(
                f"{text!r} is not a valid {what}", f"use a number from {low:g} to {high:g}"
            )
        return value

    return parse


MAX_ANSWER = 1 << 20
ANSWER = whole("number of tokens", 1, MAX_ANSWER)
RUNS = whole("number of runs", 1, 10_000)


def parse_fraction(text: str, what: str = "keep") -> float:
    """A fraction from 0 to 1."""
    return number(what, 0, 1)(text)


def parse_keep(text: str) -> float:
    """A fraction from 0 to 1, or `auto`."""
    from app.protocol.options import AUTO_KEEP

    return AUTO_KEEP if text == "auto" else parse_fraction(text)


def parse_prompt_length(text: str, minimum: int = MIN_PROMPT_TOKENS) -> int:
    """A number of tokens, such as 4096 or 4k."""
    match = re.fullmatch(r"([0-9]{1,9})(k?)", text.strip(), re.IGNORECASE)
    tokens = int(match[1]) * (1024 if match[2] else 1) if match else 0
    if not minimum <= tokens < MAX_PROMPT_TOKENS:
        advice = f"use a number of tokens, at least {minimum}, such as 4096 or 4k"
        raise UserError(f"{text!r} is not a valid length", advice)
    return tokens


# --------------------------------------------------------------------------- shared options

# Options for the models may also precede the command. The command's own copy of such an option must
# have no default, because it would replace the value before the command.


def add_models(command: argparse.ArgumentParser, default: Any = argparse.SUPPRESS) -> None:
    command.add_argument(
        "--target",
        metavar="T",
        default=default,
        help="the model that answers: an installed model, a folder, or `embedded`, the demo model",
    )
    command.add_argument(
        "--draft",
        metavar="D",
        default=default,
        help="a small model of any family that takes part in scoring, such as `embedded`, or a text"
        " encoder; with `builtin` (the default) the built-in scorer works alone",
    )


def add_hosts(command: argparse.ArgumentParser, default: Any = argparse.SUPPRESS) -> None:
    command.add_argument(
        "--hosts",
        metavar="HOSTS",
        default=default,
        help="spread the target over this machine and others that run `specchat worker`; the"
        " environment variable SPECCHAT_HOSTS=KEY@ADDRESS,... does the same and stores the keys",
    )


def add_kv_bits(command: argparse.ArgumentParser, default: Any = argparse.SUPPRESS) -> None:
    command.add_argument(
        "--kv-bits",
        choices=["full", "8", "4"],
        default=default,
        help="bits per number in the target's KV cache; fewer bits need less memory",
    )


def add_length(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--length",
        type=parse_prompt_length,
        default=4096,
        metavar="N",
        help="prompt tokens, such as 4096 or 16k (default 4k)",
    )


def add_action(
    actions: argparse._SubParsersAction[Any],
    name: str,
    run: Callable[..., Any],
    help: str,
    argument: str = "",
) -> argparse.ArgumentParser:
    """An action of a command, such as `models pull NAME`: `run` becomes the value of `action`."""
    parser: argparse.ArgumentParser = actions.add_parser(name, help=help)
    parser.set_defaults(action=run)
    if argument:
        parser.add_argument(argument.lower(), metavar=argument)
    return parser
