"""Newer versions of files: each takes the place of the earlier version in the prompt, so that the
text before the first change stays cached, and the model sees one version only. Earlier answers keep
theirs, because the prompt of an answer has only what was attached up to its question."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from app.protocol.prompt import Document, Origin
from app.store.records import AttachmentRecord, EarlierVersion

D = TypeVar("D", Document, AttachmentRecord)


@dataclass(frozen=True, slots=True)
class Placed(Generic[D]):
    """A document in a prompt. It was attached to another `message` if it is a newer version;
    `number` is its index there, among the documents or the retrieved parts."""

    document: D
    message: int
    number: int


@dataclass(frozen=True, slots=True)
class PlacedMessage(Generic[D]):
    """The documents of a message of a prompt. `retrieved`: see `Message`."""

    documents: tuple[Placed[D], ...]
    retrieved: tuple[Placed[D], ...] | None

    @property
    def in_prompt(self) -> tuple[Placed[D], ...]:
        return self.documents if self.retrieved is None else self.retrieved


def version_key(name: str, content: str, origin: Origin | None) -> Hashable:
    """Identifies a version of a part of a file. `content` is its text, or the SHA-256 of that."""
    return name, content, origin and (origin.path, origin.part)


def place_documents(
    messages: Sequence[tuple[Sequence[Document], Sequence[Document] | None]],
) -> list[PlacedMessage[Document]]:
    """The documents of each message of a prompt, given what was attached to it, and what was
    retrieved for it."""

    def identity(each: Document) -> Hashable:
        return version_key(each.name, each.text, each.origin)

    return _place(messages, identity, lambda each: each.replaces and identity(each.replaces))


def place_attachments(
    messages: Sequence[tuple[Sequence[AttachmentRecord], Sequence[AttachmentRecord] | None]],
) -> list[PlacedMessage[AttachmentRecord]]:
    """The same for stored documents."""

    def identity(each: AttachmentRecord | EarlierVersion, origin: Origin | None) -> Hashable:
        return version_key(each.name, each.sha256, origin)

    return _place(
        messages,
        lambda each: identity(each, each.origin),
        lambda each: each.replaces and identity(each.replaces, each.origin),
    )


def _place(
    messages: Sequence[tuple[Sequence[D], Sequence[D] | None]],
    identity: Callable[[D], Hashable],
    replaced: Callable[[D], Hashable],
) -> list[PlacedMessage[D]]:
    """`identity` and `replaced` identify a document, and the one that it replaces."""
    documents: list[list[Placed[D]]] = [[] for _ in messages]
    places: dict[Hashable, list[tuple[int, int]]] = {}
    """Where each version is; several times if it was attached several times."""
    outdated: dict[str, int] = {}
    for message, (attached, _) in enumerate(messages):
        for number, document in enumerate(attached):
            placed, earlier = Placed(document, message, number), document.replaces
            if earlier is not None and (found := places.get(replaced(document))):
                place = found.pop(0)
                documents[place[0]][place[1]] = placed
                outdated[earlier.name] = outdated[document.name] = message
            else:
                place = message, len(documents[message])
                documents[message].append(placed)
            places.setdefault(identity(document), []).append(place)
    return [
        PlacedMessage(
            tuple(documents[message]),
            None
            if retrieved is None
            else tuple(
                Placed(part, message, number)
                for number, part in enumerate(retrieved)
                if outdated.get(part.name, message) <= message
            ),
        )
        for message, (_, retrieved) in enumerate(messages)
    ]
