"""Writes the contents of documents as Markdown, in one way for all formats.

A reader of a format says what stands in a document: headings, paragraphs, items of lists, tables,
code and notes. Here it is decided how that is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_DIVIDING = re.compile("[\xad\u200b\u2060\ufeff]+")
_LIKE_HEADING = re.compile(r"^(?=#{1,6} )", re.MULTILINE)
_LIKE_FENCE = re.compile(r"^ {0,3}(?=`{3}|~{3})", re.MULTILINE)
_FENCES = re.compile(r"`{3,}")
_ORDINAL = re.compile(r"(?:st|nd|rd|th|er|re|ère|e|ème|o|a|os|as|te|tm|sm|®|™|[ºª°])", re.I)
_ALONE = re.compile(r"[+\-−]?\w[\w.,]*|[*†‡§¶#'′″]+")
_HEADING_STYLE = re.compile(r"heading ([1-9])(?:,.*)?", re.IGNORECASE)
_CODE_STYLE = re.compile(
    r"(?:(?:source |program |html )?code|sourcecode|source text|(?:html )?preformatted(?: text)?"
    r"|macro text|verbatim|listing)(?: (?:block|text|char|snippet|listing|example|\d{1,2})){0,3}",
    re.IGNORECASE,
)
_PAGE_WORDS = re.compile(
    r"(?:(?:[\W\d_]|第|页|頁|共|ページ|쪽)++|(?:page|pages|pg|p|of|seite|seiten|von|blatt|página|de|pág|pagina"
    r"|pag|di|sur|sida|side|av|af|van|strona|strana|z|ze|стр|страница|из|sayfa)\b)*+",
    re.IGNORECASE,
)
"""What remains of the number of a page in a header, without the number."""
_ADDRESS = re.compile(r"(?:https?|mailto|ftp|tel):", re.IGNORECASE)
_SCHEME = re.compile(r"^(?:mailto:|tel:|https?://)", re.IGNORECASE)
_NEARLY_WHITE = re.compile("#?(?:[fF][a-fA-F]){3}")
_MAX_DEPTH = 10


def visible(text: str) -> str:
    """A text without characters that nobody sees, and that divide words for a search."""
    return text if text.isascii() else _DIVIDING.sub("", text)


def heading_level(style: str) -> int | None:
    """The level, from 1, of headings in a style of this name."""
    found = _HEADING_STYLE.fullmatch(style)
    return int(found[1]) if found else None


def is_code_style(name: str) -> bool:
    return _CODE_STYLE.fullmatch(name) is not None


def raised(text: str) -> str:
    """A raised text: `^6`, `^(n+1)`; `[1]` and the end of `1st` are as they are."""
    inner = text.strip()
    if not inner or inner[0] in "[(^" or _ORDINAL.fullmatch(inner):
        return text
    return f"^{inner}" if _ALONE.fullmatch(inner) else f"^({inner})"


def ruby(base: str, reading: str) -> str:
    """`東京 (とうきょう)`"""
    return f"{base} ({reading.strip()})" if reading.strip() else base


TICKS = {True: "[x]", False: "[ ]"}
"""A box with a tick, and one without."""


def hidden(text: str) -> str:
    """A text that the document does not show."""
    return f"(hidden: {text.strip()})" if text.strip() else text


def is_tiny(points: float) -> bool:
    """Whether letters of this size cannot be read."""
    return points < 2


def is_white(colour: str) -> bool:
    """Whether a colour such as `#FFFFFF` is white, or nearly so."""
    return _NEARLY_WHITE.fullmatch(colour) is not None


def struck(text: str) -> str:
    """A text that a line strikes."""
    inner = text.strip()
    return text.replace(inner, f"~~{inner}~~", 1) if inner else text


def address(target: str, shown: str) -> str:
    """What to write after a link: its address, unless the link's text has it."""
    bare = _SCHEME.sub("", target).rstrip("/")
    if not _ADDRESS.match(target) or not shown.strip() or bare in shown:
        return ""
    return f" ({target.removeprefix('mailto:')})"


def fenced(code: str) -> str:
    """Lines of code between fences."""
    lines = visible(code).strip("\n")
    fence = "`" * (max(map(len, _FENCES.findall(lines)), default=2) + 1)
    return f"{fence}\n{lines}\n{fence}"


def plain(text: str) -> str:
    """A text that is not Markdown: no line of it is read as a heading or as the start of code."""
    if "#" in text:
        text = _LIKE_HEADING.sub(" ", text)
    return _LIKE_FENCE.sub("    ", text) if "```" in text or "~~~" in text else text


def max_cells(cells: int) -> int:
    """How many cells a table with this many in its source may have when it is filled up."""
    return 1_000 + 20 * cells


def table(rows: Iterable[Sequence[str]]) -> str:
    """A table whose first row is the header. All rows have as many cells as the longest, unless
    that would multiply the text."""
    rows = [*rows]
    columns = max(map(len, rows), default=0)
    is_even = columns * len(rows) <= max_cells(sum(map(len, rows)))
    lines = []
    for row in rows:
        cells = [" ".join(cell.split()).replace("|", "\\|") for cell in row]
        missing = columns - len(cells) if is_even else 0
        lines.append(f"| {' | '.join([*cells, *[''] * missing])} |")
    if lines:
        lines.insert(1, "|" + " --- |" * columns)
    return "\n".join(lines)


class Line:
    """The text of a paragraph, in pieces that are raised, struck, hidden or ordinary."""

    def __init__(self) -> None:
        self._pieces: list[tuple[str, list[str]]] = []

    def add(self, text: str, kind: str = "") -> None:
        """`kind` is empty, `raised`, `struck` or `hidden`."""
        if not text:
            return
        if self._pieces and self._pieces[-1][0] == kind:
            self._pieces[-1][1].append(text)
        else:
            self._pieces.append((kind, [text]))

    def extend(self, other: Line) -> None:
        for kind, texts in other._pieces:
            self.add("".join(texts), kind)

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def take_raised(self) -> str:
        """Remove the raised text at the end, such as the mark of a note, and return it."""
        if self._pieces and self._pieces[-1][0] == "raised":
            return "".join(self._pieces.pop()[1])
        return ""

    def text(self) -> str:
        if len(self._pieces) == 1 and not self._pieces[0][0]:
            return "".join(self._pieces[0][1])
        shown = ""
        for kind, texts in self._pieces:
            text = "".join(texts)
            if kind == "hidden":
                text = hidden(text)
            elif kind == "struck":
                text = struck(text)
            elif kind == "raised" and shown[-1:].strip():
                text = raised(text)
            shown += text
        return shown


class Margins:
    """Headers and footers of pages, each of them once."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, None]] = {"header": {}, "footer": {}}

    def __contains__(self, kind: str) -> bool:
        return kind in self._found

    def add(self, kind: str, text: str) -> None:
        """`kind` is `header` or `footer`. The number of a page is ignored."""
        line = " / ".join(each.strip() for each in text.split("\n") if each.strip())
        if _PAGE_WORDS.fullmatch(line) is None:
            self._found[kind][line] = None

    def around(self, text: str) -> str:
        """A text below the headers and above the footers."""
        above, below = (
            [f"[{kind.title()}: {each}]" for each in found] for kind, found in self._found.items()
        )
        return "\n\n".join(filter(None, [*above, text, *below]))


class Writer:
    """Writes what it is given, in order. Notes are written at the end of their section."""

    def __init__(self, outer: Writer | None = None) -> None:
        """`outer` writes what this one stands in, such as a cell, and gets its notes."""
        self._outer = outer
        self._pieces: list[str] = []
        self._kind = ""
        """The kind of the block that was written last."""
        self._code: list[str] = []
        self._notes: list[str] = []
        self._earlier: int | None = None

    def begin(self) -> None:
        """Notes from now on belong to the block that is written next, also if it is a heading."""
        self._earlier = len(self._notes)

    def heading(self, level: int, text: str) -> None:
        """`level` is 1 for the outermost ones; the deepest that Markdown has is 6."""
        line = " ".join(visible(text).split())
        if line and self._outer is not None:
            self.paragraph(line)
        elif line:
            at = len(self._notes) if self._earlier is None else self._earlier
            own, self._notes = self._notes[at:], self._notes[:at]
            self.end_section()
            self._notes, self._earlier = own, None
            self._write("heading", f"{'#' * max(1, min(6, level))} {line}")

    def paragraph(self, text: str) -> None:
        """A text of one or more lines. Spaces at their beginnings stay."""
        if shown := _plain(text):
            self._write("paragraph", shown)

    def item(self, depth: int, mark: str, text: str) -> None:
        """An item of a list. `mark` is its number or `-`; empty for a further paragraph of the item
        before. `depth` is 0 for the outermost list."""
        indent = "  " * min(depth, _MAX_DEPTH)
        if shown := _plain(text).lstrip(" "):
            is_bare = mark.isascii() and mark.isalnum()
            mark = f"{mark}. " if is_bare else f"{mark} " if mark else "  "
            following = f"\n{indent}  "
            self._write("item", indent + mark + shown.replace("\n", following))
        elif mark.strip("-"):
            self._write("item", indent + mark)

    def end_list(self) -> None:
        """What follows is no item of the list before."""
        self._kind = ""

    def code(self, text: str) -> None:
        """Lines of code. Blocks that follow each other are one. In a cell they are a text."""
        if self._outer is not None:
            self.paragraph(text)
        else:
            self._code += text.split("\n")

    def table(self, rows: Sequence[Sequence[str]]) -> None:
        """A table. One with a single column only frames its texts."""
        rows = [row for row in rows if any(cell.strip() for cell in row)]
        if self._outer is not None:
            self.paragraph("; ".join(", ".join(filter(None, row)) for row in rows))
        elif max(map(len, rows), default=0) > 1:
            self._write("table", table(rows))
        else:
            for row in rows:
                self.paragraph(row[0])

    def block(self, block: str) -> None:
        """What is Markdown already."""
        if block.strip():
            self._write("block", block)

    def note(self, mark: str, text: str) -> None:
        """A note to what was written before, such as `[^2]`."""
        if self._outer is not None:
            self._outer.note(mark, text)
        else:
            self._notes.append(f"{mark}: {' '.join(visible(text).split())}")

    def comment(self, mark: str, author: str, text: str) -> None:
        """A note with the name of who wrote it; the name may be empty."""
        name = " ".join(author.split())
        self.note(mark, f"{name}: {text}" if name else text)

    def text(self) -> str:
        """All that was written."""
        self.end_section()
        return "".join(self._pieces)

    def end_section(self) -> None:
        """Write the notes to what was written before."""
        self._end_code()
        for note in self._notes:
            self._write("note", note)
        self._notes.clear()

    def _end_code(self) -> None:
        if self._code:
            lines, self._code = "\n".join(self._code), []
            if lines.strip():
                self._write("code", fenced(lines))

    def _write(self, kind: str, block: str) -> None:
        self._end_code()
        if self._pieces:
            together = kind == self._kind and kind in ("item", "note")
            self._pieces.append("\n" if together else "\n\n")
        self._pieces.append(block)
        self._kind = kind


def _plain(text: str) -> str:
    """Lines that are neither headings nor the beginnings of code, without empty ones."""
    lines = (line.rstrip() for line in visible(text).split("\n"))
    return plain("\n".join(line for line in lines if line.strip()))
