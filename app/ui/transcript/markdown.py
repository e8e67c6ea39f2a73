"""Markdown of answers: no HTML, sanitised, and links that do not open by themselves.

Everything the model wrote stays readable: nothing in brackets is hidden as a definition, formulas,
paths and tables are complete, and the address of a link is shown after it.
"""

from __future__ import annotations

import re

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from markdown_it.token import Token
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock

from app.ui.transcript.markdown_rules import keep_what_was_written
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
