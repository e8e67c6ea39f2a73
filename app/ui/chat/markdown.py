"""Markdown as an answer's: without HTML, sanitised, with links that open nothing by themselves."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.rules_core import StateCore
from textual.widgets import Markdown

from app.ui.sanitize import sanitize


def answer_markdown(text: str) -> Markdown:
    return Markdown(text, parser_factory=answer_parser, open_links=False)


def answer_parser() -> MarkdownIt:
    """Markdown without HTML, which Textual would swallow. Sanitised again after parsing: an entity
    such as `&#x202E;` becomes the character it names only there."""
    parser = MarkdownIt("gfm-like", {"html": False})
    parser.core.ruler.push("sanitize", _sanitize_tokens)
    return parser


def _sanitize_tokens(state: StateCore) -> None:
    for token in state.tokens:
        for part in (token, *(token.children or ())):
            part.content = sanitize(part.content)


def code_blocks(text: str) -> list[tuple[str, str]]:
    """Language and text of every block of code in a Markdown text."""
    tokens = MarkdownIt("gfm-like", {"html": False}).parse(text)
    kinds = ("fence", "code_block")
    return [(t.info.strip(), t.content) for t in tokens if t.type in kinds]
