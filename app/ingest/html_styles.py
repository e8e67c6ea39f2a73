"""What styles say of the texts of a web page: those of an element, and those of its classes.

Of style sheets only the rules for single classes are read that raise or strike texts. What hides an
element counts in its own style only: scripts show what a style sheet hides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import compress

Sheet = Mapping[str, frozenset[str]]
"""For `.name` or `element.name`, what is done with elements of this class."""
_CLASS = re.compile(r"[a-z0-9]{0,10}\.[\w-]{1,100}")
_STYLE_TAG = re.compile(r"</?style\b[^>]{0,200}+>", re.IGNORECASE)
_TELLING = ("super", "relative", "line-through")
_SMALL = re.compile(r"0?\.\d{1,9}em|[1-8]?\d%")
_BLOCKS = ("block", "flex", "grid", "table")
_OF_CLASSES = frozenset(("raised", "struck"))
_TINY = re.compile(
    r"[01]?(?:\.\d{1,9})?(?:px|pt)|(?:0|0?\.0{1,9})(?:r?em|ex|ch|%|v[wh]|mm|cm|in|pc)?", re.ASCII
)
"""A font size that nobody can read."""
_RELATIVE = re.compile(r".*(?:(?<!r)em|%|ex|ch)|smaller|larger|inherit|unset|revert", re.ASCII)
_CLEAR = re.compile(
    r"transparent|#(?:[0-9a-f]{6}00|[0-9a-f]{3}0)"
    r"|(?:rgb|hsl)a?\((?:[^,()/]{1,20},){3}\s{0,9}0?(?:\.0{1,9})?%?\s{0,9}\)"
    r"|(?:rgb|hsl)a?\([^,()/]{1,60}/\s{0,9}0?(?:\.0{1,9})?%?\s{0,9}\)"
)
_NOTHING = re.compile(r"(?:0|0?\.0{1,9})(?:px|pt|r?em|%)?")
_MOVES = re.compile(r"(?:-[a-z]{1,9}-)?(?:transform|transition|animation|will-change)")
_FAR_AWAY = re.compile(r"-\d{3,9}(?:\.\d{0,9})?(?:px|pt|r?em|ch|vw|vh|%)")
_NONE = frozenset[str]()
_MAX_SHEET = 200_000
"""Maximum characters of a style sheet; the rest is ignored."""


def declarations(text: str) -> dict[str, str]:
    """Properties and their values, in lower case."""
    found = (each.partition(":") for each in text.lower().split(";"))
    return {name.strip(): value.replace("!important", "").strip() for name, _, value in found}


def is_unseen(style: Mapping[str, str]) -> bool:
    """Whether an element with these declarations takes room but is not seen, or is far outside of
    the page. Elements that a script makes appear are seen."""
    if style.get("visibility") in ("hidden", "collapse"):
        return True
    if _NOTHING.fullmatch(style.get("opacity", "")) and not any(map(_MOVES.match, style)):
        return True
    sizes = (style.get(each, "") for each in ("height", "max-height", "width", "max-width"))
    has_room = any(each.startswith("padding") for each in style)
    if "hidden" in style.get("overflow", "") and any(map(_NOTHING.fullmatch, sizes)):
        return not has_room
    is_free = style.get("position") in ("absolute", "fixed")
    places = ("left", "top", "text-indent") if is_free else ("text-indent",)
    return any(_FAR_AWAY.fullmatch(style.get(each, "")) for each in places)


def effects(style: Mapping[str, str]) -> frozenset[str]:
    """Those of `raised`, `struck`, `block`, and of `tiny`, `sized`, `clear` and `coloured` that
    describe an element with these declarations. The last four say whether its text has a size and a
    colour that are seen; it may inherit both."""
    is_raised = style.get("vertical-align") == "super" or (
        style.get("position") == "relative"
        and style.get("top", "").startswith("-")
        and _SMALL.fullmatch(style.get("font-size", "")) is not None
    )
    line = style.get("text-decoration") or style.get("text-decoration-line", "")
    size, colour = style.get("font-size", ""), style.get("color", "")
    is_tiny = _TINY.fullmatch(size) is not None
    is_filled = "background-clip" in style or any(each.startswith("-webkit-") for each in style)
    is_clear = _CLEAR.fullmatch(colour) is not None and not is_filled
    found = {
        "raised": is_raised,
        "struck": "line-through" in line,
        "block": style.get("display") in _BLOCKS,
        "tiny": is_tiny,
        "sized": bool(size) and not is_tiny and _RELATIVE.fullmatch(size) is None,
        "clear": is_clear,
        "coloured": bool(colour) and not is_clear and colour not in ("inherit", "currentcolor"),
    }
    return frozenset(compress(found, found.values()))


def of_classes(name: str, classes: Iterable[str], sheet: Sheet) -> frozenset[str]:
    """The effects of a style sheet on an element of this name."""
    keys = (key for each in classes for key in (f".{each}", f"{name}.{each}"))
    return _NONE.union(*(sheet[key] for key in keys if key in sheet))


def sheet_in(page: str) -> Sheet:
    """The style sheet that is written in a page."""
    return sheet("".join(_STYLE_TAG.split(page)[1::2]))


def sheet(css: str) -> Sheet:
    """The effects of classes. Rules inside of at-rules are ignored."""
    first, *others = css[:_MAX_SHEET].split("/*")
    css = "".join([first, *(each.partition("*/")[2] for each in others)])
    found: dict[str, frozenset[str]] = {}
    depth = 0
    for rule in css.split("}"):
        opened = rule.count("{")
        if depth == 0 and opened == 1 and any(word in rule.lower() for word in _TELLING):
            selectors, _, text = rule.partition("{")
            for selector in map(str.strip, selectors.rpartition(";")[2].split(",")):
                if _CLASS.fullmatch(selector):
                    known = found.get(selector, _NONE)
                    found[selector] = known | (effects(declarations(text)) & _OF_CLASSES)
        depth = max(0, depth + opened - 1)
    return found
