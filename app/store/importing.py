"""Imports what `export.to_json` wrote. The file is not trusted: everything is checked, and the
conversation is imported as a whole or not at all."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from math import isfinite
from typing import Any, TextIO, TypeVar

from app.protocol.options import Mode
from app.protocol.prompt import Role, Span, SpanReason, SpanText
from app.protocol.reasons import failure_from_plain
from app.protocol.stats import Reading
from app.store.errors import StoreError
from app.store.records import (
    AnswerStats,
    Attachment,
    Conversation,
    Message,
    Overrides,
    ReadMap,
    State,
    Tree,
)
from app.store.serialization import (
    overrides_from_dict,
    retrieval_from_dict,
    stats_from_dict,
)
from app.store.store import Store

T = TypeVar("T")
FORMAT, VERSION = "specchat conversation", 1

_JSON_TYPES = {
    "int": int,
    "int | None": int,
    "float": (int, float),
    "float | None": (int, float),
    "str": str,
    "str | None": str,
}


MAX_CHARACTERS = 256 * 2**20
"""Characters of an export without its documents, which are read in chunks. If another program has
reformatted the file, the limit includes them."""
_DOCUMENTS = ' "documents": {\n'
"""The line of an export after which each line is a document."""


def from_json(store: Store, source: TextIO) -> Conversation:
    """A new conversation with everything in the file. Raises StoreError if it is not a complete
    export, or too large."""
    try:
        head, separate = _head(source)
        plain = json.loads(head)
        del head
        if plain["format"] != FORMAT:
            raise ValueError("another format")
        if plain["version"] > VERSION:
            raise StoreError(
                "This conversation was exported by a newer specchat", "update specchat to import it"
            )
        tree = _tree(plain)
        missing = {a.sha256: a for message in tree.messages for a in message.attachments}
        for sha256, data in _lines(source) if separate else _texts(plain["documents"]):
            document = missing.pop(sha256)
            attached = store.attach(document.name, _Base64Reader(data, document.size))
            if (attached.sha256, attached.size) != (sha256, document.size):
                raise ValueError("a document differs from its digest")
        if missing:
            raise ValueError("a document is missing")
        return store.add_tree(tree)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise StoreError(
            "This file is not a conversation that specchat exported, or not all of it",
            "export the conversation as JSON again",
        ) from None


def _head(source: TextIO) -> tuple[str, bool]:
    """All before the documents, as JSON, and True; or the whole file, and False."""
    lines: list[str] = []
    length = 0
    while line := source.readline(MAX_CHARACTERS - length + 1):
        if line == _DOCUMENTS:
            return "".join(lines).rstrip().removesuffix(",") + "}", True
        lines.append(line)
        length += len(line)
        if length > MAX_CHARACTERS:
            raise StoreError(
                f"This file is too large to be read as one piece ({MAX_CHARACTERS / 2**20:.0f} MB)",
                "import the file that specchat wrote, unchanged",
            )
    return "".join(lines), False


def _texts(encoded: dict[str, str]) -> Iterator[tuple[str, TextIO]]:
    for sha256, text in encoded.items():
        yield sha256, io.StringIO(text)


def _lines(source: TextIO) -> Iterator[tuple[str, TextIO]]:
    """Each document's digest, with the source at the start of its base64, which must be read to its
    end before the next document."""
    while (start := source.read(3)) == '  "':
        sha256 = source.read(64)
        if source.read(4) != '": "':
            raise ValueError("no document")
        yield sha256, source
        if (source.read(1), source.read(1)) == ('"', ","):
            source.read(1)
    if start + source.read(3) != " }\n}\n"[:6]:
        raise ValueError("not all of it")


class _Base64Reader:
    """Decodes the base64 that comes next, `size` bytes in all, in chunks. Raises ValueError."""

    def __init__(self, source: TextIO, size: int) -> None:
        self._source, self._left = source, (max(size, 0) + 2) // 3 * 4

    def read(self, size: int, /) -> bytes:
        count = min(self._left, size // 3 * 4)
        text = self._source.read(count)
        if len(text) < count:
            raise ValueError("not all of it")
        self._left -= count
        return base64.b64decode(text, validate=True)


def _tree(plain: dict[str, Any]) -> Tree:
    messages = tuple(_message(i, each) for i, each in enumerate(_list(plain["messages"])))
    current = plain["current"]
    if current is not None:
        messages[_number(current, len(messages))]
    conversation = Conversation(
        id=0,
        title=_checked(str, plain["title"]),
        pinned=_checked(bool, plain["pinned"]),
        created_at=_time(plain["created_at"]),
        updated_at=_time(plain["updated_at"]),
        trashed_at=None,
        current=current,
        overrides=_overrides(plain["choices"]),
    )
    maps = {
        number: _map(each["read_map"], len(messages))
        for number, each in enumerate(plain["messages"])
        if each["read_map"] is not None
    }
    return Tree(conversation, messages, maps)


def _overrides(plain: Any) -> Overrides:
    return overrides_from_dict(
        {name: _checked(object, value) for name, value in _checked(dict, plain).items()}
    )


def _message(number: int, plain: dict[str, Any]) -> Message:
    parent, ids, stats = plain["parent"], plain["token_ids"], plain["run"]
    return Message(
        id=number,
        conversation=0,
        parent=None if parent is None else _number(parent, number),
        role=Role(plain["role"]),
        state=State(plain["state"]),
        created_at=_time(plain["created_at"]),
        text=_checked(str, plain["text"]),
        token_ids=None if ids is None else tuple(_number(each, 2**32) for each in _list(ids)),
        failure=None if plain["failure"] is None else failure_from_plain(_json(plain["failure"])),
        attachments=tuple(_attachment(each) for each in plain["attachments"]),
        stats=None if stats is None else _stats(stats),
        thinking=_checked(str, plain["thinking"]),
        truncated=_checked(bool, plain["truncated"]),
        mode=None if plain.get("mode") is None else Mode(plain["mode"]),
        keep=None if plain.get("keep") is None else _fraction(plain["keep"]),
    )


def _attachment(plain: dict[str, Any]) -> Attachment:
    pins = [_list(pin) for pin in _list(plain.get("pinned", []))]
    pinned = tuple((_number(start, 2**53), _number(end, 2**53)) for start, end in pins)
    retrieval = retrieval_from_dict(plain.get("retrieval"))
    line = plain.get("line", 1)
    return _record(Attachment, plain | {"pinned": pinned, "line": line, "retrieval": retrieval})


def _stats(plain: dict[str, Any]) -> AnswerStats | None:
    """None if only a later version knows how the prompt was read."""
    if _checked(str, plain["mode"]) not in _MODES or (
        _checked(str, plain["reading"]) not in _READINGS
    ):
        return None
    for pair in plain["phases"]:
        name, seconds = pair
        _checked(str, name), _checked(float, float(seconds))
    _json([plain["reasons"], plain["fallback"], plain["guard"]])
    made = stats_from_dict(plain)
    return _record(AnswerStats, {field.name: getattr(made, field.name) for field in fields(made)})


def _map(plain: dict[str, Any], messages: int) -> ReadMap:
    """Without spans if only a later version knows why they were selected, as `unpack_map`."""
    texts = tuple(_record(SpanText, each) for each in _list(plain["texts"]))
    for text in texts:
        _number(text.message, messages)
    spans, importance = _list(plain["spans"]), base64.b64decode(plain["importance"], validate=True)
    if any(_checked(str, span["reason"]) not in _REASONS for span in spans):
        return ReadMap(importance=importance)
    return ReadMap(
        tuple(_record(Span, each | {"reason": SpanReason(each["reason"])}) for each in spans),
        texts,
        importance,
    )


_MODES, _READINGS, _REASONS = frozenset(Mode), frozenset(Reading), frozenset(SpanReason)


def _record(kind: type[T], plain: dict[str, Any]) -> T:
    """A dataclass from its fields' values. Raises ValueError, TypeError or KeyError."""
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]
        value = plain[field.name]
        allowed = _JSON_TYPES.get(str(field.type))
        optional = value is None and str(field.type).endswith("None")
        if allowed is not None and not optional:
            _checked(allowed, value)
        values[field.name] = value
    return kind(**values)


def _checked(kind: Any, value: Any) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{value!r} is no {kind}")
    if isinstance(value, str):
        value.encode()  # a ValueError for half a character
    if isinstance(value, float) and not isfinite(value):
        raise ValueError("no finite number")
    return value


def _json(value: Any) -> Any:
    """The value, if it can be stored as JSON. Raises ValueError."""
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value


def _list(value: Any) -> list[Any]:
    return list(_checked(list, value))


def _number(value: Any, below: int) -> int:
    if not 0 <= _checked(int, value) < below:
        raise ValueError(f"{value} is out of range")
    return int(value)


def _fraction(value: Any) -> float:
    if not 0 <= _checked((int, float), value) <= 1:
        raise ValueError(f"{value} is no fraction")
    return float(value)


def _time(value: Any) -> datetime:
    time = datetime.fromisoformat(_checked(str, value))
    if time.tzinfo is None:
        raise ValueError("a time without its zone")
    return time.astimezone(UTC)  # an OverflowError for the last hours of the year 9999
