"""Reads the pages of PDF files with PDFium, in the process of `document_worker.py`."""

from __future__ import annotations

import ctypes
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pypdfium2
from pypdfium2 import raw

from app.ingest.ocr import Recogniser, recognised_text
from app.ingest.parts import Part, WithPassword

_UNSEEN = 1 << 1 | 1 << 5
"""Flags of annotations that are not shown."""
_SECRET = 1 << 13
"""Flag of form fields: a password."""
_BUTTONS = (raw.FPDF_FORMFIELD_CHECKBOX, raw.FPDF_FORMFIELD_RADIOBUTTON)
_FIELDS = (*_BUTTONS, raw.FPDF_FORMFIELD_COMBOBOX, raw.FPDF_FORMFIELD_LISTBOX)
_NO_COMMENT = (raw.FPDF_ANNOT_WIDGET, raw.FPDF_ANNOT_LINK, raw.FPDF_ANNOT_POPUP)
_HYPHEN = "\ufffe"
"""PDFium's mark of a hyphen at the end of a line, inside a word."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_MAX_BOOKMARKS = 10_000
_MAX_VALUE = 1 << 20
"""Maximum bytes of a comment or the value of a field."""


class PdfPages:
    """The pages of a PDF file, read one at a time. Scripts in the file never run: this build of
    PDFium has no JavaScript."""

    def __init__(self, data: bytes, recogniser: Recogniser | None = None) -> None:
        """With a recogniser, the text of pages that are pictures is recognised."""
        self._recogniser = recogniser
        try:
            self._file = pypdfium2.PdfDocument(data)
        except pypdfium2.PdfiumError as error:
            if error.err_code in (raw.FPDF_ERR_PASSWORD, raw.FPDF_ERR_SECURITY):
                raise WithPassword from None
            raise
        self._file.init_forms()
        self.embedded = self._file.count_attachments()
        self._fields: set[str] = set()
        self._headings: dict[int, list[tuple[int, str]]] | None = None

    def __len__(self) -> int:
        return len(self._file)

    def read(self, number: int) -> Part:
        """The text of page `number` (from 0), followed by its comments and the values of its form
        fields. The titles of bookmarks are marked as headings."""
        if self._headings is None:
            self._headings = self._bookmarks()
        page = self._file[number]
        try:
            textpage = page.get_textpage()
            text = _cleaned(textpage.get_text_range())
            textpage.close()
            has_text = bool(text.strip())
            drawn = raw.FPDFPage_CountObjects(page) + raw.FPDFPage_GetAnnotCount(page)
            blank = not has_text and not drawn
            if self._recogniser is not None and not has_text and not blank:
                text = _cleaned(recognised_text(page, self._recogniser))
            lines = [*self._annotations(page)]
        finally:
            page.close()
        text = _with_headings(text, self._headings.get(number, []))
        recognised = not has_text and bool(text.strip())
        if lines and text.strip():
            lines = [text, "", *lines]
        shown = "\n".join(lines) if lines else text
        return Part(f"[Page {number + 1}]", shown, "", recognised, blank)

    def _bookmarks(self) -> dict[int, list[tuple[int, str]]]:
        """Levels and titles of the bookmarks, by page."""
        found: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for count, bookmark in enumerate(self._file.get_toc()):
            target = bookmark.get_dest()
            page = None if target is None else target.get_index()
            if page is not None and (title := bookmark.get_title().strip()):
                found[page].append((bookmark.level, title))
            if count == _MAX_BOOKMARKS:
                break
        return found

    def _annotations(self, page: pypdfium2.PdfPage) -> Iterator[str]:
        for index in range(raw.FPDFPage_GetAnnotCount(page)):
            annotation = raw.FPDFPage_GetAnnot(page, index)
            if not annotation:
                continue
            try:
                if not raw.FPDFAnnot_GetFlags(annotation) & _UNSEEN:
                    yield from self._annotation(annotation)
            finally:
                raw.FPDFPage_CloseAnnot(annotation)

    def _annotation(self, annotation: Any) -> Iterator[str]:
        kind = raw.FPDFAnnot_GetSubtype(annotation)
        if kind == raw.FPDF_ANNOT_WIDGET:
            yield from self._form_field(annotation)
        elif kind not in _NO_COMMENT and (comment := _entry(annotation, b"Contents")):
            author = _entry(annotation, b"T")
            yield f"Comment by {author}: {comment}" if author else f"Comment: {comment}"

    def _form_field(self, widget: Any) -> Iterator[str]:
        """Yield a line for the field of a widget. A field with several widgets is written once."""
        form = self._file.formenv
        if form is None:
            return
        kind = raw.FPDFAnnot_GetFormFieldType(form, widget)
        text_field = kind == raw.FPDF_FORMFIELD_TEXTFIELD
        if kind not in _FIELDS and not text_field:
            return
        if text_field and raw.FPDFAnnot_GetFormFieldFlags(form, widget) & _SECRET:
            return
        value = _string(raw.FPDFAnnot_GetFormFieldValue, form, widget)
        if kind in _BUTTONS and not value:
            value = _entry(widget, b"AS")
        if kind in (raw.FPDF_FORMFIELD_COMBOBOX, raw.FPDF_FORMFIELD_LISTBOX):
            value = ", ".join(_selected(form, widget)) or value
        name = _string(raw.FPDFAnnot_GetFormFieldName, form, widget)
        title = _string(raw.FPDFAnnot_GetFormFieldAlternateName, form, widget)
        if value and value != "Off" and name not in self._fields:
            self._fields.add(name)
            yield f"Form field {title or name}: {value}"


def _selected(form: Any, widget: Any) -> Iterator[str]:
    """Labels of the selected options of a field."""
    for index in range(max(0, raw.FPDFAnnot_GetOptionCount(form, widget))):
        if raw.FPDFAnnot_IsOptionSelected(form, widget, index):
            yield _string(raw.FPDFAnnot_GetOptionLabel, form, widget, index)


def _entry(annotation: Any, key: bytes) -> str:
    return _string(raw.FPDFAnnot_GetStringValue, annotation, key)


def _string(get: Callable[..., int], *arguments: object) -> str:
    """A string from one of PDFium's functions, which write UTF-16 and return its bytes."""
    size = min(get(*arguments, None, 0), _MAX_VALUE)
    buffer = ctypes.create_string_buffer(size + 2)
    get(*arguments, ctypes.cast(buffer, ctypes.POINTER(ctypes.c_ushort)), size)
    return _cleaned(buffer.raw[:size].decode("utf-16-le", "replace").rstrip("\0")).strip()


def _cleaned(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace(_HYPHEN, "")
    lines = (line.rstrip() for line in _CONTROL.sub("", text).split("\n"))
    return "\n".join(lines)


def _with_headings(text: str, headings: list[tuple[int, str]]) -> str:
    """Mark the lines that repeat the title of a bookmark, without regard to its number."""
    if not headings:
        return text
    lines = text.split("\n")
    begin = 0
    for level, title in headings:
        wanted = _bare(title)
        for index in range(begin, len(lines)):
            line = _bare(lines[index])
            if wanted and line.endswith(wanted) and len(line) <= len(wanted) + 12:
                lines[index] = "#" * min(level + 1, 6) + " " + lines[index].strip()
                begin = index + 1
                break
    return "\n".join(lines)


def _bare(text: str) -> str:
    return "".join(character for character in text.lower() if character.isalnum())
