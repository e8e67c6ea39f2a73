"""What styles say of the texts of a web page: those of an element, and those of its classes.

Of style sheets only the rules for single classes are read that raise or strike texts. What hides an
element counts in its own style only: scripts show what a style sheet hides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from colorsys import hls_to_rgb
from itertools import compress, takewhile
from math import nan

Sheet = Mapping[str, frozenset[str]]
"""For `.name` or `element.name`, what is done with elements of this class."""
LOOKS = {
    "tiny": frozenset(("sized",)),
    "clear": frozenset(("coloured",)),
    "unfilled": frozenset(("filled",)),
    "invisible": frozenset(("visible",)),
}
"""Effects that hide a text, and those by which texts inside of it are seen again."""
_CLASS = re.compile(r"[a-z0-9]{0,10}\.[\w-]{1,100}")
_STYLE_TAG = re.compile(r"</?style\b[^>]{0,200}+>", re.IGNORECASE)
_TELLING = ("super", "relative", "line-through")
_SMALL = re.compile(r"0?\.\d{1,9}em|[1-8]?\d%")
_BLOCKS = ("block", "flex", "grid", "table")
_OF_CLASSES = frozenset(("raised", "struck"))
_UNREAD = re.compile(
    r"""/\*(?:[^*]++|\*(?!/))*+(?:\*/)?+|("(?:[^"\\\n]++|\\.)*+"?+|'(?:[^'\\\n]++|\\.)*+'?+)"""
)
"""A comment, or a quoted text."""
_ESCAPE = re.compile(r"\\(?:([0-9a-f]{1,6})\s?|(.))")
_VENDOR = re.compile("^-[a-z]{1,9}-")
_SIDES = ("top", "right", "bottom", "left")
_LENGTH = re.compile(
    r"([+-]?(?:\d{1,99}(?:\.\d{0,99})?|\.\d{1,99})(?:e[+-]?\d{1,3})?)(%|[a-z]{0,4})", re.ASCII
)
_PIXELS = {"": 1, "px": 1, "pt": 1, "q": 1, "mm": 4, "em": 16, "rem": 16, "pc": 16, "in": 96}
"""Pixels of a unit, about. Others, such as a hundredth of a window, have 10."""
_CALL = re.compile(r"([a-z0-9-]{1,20})\(([^()]{0,1000})\)")
_RELATIVE = re.compile(r".*(?:(?<!r)em|%|ex|ch)|smaller|larger|inherit|unset|revert", re.ASCII)
_HEX = re.compile(r"#?(?:[0-9a-f]{3,4}|[0-9a-f]{6}|[0-9a-f]{8})")
_WHITE = (
    "white snow ivory azure mintcream honeydew aliceblue ghostwhite whitesmoke floralwhite"
    " lavenderblush"
)
_NAMED = {
    **dict.fromkeys(_WHITE.split(), (255.0, 255.0, 255.0, 255.0)),
    "black": (0.0, 0.0, 0.0, 255.0),
    "transparent": (nan, nan, nan, 0.0),
}
_INHERITED = ("", "none", "inherit", "initial", "unset", "revert", "currentcolor")
_DRAWING = ("background-clip", "text-stroke", "text-shadow")
_SCRIPTED = re.compile("transition|animation|will-change")
_MOVES = re.compile("transform|translate|scale|rotate")
_NONE = frozenset[str]()
_MIN_SIZE = 2
"""Letters and boxes of fewer pixels are not seen."""
_MIN_OPACITY = 0.05
_LIKE = 16
"""Colours whose channels differ by less, of 255, look alike."""
_FAR, _FAR_BEYOND = 500, 9_000
"""Pixels to the left of a page or above it, and beyond its other edges, that no window shows."""
_ACROSS = ("margin-left", "padding-left", "text-indent")
_DOWN = ("margin-top", "padding-top")
_MAX_SHEET = 200_000
"""Maximum characters of a style sheet; the rest is ignored."""


def declarations(text: str) -> dict[str, str]:
    """Properties and their values, in lower case and without the prefixes of browsers. A shorthand
    such as `font` also sets the properties that it stands for."""
    found, important = dict[str, str](), dict[str, str]()
    for each in _read(text.lower()).split(";"):
        name, _, value = map(_unescaped, each.partition(":"))
        value, is_important, _ = value.partition("!")
        (important if is_important else found).update(
            _expanded(_VENDOR.sub("", name.strip()), value.strip())
        )
    return found | important


def _read(css: str) -> str:
    """A style sheet without its comments and quoted texts."""
    return _UNREAD.sub(lambda found: "''" if found[1] else " ", css)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text) if "\\" in text else text


def _character(escape: re.Match[str]) -> str:
    code = int(escape[1] or "0", 16)
    return escape[2] or (chr(code) if code < 0x110000 else "\ufffd")


def _expanded(name: str, value: str) -> dict[str, str]:
    found = {name: value}
    if name in ("margin", "padding", "inset") and value:
        prefix = "" if name == "inset" else f"{name}-"
        found |= {f"{prefix}{side}": each for side, each in _by_side(value.split()).items()}
    elif name == "font":
        words = (each.partition("/")[0] for each in value.split()[:-1])
        sizes = (each for each in words if not (each.isdecimal() and each.strip("0")))
        found["font-size"] = next((each for each in sizes if _pixels(each) >= 0), "")
    return found


def _by_side(values: list[str]) -> dict[str, str]:
    """From one to four values, those of the sides."""
    top, right, bottom, left = ((0, 0, 0, 0), (0, 1, 0, 1), (0, 1, 2, 1), (0, 1, 2, 3))[
        min(len(values), 4) - 1
    ]
    return dict(zip(_SIDES, (values[at] for at in (top, right, bottom, left)), strict=True))


def _pixels(value: str, percent: float = 10) -> float:
    """About how many pixels a length has. Not a number for other values."""
    found = _LENGTH.fullmatch(value.removeprefix("calc(").removesuffix(")"))
    if found is None:
        return nan
    return float(found[1]) * (percent if found[2] == "%" else _PIXELS.get(found[2], 10))


def _calls(text: str) -> list[tuple[str, list[str]]]:
    """The functions in a value, with their arguments."""
    return [(name, re.split(r"[\s,/]+", inside.strip())) for name, inside in _CALL.findall(text)]


def is_unseen(style: Mapping[str, str]) -> bool:
    """Whether an element with these declarations takes room, but nothing in it is seen. Elements
    that a script makes appear are seen."""
    if style.get("content-visibility") == "hidden" or _is_outside(style):
        return True
    if not any(map(_SCRIPTED.match, style)):
        shown = _calls(f"{style.get('filter', '')} opacity({style.get('opacity', '')})")
        is_faint = any(
            name == "opacity" and _pixels(words[0], 0.01) < _MIN_OPACITY for name, words in shown
        )
        if is_faint and not any(map(_MOVES.match, style)):
            return True
        forms = f"{style.get('transform', '')} scale({style.get('scale', '')})"
        forms += style.get("clip-path", "")
        if style.get("position") in ("absolute", "fixed"):
            forms += style.get("clip", "")
        if any(_is_nothing(name, words) for name, words in _calls(forms)):
            return True
    overflow = " ".join(style.get(f"overflow{axis}", "") for axis in ("", "-x", "-y"))
    if "hidden" not in overflow and "clip" not in overflow:
        return False
    has_room = any(_pixels(style.get(f"padding-{side}", "")) > 0 for side in _SIDES)
    is_small = not has_room and any(
        not _pixels(style.get(f"min-{axis}", "")) >= _MIN_SIZE
        and any(_pixels(style.get(each, "")) < _MIN_SIZE for each in (axis, f"max-{axis}"))
        for axis in ("height", "width")
    )
    return is_small or _pixels(style.get("text-indent", "")) >= _pixels("100%")


def _is_nothing(name: str, words: list[str]) -> bool:
    """Whether a function of `transform` or `clip-path`, such as `scale(0)` or `inset(50%)`, leaves
    nothing of an element."""
    if name in ("scale", "scalex", "scaley", "scale3d"):
        return any(abs(_pixels(each, 0.01)) < _MIN_OPACITY for each in words[:2])
    form = [*takewhile(lambda word: word not in ("round", "at"), words)]
    sizes = [*map(_pixels, form)]
    if name == "inset" and form:
        top, right, bottom, left = map(_pixels, _by_side(form).values())
        return top + bottom >= _pixels("100%") or left + right >= _pixels("100%")
    if name == "rect" and len(sizes) == 4:
        return sizes[2] - sizes[0] < _MIN_SIZE or sizes[1] - sizes[3] < _MIN_SIZE
    if name == "polygon":
        known = [each for each in sizes if each == each]
        return len({*known[::2]}) < 2 or len({*known[1::2]}) < 2
    return name in ("circle", "ellipse") and any(each < 1 for each in sizes)


def _is_outside(style: Mapping[str, str]) -> bool:
    """Whether all of an element is far to the side of the page or above it. What is placed far down
    or to the right, as in large drawings, can be scrolled to."""
    across = [_pixels(style.get(each, ""), 1) for each in _ACROSS]
    down = [_pixels(style.get(each, ""), 1) for each in _DOWN]
    moves = f"{style.get('transform', '')} translate({style.get('translate', '')})"
    for name, words in _calls(moves):
        sizes = [_pixels(each, 0) for each in words]
        # Scripts move sliders and pages by less.
        offsets = [each if abs(each) >= _FAR_BEYOND else nan for each in sizes]
        if name == "translatey":
            down += offsets
        elif name in ("translate", "translatex", "translate3d"):
            across += offsets[:1]
            down += offsets[1:2]
    is_placed = style.get("position", "static") != "static"
    top, right, bottom, left = (
        _pixels(style.get(side, "")) if is_placed else nan for side in _SIDES
    )
    width, height = (_pixels(style.get(each, "")) for each in ("width", "height"))
    return (
        _is_before([*across, left], width)
        or _is_before([*down, top], height)
        or any(each >= _FAR_BEYOND for each in (_total(across), -right, -bottom))
    )


def _is_before(offsets: list[float], size: float) -> bool:
    """Whether an element of this size, if that is known, ends before the page begins."""
    offset = _total(offsets)
    return offset <= -_FAR and not offset + size > 0


def _total(offsets: list[float]) -> float:
    return sum(each for each in offsets if each == each)


def effects(style: Mapping[str, str]) -> frozenset[str]:
    """Those of `raised`, `struck` and `block` that describe an element with these declarations;
    those of LOOKS, and those that end them."""
    is_raised = style.get("vertical-align") == "super" or (
        style.get("position") == "relative"
        and style.get("top", "").startswith("-")
        and _SMALL.fullmatch(style.get("font-size", "")) is not None
    )
    line = style.get("text-decoration") or style.get("text-decoration-line", "")
    size, colour, fill = (style.get(each, "") for each in ("font-size", "color", "text-fill-color"))
    is_tiny = 0 <= _pixels(size, 0.16) < _MIN_SIZE
    is_drawn = any(each.startswith(_DRAWING) for each in style)
    is_clear, is_unfilled = (_is_clear(each) and not is_drawn for each in (colour, fill))
    visibility = style.get("visibility")
    found = {
        "raised": is_raised,
        "struck": "line-through" in line,
        "block": style.get("display") in _BLOCKS,
        "tiny": is_tiny,
        "sized": bool(size) and not is_tiny and _RELATIVE.fullmatch(size) is None,
        "clear": is_clear and fill in _INHERITED,
        "coloured": not is_clear and not {colour, fill} <= {*_INHERITED},
        "unfilled": is_unfilled,
        "filled": not is_unfilled and fill not in _INHERITED,
        "invisible": visibility in ("hidden", "collapse"),
        "visible": visibility in ("visible", "initial"),
    }
    return frozenset(compress(found, found.values()))


def paint(style: Mapping[str, str]) -> tuple[str, str]:
    """The colours of an element's letters and of its ground; empty if it has none of its own."""
    if style.get("background-image", "") not in _INHERITED:
        ground = "picture"
    else:
        ground = style.get("background-color") or style.get("background", "")
    colours = style.get("text-fill-color") or style.get("color", ""), ground
    colour, ground = ("" if each in _INHERITED or _is_clear(each) else each for each in colours)
    return colour, ground


def _is_clear(value: str) -> bool:
    return _channels(value)[3] < 255 * _MIN_OPACITY


def look_alike(value: str, other: str) -> bool:
    """Whether two colours can hardly be distinguished. Other values are not alike."""
    if value == other:
        return value not in ("", "picture")
    pairs = zip(_channels(value), _channels(other), strict=True)
    return all(abs(one - another) < _LIKE for one, another in pairs)


def _channels(value: str) -> tuple[float, float, float, float]:
    """Red, green, blue and opacity of a colour, up to 255. Not a number if they are not known."""
    if _HEX.fullmatch(value):
        digits = value.removeprefix("#")
        digits = digits if len(digits) > 4 else "".join(each * 2 for each in digits)
        red, green, blue, opacity = map(float, bytes.fromhex(digits.ljust(8, "f")))
        return red, green, blue, opacity
    if _CALL.fullmatch(value) is None:
        return _NAMED.get(value, (nan, nan, nan, nan))
    ((name, words),) = _calls(value)
    is_plain = name[:3] in ("rgb", "hsl") and len(words) > 2
    has_opacity = (is_plain and len(words) > 3) or "/" in value
    opacity = 255 * _pixels(words[-1], 0.01) if has_opacity else 255.0
    if not is_plain:
        return nan, nan, nan, opacity
    if name.startswith("rgb"):
        red, green, blue = (_pixels(each, 2.55) for each in words[:3])
        return red, green, blue, opacity
    hue, saturation, lightness = (_pixels(each.removesuffix("deg"), 1) for each in words[:3])
    red, green, blue = hls_to_rgb(hue / 360, lightness / 100, saturation / 100)
    return 255 * red, 255 * green, 255 * blue, opacity


def of_classes(name: str, classes: Iterable[str], sheet: Sheet) -> frozenset[str]:
    """The effects of a style sheet on an element of this name."""
    keys = (key for each in classes for key in (f".{each}", f"{name}.{each}"))
    return _NONE.union(*(sheet[key] for key in keys if key in sheet))


def sheet_in(page: str) -> Sheet:
    """The style sheet that is written in a page."""
    return sheet("".join(_STYLE_TAG.split(page)[1::2]))


def sheet(css: str) -> Sheet:
    """The effects of classes. Rules inside of at-rules are ignored."""
    found: dict[str, frozenset[str]] = {}
    depth = 0
    for rule in _read(css[:_MAX_SHEET]).split("}"):
        opened = rule.count("{")
        if depth == 0 and opened == 1 and any(word in rule.lower() for word in _TELLING):
            selectors, _, text = rule.partition("{")
            for selector in map(str.strip, selectors.rpartition(";")[2].split(",")):
                if _CLASS.fullmatch(selector):
                    known = found.get(selector, _NONE)
                    found[selector] = known | (effects(declarations(text)) & _OF_CLASSES)
        depth = max(0, depth + opened - 1)
    return found
