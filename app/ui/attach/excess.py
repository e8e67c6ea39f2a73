"""Which attachments to leave out if they are too large together. No widgets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import ceil

from app.protocol.prompt import Document
from app.ui.attach.attachment import Attachment, make_attachment
from app.util import formatting

BYTES_PER_TOKEN = 4
"""Assumed where tokens have not been counted."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One attached document; `tokens` is its share of those counted for the attachment."""

    document: Document
    size: int
    tokens: int


def pieces(things: Sequence[Attachment]) -> list[Piece]:
    """The largest first. A folder's tree is not a piece: it stays while any of its files does."""
    found = []
    for each in things:
        rate = _bytes_per_token([each])
        for document in each.texts:
            size = len(document.text.encode(errors="replace"))
            found.append(Piece(document, size, ceil(size / rate)))
    return sorted(found, key=lambda piece: -piece.size)


def without(things: Sequence[Attachment], left_out: Collection[Document]) -> tuple[Attachment, ...]:
    """What remains attached. Attachments that lose nothing stay the same objects."""
    remaining: list[Attachment] = []
    for each in things:
        texts = [document for document in each.texts if document not in left_out]
        if len(texts) == len(each.texts):
            remaining.append(each)
        elif texts:
            tree = each.documents[:1] if each.is_folder else ()
            fewer = make_attachment([*tree, *texts])
            remaining.append(replace(fewer, skipped=each.skipped, lossy=each.lossy))
    return tuple(remaining)


def excess_text(excess: int, things: Sequence[Attachment]) -> str:
    """`12,400 tokens too many: leave out about 50 KB`, without a full stop."""
    text = f"{formatting.plural(excess, 'token')} too many"
    if not things:
        return text
    return f"{text}: leave out about {formatting.size(ceil(excess * _bytes_per_token(things)))}"


def _bytes_per_token(things: Sequence[Attachment]) -> float:
    tokens = sum(each.tokens or 0 for each in things)
    counted = sum(each.size for each in things if each.tokens)
    return counted / tokens if tokens and counted else BYTES_PER_TOKEN
