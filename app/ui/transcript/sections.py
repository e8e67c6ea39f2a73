"""Splits a long Markdown text into sections of about forty lines that can be rendered separately.

The result is the same whether the text comes at once or in pieces: where a section ends depends on
the text before it and one character after it. No widgets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

SECTION_LINES = 40
"""A section ends at the next blank line or list item after this many lines."""
CODE_LINES = 200
"""Code is cut after this many lines, and the next section opens its fence again."""
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_ITEM = re.compile(r"([-*+]|\d{1,9}[.)])[ \t]")


@dataclass
class Sections:
    """`texts` are the sections so far; `feed` extends the last one and adds others."""

    texts: list[str] = field(default_factory=lambda: [""])
    _line: str = ""
    _before: str = ""
    _lines: int = 0
    _fence: str = ""
    """The line that opened the current code block."""

    def feed(self, text: str) -> int:
        """Append text; returns the index of the first section that changed."""
        first = len(self.texts) - 1
        for line in text.splitlines(keepends=True) if text else ():
            if not self._line and self._ends_before(line[0]):
                self._start_section()
            self.texts[-1] += line
            self._line += line
            if line.endswith("\n"):
                self._end_line()
        return first

    def _ends_before(self, next_character: str) -> bool:
        """Whether a section ends before this line."""
        if self._fence:
            return self._lines >= CODE_LINES and next_character not in "`~ "
        if self._lines < SECTION_LINES or next_character.isspace():
            return False
        if not self._before.strip():
            return True
        in_list = _ITEM.match(self._before) is not None or self._before[0] in " \t"
        return in_list and (next_character in "-*+" or next_character.isdigit())

    def _start_section(self) -> None:
        opening = ""
        if self._fence:
            mark = _FENCE.match(self._fence)
            assert mark is not None
            self.texts[-1] += mark[1] + "\n"
            opening = self._fence
        self.texts.append(opening)
        self._lines = 0

    def _end_line(self) -> None:
        line, self._line = self._line, ""
        self._before = line
        self._lines += 1
        mark = _FENCE.match(line)
        if mark is None:
            return
        if not self._fence:
            self._fence = line
        elif self._closes(mark):
            self._fence = ""

    def _closes(self, mark: re.Match[str]) -> bool:
        opened = _FENCE.match(self._fence)
        assert opened is not None
        same = mark[1][0] == opened[1][0] and len(mark[1]) >= len(opened[1])
        return same and not mark[2].strip()


def split(text: str) -> list[str]:
    sections = Sections()
    sections.feed(text)
    return sections.texts
