"""Text files of any size: their lines are counted and read where they stand."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from app.ingest.limits import ReadBudget
from app.ingest.parts import Ranges, from_start, merged, ranges_text
from app.ingest.records import Rejected, SkipReason
from app.ingest.safe_open import HEAD, PIECE, rejection_for
from app.ingest.text import wide_encoding
from app.util.formatting import size as format_size
from app.util.regular_files import open_descriptor

_SMALLER = (500, 100, 20, 5, 1)
"""Numbers of last lines to suggest in place of a part that is too large."""
_CONTINUATION = bytes(range(0x80, 0xC0))
"""Bytes that are not the first ones of their characters in UTF-8."""


@dataclass(frozen=True, slots=True)
class Lines:
    """The bytes of lines that follow each other, and the numbers of the first and the last."""

    first: int
    last: int
    label: str
    """The part of the file that they are, such as `10-20` or `-500`."""
    data: bytes


class LargeText:
    """An open text file, as large as it was when it was opened, because a log may grow. Its methods
    raise what `budget.check` raises."""

    def __init__(self, descriptor: int, budget: ReadBudget) -> None:
        self._descriptor, self._budget = descriptor, budget
        status = os.fstat(descriptor)
        self.size, self.modified = status.st_size, status.st_mtime_ns
        self.head = os.pread(descriptor, HEAD, 0)
        self.encoding = wide_encoding(self.head) or "utf-8"
        self._end = "\n".encode(self.encoding)
        self._starts = array("Q", [1])
        """The line in which each piece begins, as far as lines were counted."""

    @property
    def is_wide(self) -> bool:
        """Whether its characters have two or four bytes."""
        return len(self._end) > 1

    def pieces(self, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield the file in pieces, each with its offset, from the piece `start` on."""
        for offset in range(start * PIECE, self.size, PIECE):
            self._budget.check()
            self._budget.show_page(offset, self.size, "byte")
            yield offset, self.read(offset, min(offset + PIECE, self.size))

    def read(self, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop`; fewer if the file has become shorter."""
        return os.pread(self._descriptor, stop - start, start)

    def count_lines(self, up_to: int | None = None) -> int:
        """The number of lines, of which those after `up_to` need not be counted."""
        for _, piece in self.pieces(len(self._starts) - 1):
            if up_to is not None and self._starts[-1] > up_to:
                break
            self.add_piece(piece)
        ends = self.read(self.size - len(self._end), self.size) == self._end
        return self._starts[-1] - ends

    def add_piece(self, piece: bytes) -> None:
        """Count the lines of the next piece."""
        self._starts.append(self._starts[-1] + self.line_ends(piece))

    def line_ends(self, piece: bytes) -> int:
        """The number of lines that end in a piece."""
        count = piece.count(self._end)
        if len(self._end) > 1 and count:
            count = piece.decode(self.encoding, "replace").count("\n")
        return count

    def start_of(self, line: int) -> int:
        """The offset at which a line begins that was counted, or that follows the last one."""
        number = max(0, bisect_left(self._starts, line) - 1)
        begin, left = number * PIECE, line - self._starts[number]
        piece = self.read(begin, begin + PIECE) if left else b""
        at = 0
        for _ in range(left):
            at = self._after_end(piece, at)
        return min(begin + at, self.size)

    def line_start(self, offset: int, most: int) -> int:
        """The offset at which the line begins that has a byte. If it is more than `most` bytes
        before, a character begins there."""
        before = self.read(max(0, offset - most), offset)
        found = before.rfind(self._end)
        while found > 0 and found % len(self._end):
            found = before.rfind(self._end, 0, found + len(self._end) - 1)
        if found < 0 and len(before) < offset:
            return self._character(offset)
        return offset - len(before) + (found + len(self._end) if found >= 0 else 0)

    def line_end(self, offset: int, most: int) -> int:
        """The offset after the line that has the byte before. If that is more than `most` bytes
        away, a character begins there."""
        start = offset - len(self._end)
        after = self.read(start, offset + most)
        found = self._after_end(after, 0)
        if found == len(after) and not after.endswith(self._end) and start + found < self.size:
            return self._character(offset)
        return start + found

    def _character(self, offset: int) -> int:
        """The offset of the first character that begins there or after."""
        if len(self._end) > 1:
            return offset - offset % len(self._end)
        following = self.read(offset, offset + 4)
        return offset + len(following) - len(following.lstrip(_CONTINUATION))

    def line_at(self, offset: int) -> int:
        """The number of the line that has the byte at an offset."""
        number = min(offset // PIECE, len(self._starts) - 1)
        return self._starts[number] + self.line_ends(self.read(number * PIECE, offset))

    def _after_end(self, piece: bytes, at: int) -> int:
        """The offset after the next line end; the end of the piece if there is none."""
        found = piece.find(self._end, at)
        while found > 0 and found % len(self._end):
            found = piece.find(self._end, found + 1)
        return len(piece) if found < 0 else found + len(self._end)


@contextmanager
def open_text(path: str, budget: ReadBudget) -> Iterator[LargeText]:
    """Open a file, which may turn out not to be text. Raises Rejected."""
    try:
        with open(open_descriptor(path), "rb", buffering=0) as file:
            yield LargeText(file.fileno(), budget)
    except OSError as error:
        raise rejection_for(error) from None


def read_lines(text: LargeText, ranges: Ranges, most: int, path: str) -> list[Lines]:
    """The lines of these ranges, ascending, at most `most` bytes in all; those that touch are read
    as one range. Raises Rejected, which names the `path`, if there are more bytes, or not all of
    these lines."""
    ends = [last for _, last in ranges if last is not None]
    total = text.count_lines(max(ends) if len(ends) == len(ranges) else None)
    for number in (each for range_ in ranges for each in range_ if each is not None):
        if number == 0 or number > total:
            what, has = f"has no line {number:,}", f"it has lines 1 to {total:,}"
            raise Rejected(SkipReason.NO_PART, what, has)
    counted = from_start(ranges, total)
    tails = {
        start: first for (start, _), (first, _) in zip(counted, ranges, strict=True) if first < 0
    }
    places = []
    for first, end in merged(counted):
        last = total if end is None else end
        places.append((first, last, text.start_of(first), text.start_of(last + 1)))
    if sum(stop - start for *_, start, stop in places) > most:
        raise part_too_large(text, most, path)
    return [
        Lines(
            first,
            last,
            str(tails[first]) if first in tails else ranges_text([(first, last)])[0],
            text.read(start, stop),
        )
        for first, last, start, stop in places
    ]


def part_too_large(text: LargeText, most: int, path: str) -> Rejected:
    """The refusal of a part of a file, which names a smaller one that can be read."""
    total = text.count_lines()
    detail, advice = f"is larger than {format_size(most)} in this part", "its lines are too long"
    for number in _SMALLER:
        if text.size - text.start_of(max(1, total + 1 - number)) <= most:
            lines = "line" if number == 1 else f"{number:,} lines"
            advice = f"use fewer lines, such as its last {lines}: {path}#-{number}"
            break
    return Rejected(SkipReason.TOO_LARGE, detail, advice)
