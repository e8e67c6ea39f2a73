"""Whether prompts of some lengths can be read at all: told before, not by the machine's end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from app.errors import UserError

if TYPE_CHECKING:
    from app.engine.loader import LoadedModel

ROUND = 1024


def check(target: LoadedModel, lengths: Iterable[int], step: int) -> None:
    """Raise UserError, with the longest prompt that fits, where plain mlx-lm's reading of one of
    the lengths would not: its attention writes all scores of a step down where ours does not."""
    from app.engine import memory, memory_estimates
    from app.protocol.memory import format_bytes

    plain = replace(target, transient=replace(target.transient, rows=step))

    def needed(tokens: int) -> float:
        return plain.cache_size.bytes(tokens) + memory_estimates.transient_bytes(
            plain, step, tokens
        )

    length, free = max(lengths), memory.free()
    if target.info.context_length and length > target.info.context_length:
        raise UserError(
            f"{target.info.name} takes at most {target.info.context_length:,} tokens",
            "give shorter lengths",
        )
    if needed(length) <= free:
        return
    most = memory_estimates.largest_that_fits(needed, free, length) // ROUND * ROUND
    raise UserError(
        f"Reading {length:,} tokens densely needs about {format_bytes(needed(length))}, and"
        f" {format_bytes(free)} is free",
        f"give lengths up to {most:,}" if most else "choose smaller models, or fewer layers",
    )
