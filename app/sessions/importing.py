"""Reading back what `export.to_json` wrote. The file may come from anywhere: all of it is checked,
and the conversation appears whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import fields
from datetime import datetime
from typing import Any, TextIO, TypeVar

from app.sessions.database import StoreError
from app.sessions.export import FORMAT, VERSION
from app.sessions.records import (
    Attachment,
    Conversation,
    Message,
    ReadMap,
    Role,
    Run,
    Span,
    SpanText,
    State,
    Tree,
)
from app.sessions.store import Store

T = TypeVar("T")

_JSON_TYPES = {
    "int": int,
    "int | None": int,
    "float": (int, float),
    "float | None": (int, float),
    "str": str,
    "str | None": str,
}


def from_json(store: Store, source: TextIO) -> Conversation:
    """A new conversation with everything in the file. Raises StoreError when it is no export of
    ours or not whole."""
    try:
        plain = json.load(source)
        if plain["format"] != FORMAT:
            raise ValueError("another format")
        if plain["version"] > VERSION:
            raise StoreError(
                "This conversation was exported by a newer specchat", "update specchat to import it"
            )
        tree = _tree(plain)
        for attachment, data in _documents(tree, plain["documents"]):
            store.attach(attachment.name, io.BytesIO(data))
        return store.add_tree(tree)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise StoreError(
            "This file is not a conversation that specchat exported, or not all of it",
            "export the conversation as JSON again",
        ) from None


def _documents(tree: Tree, encoded: dict[str, str]) -> Iterator[tuple[Attachment, bytes]]:
    """Each document that a message refers to, decoded and found to be right."""
    for message in tree.messages:
        for attachment in message.attachments:
            data = base64.b64decode(encoded[attachment.sha256], validate=True)
            digest = hashlib.sha256(data).hexdigest()
            if (digest, len(data)) != (attachment.sha256, attachment.size):
                raise ValueError("a document differs from its digest")
            yield attachment, data


def _tree(plain: dict[str, Any]) -> Tree:
    messages = tuple(_message(i, each) for i, each in enumerate(_list(plain["messages"])))
    current = plain["current"]
    if current is not None:
        messages[_number(current, len(messages))]
    conversation = Conversation(
        id=0,
        title=_of(str, plain["title"]),
        pinned=_of(bool, plain["pinned"]),
        created_at=_time(plain["created_at"]),
        updated_at=_time(plain["updated_at"]),
        trashed_at=None,
        current=current,
    )
    maps = {
        number: _map(each["read_map"], len(messages))
        for number, each in enumerate(plain["messages"])
        if each["read_map"] is not None
    }
    return Tree(conversation, messages, maps)


def _message(number: int, plain: dict[str, Any]) -> Message:
    parent, ids, run = plain["parent"], plain["token_ids"], plain["run"]
    return Message(
        id=number,
        conversation=0,
        parent=None if parent is None else _number(parent, number),
        role=Role(plain["role"]),
        state=State(plain["state"]),
        created_at=_time(plain["created_at"]),
        text=_of(str, plain["text"]),
        token_ids=None if ids is None else tuple(_number(each, 2**32) for each in _list(ids)),
        failure=None if plain["failure"] is None else _of(str, plain["failure"]),
        attachments=tuple(_plain_record(Attachment, each) for each in plain["attachments"]),
        run=None if run is None else _run(run),
        thinking=_of(str, plain.get("thinking", "")),  # older exports have none
    )


def _run(plain: dict[str, Any]) -> Run:
    phases = tuple((_of(str, name), float(seconds)) for name, seconds in plain["phases"])
    return _plain_record(Run, plain | {"phases": phases})


def _map(plain: dict[str, Any], messages: int) -> ReadMap:
    texts = tuple(_plain_record(SpanText, each) for each in _list(plain["texts"]))
    for text in texts:
        _number(text.message, messages)
    return ReadMap(
        tuple(_plain_record(Span, each) for each in _list(plain["spans"])),
        texts,
        base64.b64decode(plain["importance"], validate=True),
    )


def _plain_record(kind: type[T], plain: dict[str, Any]) -> T:
    """A dataclass of plain values from their names. Raises ValueError, TypeError or KeyError."""
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]
        value = plain[field.name]
        allowed = _JSON_TYPES.get(str(field.type))
        optional = value is None and str(field.type).endswith("None")
        if allowed is not None and not optional:
            _of(allowed, value)
        values[field.name] = value
    return kind(**values)


def _of(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{value!r} is no {kind}")
    if isinstance(value, str):
        value.encode()  # a ValueError for half a character
    return value


def _list(value: Any) -> list[Any]:
    return list(_of(list, value))


def _number(value: Any, below: int) -> int:
    if not 0 <= _of(int, value) < below:
        raise ValueError(f"{value} is out of range")
    return int(value)


def _time(value: Any) -> datetime:
    time = datetime.fromisoformat(_of(str, value))
    if time.tzinfo is None:
        raise ValueError("a time without its zone")
    return time
