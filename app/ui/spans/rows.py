"""A text as rows of a given width: where each begins and ends. No widgets.

Widths are of what is shown, where control characters are visible symbols and tabs four spaces.
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
    """Characters `start:end` that are folded into one row; `lines` of the text."""

    start: int
    end: int
    lines: int


class WrappedRows:
    """The rows of a text, and rows for `folds` (ascending, whole lines) instead of theirs."""

    def __init__(self, text: str, width: int, folds: Iterable[CollapsedRange] = ()) -> None:
        self.text, self.width = text, max(8, width)
        self._starts, self._ends = array("q"), array("q")
        self._folds: dict[int, CollapsedRange] = {}
        at = 0
        for fold in folds:
            self._wrap(at, fold.start)
            self._folds[len(self._starts)] = fold
            self._starts.append(fold.start)
            self._ends.append(fold.end)
            at = fold.end
        self._wrap(at, len(text))
        if not self._starts:
            self._starts.append(0)
            self._ends.append(0)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, row: int) -> tuple[int, int]:
        """Characters of a row, its newline left out."""
        return self._starts[row], self._ends[row]

    def fold(self, row: int) -> CollapsedRange | None:
        return self._folds.get(row)

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
        """How far from `at` a row reaches; at least one character."""
        room = self.width
        for index in range(at, len(line)):
            room -= _cells(line[index])
            if room < 0:
                return max(at + 1, index)
        return len(line)

    def _add(self, start: int, end: int) -> None:
        self._starts.append(start)
        self._ends.append(end)
