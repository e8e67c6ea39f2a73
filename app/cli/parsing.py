"""Figures as they are typed. All but `tokens_of` raise UserError, one sentence."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import TypeVar

from app.errors import UserError

T = TypeVar("T")

MIN_PROMPT_TOKENS = 256
"""Tokens of the shortest prompt that measurements take."""


def parse_tokens(text: str) -> int | None:
    """Tokens, such as 4096 or 4k; None for anything else."""
    match = re.fullmatch(r"([0-9]{1,9})(k?)", text, re.IGNORECASE)
    return int(match[1]) * (1024 if match[2] else 1) if match else None


def parse_prompt_length(text: str, least: int = MIN_PROMPT_TOKENS) -> int:
    """Tokens of a prompt."""
    found = parse_tokens(text)
    if found is None or found < least:
        raise UserError(f"{text!r} is no length", f"give tokens, like 4096 or 4k, from {least} on")
    return found


def parse_fraction(text: str, what: str) -> float:
    """From 0 to 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 1.0:
        raise UserError(f"{text!r} is no {what}", "give a fraction from 0 to 1")
    return value


def parse_list(text: str, one: Callable[[str], T]) -> tuple[T, ...]:
    """What stands between commas, each once."""
    return tuple(dict.fromkeys(one(part.strip()) for part in text.split(",")))
