"""Reads the pages of PDF files with PDFium, in the process of `document_worker.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pypdfium2
from pypdfium2 import raw

from app.ingest import pdf_annotations
from app.ingest.line_ends import LineEnds
from app.ingest.markdown import plain
from app.ingest.parts import Part, WithPassword
from app.ingest.pdf_objects import Known
from app.ingest.pdf_outline import Outline
from app.ingest.pdf_text import UNKNOWN, PageText, cleaned, page_text
from app.util import formatting

if TYPE_CHECKING:
    from app.ingest.recognition import Recogniser

MAX_LABEL = 40
"""Maximum number of characters of the label of a page."""
MAX_FILES = 5
"""Maximum number of attached files to list."""
Said = tuple[str, str]


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
        self._annotations = pdf_annotations.Annotations(self._file)
        self._line_ends = LineEnds()
        self._known = Known()
        self._outline: Outline | None = None
        self._said_unknown = False
        self._has_labels = any(self._label_of(number) for number in (0, len(self) - 1))

    def __len__(self) -> int:
        return len(self._file)

    def labels(self) -> list[str]:
        """The labels of the pages, such as `iv`; empty if they are their numbers."""
        found = [self._label(number) for number in range(len(self) if self._has_labels else 0)]
        return found if found != [str(number + 1) for number in range(len(found))] else []

    def read(self, number: int) -> Part:
        """The text of page `number` (from 0), followed by its comments and the values of its form
        fields. The titles of bookmarks are marked as headings."""
        if self._outline is None:
            self._outline = Outline(self._file, self._lines)
        page = self._file[number]
        try:
            rotation = raw.FPDFPage_GetRotation(page)
            annotations = self._annotations.on(page)
            has_titles = self._outline.has_titles(number, page)
            found = page_text(page, self._known, annotations.struck, has_titles)
            text = plain(cleaned(found.text))
            if has_titles:
                text = "\n".join(self._outline.lines(number, page, found, text.split("\n")))
            text = self._line_ends.joined(text)
            has_text = bool(text.strip())
            drawn = raw.FPDFPage_CountObjects(page) + raw.FPDFPage_GetAnnotCount(page)
            blank = not has_text and not drawn
            if self._recogniser is not None and not has_text and not blank:
                raw.FPDFPage_SetRotation(page, rotation)
                text = plain(cleaned(self._recogniser.text(page))).replace(UNKNOWN, "")
            lines = annotations.lines
            said = [*self._unknown(number, found), *_said_of_files(number, annotations.files)]
        finally:
            page.close()
        if number == 0 and pdf_annotations.is_drawn_form(self._file):
            lines += self._form(said)
        recognised = not has_text and bool(text.strip())
        if lines and text.strip():
            lines = [text, "", *lines]
        shown = "\n".join(lines) if lines else text
        return Part(self._mark(number), shown, "", recognised, blank, (*said,))

    def _lines(self, number: int) -> list[str] | None:
        """The lines of a page, if there is one, as they are found first."""
        if number >= len(self._file):
            return None
        page = self._file[number]
        try:
            return cleaned(page_text(page, self._known).text).split("\n")
        finally:
            page.close()

    def _label(self, number: int) -> str:
        label = self._label_of(number) if self._has_labels else ""
        is_usable = label.isprintable() and len(label) <= MAX_LABEL and "]" not in label
        return label if label and is_usable else str(number + 1)

    def _label_of(self, number: int) -> str:
        return pdf_annotations.string(raw.FPDF_GetPageLabel, self._file, number)

    def _mark(self, number: int) -> str:
        label, own = self._label(number), str(number + 1)
        return f"[Page {own}]" if label == own else f"[Page {label} ({own} of {len(self)})]"

    def _unknown(self, number: int, found: PageText) -> list[Said]:
        """What is said about letters that are not known, on the first page that has many."""
        if self._said_unknown or found.is_unreadable or not found.has_unknown:
            return []
        self._said_unknown = True
        detail = f"has letters that are not known (\ufffd), first on page {number + 1}"
        return [(detail, "run text recognition (OCR) on it first")]

    def _form(self, said: list[Said]) -> list[str]:
        """The values of a form that its pages do not show, and what is said about it."""
        from app.ingest.pdf_xfa import form_values

        try:
            values = form_values(self._file)
        except ValueError:
            said.append(("is an XFA form that cannot be read", "print it to a PDF file"))
            return []
        detail = "is an XFA form, of which only the values are read"
        said.append((detail, "to read the rest, print it to a PDF file"))
        return values


def _said_of_files(number: int, names: list[str]) -> list[Said]:
    """What is said about files that are attached to a page."""
    if not names:
        return []
    listed = ", ".join(names[:MAX_FILES]) + (", …" if len(names) > MAX_FILES else "")
    count = formatting.plural(len(names), "attachment")
    detail = f"has {count} on page {number + 1} that cannot be read ({listed})"
    return [(detail, "save what you need, and add that by name")]
