"""Values of XFA forms, which are XML inside a PDF file; its pages show nothing of them."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pypdfium2
from pypdfium2 import raw

from app.ingest.archive import may_declare_entities
from app.ingest.elements import child, name_of
from app.ingest.pdf_annotations import string

MAX_FORM = 1 << 24
"""Maximum bytes of the values of an XFA form."""
MAX_NAME = 200
"""Maximum number of characters of a name."""


def form_values(file: pypdfium2.PdfDocument) -> list[str]:
    """The values of an XFA form, of which the pages show nothing. Raises ValueError if they cannot
    be read."""
    found: list[str] = []
    for index in range(raw.FPDF_GetXFAPacketCount(file)):
        name = string(raw.FPDF_GetXFAPacketName, file, index, encoding="utf-8")
        if name in ("", "datasets"):
            found += _values(_packet(file, index))
    return found


def _packet(file: pypdfium2.PdfDocument, index: int) -> bytes:
    size = ctypes.c_ulong()
    raw.FPDF_GetXFAPacketContent(file, index, None, 0, size)
    if size.value > MAX_FORM:
        raise ValueError("too large")
    buffer = ctypes.create_string_buffer(size.value)
    raw.FPDF_GetXFAPacketContent(file, index, buffer, size.value, size)
    return buffer.raw


def _values(data: bytes) -> Iterator[str]:
    if may_declare_entities(data):
        raise ValueError("entities")
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise ValueError("damaged") from error
    sets = root if name_of(root) == "datasets" else child(root, "datasets")
    values = child(sets, "data")
    for form in () if values is None else values:
        yield from _values_in(form, "")


def _values_in(element: Element, path: str) -> Iterator[str]:
    """Yield a line for each value inside an element."""
    pending = [(element, path)]
    while pending:
        element, path = pending.pop()
        if len(element):
            pending += [(each, f"{path}{name_of(each)}.") for each in reversed(element)]
        elif value := " ".join((element.text or "").split()):
            yield f"Form field {path[:-1][-MAX_NAME:] or name_of(element)}: {value}"
