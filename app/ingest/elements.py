"""Elements of XML by their names without namespaces, which differ between writers of a format."""

from __future__ import annotations

from collections.abc import Iterator
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
