"""Reads e-books (EPUB): their sections in reading order."""

from __future__ import annotations

import posixpath
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from app.ingest.archive import may_declare_entities
from app.ingest.elements import every
from app.ingest.html_styles import Sheet, sheet
from app.ingest.parts import Part, WithPassword
from app.ingest.web_page import linked_sheets, markup_text

if TYPE_CHECKING:
    from app.ingest.archive import Archive

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"


class Book:
    """The sections of an EPUB book in reading order."""

    embedded = 0

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._sheets: dict[str, Sheet] = {}
        root = next(every(self._xml(_CONTAINER), "rootfile")).get("full-path", "")
        package = self._xml(root)
        listed = {
            each.get("id", ""): self._member(posixpath.dirname(root), each.get("href", ""))
            for each in every(package, "item")
        }
        self._sections = [
            listed.get(each.get("idref", ""), "") for each in every(package, "itemref")
        ]
        """Members of the archive. Those that are missing keep their numbers."""
        if _ENCRYPTION in archive.names:
            locked = every(self._xml(_ENCRYPTION), "CipherReference")
            if {self._member("", each.get("URI", "")) for each in locked} & {*self._sections}:
                raise WithPassword

    def __len__(self) -> int:
        return len(self._sections)

    def read(self, number: int) -> Part:
        """Read a section. Raises KeyError if it is missing."""
        from app.ingest.text import decode

        member = self._sections[number]
        data = self._archive.read(member)
        source = decode(data).text if data.strip() else ""
        folder = posixpath.dirname(member)
        sheets = [self._sheet(self._member(folder, each)) for each in linked_sheets(source)]
        return Part(f"[Section {number + 1}]", markup_text(source, sheets))

    def _sheet(self, member: str) -> Sheet:
        """A style sheet; an empty one if it cannot be read."""
        if member not in self._sheets:
            self._sheets[member] = {}
            with suppress(Exception):
                self._sheets[member] = sheet(self._archive.read(member).decode("utf-8", "replace"))
        return self._sheets[member]

    def _member(self, folder: str, address: str) -> str:
        path = posixpath.normpath(posixpath.join("/", folder, address.partition("#")[0]))[1:]
        return path if path in self._archive.names else unquote(path)

    def _xml(self, name: str) -> Element:
        """A member in XML. Raises ValueError if it declares entities, which books do not need."""
        data = self._archive.read(name)
        if may_declare_entities(data):
            raise ValueError(name)
        return ElementTree.fromstring(data)
