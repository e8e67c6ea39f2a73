"""The text of an answer: Markdown, rendered only near the visible part, or a quotation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Static

from app.ui.transcript.lazy_container import LazyContainer, estimate_rows
from app.ui.transcript.sections import Sections
from app.util.prose import reflow
from app.util.sanitize import sanitize

if TYPE_CHECKING:
    from textual.widgets import Markdown


class Section(LazyContainer):
    """About forty lines of Markdown."""

    def __init__(self, text: str, before: str = "") -> None:
        """`before` is the section above it."""
        apart = before.endswith("\n\n")
        super().__init__(classes="section apart" if apart else "section")
        self._text = text
        self._markdown: Markdown | None = None
        self._streamed = False

    def content(self) -> Sequence[Widget]:
        from app.ui.transcript.markdown import (
            answer_markdown,
        )  # slow to import, so only once there is an answer

        self._streamed = False
        self._markdown = answer_markdown(self._text)
        return [self._markdown]

    def estimate_height(self, width: int) -> int:
        return estimate_rows(self._text, width)

    async def show(self, text: str) -> None:
        """The section has grown to `text`."""
        async with self._mount_lock:
            fresh, self._text = text[len(self._text) :], text
            if fresh and self.has_content and self._markdown is not None:
                self._streamed = True
                await self._markdown.append(fresh)

    async def finish(self) -> None:
        """Render again as a whole, which may differ from a streamed document."""
        async with self._mount_lock:
            if self._streamed and self.has_content and self._markdown is not None:
                self._streamed = False
                await self._markdown.update(self._text)


class Answer(Vertical):
    """Call `show` when there is more text, and `finish` at the end."""

    def __init__(self, text: str = "") -> None:
        super().__init__(classes="answer")
        self._parts = Sections()
        self._length = len(text)
        self._parts.feed(sanitize(text))
        texts = self._parts.texts
        self._sections = [
            Section(text, before) for before, text in zip(["", *texts], texts, strict=False)
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

    async def finish(self) -> None:
        for section in self._sections:
            await section.finish()


class Quotation(Static):
    """The text of an answer that is a quotation. It is no Markdown, and keeps the line breaks that
    mean something."""

    def __init__(self, text: str = "") -> None:
        super().__init__(markup=False, classes="answer quotation")
        self._draw(text)

    async def show(self, text: str) -> None:
        self._draw(text)

    async def finish(self) -> None:
        """Everything is shown already."""

    def _draw(self, text: str) -> None:
        self.display = bool(text)
        self.update(sanitize(reflow(text)))
