"""Formats tables for a terminal and in Markdown. Text is left-aligned, numbers right-aligned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class TextTable(NamedTuple):
    """A table of formatted cells. The first `texts` columns hold text, the others numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int = 1

    def markdown(self) -> str:
        rule = ["---"] * self.texts + ["---:"] * (len(self.head) - self.texts)
        return "\n".join(f"| {' | '.join(row)} |" for row in [self.head, rule, *self.rows])

    def plain(self) -> str:
        """The table as plain text. Columns are as wide as their longest cell, two spaces apart."""
        lines = [self.head, *self.rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(
                f"{cell:<{width}}" if column < self.texts else f"{cell:>{width}}"
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )
