"""Between records and what a column holds."""

from __future__ import annotations

import json
import struct
import zlib
from contextlib import suppress
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from app.sessions.errors import StoreError
from app.sessions.records import Overrides, ReadMap, Run, Span, SpanText

_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
RUN_FIELDS = tuple(field.name for field in fields(Run))
_OVERRIDE_TYPES: dict[str, type[str | int | float]] = {
    "system": str,
    "mode": str,
    "keep": float,
    "max_tokens": int,
    "temperature": float,
    "top_p": float,
    "seed": int,
}


def pack_time(time: datetime) -> int:
    """Milliseconds since 1970 UTC; a clock set to before then counts as 1970."""
    return max(0, (time - _EPOCH) // _MILLISECOND)


def unpack_time(milliseconds: int) -> datetime:
    return _EPOCH + milliseconds * _MILLISECOND


def pack_ids(ids: tuple[int, ...] | None) -> bytes | None:
    """Token ids as 4 bytes each, little-endian."""
    return None if ids is None else struct.pack(f"<{len(ids)}I", *ids)


def unpack_ids(data: bytes | None) -> tuple[int, ...] | None:
    return None if data is None else struct.unpack(f"<{len(data) // 4}I", data)


def pack_pins(pinned: tuple[tuple[int, int], ...]) -> str:
    return json.dumps(pinned)


def unpack_pins(packed: str) -> tuple[tuple[int, int], ...]:
    """Raises ValueError or TypeError when they are damaged."""
    return tuple((int(start), int(end)) for start, end in json.loads(packed))


def overrides_to_dict(choices: Overrides) -> dict[str, Any]:
    """Those that were made, by name."""
    return {name: value for name, value in asdict(choices).items() if value is not None}


def overrides_from_dict(plain: Any) -> Overrides:
    """What is made of other names, by a later version say, is left out. Raises ValueError or
    TypeError."""
    made: dict[str, Any] = {}
    for name, kind in _OVERRIDE_TYPES.items():
        if (value := plain.get(name)) is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, kind) if kind is float else kind):
            raise TypeError(f"{name} is no {kind.__name__}")
        made[name] = kind(value)
    return Overrides(**made)


def unpack_overrides(packed: str) -> Overrides:
    """A conversation is worth more than what was chosen for it: what is damaged is none."""
    with suppress(ValueError, TypeError, AttributeError):
        return overrides_from_dict(json.loads(packed))
    return Overrides()


def pack_run(run: Run) -> dict[str, Any]:
    """A value for each column. A seed has 64 bits without a sign: more than a column holds."""
    values = {name: getattr(run, name) for name in RUN_FIELDS}
    return values | {"seed": str(run.seed), "phases": json.dumps(run.phases)}


def unpack_run(values: dict[str, Any]) -> Run:
    phases = tuple((str(name), float(seconds)) for name, seconds in json.loads(values["phases"]))
    return Run(**values | {"seed": int(values["seed"]), "phases": phases})


def pack_map(read_map: ReadMap) -> tuple[bytes, bytes]:
    """Spans, compressed, and importance."""
    spans = [(span.start, span.end, span.reason, span.score) for span in read_map.spans]
    texts = [(t.span, t.message, t.document, t.start, t.end) for t in read_map.texts]
    packed = json.dumps([spans, texts], separators=(",", ":"))
    return zlib.compress(packed.encode()), read_map.importance


def unpack_map(spans: bytes, importance: bytes) -> ReadMap:
    """Raises StoreError when it is damaged."""
    try:
        kept, texts = json.loads(zlib.decompress(spans))
    except (zlib.error, ValueError) as error:
        raise StoreError(
            "The map of what was read for this answer is damaged", "ask again to have a new one"
        ) from error
    return ReadMap(
        tuple(Span(*span) for span in kept), tuple(SpanText(*text) for text in texts), importance
    )
