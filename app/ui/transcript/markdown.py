"""Markdown of answers: no HTML, sanitised, and links that do not open by themselves.

Everything the model wrote stays readable: nothing in brackets is hidden as a definition, formulas,
paths and tables are complete, and the address of a link is shown after it. CommonMark drops
backslashes before punctuation, stars and underscores that could be emphasis, and cells for which a
table has no header.
"""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.rules_block import StateBlock
from markdown_it.rules_block.table import escapedSplit, getLine, table
from markdown_it.rules_core import StateCore
from markdown_it.rules_inline import StateInline
from markdown_it.rules_inline.emphasis import tokenize
from markdown_it.rules_inline.escape import escape
from markdown_it.token import Token
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock

from app.ui.transcript.table import AnswerTable
from app.util.sanitize import sanitize

ADDRESS = re.compile(r"(https?://|mailto:)[^\s/]", re.IGNORECASE)
MAX_FORMULA = 2_000
MAX_FORMULA_LINES = 100
MAX_CELLS = 5_000
"""Maximum cells of a table whose rows are wider than its headers; the rest of a row is one cell."""
_DOLLARS = re.compile(r"\$(?=\S)[^$`\n]{1,500}(?<=\S)\$(?!\d)")
_LONG_FORMULAS = {"$$": "$$", "\\[": "\\]", "\\(": "\\)"}
_DOUBLE_UNDERSCORES = re.compile(r"__[A-Za-z0-9](?:\w{0,100}[A-Za-z0-9])?__(?!\w)")
_MARKS = "*_~`"
# ASCII characters that may stand around an opening and a closing mark of emphasis.
_BEFORE_OPENING = frozenset(" \t\n([{\"'-:>|," + _MARKS)
_AFTER_OPENING = frozenset("([{\"'$+-<@#&\\" + _MARKS)
_BEFORE_CLOSING = frozenset(".,;:!?)]}\"'%$>+" + _MARKS)
_AFTER_CLOSING = frozenset(" \t\n)]}\"'-,.;:!?|<" + _MARKS)


class AnswerMarkdown(Markdown):
    def get_block_class(self, block_name: str) -> type[MarkdownBlock]:
        return AnswerTable if block_name == "table_open" else super().get_block_class(block_name)


def answer_markdown(text: str) -> Markdown:
    return AnswerMarkdown(text, parser_factory=answer_parser, open_links=False)


def answer_parser() -> MarkdownIt:
    """Markdown without HTML, which Textual would swallow. Sanitised again after parsing: an entity
    such as `&#x202E;` becomes the character it names only there."""
    parser = MarkdownIt("gfm-like", {"html": False})
    # `[12]: page` would be parsed as a definition, which is not shown, and `f[i](x)` as a link.
    parser.disable("reference")
    keep_what_was_written(parser)
    parser.validateLink = _is_address  # type: ignore[method-assign]
    parser.core.ruler.push("addresses", _show_addresses)
    parser.core.ruler.push("sanitize", _sanitize_tokens)
    return parser


def _is_address(url: str) -> bool:
    return ADDRESS.match(url) is not None


def _show_addresses(state: StateCore) -> None:
    """Add the address of a link after its text, unless they are the same."""
    for inline in state.tokens:
        children: list[Token] = []
        opened = 0
        for token in inline.children or ():
            children.append(token)
            if token.type == "link_open":
                opened = len(children)
            elif token.type in ("link_close", "image"):
                start = children[opened - 1] if token.type == "link_close" else token
                address = str(start.attrs.get("href") or start.attrs.get("src"))
                address = state.md.normalizeLinkText(address)
                label = "".join(each.content for each in children[opened:])
                if start.info != "auto" and label != address:
                    children.append(Token("text", "", 0, content=f" ({address})"))
        if inline.children is not None:
            inline.children = children


def _sanitize_tokens(state: StateCore) -> None:
    for token in state.tokens:
        for part in (token, *(token.children or ())):
            part.content = sanitize(part.content)


def code_blocks(text: str) -> list[tuple[str, str]]:
    """Language and text of every block of code in a Markdown text."""
    tokens = MarkdownIt("gfm-like", {"html": False}).parse(text)
    kinds = ("fence", "code_block")
    return [(t.info.strip(), t.content) for t in tokens if t.type in kinds]


def keep_what_was_written(parser: MarkdownIt) -> None:
    """Add the rules below to a parser."""
    parser.inline.ruler.before("escape", "formula", _formula)
    parser.inline.ruler.at("escape", _escape)
    parser.inline.ruler.at("emphasis", _emphasis)
    parser.block.ruler.at("table", _table, {"alt": ["paragraph", "reference"]})
    parser.block.ruler.before("table", "formula", _formula_block, {"alt": ["paragraph"]})


def _formula(state: StateInline, silent: bool) -> bool:
    """Formulas of LaTeX, and names such as `__init__`."""
    source, start = state.src, state.pos
    if source[start] == "_":
        before = source[start - 1 : start] if start else ""
        found = None if before.isalnum() else _DOUBLE_UNDERSCORES.match(source, start)
    else:
        found = _DOLLARS.match(source, start) if source[start] == "$" else None
    end = found.end() if found is not None else -1
    closing = _LONG_FORMULAS.get(source[start : start + 2])
    if end < 0 and closing is not None:
        end = source.find(closing, start + 2, start + MAX_FORMULA)
        end += 2 if end >= 0 else 0
    if not start < end <= state.posMax:
        return False
    if not silent:
        for number, line in enumerate(source[start:end].split("\n")):
            if number:
                state.push("hardbreak", "br", 0)
            state.push("text", "", 0).content = line
    state.pos = end
    return True


def _formula_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """The lines from one that begins with `$$` or `\\[` to the one that closes it are a paragraph:
    a line with a minus is no item of a list. Like LaTeX's, it has no blank line."""
    first = getLine(state, start)
    closing = _LONG_FORMULAS.get(first[:2])
    if closing is None or first.startswith("\\(") or state.is_code_block(start):
        return False
    line, text = start, first[2:]
    while closing not in text:
        line += 1
        if line == end:  # the rest is still to come
            break
        if line - start > MAX_FORMULA_LINES or state.isEmpty(line):
            return False
        if state.sCount[line] < state.blkIndent:
            return False
        text = getLine(state, line)
    if silent:
        return True
    state.line = min(line + 1, end)
    state.push("paragraph_open", "p", 1).map = [start, state.line]
    inline = state.push("inline", "", 0)
    inline.content = state.getLines(start, state.line, state.blkIndent, False).strip()
    inline.map, inline.children = [start, state.line], []
    state.push("paragraph_close", "p", -1)
    return True


def _escape(state: StateInline, silent: bool) -> bool:
    """A backslash keeps the next character from being a mark, and is shown itself."""
    at, count = state.pos, len(state.tokens)
    if not escape(state, silent):
        return False
    if not silent:
        token = state.tokens[-1]
        if token.type == "hardbreak" and len(state.tokens) > count:
            state.tokens[-1:] = [Token("text", "", 0, content="\\", level=token.level), token]
        else:
            token.content = state.src[at : state.pos]
    return True


def _emphasis(state: StateInline, silent: bool) -> bool:
    """Parse emphasis only at the borders of words, so not in `2*3*4`."""
    start, count = state.pos, len(state.delimiters)
    if not tokenize(state, silent):
        return False
    before = state.src[start - 1] if start else " "
    after = state.src[state.pos] if state.pos < state.posMax else " "
    opens = _fits(before, _BEFORE_OPENING, False) and _fits(after, _AFTER_OPENING, True)
    closes = _fits(before, _BEFORE_CLOSING, True) and _fits(after, _AFTER_CLOSING, False)
    if state.pos - start == 2 and "/" in (before, after):  # `**a**/**b**`
        opens = opens or (before == "/" and after.isalnum())
        closes = closes or (after == "/" and before.isalnum())
    for delimiter in state.delimiters[count:]:
        delimiter.open, delimiter.close = delimiter.open and opens, delimiter.close and closes
    return True


def _fits(character: str, punctuation: frozenset[str], within: bool) -> bool:
    """Whether a character may stand next to a mark of emphasis. `within`: letters may. Characters
    beyond ASCII always may, because some languages do not separate words."""
    return not character.isascii() or character in punctuation or (within and character.isalnum())


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    """Parse a table as wide as its longest row; extra columns have empty headers."""
    count = len(state.tokens)
    if not table(state, start, end, silent):
        return False
    if silent:
        return True
    tokens = state.tokens[count:]
    del state.tokens[count:]
    columns = sum(token.type == "th_open" for token in tokens)
    lines = [token.map[0] for token in tokens if token.type == "tr_open" and token.map]
    rows = {line: _cells(getLine(state, line)) for line in lines}
    width = min(max(map(len, rows.values())), max(columns + 1, MAX_CELLS // len(rows)))
    line = start
    for token in tokens:
        if token.type == "tr_open" and token.map:
            line = token.map[0]
        if token.type == "tr_close":
            kind = "th" if line == start else "td"
            for column in range(columns, width):
                state.push(f"{kind}_open", kind, 1)
                inline = state.push("inline", "", 0)
                end_column = column + 1 if column < width - 1 else None
                inline.content = " | ".join(rows[line][column:end_column])
                inline.map, inline.children = [line, line + 1], []
                state.push(f"{kind}_close", kind, -1)
        state.tokens.append(token)
    return True


def _cells(line: str) -> list[str]:
    """The cells of a row, split as markdown-it does."""
    cells = escapedSplit(line.strip())
    if cells and cells[0] == "":
        cells.pop(0)
    if cells and cells[-1] == "":
        cells.pop()
    return [cell.strip() for cell in cells]
