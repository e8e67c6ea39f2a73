"""What a reader of documents yields: the text of pages, slides, sheets or sections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""First bytes of files in the old Office format, and of encrypted ones in the new format."""


@dataclass(frozen=True, slots=True)
class Part:
    """A page, slide, sheet or section."""

    mark: str
    """The line that precedes it in the text, such as `[Page 3]`; empty if there is none."""
    text: str
    note: str = ""
    """If some of it is missing, what was read, such as `only the first 50,000 rows`."""

    @property
    def unit(self) -> str:
        """`page`, `slide`, `sheet` or `section`."""
        return self.mark[1:].partition(" ")[0].lower()


class Parts(Protocol):
    """The parts of a document."""

    embedded: int
    """Number of documents inside this one, which are not read."""

    def __len__(self) -> int: ...

    def read(self, number: int) -> Part:
        """Read a part; the first is 0."""


class WithPassword(Exception):
    """The document opens with a password only."""


class TooLarge(Exception):
    """The document is too large once it is unpacked."""


class Unknown(Exception):
    """The file is no document of a known kind."""
