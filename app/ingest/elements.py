"""Elements of XML by their names without namespaces, which differ between writers of a format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from xml.etree.ElementTree import Element


class _Names(dict[object, str]):
    """Names without their namespaces; empty for comments."""

    def __missing__(self, tag: object) -> str:
        name = tag.rpartition("}")[2] if isinstance(tag, str) else ""
        if len(self) < 10_000:
            self[tag] = name
        return name


_NAMES = _Names()


def name_of(element: Element) -> str:
    """An element's name without its namespace."""
    return _NAMES[element.tag]


def attribute(element: Element, name: str, default: str = "") -> str:
    """An attribute by its name without its namespace."""
    for key, value in element.items():
        if _NAMES[key] == name:
            return value
    return default


def every(element: Element, name: str) -> Iterator[Element]:
    """Yield all elements of a name inside another, in the order of the document."""
    return (each for each in element.iter() if name_of(each) == name)


def child(element: Element | None, *path: str) -> Element | None:
    """The first element at a path; None if there is none."""
    for name in path:
        element = None if element is None else element.find(f"{{*}}{name}")
    return element


def inside(element: Element | None, *path: str) -> Iterable[Element]:
    """What the element at a path contains; nothing if there is none."""
    found = child(element, *path)
    return () if found is None else found


def integer(text: str, default: int = 0) -> int:
    """The number that an attribute says; numbers of ten digits and more are not believed."""
    return int(text) if len(text) < 10 and text.removeprefix("-").isdecimal() else default


def value_of(element: Element | None, *path: str) -> str:
    """What the element at a path says in its attribute `val`; empty if there is none."""
    found = child(element, *path)
    return "" if found is None else attribute(found, "val")


def is_on(element: Element | None, name: str = "val") -> bool:
    """Whether an attribute says yes. An element without `val` says yes, too."""
    if element is None:
        return False
    said = attribute(element, name, "1" if name == "val" else "0")
    return said.lower() not in ("0", "false", "off", "none", "")


def chosen(alternatives: Element) -> Iterable[Element]:
    """The content of an `AlternateContent`: that of its first form that is not empty."""
    return next((each for each in alternatives if len(each)), ())


def line_of(text: str | None) -> str:
    """A text in one line, such as the description of a picture."""
    return " ".join((text or "").split())
