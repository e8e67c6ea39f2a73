"""The tags and texts of a web page's source, in order.

Reads the source once from start to end and never searches backwards, so that even a hostile page
takes linear time.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from functools import cached_property, lru_cache

from app.ingest.html_styles import declarations, effects, is_unseen, paint

_TOKEN = re.compile(
    r"""([^<]*+)(?:<(/?)([a-zA-Z][^\s/>]{0,50}+)"""
    r"""((?:[^"'=>]++|=\s*+(?:"[^"<>]*+"|'[^'<>]*+')?+)*+)>)?+"""
)
"""A text and the tag after it, unless its quotes are wrong or contain `<` or `>`."""
_NAME = re.compile(r"<(/?)([a-zA-Z][^\s/>]{0,50})")
_PREFIX = re.compile(r"^(?:h|html|xhtml|svg|m|mml|math):")
_TO_QUOTE = re.compile("[^\"'>]*")
_ATTRIBUTE = re.compile(r"""([^\s"'=/>]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+)))?""")
_SELF_CLOSED = re.compile(r"""(?:^|[\s"'])/$""")
_LOOK = re.compile("style|hidden|popover|color|background", re.IGNORECASE)
_HINTS = {"color": "color", "bgcolor": "background-color", "background": "background-image"}
"""Attributes, and the properties that they set."""
_CDATA = "<![CDATA["
_NONE = frozenset[str]()
_HUGE_NUMBER = re.compile(r"&#[0-9]{20,}+;?")

_RAW = {
    name: re.compile(f"</(?:[a-z]+:)?{name}", re.IGNORECASE)
    for name in ("script", "style", "iframe", "noembed", "noframes")
}
"""Elements whose content is not text of the page and has no tags."""
_EMPTY = "area base br col embed hr img input link meta param source track wbr"
_VOID = frozenset(_EMPTY.split())
"""Elements without content and end tag."""
_MAX_KNOWN = 1_000
"""Different tags to keep, because most are repeated."""


class Tag:
    """A start tag or an end tag. `</br>` is read as `<br>`, as browsers do."""

    def __init__(self, slash: str, name: str, source: str) -> None:
        """`source` is what follows the name."""
        name = name.lower()
        self.name = _PREFIX.sub("", name, count=1) if ":" in name else name
        self.source = source
        self.is_end = bool(slash) and name != "br"
        self.is_empty = self.name in _VOID or (
            source.endswith("/") and _SELF_CLOSED.search(source) is not None
        )
        """Whether the element has no content, as `<br>` and `<td/>`."""
        self.has_look = name == "dialog" or _LOOK.search(source) is not None
        """Whether its attributes may hide the element, or colour it."""
        self.effects = effects(self.style) if self.has_look else _NONE
        """What its style does (see `html_styles.effects`)."""
        self.paint = paint(self.style) if self.has_look else ("", "")
        """Its colours (see `html_styles.paint`)."""

    @cached_property
    def attributes(self) -> dict[str, str]:
        """Attributes by their names in lower case."""
        found: dict[str, str] = {}
        for hit in _ATTRIBUTE.finditer(self.source):
            found.setdefault(hit[1].lower(), _unescaped(hit[2] or hit[3] or hit[4] or ""))
        return found

    @cached_property
    def style(self) -> dict[str, str]:
        """The declarations of the attribute `style` and of those for colours, in lower case."""
        known = self.attributes
        hints = {
            each: known[name].strip().lower() for name, each in _HINTS.items() if name in known
        }
        return hints | declarations(known.get("style", ""))

    @cached_property
    def is_unseen(self) -> bool:
        return is_unseen(self.style)


def parts(source: str, is_xml: bool = False) -> Iterator[Tag | str]:
    """Yield the tags and texts. `is_xml`: sections of CDATA are texts, not comments."""
    tag_of = lru_cache(_MAX_KNOWN)(Tag)
    at, unclosed = 0, set[str]()
    while at < len(source) and (token := _TOKEN.match(source, at)) is not None:
        text, slash, name, attributes = token.groups()
        at = token.end()
        if text:
            yield _unescaped(text) if "&" in text else text
        if name is None and (begin := _NAME.match(source, at)) is not None:
            end = _tag_end(source, begin.end(), unclosed)
            if end < 0:
                return
            slash, name = begin.groups()
            attributes = source[begin.end() : end]
            at = end + 1
        if name is not None:
            tag = tag_of(slash, name, attributes)
            yield tag
            if tag.name in _RAW and not slash and not attributes.endswith("/"):
                closing = _RAW[tag.name].search(source, at)
                at = len(source) if closing is None else closing.start()
        elif source.startswith("<!--", at):
            at = _after("-->", source, at + 2)  # `<!-->` is a complete comment
        elif is_xml and source.startswith(_CDATA, at):
            end = _after("]]>", source, at)
            yield source[at + len(_CDATA) : end].removesuffix("]]>")
            at = end
        elif source.startswith(("<!", "<?", "</"), at):
            at = _after(">", source, at)
        elif at < len(source):
            yield "<"
            at += 1


def _after(sign: str, source: str, at: int) -> int:
    found = source.find(sign, at)
    return len(source) if found < 0 else found + len(sign)


def _tag_end(source: str, at: int, unclosed: set[str]) -> int:
    """Index of the `>` that ends a tag, outside of quotes; -1 if there is none. `unclosed` are
    quotes that do not occur later, or that are not to be trusted."""
    first = at
    while True:
        stop = _TO_QUOTE.match(source, at)
        at = stop.end() if stop is not None else at
        character = source[at : at + 1]
        if character == ">":
            return at
        if not character:
            unclosed.update("\"'")  # so that the rest is not searched again for each tag
            return source.find(">", first)
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


def _unescaped(text: str) -> str:
    try:
        return html.unescape(text)
    except ValueError:  # a number with too many digits for Python
        return html.unescape(_HUGE_NUMBER.sub("\ufffd", text))
