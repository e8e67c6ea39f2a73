"""What a reader of documents yields: the text of pages, slides, sheets or sections."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from app.util import formatting

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""First bytes of files in the old Office format, and of encrypted ones in the new format."""


@dataclass(frozen=True, slots=True)
class Part:
    """A page, slide, sheet or section."""

    mark: str
    """The line that precedes it in the text, such as `[Page 3]`; empty if there is none."""
    text: str
    note: str = ""
    """If some of it is missing, what was read, such as `only the first 50,000 rows`."""
    recognised: bool = False
    """Whether its text was recognised in a picture."""
    blank: bool = False
    """Whether nothing at all is on it, not even a picture."""
    said: tuple[tuple[str, str], ...] = ()
    """What a reader must know of it: the rest of a sentence that begins with the file's name, and
    advice."""

    @property
    def unit(self) -> str:
        """`page`, `slide`, `sheet` or `section`."""
        return self.mark[1:].partition(" ")[0].lower()


class Parts(Protocol):
    """The parts of a document."""

    embedded: int
    """Number of documents inside this one, which are not read."""

    def __len__(self) -> int: ...

    def read(self, number: int) -> Part:
        """Read a part; the first is 0."""


_NUMBERS = re.compile(r"(\d{1,9})?(-)?(\d{1,9})?")
_GROUP = re.compile(r"(?<=\d),(?=0\d\d(?!\d))")
Ranges = tuple[tuple[int, int | None], ...]
"""First and last numbers. None: up to the end; a first number of -500: the last 500."""
ALL: Ranges = ((1, None),)


def without_groups(text: str) -> str:
    """`1000` for `1,000`, the way in which a page is shown. `1,200` may be pages 1 and 200."""
    return _GROUP.sub("", text)


def parse_ranges(text: str) -> Ranges | None:
    """The numbers in a text such as `3`, `5-10`, `7-`, `-5` or `3,5-10`; None for other texts."""
    found: list[tuple[int, int | None]] = []
    for each in without_groups(text).split(","):
        match = _NUMBERS.fullmatch(each.strip())
        if match is None or (match[3] and not match[2]):
            return None
        if match[1] is None:
            if not match[3] or not (number := int(match[3])):
                return None
            found.append((-number, None))
            continue
        first = int(match[1])
        last = int(match[3]) if match[3] else None if match[2] else first
        if last is not None and last < first:
            return None
        found.append((first, last))
    return tuple(found)


def from_start(ranges: Ranges, end: int) -> Ranges:
    """The same ranges of `end` numbers, none of which is counted from the end."""
    return tuple((max(1, end + 1 + a) if a < 0 else a, b) for a, b in ranges)


def numbers_in(ranges: Ranges, end: int, most: int | None = None) -> list[int]:
    """The numbers from 1 to `end` that are in one of the ranges, ascending; at most `most`."""
    found: list[int] = []
    clipped = ((max(1, first), min(end, end if last is None else last)) for first, last in ranges)
    for first, last in sorted(clipped):
        first = max(first, found[-1] + 1 if found else 1)
        stop = last + 1 if most is None else min(last + 1, first + most - len(found))
        found += range(first, stop)
    return found


def merged(ranges: Ranges) -> Ranges:
    """Ascending ranges with the same numbers, of which no two overlap or touch. The last ones, as
    far as they are counted from the end, are a range of their own."""
    found: list[tuple[int, int | None]] = []
    last_ones = [each for each in ranges if each[0] < 0]
    for first, last in sorted((each for each in ranges if each[0] >= 0), key=lambda each: each[0]):
        before = found[-1][1] if found else -1
        if before is None:
            break
        if first > before + 1 or not found:
            found.append((first, last))
        elif last is None or last > before:
            found[-1] = found[-1][0], last
    return (*found, *sorted(last_ones)[:1])


def runs(numbers: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending numbers as first and last numbers of runs."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


def ranges_text(found: Sequence[tuple[int, int]]) -> list[str]:
    """`["3", "5-10"]`"""
    return [str(first) if first == last else f"{first}-{last}" for first, last in found]


def changes_said(changes: int) -> tuple[str, str]:
    """A sentence about tracked changes, and advice."""
    detail = f"has {formatting.plural(changes, 'tracked change')}, read as accepted"
    return detail, "reject changes first if you want the old text"


class WithPassword(Exception):
    """The document opens with a password only."""


class TooLarge(Exception):
    """The document is too large once it is unpacked."""


class Refused(Exception):
    """The document is of a kind that cannot be read, which is the argument."""


class Unknown(Exception):
    """The file is no document of a known kind."""
