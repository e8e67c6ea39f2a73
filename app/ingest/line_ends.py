"""Words divided by the ends of lines in PDF files: whether the hyphen belongs to the word."""

from __future__ import annotations

import re

HYPHEN = "\ufffe"
"""PDFium's mark of a hyphen at the end of a line, inside a word."""
MAX_WORDS = 200_000
"""Maximum number of words that are remembered."""
_SOFT = "\u2010\n"
"""The hyphen at which browsers divide words. PDFium does not know it."""
_WORD = re.compile(r"[^\W_]+(?:-[^\W_]+)*")
_LETTERS = re.compile(r"[^\W_]*")
_MAX_PENDING = 1_000_000
"""Maximum number of characters whose words are looked for once they matter."""
_MAX_WORD = 60
"""Maximum letters of a word on each side of a hyphen; farther ones are not compared."""
_FIRST = """
    all cross eight first five four full half high long low nine non one second self seven short
    single six ten third three two user well year
"""
_LAST = """
    and aware based by defined dependent down driven free friendly in independent known level on
    oriented quality related sized specific style term the time to up wide year
"""
_ENDINGS = "age ance er est hood ish ity itude ly ness ship th way ways"
_FIRST_PARTS, _LAST_PARTS = frozenset(_FIRST.split()), frozenset(_LAST.split())
"""Parts of words with a hyphen. The last ones follow words of four letters or more."""
_NO_PARTS = frozenset(_ENDINGS.split())
"""Ends of words without a hyphen that begin with a first part."""


class LineEnds:
    """Joins the words that the lines of a document divide. Pages are given in order: how a word is
    written before tells how it is spelled."""

    def __init__(self) -> None:
        self._words: set[str] = set()
        self._pending: list[str] = []
        self._pending_size = 0
        self._divides_with_soft = False

    def joined(self, text: str) -> str:
        """The text of a page without the hyphens that do not belong to a word."""
        self._remember(text)
        if "\u2010" in text:
            self._divides_with_soft |= text.count("\u2010") == text.count(_SOFT)
            text = text.replace(_SOFT, "" if self._divides_with_soft else HYPHEN)
        first, *others = text.split(HYPHEN)
        pieces = [first]
        for piece in others:
            before, after = pieces[-1][-_MAX_WORD:], piece[:_MAX_WORD]
            if before[-1:].islower() and after[:1].isdecimal():  # the number of a line or the page
                pieces.append("-\n")
            elif self._has_hyphen(before, after):
                pieces.append("-")
            pieces.append(piece)
        return "".join(pieces)

    def _remember(self, text: str) -> None:
        self._pending.append(text)
        self._pending_size += len(text)
        while self._pending_size > _MAX_PENDING and len(self._pending) > 1:
            self._pending_size -= len(self._pending.pop(0))

    def _knows(self, word: str) -> bool:
        """Whether a word is on this page or an earlier one, not at the end of a line."""
        for text in self._pending if len(self._words) < MAX_WORDS else ():
            self._words.update(_WORD.findall(text.replace(HYPHEN, " ").casefold()))
        self._pending, self._pending_size = [], 0
        return word in self._words

    def _has_hyphen(self, before: str, after: str) -> bool:
        """Whether a word that is divided into what is `before` and `after` has a hyphen there."""
        left = _LETTERS.match(before[::-1])[0][::-1]  # type: ignore[index]
        right = _LETTERS.match(after)[0]  # type: ignore[index]
        rest = before[: len(before) - len(left)].rpartition(" ")[2]
        if not left or not right:
            return True
        if left[-1].isdigit() or right[0].isdigit() or len(left) == 1:
            return True
        is_address = "://" in rest or "@" in rest
        if self._divides_with_soft or is_address or rest.count("-") > 1:
            return True
        first, last = left.casefold(), right.casefold()
        if self._knows(first + last):
            return False
        if self._knows(f"{first}-{last}"):
            return True
        if right[0].isupper() or left.isupper():
            return not (left.isupper() and right.isupper())
        if first in _FIRST_PARTS:
            return last not in _NO_PARTS
        return last in _LAST_PARTS and len(first) > 3
