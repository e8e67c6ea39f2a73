"""Lengths as they are typed."""

from __future__ import annotations

import re


def tokens_of(text: str) -> int | None:
    """Tokens, such as 4096 or 4k; None for anything else."""
    match = re.fullmatch(r"([0-9]{1,9})(k?)", text, re.IGNORECASE)
    return int(match[1]) * (1024 if match[2] else 1) if match else None
