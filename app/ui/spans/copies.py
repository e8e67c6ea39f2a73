"""Which characters of a document an answer copied, found by comparing the two texts. No widgets."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len

SHORTEST = 24
"""Minimum length of a copy in terminal cells: about four English words."""
WINDOW = 16
"""Characters that a copy has at least: documents are searched for pieces of this length first."""
MAX_PLACES = 256
"""Maximum number of occurrences of a piece in a document that are compared: the first ones."""
_STARTS = re.compile(r"\b\w|[\u0e00-\u0e7f\u3040-\u30ff\u3400-\u9fff]")
"""Where a copy may start: at words, and at each character of scripts that have no spaces."""
_MARK = re.compile(r"^\[(Page|Slide|Section|Sheet) ([^\]\n]{1,200})\]$", re.MULTILINE)
"""The line before each part of a document."""
LINE_BREAK = "\n"

CharacterRange = tuple[int, int]


def copied_ranges(
    answer: str, text: str, was_read: Callable[[int, int], bool] = lambda start, end: True
) -> tuple[CharacterRange, ...]:
    """The characters of `text` that `answer` copied, ascending and disjoint: its longest pieces
    that stand in the text, whatever the white space, from `SHORTEST` on. Of several places, the
    first that `was_read`, else the first."""
    found = [_place(piece, text, was_read) for piece in _pieces(answer, text)]
    return _merge([each for each in found if each is not None])


@lru_cache(maxsize=4096)  # the same documents are shown again at each other keep
def _pieces(answer: str, text: str) -> tuple[str, ...]:
    answer, plain = " ".join(answer.split()), " ".join(text.split())
    if min(len(answer), len(plain)) < WINDOW:
        return ()
    common = _are_in(_windows(answer), _windows(plain))  # else each word would be looked for
    pieces: list[str] = []
    at = 0
    for match in _STARTS.finditer(answer):
        if match.start() < at or not common[match.start() :][:1].any():
            continue
        piece = _longest(answer, match.start(), plain)
        if cell_len(piece) >= SHORTEST:
            pieces.append(piece)
            at = match.start() + len(piece)
    return tuple(dict.fromkeys(pieces))


def clear_cache() -> None:
    """Drop the texts that were compared."""
    _pieces.cache_clear()


def _longest(answer: str, start: int, text: str) -> str:
    """The longest piece of the answer from `start` on that stands in the text, without what is cut
    of a word; empty if that is short."""
    low, high = 0, WINDOW
    while start + high <= len(answer) and answer[start : start + high] in text:
        low, high = high, 2 * high
    high = min(high, len(answer) - start + 1)
    while high - low > 1:  # low is found, high is not
        middle = (low + high) // 2
        if answer[start : start + middle] in text:
            low = middle
        else:
            high = middle
    piece = answer[start : start + low]
    after = answer[start + low : start + low + 1]
    if after and after.isalnum() and after.isascii() and piece[-1:].isalnum():
        piece = piece[: piece.rfind(" ") + 1]
    return piece.rstrip()


def _windows(text: str) -> NDArray[np.uint64]:
    """A hash of the WINDOW characters that start at each character."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    found, width, factor = codes.astype(np.uint64), 1, 0x9E3779B97F4A7C15
    while width < WINDOW:
        found = found[:-width] * np.uint64(factor) + found[width:]
        width, factor = 2 * width, factor * factor % 2**64
    return found


def _are_in(few: NDArray[np.uint64], many: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which of `few` are among `many`. Sorting `many` would take longer."""
    known = np.unique(few)
    if not len(known):
        return np.zeros(0, bool)
    table = np.zeros(2**20, bool)  # most are not, by their first bits
    table[known >> np.uint64(44)] = True
    many = many[table[many >> np.uint64(44)]]
    places = np.minimum(np.searchsorted(known, many), len(known) - 1)
    found = np.zeros(len(known), bool)
    found[places[known[places] == many]] = True
    return found[np.searchsorted(known, few)]


def _place(piece: str, text: str, was_read: Callable[[int, int], bool]) -> CharacterRange | None:
    pattern = re.compile(r"\s+".join(map(re.escape, piece.split(" "))))
    first = None
    for number, match in enumerate(pattern.finditer(text)):
        first = first or match.span()
        if was_read(*match.span()):
            return match.span()
        if number == MAX_PLACES:
            break
    return first


def _merge(ranges: list[CharacterRange]) -> tuple[CharacterRange, ...]:
    merged: list[CharacterRange] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return tuple(merged)


def place_of(text: str, offset: int, first_line: int = 1) -> str:
    """`line 400`, or `page 12, line 4` of a text whose pages each follow a line `[Page 12]`;
    likewise for slides, sections and sheets. The text starts at the `first_line` of its file."""
    start, part, line = 0, "", first_line
    if found := list(_MARK.finditer(text, 0, offset)):
        kind, name = found[-1].groups()
        name = f"{int(name):,}" if name.isdecimal() else name
        start, part, line = found[-1].end() + 1, f"{kind.lower()} {name}, ", 1
    return f"{part}line {text.count(LINE_BREAK, start, max(offset, start)) + line:,}"
