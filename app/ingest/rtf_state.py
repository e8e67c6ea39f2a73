"""What the reader of Rich Text knows at a place of a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from xml.etree.ElementTree import Element

from app.ingest.markdown import Line
from app.ingest.rtf_tables import Block, Blocks

UNDEFINED = 25
"""The result of a form's field that still has its default."""


@dataclass(frozen=True, slots=True)
class Look:
    """How characters are formatted."""

    font: int | None = None
    """None: the document's."""
    hidden: bool = False
    raised: bool = False
    deleted: bool = False
    revised: bool = False


@dataclass(frozen=True, slots=True)
class Paragraph:
    """How a paragraph, or a style, is formatted."""

    style: int = 0
    based: int = -1
    """The style that a style is based on."""
    outline: int | None = None
    """The level of headings, from 0."""
    table: int = 0
    """How many tables it is in."""
    list: int = 0
    level: int = 0
    """Of the list, from 0."""
    left: int = 0
    first: int = 0
    """Indentations of all lines, and more of the first one, in twentieths of a point."""


NO_LOOK, NO_PARAGRAPH = Look(), Paragraph()


@dataclass(frozen=True, slots=True)
class Group:
    """State within a pair of braces."""

    destination: str = ""
    """What text in it is. Empty: text of the document."""
    text: list[str] | None = None
    """Gets the text if the destination is `text`."""
    formula: Element | None = None
    fallback: int = 1
    """Number of fallback characters after a Unicode character, for programs that cannot show it."""
    look: Look = NO_LOOK
    paragraph: Paragraph = NO_PARAGRAPH


@dataclass(slots=True)
class Field:
    """A field, and what was shown of it so far."""

    code: str = ""
    shown: list[str] = field(default_factory=list)
    form: int | None = None
    """The kind of a form's field."""
    result: int = UNDEFINED
    default: int = 0
    entries: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The first word of its code, such as `PAGE`."""
        return next(iter(self.code.split(None, 1)), "").upper()


class Flow:
    """Text with paragraphs of its own: the document's, or that of a note, box or margin."""

    def __init__(self, emit: Callable[[Block], object], is_margin: bool = False) -> None:
        self.blocks = Blocks(emit)
        self.line = Line()
        self.mark: str | None = None
        """The mark of a list's item that the file gives for the paragraph."""
        self.after: list[Block] = []
        """Notes and boxes, which follow the paragraph in which they stand."""
        self.is_margin = is_margin
        self.is_endnote = False
        self.has_note_mark = False
        """Whether the number of a note was just shown."""
        self.in_row = False
        """Whether a row has started, for writers that do not mark its paragraphs."""
        self.indents: list[tuple[int, int, int]] = []
        """Indentation, level and depth of the items that contain the paragraph before."""

    def depth(self, left: int, level: int) -> int:
        """How many items an item is in. Levels begin again in each list, indentations do not."""
        while self.indents and self.indents[-1][:2] > (left, level):
            self.indents.pop()
        last = self.indents[-1] if self.indents else (-1, -1, -1)
        if last[:2] != (left, level):
            last = left, level, max(level, last[2] + 1)
            self.indents.append(last)
        return last[2]
