"""Imports a conversation that `export.to_json` wrote. The file is not trusted: everything is
checked, and the conversation is imported as a whole or not at all."""

from __future__ import annotations

import base64
import json
from typing import Any, TextIO

from app.store.records import (
    AttachmentRecord,
    ConversationRecord,
    MessageRecord,
    ReadMap,
    StoreError,
    Tree,
    without_origins,
)
from app.store.serialization import (
    ERRORS,
    decode,
    map_from_lists,
)
from app.store.store import Store
from app.util.json_amount import is_too_much

FORMAT, VERSION = "specchat conversation", 1
MAX_CHARACTERS = 2**31
"""Maximum characters of an export, including its documents. It is read into memory."""
MAX_CONTAINERS, CONTAINER = 100_000, 32
"""Maximum number of lists and objects of a short export, and minimum characters for each one of a
longer export. Empty ones would take many times the memory of the file."""
VALUES = 20
"""Maximum number of values for each list or object."""
_PIECE = 1 << 20


def from_json(store: Store, source: TextIO) -> ConversationRecord:
    """Add a conversation with everything in the file. Raises StoreError if the file is not a
    complete export, or is too large."""
    try:
        text = _read(source)
        most = max(MAX_CONTAINERS, len(text) // CONTAINER)
        if is_too_much(text, most, VALUES * most):
            raise ValueError("more lists and objects than an export has")
        plain = json.loads(text, parse_constant=_refuse)
        if plain["format"] != FORMAT:
            raise ValueError("another format")
        if plain["version"] > VERSION:
            raise StoreError(
                "This conversation was exported by a newer specchat", "update specchat to import it"
            )
        tree = _tree(plain)
        attachments = [each for message in tree.messages for each in message.attachments]
        for attachment in {each.sha256: each for each in attachments}.values():
            _attach(store, attachment, plain["documents"])
        return store.add_tree(tree)
    except (*ERRORS, RecursionError):
        raise StoreError(
            "This file is not a complete conversation exported by specchat",
            "export the conversation as JSON again",
        ) from None


def _read(source: TextIO) -> str:
    pieces: list[str] = []
    left = MAX_CHARACTERS
    while piece := source.read(_PIECE):
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            raise StoreError(
                f"This file has more than {MAX_CHARACTERS:,} characters", "import a smaller one"
            )
    return "".join(pieces)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _attach(store: Store, attachment: AttachmentRecord, documents: dict[str, str]) -> None:
    content = base64.b64decode(documents[attachment.sha256], validate=True)
    attached = store.attach(attachment.name, content)
    if (attached.sha256, attached.size) != (attachment.sha256, attachment.size):
        raise ValueError("a document differs from its digest")


def _tree(plain: dict[str, Any]) -> Tree:
    if not isinstance(plain["choices"], dict):
        raise TypeError("these are no choices")
    conversation = decode(
        ConversationRecord, plain | {"id": 0, "trashed_at": None, "overrides": plain["choices"]}
    )
    messages = tuple(_message(number, each) for number, each in enumerate(plain["messages"]))
    maps = {
        number: _read_map(each["read_map"])
        for number, each in enumerate(plain["messages"])
        if each["read_map"] is not None
    }
    return Tree(conversation, messages, maps)


def _message(number: int, plain: dict[str, Any]) -> MessageRecord:
    own = {"id": number, "conversation": 0, "stats": plain["run"]}
    return without_origins(decode(MessageRecord, plain | own))


def _read_map(plain: dict[str, Any]) -> ReadMap:
    return map_from_lists(
        plain["spans"], plain["texts"], base64.b64decode(plain["importance"], validate=True)
    )
