"""The open elements of a web page, which are ended as browsers do it.

Most pages leave out some end tags, and some have them in the wrong order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


HEADINGS = names("h1 h2 h3 h4 h5 h6")
LISTS = names("ul ol menu dir")
_ROWS = names("thead tbody tfoot tr")
_CELLS = names("td th caption")
PARAGRAPHS = HEADINGS | names("p dl table pre blockquote section article figure form hr")
"""Elements that are set apart by an empty line."""
_DIVISIONS = names(
    "address aside center dd details dialog div dt fieldset figcaption footer header hgroup legend"
    " main nav search summary"
)
LINES = _DIVISIONS | _ROWS | names("body caption head html optgroup text title")
"""Elements that begin a line and end one."""
SPECIAL = PARAGRAPHS | LINES | LISTS | _CELLS | {"li"}
"""Elements that the end tag of an element in a line does not end."""
_SCOPE = _CELLS | names("table button object foreignobject")
"""Elements inside which nothing ends an element outside of them."""
_BEFORE_BLOCKS = names("p head svg select")
_IMPLIED_ENDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    **dict.fromkeys(PARAGRAPHS | _DIVISIONS | LISTS, (_BEFORE_BLOCKS, _SCOPE)),
    **dict.fromkeys(HEADINGS, (_BEFORE_BLOCKS | HEADINGS, _SCOPE)),
    **dict.fromkeys(("dt", "dd"), (names("dt dd p"), _SCOPE | {"dl"})),
    **dict.fromkeys(("thead", "tbody", "tfoot"), (_ROWS | _CELLS, names("table"))),
    **dict.fromkeys(("td", "th"), (_CELLS, names("table tr"))),
    **dict.fromkeys(("rt", "rp", "rb"), (names("rt rp rb"), names("ruby rtc"))),
    "li": (names("li p"), _SCOPE | LISTS),
    "tr": (_CELLS | {"tr"}, names("table")),
    "caption": (_CELLS, names("table")),
    "rtc": (names("rt rp rb rtc"), names("ruby")),
    "a": (names("a"), _SCOPE),
    "button": (names("button"), _SCOPE - {"button"}),
    "body": (names("head"), frozenset()),
    "select": (names("select"), _SCOPE),
    "option": (names("option"), names("select datalist")),
    "optgroup": (names("option optgroup"), names("select")),
}
"""For an element, which open ones it ends, and inside which elements it does not end them."""
_END_SCOPES = {
    "table": frozenset[str](),
    **dict.fromkeys(_ROWS | _CELLS, names("table")),
    "li": _SCOPE | LISTS,
}
_OPTIONAL_ENDS = names("p li dt dd option optgroup rt rp head") | _ROWS | _CELLS


@dataclass(slots=True)
class Element:
    """An open element. At its end, `rest` goes on."""

    name: str
    rest: Iterator[None] | None = None
    is_hidden: bool = False
    is_ended: bool = False


class OpenElements:
    """The elements that are open, from the outermost one."""

    def __init__(self) -> None:
        self.hidden = 0
        """Number of hidden elements."""
        self._open: list[Element] = []
        self._places: dict[str, list[int]] = {}
        """Where elements of a name are in `_open`, for the names of open elements."""
        self._special: list[int] = []
        """Where special elements are in `_open`."""

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def add(self, element: Element) -> None:
        at, name = len(self._open), element.name
        if name in SPECIAL:
            self._special.append(at)
        if name in self._places:
            self._places[name].append(at)
        else:
            self._places[name] = [at]
        self._open.append(element)
        self.hidden += element.is_hidden

    def end_before(self, name: str) -> None:
        """End the elements that end where another one begins."""
        if name not in _IMPLIED_ENDS:
            return
        ended, scope = _IMPLIED_ENDS[name]
        found = ended & self._places.keys()
        if not found:
            return
        limit = self._last(scope)
        inside = [at for each in found if (at := self._places[each][-1]) > limit]
        if inside and name == "a":
            self.end("a")
        elif inside:
            self._end_from(min(inside))

    def end(self, name: str) -> None:
        """End the innermost element of a name, unless it is out of reach. An element in a line ends
        also if blocks inside it go on."""
        if name not in self._places:
            return
        at = self._places[name][-1]
        if at == len(self._open) - 1:
            self._end_last()
        elif self._last(_END_SCOPES.get(name, _SCOPE)) <= at:
            if name in SPECIAL or not self._special or self._special[-1] < at:
                self._end_from(at)
            else:
                self._end(self._open[at])

    def end_all(self) -> frozenset[str]:
        """Returns the names of the hidden elements that had no end, although they need one."""
        cut = {each.name for each in self._open if each.is_hidden and not each.is_ended}
        self._end_from(0)
        return frozenset(cut) - _OPTIONAL_ENDS

    def _last(self, scope: frozenset[str]) -> int:
        return max((self._places[each][-1] for each in scope & self._places.keys()), default=-1)

    def _end_from(self, at: int) -> None:
        while len(self._open) > at:
            self._end_last()

    def _end_last(self) -> None:
        element = self._open.pop()
        if element.name in SPECIAL:
            self._special.pop()
        if not element.is_ended:
            self._end(element)

    def _end(self, element: Element) -> None:
        element.is_ended = True
        places = self._places[element.name]
        if len(places) > 1:
            places.pop()
        else:
            del self._places[element.name]
        self.hidden -= element.is_hidden
        if element.rest is not None:
            next(element.rest, None)
