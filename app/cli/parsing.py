"""Parses numbers of the command line. All but `parse_tokens` raise UserError.

`whole`, `number` and `parse_keep` are for the `type` of an option, so that every command refuses
what it cannot use before it starts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TypeVar

from app.errors import UserError
from app.protocol.options import AUTO_KEEP

T = TypeVar("T")

MIN_PROMPT_TOKENS = 256
"""The shortest prompt of a benchmark."""


def whole(what: str, low: int, high: int) -> Callable[[str], int]:
    """A parser of whole numbers from `low` to `high`, both allowed."""

    def parse(text: str) -> int:
        value = int(text) if re.fullmatch(r"-?[0-9]{1,20}", text) else None
        if value is None or not low <= value <= high:
            advice = f"use a whole number from {low:,} to {high:,}"
            raise UserError(f"{text!r} is not a valid {what}", advice)
        return value

    return parse


def number(what: str, low: float, high: float) -> Callable[[str], float]:
    """A parser of numbers from `low` to `high`, both allowed."""

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


def parse_keep(text: str) -> float:
    """A fraction from 0 to 1, or `auto`."""
    return AUTO_KEEP if text == "auto" else parse_fraction(text, "keep")


def parse_tokens(text: str) -> int | None:
    """A number of tokens, such as 4096 or 4k; None for anything else."""
    match = re.fullmatch(r"([0-9]{1,9})(k?)", text, re.IGNORECASE)
    return int(match[1]) * (1024 if match[2] else 1) if match else None


def parse_prompt_length(text: str, minimum: int = MIN_PROMPT_TOKENS) -> int:
    """The number of tokens of a prompt."""
    tokens = parse_tokens(text)
    if tokens is None or tokens < minimum:
        advice = f"use a number of tokens from {minimum} on, such as 4096 or 4k"
        raise UserError(f"{text!r} is not a valid length", advice)
    return tokens


def parse_fraction(text: str, what: str) -> float:
    """A fraction from 0 to 1."""
    return number(what, 0, 1)(text)


def parse_list(text: str, parse: Callable[[str], T]) -> tuple[T, ...]:
    """The values between commas, without duplicates."""
    return tuple(dict.fromkeys(parse(part.strip()) for part in text.split(",")))
