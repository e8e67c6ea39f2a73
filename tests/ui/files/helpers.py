"""A folder of which not all fits."""

from __future__ import annotations

from textual.pilot import Pilot

from app.protocol.prompt import Document
from app.ui.app import SpecchatApp
from app.ui.attach.attachment import make_attachment

LONG = "".join(f"line {number}\n" for number in range(1, 300))


def repository(files: int = 30) -> list[Document]:
    """Folders of ten files, two files that say something, and a long one."""
    found = [
        Document("repo/", "a tree"),
        Document("repo/README.md", "Read me first.\n"),
        Document("repo/urls/resolvers.py", "def resolver(urlconf):\n    return urlconf\n"),
        Document("repo/urls/base.py", "from urls import resolver\n"),
        Document("repo/long.py", LONG + "the middleware\n" + LONG),
    ]
    for number in range(files - len(found) + 1):
        text = f"filler {number}\n"
        found.append(Document(f"repo/parts/part{number // 10}/file{number}.txt", text))
    return found


def attach(pilot: Pilot[None], documents: list[Document], tokens: int | None = None) -> None:
    from dataclasses import replace

    assert isinstance(pilot.app, SpecchatApp)
    attachment = replace(make_attachment(documents), tokens=tokens)
    pilot.app.chat.composer.chips.add(attachment)
