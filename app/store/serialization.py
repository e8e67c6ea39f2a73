"""Converts records to JSON, for exports and for columns with JSON, and back.

JSON that is read is not trusted: a file may come from anywhere, and a database may be damaged.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import MISSING, asdict, astuple, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from math import isfinite
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from app.protocol.prompt import Origin, Span, SpanText
from app.protocol.reasons import Failure, Reason, failure_from_plain, reason_from_plain
from app.store.records import (
    AnswerStats,
    EarlierVersion,
    Overrides,
    ReadMap,
    RetrievalRecord,
    StoreError,
)

T = TypeVar("T")
D = TypeVar("D")

ERRORS = (ValueError, TypeError, KeyError, OverflowError)
"""Errors that `decode` raises for invalid input."""
STATS_COLUMNS = tuple(field.name for field in fields(AnswerStats))
"""Fields that are stored in the table `runs` and in exports."""
_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


def decode(kind: type[T], plain: Any) -> T:
    """Decode a value of type `kind` from plain JSON values. A record is an object, whose unknown
    keys are ignored, or a list of all its fields. Integers must not be negative. Raises ERRORS."""
    value: T = _decoder(kind)(plain)  # type: ignore[arg-type]  # mypy takes no type for hashable
    return value


@cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    if kind in _SCALARS:
        return _SCALARS[kind]
    if is_dataclass(kind):
        return _record_decoder(kind)
    arguments = get_args(kind)
    if get_origin(kind) is tuple:
        if arguments[-1] is ...:
            each = _decoder(arguments[0])
            return lambda plain: tuple(map(each, _checked(list, plain)))
        parts = [_decoder(argument) for argument in arguments]
        return lambda plain: tuple(
            part(value) for part, value in zip(parts, _checked(list, plain), strict=True)
        )
    if arguments:  # `X | None`
        some = _decoder(arguments[0])
        return lambda plain: None if plain is None else some(plain)
    return lambda plain: kind(_checked(str, plain))  # a ValueError for an unknown name


def _record_decoder(kind: Any) -> Callable[[Any], Any]:
    hints = get_type_hints(kind)
    decoders = {field.name: _decoder(hints[field.name]) for field in fields(kind)}
    required = {field.name for field in fields(kind) if field.default is MISSING}

    def decode(plain: Any) -> Any:
        if isinstance(plain, list):
            plain = dict(zip(decoders, plain, strict=True))
        if missing := required - _checked(dict, plain).keys():
            raise KeyError(missing)
        return kind(**{name: each(plain[name]) for name, each in decoders.items() if name in plain})

    return decode


def _checked(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value


def _text(value: Any) -> str:
    _checked(str, value).encode()  # a ValueError for half a character
    return str(value)


def _count(value: Any) -> int:
    if _checked(int, value) < 0:
        raise ValueError(f"{value} is negative")
    return int(value)


def _number(value: Any) -> float:
    if type(value) is int:
        value = float(value)
    if not isfinite(_checked(float, value)):
        raise ValueError("no finite number")
    return float(value)


def _time(value: Any) -> datetime:
    time = datetime.fromisoformat(_checked(str, value))
    if time.tzinfo is None:
        raise ValueError("a time without its zone")
    return time.astimezone(UTC)  # an OverflowError for the last hours of the year 9999


def _json(value: Any) -> Any:
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # raises a ValueError
    return value


_SCALARS: dict[Any, Callable[[Any], Any]] = {
    str: _text,
    int: _count,
    float: _number,
    bool: lambda value: _checked(bool, value),
    bytes: lambda value: base64.b64decode(value, validate=True),
    datetime: _time,
    Failure: lambda value: failure_from_plain(_json(value)),
    Reason: lambda value: reason_from_plain(_json(value)),
}


def overrides_to_dict(overrides: Overrides) -> dict[str, Any]:
    """Overrides that are set, by name."""
    return {name: value for name, value in asdict(overrides).items() if value is not None}


def stats_to_dict(stats: AnswerStats) -> dict[str, Any]:
    """Statistics by column name, with phases as pairs."""
    values = {name: getattr(stats, name) for name in STATS_COLUMNS}
    return values | {
        "phases": [astuple(phase) for phase in stats.phases],
        "reasons": [reason.to_plain() for reason in stats.reasons],
        "fallback": None if stats.fallback is None else stats.fallback.to_plain(),
        "guard": None if stats.guard is None else stats.guard.to_plain(),
        "documents": None if stats.documents is None else asdict(stats.documents),
    }


# ------------------------------------------------------------------------------------ columns


def pack_time(time: datetime) -> int:
    """Milliseconds since 1970 UTC; earlier times count as 1970."""
    return max(0, (time - _EPOCH) // _MILLISECOND)


def unpack_time(milliseconds: int) -> datetime:
    return _EPOCH + milliseconds * _MILLISECOND


def pack_ids(ids: tuple[int, ...] | None) -> bytes | None:
    """Token ids as 4 bytes each, little-endian. Raises ValueError if an id does not fit."""
    try:
        return None if ids is None else struct.pack(f"<{len(ids)}I", *ids)
    except struct.error as error:
        raise ValueError("no token id") from error


def unpack_ids(data: bytes | None) -> tuple[int, ...] | None:
    """Raises ValueError."""
    try:
        return None if data is None else struct.unpack(f"<{len(data) // 4}I", data)
    except struct.error as error:
        raise ValueError("no token ids") from error


def pack(record: RetrievalRecord | Origin | EarlierVersion | None) -> str:
    """A record for a JSON column; `unpack` reads it."""
    return "" if record is None else json.dumps(asdict(record))


def unpack(kind: type[T], packed: str, damaged: D) -> T | D:
    """Decode a record from a JSON column. If it is damaged, return `damaged`, so that the rest of
    the row can still be read."""
    with suppress(*ERRORS):
        return decode(kind, json.loads(packed))
    return damaged


def pack_failure(failure: Failure | None) -> str | None:
    return None if failure is None else json.dumps(failure.to_plain())


def unpack_failure(packed: str | None) -> Failure | None:
    return None if packed is None else unpack(Failure, packed, None)


_JSON_COLUMNS = ("phases", "reasons", "fallback", "guard", "documents")


def pack_stats(stats: AnswerStats) -> dict[str, Any]:
    """A value for each column. The seed is stored as text, because it is an unsigned 64-bit
    number."""
    values = stats_to_dict(stats)
    packed = {name: json.dumps(values[name]) for name in _JSON_COLUMNS if values[name] is not None}
    return values | packed | {"seed": str(stats.seed)}


def unpack_stats(row: tuple[Any, ...]) -> AnswerStats | None:
    """Decode the values of STATS_COLUMNS. None if they are damaged, so that the answer can still be
    read."""
    plain = dict(zip(STATS_COLUMNS, row, strict=True))
    with suppress(*ERRORS):
        for name in _JSON_COLUMNS:
            plain[name] = None if plain[name] is None else json.loads(plain[name])
        plain |= {"seed": int(plain["seed"]), "unsure": bool(plain["unsure"])}
        return decode(AnswerStats, plain)
    return None


def pack_map(read_map: ReadMap) -> tuple[bytes, bytes]:
    """Compressed spans and texts, and importance."""
    parts = [[astuple(each) for each in part] for part in (read_map.spans, read_map.texts)]
    packed = json.dumps(parts, separators=(",", ":"))
    return zlib.compress(packed.encode()), read_map.importance


def unpack_map(packed: bytes, importance: bytes) -> ReadMap:
    """Decode a read map. Raises StoreError if it is damaged."""
    try:
        spans, texts = json.loads(zlib.decompress(packed))
        return map_from_lists(spans, texts, importance)
    except (zlib.error, *ERRORS) as error:
        raise StoreError(
            "The map of what was read for this answer is damaged", "ask again to get a new one"
        ) from error


def map_from_lists(spans: Any, texts: Any, importance: bytes) -> ReadMap:
    """Raises ERRORS."""
    return ReadMap(decode(tuple[Span, ...], spans), decode(tuple[SpanText, ...], texts), importance)
