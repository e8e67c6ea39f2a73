"""The members of zip archives of XML files, as office documents and e-books are."""

from __future__ import annotations

import io
import posixpath
import zipfile
from typing import IO
from urllib.parse import unquote
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from app.ingest.parts import TooLarge, WithPassword

MAX_MEMBERS = 20_000
MAX_UNPACKED = 256 * 1024 * 1024
"""Maximum bytes of all members of an archive, once unpacked."""
_DOCTYPES = tuple("<!DOCTYPE".encode(each) for each in ("utf-8", "utf-16-le", "utf-16-be"))


def may_declare_entities(xml: bytes) -> bool:
    """Whether XML has a document type, the only place for entities."""
    return any(declared in xml for declared in _DOCTYPES)


class Archive:
    """The members of a zip archive."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._zip = zipfile.ZipFile(io.BytesIO(data))
        members = self._zip.infolist()
        if len(members) > MAX_MEMBERS or sum(each.file_size for each in members) > MAX_UNPACKED:
            raise TooLarge
        if any(each.flag_bits & 1 for each in members):
            raise WithPassword
        self.names = {each.filename for each in members}

    def read(self, name: str) -> bytes:
        return self._zip.read(name)

    def open(self, name: str) -> IO[bytes]:
        return self._zip.open(name)

    def refuse_entities(self) -> None:
        """Raise ValueError if a member declares entities, which the formats forbid."""
        for name in self.names:
            if name.endswith((".xml", ".rels")):
                with self._zip.open(name) as file:
                    end = b""
                    while block := file.read(1 << 20):
                        if may_declare_entities(end + block):
                            raise ValueError(name)
                        end = block[-20:]

    def xml(self, name: str) -> Element:
        return ElementTree.fromstring(self.read(name))

    def relations(self, name: str) -> dict[str, tuple[str, str, bool]]:
        """What a member of an Office document refers to, by id: the kind, the member or address,
        and whether that is outside of the archive."""
        folder, base = posixpath.split(name)
        listed = f"{folder}/_rels/{base}.rels" if folder else f"_rels/{base}.rels"
        if listed not in self.names:
            return {}
        found = {}
        for each in self.xml(listed):
            target, kind = each.get("Target", ""), each.get("Type", "").rpartition("/")[2]
            external = each.get("TargetMode") == "External"
            if not external:
                path = posixpath.normpath(posixpath.join("/", folder, target))[1:]
                target = path if path in self.names else unquote(path)
            if external or target in self.names:
                found[each.get("Id", "")] = kind, target, external
        return found

    def links(self, name: str) -> dict[str, str]:
        """Members that a member of an Office document refers to, by their ids."""
        every = self.relations(name).items()
        return {id: target for id, (_, target, external) in every if not external}

    def linked(self, name: str) -> list[tuple[str, str]]:
        """The kinds and names of the members that a member of an Office document refers to."""
        every = self.relations(name).values()
        return [(kind, target) for kind, target, external in every if not external]

    def main(self, kind: str, default: str) -> str:
        """The member that an Office document begins with."""
        return next((target for each, target in self.linked("") if each == kind), default)

    def embedded(self) -> int:
        """Number of documents embedded in an Office document, without the data of charts."""
        inside = {name for name in self.names if "/embeddings/" in name and name[-1] != "/"}
        charts = [name for name in self.names if "/charts/chart" in name and name.endswith(".xml")]
        for chart in charts:
            inside -= set(self.links(chart).values())
        return len(inside)
