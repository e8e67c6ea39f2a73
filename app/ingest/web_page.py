"""Extracts the text that a browser shows of a web page, without scripts and styles, as Markdown.

Reads the page once from start to end and never searches backwards, so that even a hostile page
takes linear time.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

_PAGE = re.compile(
    r"\s*(?:<\?xml[^>]{0,200}\?>\s*)?(?:<!--[^>]{0,500}-->\s*)?<(?:!doctype\s+)?html\b", re.I
)
_NAME = re.compile(r"</?([a-zA-Z][^\s/>]{0,50})")
_TO_QUOTE = re.compile("[^\"'>]*")
_ATTRIBUTE = re.compile(r"""([^\s"'=/>]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+)))?""")
_SPACE = re.compile(r"[ \t\r\n\f]+")
_HUGE_NUMBER = re.compile(r"&#[0-9]{20,}+;?")
_LINE_END = re.compile(r"\r\n?|\n")
_BLANK_LINES = re.compile(r"\n{3,}")

# Elements whose content is not text of the page and has no tags.
_RAW = {
    name: re.compile(f"</{name}", re.IGNORECASE)
    for name in ("script", "style", "iframe", "noembed", "noframes")
}
_HIDDEN = frozenset({"template", "noscript", "svg", "object", "audio", "video", "canvas"})
_PARAGRAPHS = "p h1 h2 h3 h4 h5 h6 ul ol dl table pre blockquote section article figure form hr"
_LINES = (
    "address aside body caption center dd details div dt fieldset figcaption footer head header"
    " html label legend li main menu nav option optgroup summary tbody tfoot thead title tr"
)
# Elements that are often hidden, and that need an end tag.
_ENDING = frozenset(["div", "span", "section", "article", "aside", "nav", "header", "footer"])
_MAX_CELL = 1_000
"""Maximum characters of a cell of a table; longer ones are columns of a page."""
_MAX_SPAN = 100
_BREAKS = dict.fromkeys(_LINES.split(), 1) | dict.fromkeys(_PARAGRAPHS.split(), 2)
"""Elements that end a line, and the number of line ends that they add."""


def is_page(text: str) -> bool:
    """Whether a text begins like a web page."""
    return _PAGE.match(text) is not None


def page_text(source: str, check: Callable[[], None] = lambda: None) -> str:
    """The text of a web page, with marks for headings, list items and table cells. If the page has
    no text, or is a template with placeholders, returns the source itself. `check` is called
    regularly, and may raise."""
    if "<?php" in source or "<%" in source:
        return source
    reader = _shown(source, check)
    text = reader.whole()
    return source if reader.is_template or not text else text


def markup_text(source: str) -> str:
    """The text of a part of a document that is written in HTML; empty if it has none."""
    return _shown(source, lambda: None).whole()


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """A table whose first row is the header. All rows have as many cells as the longest."""
    columns = max(map(len, rows), default=0)
    lines = []
    for row in rows:
        cells = [" ".join(cell.split()).replace("|", "\\|") for cell in row]
        lines.append(f"| {' | '.join([*cells, *[''] * (columns - len(cells))])} |")
    if lines:
        lines.insert(1, "|" + " --- |" * columns)
    return "\n".join(lines)


def _shown(source: str, check: Callable[[], None]) -> _PageReader:
    reader = _read(source, check, _HIDDEN)
    if reader.is_hidden:  # an unclosed element would hide the rest of the page
        reader = _read(source, check, frozenset())
    return reader


def _read(source: str, check: Callable[[], None], hidden: frozenset[str]) -> _PageReader:
    reader = _PageReader(hidden)
    for tag, content in _parts(source):
        check()
        if tag:
            reader.tag(tag, content)
        else:
            reader.text(_unescaped(content))
    return reader


def _parts(source: str) -> Iterator[tuple[str, str]]:
    """Yield tags in lower case, such as `p` and `/p`, with their attributes, and texts with an
    empty tag."""
    at, unclosed = 0, set[str]()
    while (start := source.find("<", at)) >= 0:
        if start > at:
            yield "", source[at:start]
        name = _NAME.match(source, start)
        if source.startswith("<!--", start):
            at = source.find("-->", start + 2) + 3  # `<!-->` is a complete comment
            if at < 3:
                return
        elif name is not None:
            end = _tag_end(source, name.end(), unclosed)
            if end < 0:
                return
            tag = name[1].lower()
            yield ("/" if source[start + 1] == "/" else "") + tag, source[name.end() : end]
            at = end + 1
            if tag in _RAW and source[start + 1] != "/" and source[end - 1] != "/":
                closing = _RAW[tag].search(source, at)
                if closing is None:
                    return
                at = closing.start()
        elif source[start + 1 : start + 2] in ("!", "?", "/"):
            at = source.find(">", start) + 1
            if at < 1:
                return
        else:
            yield "", "<"
            at = start + 1
    yield "", source[at:]


def _tag_end(source: str, at: int, unclosed: set[str]) -> int:
    """Index of the `>` that ends a tag, outside of quotes; -1 if there is none. `unclosed` are
    quotes that do not occur later."""
    first = at
    while True:
        stop = _TO_QUOTE.match(source, at)
        at = stop.end() if stop is not None else at
        character = source[at : at + 1]
        if character in (">", ""):
            return at if character else source.find(">", first)
        if not _begins_value(source, at):
            at += 1
        elif character in unclosed or (closing := source.find(character, at + 1)) < 0:
            unclosed.add(character)
            at += 1
        else:
            at = closing + 1


def _begins_value(source: str, at: int) -> bool:
    """Whether a quote begins a value. Other quotes, as in `width="9"">` and `title=Bob's`, do
    not."""
    while source[at - 1].isspace():
        at -= 1
    return source[at - 1] == "="


@dataclass(frozen=True, slots=True)
class _Cell:
    """A cell of a table: the number of pieces of text before its content, and its spans."""

    begin: int
    columns: int
    rows: int


@dataclass
class _Table:
    """An open table."""

    rows: list[list[_Cell]] = field(default_factory=list)
    nested: bool = False
    """Whether it contains another table."""

    def grid(self, texts: Iterator[str]) -> list[list[str]]:
        """Rows of equal columns with the texts of the cells, without empty rows."""
        grid, below = (
            [],
            dict[int, int](),
        )  # columns that a cell above covers, and for how many rows
        for row in self.rows:
            line: list[str] = []
            covered, below = below, {column: n - 1 for column, n in below.items() if n > 1}
            for cell in row:
                while len(line) in covered:
                    line.append("")
                if cell.rows > 1:
                    below |= {len(line) + n: cell.rows - 1 for n in range(cell.columns)}
                line += [next(texts), *[""] * (cell.columns - 1)]
            if any(line):
                grid.append(line)
        return grid


@dataclass
class _PageReader:
    """Assembles the text of a page."""

    hidden: frozenset[str]
    """Elements that are not shown. If there are any, elements with the attribute `hidden` are not
    shown either."""
    is_template: bool = False
    """Whether the text has placeholders."""
    _pieces: list[str] = field(default_factory=list)
    _breaks: int = 0
    """Line ends to write before the next text."""
    _begun: bool = False
    """Whether the mark of an item, heading or cell was written last."""
    _hidden: list[str] = field(default_factory=list)
    """Open elements that are not shown: the outermost one, and those of the same name inside it."""
    _preformatted: int = 0
    _code: int = 0
    _lists: list[int] = field(default_factory=list)
    """Number of the next item of each open list; 0 if the list is not numbered."""
    _tables: list[_Table] = field(default_factory=list)
    """Open tables."""

    def text(self, text: str) -> None:
        if self._hidden:
            return
        if not self._preformatted:
            text = _SPACE.sub(" ", text)
            if self._breaks or not self._pieces or self._pieces[-1].endswith((" ", "\n")):
                text = text.removeprefix(" ")
            if not self._code and ("{{" in text or "{%" in text):
                self.is_template = True
        if text:
            self._put(text)
            self._begun = False

    def tag(self, tag: str, attributes: str) -> None:
        name, closing = tag.removeprefix("/"), tag.startswith("/")
        if self._hidden:
            if name == self._hidden[0]:
                self._hidden.pop() if closing else self._hidden.append(name)
            return
        if not closing and not attributes.endswith("/") and self._hides(name, attributes):
            self._hidden.append(name)
            return
        if name == "br":
            self._breaks = min(2, self._breaks + 1)
        else:
            self._break(_BREAKS.get(name, 0))
        self._closed(name) if closing else self._opened(name, attributes)

    def _hides(self, name: str, attributes: str) -> bool:
        if name in self.hidden:
            return True
        if not self.hidden or name not in _ENDING:
            return False
        found = _attributes(attributes) if "hidden" in attributes or "none" in attributes else {}
        return "hidden" in found or "display:none" in found.get("style", "").replace(" ", "")

    @property
    def is_hidden(self) -> bool:
        """Whether a hidden element is open."""
        return bool(self._hidden)

    def _opened(self, name: str, attributes: str) -> None:
        if name == "pre":
            self._preformatted += 1
        elif name == "code":
            self._code += 1
        elif name in ("ul", "ol", "menu"):
            self._lists.append(1 if name == "ol" else 0)
        elif name == "li":
            self._item()
        elif name in ("h1", "h2", "h3", "h4", "h5", "h6"):
            self._mark("#" * int(name[1]) + " ")
        elif name == "table":
            self._tables.append(_Table())
        elif name == "tr" and self._tables:
            self._tables[-1].rows.append([])
        elif name in ("td", "th") and self._tables:
            rows = self._tables[-1].rows
            if not rows:
                rows.append([])
            self._mark("" if not rows[-1] or self._breaks else " | ")
            spans = _attributes(attributes) if "span" in attributes else {}
            columns, down = (_span(spans.get(name, "")) for name in ("colspan", "rowspan"))
            rows[-1].append(_Cell(len(self._pieces), columns, down))
        elif name in ("img", "area", "input"):
            self._replaced(name, _attributes(attributes))

    def _closed(self, name: str) -> None:
        if name == "pre":
            self._preformatted = max(0, self._preformatted - 1)
        elif name == "code":
            self._code = max(0, self._code - 1)
        elif name in ("ul", "ol", "menu"):
            del self._lists[-1:]
        elif name == "table" and self._tables:
            self._end_table(self._tables.pop())

    def _end_table(self, table: _Table) -> None:
        """Write the table as Markdown, unless it only arranges a page: it has one column, other
        tables, or long texts in its cells."""
        if self._tables:
            self._tables[-1].nested = True
        cells = [cell for row in table.rows for cell in row]
        if not cells:
            return
        ends = [*(cell.begin - 1 for cell in cells[1:]), len(self._pieces)]
        texts = [
            "".join(self._pieces[a.begin : b]).strip() for a, b in zip(cells, ends, strict=True)
        ]
        is_layout = any(text.count("\n\n") > 3 or len(text) > _MAX_CELL for text in texts)
        rows = table.grid(iter(texts))
        if not table.nested and not is_layout and max(map(len, rows), default=0) > 1:
            begin = cells[0].begin - 1
            apart = "" if begin == 0 or self._pieces[begin - 1].endswith("\n") else "\n\n"
            self._pieces[begin:] = [apart + markdown_table(rows)]

    def _item(self) -> None:
        indent, mark = "  " * min(10, max(0, len(self._lists) - 1)), "-"
        if self._lists and self._lists[-1]:
            mark = f"{self._lists[-1]}."
            self._lists[-1] += 1
        self._mark(f"{indent}{mark} ")

    def _replaced(self, name: str, attributes: dict[str, str]) -> None:
        """Write an element that is shown by the text of its attributes."""
        shown = attributes.get("alt", "")
        if name == "input":
            secret = attributes.get("type", "").lower() in ("hidden", "password")
            shown = "" if secret else attributes.get("value", "")
        if shown.strip():
            self.text(f"[{shown.strip()}]")

    def _break(self, lines: int) -> None:
        if not self._begun:
            self._breaks = max(self._breaks, lines)

    def _mark(self, mark: str) -> None:
        self._put(mark)
        self._begun = True

    def _put(self, text: str) -> None:
        if self._breaks and self._pieces:
            self._pieces.append("\n" * self._breaks)
        self._breaks = 0
        self._pieces.append(text)

    def whole(self) -> str:
        lines = "\n".join(line.rstrip() for line in _LINE_END.split("".join(self._pieces)))
        text = _BLANK_LINES.sub("\n\n", lines).strip("\n")
        return text + "\n" if text.strip() else ""


def _span(value: str) -> int:
    return (
        min(int(value), _MAX_SPAN)
        if value.isdecimal() and len(value) < 5 and value.strip("0")
        else 1
    )


def _attributes(text: str) -> dict[str, str]:
    return {
        hit[1].lower(): _unescaped(hit[2] or hit[3] or hit[4] or "")
        for hit in _ATTRIBUTE.finditer(text)
    }


def _unescaped(text: str) -> str:
    """Replace references such as `&amp;` by characters."""
    try:
        return html.unescape(text)
    except ValueError:  # a number with too many digits for Python
        return html.unescape(_HUGE_NUMBER.sub("\ufffd", text))
