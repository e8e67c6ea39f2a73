"""Wraps a text into rows of a given width. No widgets.

Widths are those of `visible_text`: control characters are symbols, and tabs four spaces.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from rich.cells import cell_len

from app.util.sanitize import sanitize

TAB = "    "


def visible_text(text: str) -> str:
    """A piece of a row as it is drawn."""
    return sanitize(text).replace("\t", TAB).replace("\n", "")


@lru_cache(maxsize=4096)
def _cells(character: str) -> int:
    return cell_len(visible_text(character))


@dataclass(frozen=True, slots=True)
class CollapsedRange:
    """Characters `start:end`, which are `lines` lines, shown as one row."""

    start: int
    end: int
    lines: int


class WrappedRows:
    """The characters of each row. Each of the `collapsed` ranges (ascending, whole lines) is one
    row."""

    def __init__(self, text: str, width: int, collapsed: Iterable[CollapsedRange] = ()) -> None:
        self.text, self.width = text, max(8, width)
        self._starts, self._ends = array("q"), array("q")
        self._collapsed: dict[int, CollapsedRange] = {}
        at = 0
        for each in collapsed:
            self._wrap(at, each.start)
            self._collapsed[len(self._starts)] = each
            self._starts.append(each.start)
            self._ends.append(each.end)
            at = each.end
        self._wrap(at, len(text))
        if not self._starts:
            self._starts.append(0)
            self._ends.append(0)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, row: int) -> tuple[int, int]:
        """The characters `start, end` of a row, without its newline."""
        return self._starts[row], self._ends[row]

    def collapsed(self, row: int) -> CollapsedRange | None:
        return self._collapsed.get(row)

    def at(self, offset: int) -> int:
        """The row that this character is in."""
        return max(0, bisect_right(self._starts, offset) - 1)

    def _wrap(self, start: int, end: int) -> None:
        text = self.text
        while start < end:
            newline = text.find("\n", start, end)
            stop = end if newline < 0 else newline
            self._wrap_line(start, stop)
            start = stop + 1

    def _wrap_line(self, start: int, end: int) -> None:
        line = self.text[start:end]
        if len(line) <= self.width and line.isascii() and line.isprintable():
            self._add(start, end)
            return
        plain = line.isascii() and line.isprintable()
        at = 0
        while at < len(line):
            stop = min(len(line), at + self.width) if plain else self._fitting(line, at)
            if stop < len(line):
                space = line.rfind(" ", at + 1, stop + 1)
                stop = space + 1 if space > at else stop
            self._add(start + at, start + stop)
            at = stop
        if not line:
            self._add(start, end)

    def _fitting(self, line: str, at: int) -> int:
        """Where a row that starts at `at` ends; it has at least one character."""
        room = self.width
        for index in range(at, len(line)):
            room -= _cells(line[index])
            if room < 0:
                return max(at + 1, index)
        return len(line)

    def _add(self, start: int, end: int) -> None:
        self._starts.append(start)
        self._ends.append(end)
