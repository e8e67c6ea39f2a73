"""The tags and texts of a web page's source, in order.

Reads the source once from start to end and never searches backwards, so that even a hostile page
takes linear time.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

_NAME = re.compile(r"</?([a-zA-Z][^\s/>]{0,50})")
_PREFIX = re.compile(r"^(?:h|html|xhtml|svg|m|mml|math):")
_TO_QUOTE = re.compile("[^\"'>]*")
_ATTRIBUTE = re.compile(r"""([^\s"'=/>]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+)))?""")
_SELF_CLOSED = re.compile(r"""(?:^|[\s"'])/$""")
_HUGE_NUMBER = re.compile(r"&#[0-9]{20,}+;?")

_RAW = {
    name: re.compile(f"</{name}", re.IGNORECASE)
    for name in ("script", "style", "iframe", "noembed", "noframes")
}
"""Elements whose content is not text of the page and has no tags."""
_EMPTY = "area base br col embed hr img input link meta param source track wbr"
_VOID = frozenset(_EMPTY.split())
"""Elements without content and end tag."""


def parts(source: str) -> Iterator[tuple[str, str]]:
    """Yield tags in lower case, such as `p` and `/p`, with their attributes, and texts with an
    empty tag."""
    at, unclosed = 0, set[str]()
    while (start := source.find("<", at)) >= 0:
        if start > at:
            yield "", unescaped(source[at:start])
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
            yield (
                ("/" if source[start + 1] == "/" else "") + _PREFIX.sub("", tag, count=1),
                source[name.end() : end],
            )
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
    yield "", unescaped(source[at:])


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


def is_empty(name: str, attributes: str) -> bool:
    """Whether an element has no content, as `<br>` and `<td/>`."""
    return name in _VOID or (
        attributes.endswith("/") and _SELF_CLOSED.search(attributes) is not None
    )


def attributes_of(text: str) -> dict[str, str]:
    """Attributes by their names in lower case."""
    found: dict[str, str] = {}
    for hit in _ATTRIBUTE.finditer(text):
        found.setdefault(hit[1].lower(), unescaped(hit[2] or hit[3] or hit[4] or ""))
    return found


def style_of(attributes: dict[str, str]) -> dict[str, str]:
    """The declarations of the attribute `style`, in lower case."""
    declarations = (each.partition(":") for each in attributes.get("style", "").lower().split(";"))
    return {
        name.strip(): value.replace("!important", "").strip() for name, _, value in declarations
    }


def unescaped(text: str) -> str:
    """Replace references such as `&amp;` by characters."""
    try:
        return html.unescape(text)
    except ValueError:  # a number with too many digits for Python
        return html.unescape(_HUGE_NUMBER.sub("\ufffd", text))
