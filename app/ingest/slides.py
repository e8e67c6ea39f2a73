"""Reads PowerPoint presentations: their slides with tables, charts, comments and notes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from app.ingest.elements import every, inside, name_of
from app.ingest.markdown import Writer
from app.ingest.parts import Part
from app.ingest.shapes import Shapes, text_of, unknown_said

if TYPE_CHECKING:
    from app.ingest.archive import Archive


class Slides:
    """The slides of a PowerPoint presentation, with tables, charts and speaker notes."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        main = archive.main("officeDocument", "ppt/presentation.xml")
        links = archive.links(main)
        ids = (
            next((value for key, value in each.items() if key.endswith("}id")), "")
            for each in every(archive.xml(main), "sldId")
        )
        self._slides = [links[each] for each in ids if each in links]
        self._authors = {
            each.get("id", ""): each.get("name", "")
            for kind, name in archive.linked(main)
            if kind in ("commentAuthors", "authors")
            for each in archive.xml(name)
        }
        self.embedded = archive.embedded()

    def __len__(self) -> int:
        return len(self._slides)

    def read(self, number: int) -> Part:
        name = self._slides[number]
        slide = self._archive.xml(name)
        writer = Writer()
        unknown = self._shapes(name, slide, writer)
        for kind, linked in self._archive.linked(name):
            if kind == "notesSlide":
                notes = Writer()
                unknown += self._shapes(linked, self._archive.xml(linked), notes, is_notes=True)
                if text := notes.text():
                    writer.block(f"Speaker notes:\n{text}")
            elif kind == "comments":
                for at, each in enumerate(every(self._archive.xml(linked), "cm"), 1):
                    for comment in (each, *every(each, "reply")):
                        author = self._authors.get(comment.get("authorId", ""), "")
                        writer.comment(f"[Comment {at}]", author, _comment_text(comment))
        hidden = " (hidden)" if slide.get("show") == "0" else ""
        mark = f"Slide {number + 1}{hidden}"
        return Part(f"[{mark}]", writer.text(), said=tuple(unknown_said(unknown, mark)))

    def _shapes(
        self, name: str, root: Element, writer: Writer, is_notes: bool = False
    ) -> Counter[str]:
        """Read the shapes of a slide or its notes. Returns the elements that are not read."""
        shapes = Shapes(self._archive, name, writer, is_notes)
        shapes.read(inside(root, "cSld", "spTree"))
        return shapes.unknown


def _comment_text(comment: Element) -> str:
    """The text of a comment, without the replies to it."""
    texts = [each.text or "" for each in comment if name_of(each) == "text"]
    texts += ["".join(map(text_of, each)) for each in inside(comment, "txBody")]
    return " ".join(texts)
