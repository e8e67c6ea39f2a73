"""Lines of text files of any size, read where they stand: `server.log#2871569-`."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from app.ingest.limits import ReadBudget
from app.ingest.parts import Ranges, merged
from app.ingest.records import Rejected, SkipReason
from app.ingest.safe_open import PIECE, rejection_for, too_large
from app.util.regular_files import open_descriptor


@dataclass(frozen=True, slots=True)
class Lines:
    """The bytes of lines that follow each other, and the numbers of the first and the last."""

    first: int
    last: int
    data: bytes


def read_lines(
    path: str, ranges: Ranges, most: int, check_head: Callable[[bytes], None], budget: ReadBudget
) -> list[Lines]:
    """The lines of these ranges of a file, ascending, at most `most` bytes in all; those that touch
    are read as one range. The file is read in pieces, up to the last line that is wanted.
    `check_head` gets its first bytes and may raise Rejected. Raises Rejected, also if the file does
    not have all of these lines."""
    wanted = merged(ranges)
    found = [bytearray() for _ in wanted]
    line, is_first, piece = 1, True, b""
    end = max((last for _, last in ranges if last is not None), default=0)
    is_open = any(last is None for _, last in ranges)
    try:
        with open(open_descriptor(path), "rb", buffering=0) as file:
            while (is_open or line <= end) and (read := os.read(file.fileno(), PIECE)):
                piece = read
                budget.check()
                if is_first:
                    check_head(piece)
                    is_first = False
                newlines = piece.count(b"\n")
                for lines, (first, last) in zip(found, wanted, strict=True):
                    if line + newlines >= first and (last is None or line <= last):
                        lines += _between(piece, line, first, last)
                line += newlines
                if sum(map(len, found)) > most:
                    raise too_large(most)
    except OSError as error:
        raise rejection_for(error) from None
    total = line - piece.endswith(b"\n")
    for number in (each for range_ in ranges for each in range_ if each is not None):
        if not 0 < number <= total:
            what, has = f"has no line {number:,}", f"it has lines 1 to {total:,}"
            raise Rejected(SkipReason.NO_PART, what, has)
    return [
        Lines(first, first + lines.count(b"\n") - lines.endswith(b"\n"), bytes(lines))
        for (first, _), lines in zip(wanted, found, strict=True)
    ]


def _between(piece: bytes, line: int, first: int, last: int | None) -> bytes:
    """The bytes of these lines in a piece of a file that begins in `line`."""
    start = _after(piece, first - line) if first > line else 0
    stop = len(piece) if last is None else _after(piece, last + 1 - line)
    return piece[start:stop]


def _after(piece: bytes, newlines: int) -> int:
    """The offset after this number of line ends; the end if there are fewer."""
    at = 0
    for _ in range(newlines):
        at = piece.find(b"\n", at) + 1
        if at == 0:
            return len(piece)
    return at
