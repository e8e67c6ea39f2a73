"""Markdown as an answer's: without HTML, sanitised, with links that open nothing by themselves.

Whatever the model wrote can be read: nothing in brackets is taken for a definition or an address
that is not one, and the address of a link stands behind it.
"""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock

from app.ui.transcript.table import AnswerTable
from app.util.sanitize import sanitize

ADDRESS = re.compile(r"(https?://|mailto:)[^\s/]", re.IGNORECASE)


class AnswerMarkdown(Markdown):
    def get_block_class(self, block_name: str) -> type[MarkdownBlock]:
        return AnswerTable if block_name == "table_open" else super().get_block_class(block_name)


def answer_markdown(text: str) -> Markdown:
    return AnswerMarkdown(text, parser_factory=answer_parser, open_links=False)


def answer_parser() -> MarkdownIt:
    """Markdown without HTML, which Textual would swallow. Sanitised again after parsing: an entity
    such as `&#x202E;` becomes the character it names only there."""
    parser = MarkdownIt("gfm-like", {"html": False})
    # `[12]: page` would be taken for a definition, which is not shown, and `f[i](x)` for a link.
    parser.disable("reference")
    parser.validateLink = _is_address  # type: ignore[method-assign]
    parser.core.ruler.push("addresses", _show_addresses)
    parser.core.ruler.push("sanitize", _sanitize_tokens)
    return parser


def _is_address(url: str) -> bool:
    return ADDRESS.match(url) is not None


def _show_addresses(state: StateCore) -> None:
    """Behind what a link is called, unless it is called so."""
    for inline in state.tokens:
        children: list[Token] = []
        opened = 0
        for token in inline.children or ():
            children.append(token)
            if token.type == "link_open":
                opened = len(children)
            elif token.type in ("link_close", "image"):
                begin = children[opened - 1] if token.type == "link_close" else token
                address = str(begin.attrs.get("href") or begin.attrs.get("src"))
                address = state.md.normalizeLinkText(address)
                called = "".join(each.content for each in children[opened:])
                if begin.info != "auto" and called != address:
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
