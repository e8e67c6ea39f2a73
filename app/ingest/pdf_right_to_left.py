"""Mends what PDFium gives wrongly of texts that are written to the left."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

_LETTER = re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_ALEF_LAM = re.compile("[\u0622\u0623\u0625\u0627]\u0644")
_TURNED = str.maketrans("()[]{}", ")(][}{")
_OPENING = {")": "(", "]": "[", "}": "{"}


def has_letters(text: str) -> bool:
    """Whether a text has letters that are written to the left."""
    return _LETTER.search(text) is not None


def with_ligatures(text: str, place: Callable[[int], object]) -> str:
    """Lam and alef may be one glyph, whose letters PDFium gives in the wrong order. `place`: where
    a character begins."""

    def in_order(hit: re.Match[str]) -> str:
        is_one_glyph = place(hit.start()) == place(hit.start() + 1)
        return hit[0][::-1] if is_one_glyph else hit[0]

    return _ALEF_LAM.sub(in_order, text)


def with_brackets(lines: Sequence[str]) -> list[str]:
    """Some programs write brackets as they are read, some as they look, so on some pages PDFium
    turns them round. Those of a line are turned back where that closes all of them, if it is so on
    most lines."""
    turned = [line.translate(_TURNED) if has_letters(line) else line for line in lines]
    closed, closed_turned = [*map(_is_closed, lines)], [*map(_is_closed, turned)]
    if sum(closed_turned) <= sum(closed):
        return [*lines]
    return [
        after if is_better and not is_closed else before
        for before, after, is_closed, is_better in zip(
            lines, turned, closed, closed_turned, strict=True
        )
    ]


def _is_closed(line: str) -> bool:
    """Whether each bracket that is opened is closed, and each that is closed was opened."""
    opened: list[str] = []
    for sign in line:
        if sign in "([{":
            opened.append(sign)
        elif sign in _OPENING and (not opened or opened.pop() != _OPENING[sign]):
            return False
    return not opened
