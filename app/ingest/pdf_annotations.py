"""What stands on the pages of a PDF file beside their text: comments, files and form fields."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pypdfium2
from pypdfium2 import raw

from app.ingest.pdf_objects import Box
from app.ingest.pdf_text import cleaned

MAX_VALUE = 1 << 20
"""Maximum bytes of a comment or the value of a field."""
MAX_FORM_PAGES = 50
"""Maximum number of pages on which fields of an XFA form are looked for."""
MAX_STRUCK = 1_000
"""Maximum number of lines that an annotation strikes."""
_MAX_FILE_NAME = 200
"""Maximum number of characters of the name of a file."""
_UNSEEN = 1 << 1 | 1 << 5
"""Flags of annotations that are not shown."""
_SECRET = 1 << 13
"""Flag of form fields: a password."""
_BUTTONS = (raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON)
_CHOICES = (raw.FPDF_FORMFIELD_COMBOBOX, raw.FPDF_FORMFIELD_LISTBOX)
_NO_COMMENT = (raw.FPDF_ANNOT_WIDGET, raw.FPDF_ANNOT_LINK, raw.FPDF_ANNOT_POPUP)


@dataclass(slots=True)
class PageAnnotations:
    """The annotations of a page."""

    lines: list[str] = field(default_factory=list)
    """Comments, values of form fields and names of files."""
    files: list[str] = field(default_factory=list)
    """Names of attached files."""
    struck: list[Box] = field(default_factory=list)
    """Where text is struck."""


class Annotations:
    """Reads the annotations of a document."""

    def __init__(self, file: pypdfium2.PdfDocument) -> None:
        self._file = file
        self._fields: set[str] = set()

    def on(self, page: pypdfium2.PdfPage) -> PageAnnotations:
        """The annotations that a page shows."""
        found = PageAnnotations()
        for annotation in _shown(page):
            kind = raw.FPDFAnnot_GetSubtype(annotation)
            if kind == raw.FPDF_ANNOT_WIDGET:
                found.lines += self._form_field(annotation)
            if kind in _NO_COMMENT:
                continue
            name = ""
            if kind == raw.FPDF_ANNOT_STRIKEOUT:
                found.struck += _struck(annotation)
            elif kind == raw.FPDF_ANNOT_FILEATTACHMENT:
                name = _file_of(annotation)
                found.files.append(name)
                found.lines.append(f"[Attachment {name}, not read]")
            if (comment := _entry(annotation, b"Contents")) and comment != name:
                author = _entry(annotation, b"T")
                head = f"Comment by {author}" if author else "Comment"
                found.lines.append(f"{head}: {comment}")
        return found

    def _form_field(self, widget: Any) -> Iterator[str]:
        """Yield a line for the field of a widget. A field with several widgets is written once."""
        form = self._file.formenv
        if form is None:
            return
        kind = raw.FPDFAnnot_GetFormFieldType(form, widget)
        text_field = kind == raw.FPDF_FORMFIELD_TEXTFIELD
        if kind not in (*_BUTTONS, *_CHOICES) and not text_field:
            return
        if text_field and raw.FPDFAnnot_GetFormFieldFlags(form, widget) & _SECRET:
            return
        value = string(raw.FPDFAnnot_GetFormFieldValue, form, widget)
        if kind in _BUTTONS and not value:
            value = _entry(widget, b"AS")
        if kind in _CHOICES:
            value = ", ".join(_selected(form, widget)) or value
        name = string(raw.FPDFAnnot_GetFormFieldName, form, widget)
        title = string(raw.FPDFAnnot_GetFormFieldAlternateName, form, widget)
        if value and value != "Off" and name not in self._fields:
            self._fields.add(name)
            yield f"Form field {title or name}: {value}"


def is_drawn_form(file: pypdfium2.PdfDocument) -> bool:
    """Whether a document is an XFA form whose fields are not on its pages."""
    if raw.FPDF_GetXFAPacketCount(file) <= 0:
        return False
    for number in range(min(len(file), MAX_FORM_PAGES)):
        page = file[number]
        try:
            kinds = map(raw.FPDFAnnot_GetSubtype, _shown(page))
            if any(kind == raw.FPDF_ANNOT_WIDGET for kind in kinds):
                return False
        finally:
            page.close()
    return True


def _shown(page: pypdfium2.PdfPage) -> Iterator[Any]:
    for index in range(raw.FPDFPage_GetAnnotCount(page)):
        annotation = raw.FPDFPage_GetAnnot(page, index)
        if annotation:
            try:
                if not raw.FPDFAnnot_GetFlags(annotation) & _UNSEEN:
                    yield annotation
            finally:
                raw.FPDFPage_CloseAnnot(annotation)


def _file_of(annotation: Any) -> str:
    attached = raw.FPDFAnnot_GetFileAttachment(annotation)
    name = string(raw.FPDFAttachment_GetName, attached) if attached else ""
    name = " ".join(name.replace("[", "(").replace("]", ")").split())
    return name[:_MAX_FILE_NAME] or "without a name"


def _struck(annotation: Any) -> Iterator[Box]:
    """Yield where an annotation strikes text."""
    quad = raw.FS_QUADPOINTSF()
    for index in range(min(raw.FPDFAnnot_CountAttachmentPoints(annotation), MAX_STRUCK)):
        raw.FPDFAnnot_GetAttachmentPoints(annotation, index, quad)
        x = quad.x1, quad.x2, quad.x3, quad.x4
        y = quad.y1, quad.y2, quad.y3, quad.y4
        yield min(x), min(y), max(x), max(y)


def _selected(form: Any, widget: Any) -> Iterator[str]:
    for index in range(max(0, raw.FPDFAnnot_GetOptionCount(form, widget))):
        if raw.FPDFAnnot_IsOptionSelected(form, widget, index):
            yield string(raw.FPDFAnnot_GetOptionLabel, form, widget, index)


def _entry(annotation: Any, key: bytes) -> str:
    return string(raw.FPDFAnnot_GetStringValue, annotation, key)


def string(get: Callable[..., int], *arguments: object, encoding: str = "utf-16-le") -> str:
    """A string from one of PDFium's functions, which write it and return its bytes."""
    size = min(get(*arguments, None, 0), MAX_VALUE)
    buffer = ctypes.create_string_buffer(size + 2)
    get(*arguments, ctypes.cast(buffer, ctypes.POINTER(ctypes.c_ushort)), size)
    return cleaned(buffer.raw[:size].decode(encoding, "replace").rstrip("\0")).strip()
