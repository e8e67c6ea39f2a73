"""Parses numbers of the command line. All but `parse_tokens` raise UserError."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TypeVar

from app.errors import UserError

T = TypeVar("T")

MIN_PROMPT_TOKENS = 256
"""The shortest prompt of a benchmark."""


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
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 1.0:
        raise UserError(f"{text!r} is not a valid {what}", "use a fraction from 0 to 1")
    return value


def parse_list(text: str, parse: Callable[[str], T]) -> tuple[T, ...]:
    """The values between commas, without duplicates."""
    return tuple(dict.fromkeys(parse(part.strip()) for part in text.split(",")))
