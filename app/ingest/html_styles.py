"""What styles say of the texts of a web page: those of an element, and those of its classes.

Of style sheets only the rules for single classes are read that raise or strike texts.
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
_NONE = frozenset[str]()
_MAX_SHEET = 200_000
"""Maximum characters of a style sheet; the rest is ignored."""


def declarations(text: str) -> dict[str, str]:
    """Properties and their values, in lower case."""
    found = (each.partition(":") for each in text.lower().split(";"))
    return {name.strip(): value.replace("!important", "").strip() for name, _, value in found}


def effects(style: Mapping[str, str]) -> frozenset[str]:
    """Those of `raised`, `struck` and `block` that describe an element with these declarations."""
    is_raised = style.get("vertical-align") == "super" or (
        style.get("position") == "relative"
        and style.get("top", "").startswith("-")
        and _SMALL.fullmatch(style.get("font-size", "")) is not None
    )
    line = style.get("text-decoration") or style.get("text-decoration-line", "")
    found = (is_raised, "line-through" in line, style.get("display") in _BLOCKS)
    return frozenset(compress(("raised", "struck", "block"), found))


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
                    found[selector] = known | effects(declarations(text)) - {"block"}
        depth = max(0, depth + opened - 1)
    return found
