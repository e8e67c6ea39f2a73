"""The text of an answer: Markdown, rendered only near the visible part, or a quotation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Static

from app.ui.transcript.lazy_container import LazyContainer, estimate_rows
from app.util.prose import reflow
from app.util.sanitize import sanitize

if TYPE_CHECKING:
    from textual.widgets import Markdown

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
        added: list[str] = []
        for line in StringIO(text):
            if not self._line and self._ends_before(line[0]):
                self.texts[-1] += "".join(added)
                added.clear()
                self._start_section()
            added.append(line)
            self._line += line
            if line.endswith("\n"):
                self._end_line()
        self.texts[-1] += "".join(added)
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


class Section(LazyContainer):
    """About forty lines of Markdown."""

    def __init__(self, text: str, before: str = "", final: str = "") -> None:
        """`before` is the section above it. `final` is the text as it is shown at the end."""
        apart = before.endswith("\n\n")
        super().__init__(classes="section apart" if apart else "section")
        self._text, self._shown = text, final or text
        self._markdown: Markdown | None = None
        self._streamed = False

    def content(self) -> Sequence[Widget]:
        from app.ui.transcript.markdown import (
            answer_markdown,
        )  # slow to import, so only once there is an answer

        self._streamed = False
        self._markdown = answer_markdown(self._shown)
        return [self._markdown]

    def estimate_height(self, width: int) -> int:
        return estimate_rows(self._text, width)

    async def show(self, text: str) -> None:
        """The section has grown to `text`."""
        async with self._mount_lock:
            fresh, is_final = text[len(self._text) :], self._shown != self._text
            self._text = self._shown = text
            if fresh and self.has_content and self._markdown is not None:
                self._streamed = True
                if is_final:
                    await self._markdown.update(text)
                else:
                    await self._markdown.append(fresh)

    async def finish(self, final: str) -> None:
        """Render again as a whole, which may differ from a streamed document."""
        async with self._mount_lock:
            changed, self._shown = self._streamed or final != self._shown, final
            if changed and self.has_content and self._markdown is not None:
                self._streamed = False
                await self._markdown.update(final)


class AnswerText(Vertical):
    """Call `show` when there is more text, and `finish` at the end, with the text as it is shown
    then."""

    def __init__(self, text: str = "", final: str = "") -> None:
        super().__init__(classes="answer")
        self._parts = Sections()
        self._length = len(text)
        self._parts.feed(sanitize(text))
        texts = self._parts.texts
        self._sections = [
            Section(text, before, shown)
            for before, text, shown in zip(
                ["", *texts], texts, _sections(final or text), strict=False
            )
        ]

        self.display = bool(text)

    def compose(self) -> ComposeResult:
        yield from self._sections

    async def show(self, text: str) -> None:
        """`text` begins with what was shown before."""
        fresh, self._length = text[self._length :], len(text)
        if not fresh:
            return
        self.display = True
        first = self._parts.feed(sanitize(fresh))
        await self._sections[-1].show(self._parts.texts[first])
        texts = self._parts.texts
        for before, text in zip(texts[first:], texts[first + 1 :], strict=False):
            section = Section(text, before)
            self._sections.append(section)
            await self.mount(section)
        await self._sections[-1].mount_content()

    async def finish(self, final: str) -> None:
        for section, text in zip(self._sections, _sections(final), strict=True):
            await section.finish(text)


def _sections(text: str) -> list[str]:
    parts = Sections()
    parts.feed(sanitize(text))
    return parts.texts


class Quotation(Static):
    """The text of an answer that is a quotation. It is no Markdown, and keeps the line breaks that
    mean something."""

    def __init__(self, text: str = "", final: str = "") -> None:
        super().__init__(markup=False, classes="answer quotation")
        self._draw(final or text)

    async def show(self, text: str) -> None:
        self._draw(text)

    async def finish(self, final: str) -> None:
        self._draw(final)

    def _draw(self, text: str) -> None:
        self.display = bool(text)
        self.update(sanitize(reflow(text)))
