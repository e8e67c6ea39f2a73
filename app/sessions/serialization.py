"""Between records and what a column holds."""

from __future__ import annotations

import json
import struct
import zlib
from contextlib import suppress
from dataclasses import asdict, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from app.protocol.options import Mode
from app.protocol.prompt import RetrievalReason, Span, SpanReason, SpanText
from app.protocol.reasons import Failure, failure_from_plain, reason_from_plain
from app.protocol.stats import Phase, PhaseTime, Reading
from app.sessions.errors import StoreError
from app.sessions.records import AnswerStats, Overrides, ReadMap, Retrieval

_EPOCH, _MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)
STATS_COLUMNS = tuple(field.name for field in fields(AnswerStats))
"""The fields that the table `runs` and exports hold."""
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
    """Milliseconds since 1970 UTC; earlier times count as 1970."""
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


def retrieval_to_dict(retrieval: Retrieval | None) -> dict[str, Any] | None:
    return None if retrieval is None else asdict(retrieval)


def retrieval_from_dict(plain: Any) -> Retrieval | None:
    """Raises ValueError, TypeError, KeyError or AttributeError."""
    if plain is None:
        return None
    words, tokens = _names(plain["words"]), plain["tokens"]
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 0:
        raise TypeError("tokens is no count")
    return Retrieval(RetrievalReason(plain["reason"]), tokens, words)


def pack_retrieval(retrieval: Retrieval | None) -> str:
    return "" if retrieval is None else json.dumps(retrieval_to_dict(retrieval))


def unpack_retrieval(packed: str) -> Retrieval | None:
    """None for a damaged one, which must not hide the document."""
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        return retrieval_from_dict(json.loads(packed)) if packed else None
    return None


def overrides_to_dict(choices: Overrides) -> dict[str, Any]:
    """The overrides that are set, by name."""
    return {name: value for name, value in asdict(choices).items() if value is not None}


def overrides_from_dict(plain: Any) -> Overrides:
    """Other names, such as those of a later version, are skipped. Raises ValueError or
    TypeError."""
    made: dict[str, Any] = {}
    for name, kind in _OVERRIDE_TYPES.items():
        if (value := plain.get(name)) is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, kind) if kind is float else kind):
            raise TypeError(f"{name} is no {kind.__name__}")
        made[name] = kind(value)
    for name in ("always_read", "never_read"):
        if (names := plain.get(name)) is not None:
            made[name] = _names(names)
    return Overrides(**made)


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
        raise TypeError("these are no names")
    return tuple(value)


def unpack_overrides(packed: str) -> Overrides:
    """Damaged overrides count as none, so that the conversation can still be opened."""
    with suppress(ValueError, TypeError, AttributeError):
        return overrides_from_dict(json.loads(packed))
    return Overrides()


def stats_to_dict(stats: AnswerStats) -> dict[str, Any]:
    """By the names of columns, phases as pairs."""
    values = {name: getattr(stats, name) for name in STATS_COLUMNS}
    return values | {
        "phases": [(str(phase.phase), phase.seconds) for phase in stats.phases],
        "reasons": [reason.to_plain() for reason in stats.reasons],
        "fallback": None if stats.fallback is None else stats.fallback.to_plain(),
        "guard": None if stats.guard is None else stats.guard.to_plain(),
    }


def stats_from_dict(values: dict[str, Any]) -> AnswerStats:
    """Phases and reasons that only a later version knows are ignored. Raises ValueError, TypeError
    or KeyError."""
    made = {name: values[name] for name in STATS_COLUMNS}
    made["reading"], made["mode"] = Reading(made["reading"]), Mode(made["mode"])
    made["unsure"] = bool(made["unsure"])
    known = [(name, seconds) for name, seconds in made["phases"] if name in _PHASES]
    made["phases"] = tuple(PhaseTime(Phase(name), float(seconds)) for name, seconds in known)
    reasons = map(reason_from_plain, made["reasons"])
    made["reasons"] = tuple(reason for reason in reasons if reason is not None)
    for name in _REASONS:
        made[name] = None if made[name] is None else reason_from_plain(made[name])
    return AnswerStats(**made)


_PHASES = frozenset(Phase)
_REASONS = ("fallback", "guard")
"""Fields that hold one reason or none."""


def pack_stats(stats: AnswerStats) -> dict[str, Any]:
    """A value for each column. A seed has 64 bits without a sign: more than a column holds."""
    values = stats_to_dict(stats)
    packed = {name: json.dumps(values[name]) for name in ("phases", "reasons")}
    packed |= {name: json.dumps(values[name]) for name in _REASONS if values[name] is not None}
    return values | packed | {"seed": str(stats.seed)}


def unpack_stats(values: dict[str, Any]) -> AnswerStats:
    plain = {name: json.loads(values[name]) for name in ("phases", "reasons")}
    plain |= {name: json.loads(values[name]) for name in _REASONS if values[name] is not None}
    return stats_from_dict(values | plain | {"seed": int(values["seed"])})


def pack_failure(failure: Failure | None) -> str | None:
    return None if failure is None else json.dumps(failure.to_plain())


def unpack_failure(packed: str | None) -> Failure | None:
    """None for a damaged one, which must not hide the message."""
    with suppress(ValueError, TypeError, KeyError):
        return None if packed is None else failure_from_plain(json.loads(packed))
    return None


def pack_map(read_map: ReadMap) -> tuple[bytes, bytes]:
    """Spans, compressed, and importance."""
    spans = [(span.start, span.end, span.reason, span.score) for span in read_map.spans]
    texts = [(t.span, t.message, t.document, t.start, t.end) for t in read_map.texts]
    packed = json.dumps([spans, texts], separators=(",", ":"))
    return zlib.compress(packed.encode()), read_map.importance


def unpack_map(packed: bytes, importance: bytes) -> ReadMap:
    """Raises StoreError when it is damaged."""
    try:
        spans, texts = json.loads(zlib.decompress(packed))
    except (zlib.error, ValueError) as error:
        raise StoreError(
            "The map of what was read for this answer is damaged", "ask again to have a new one"
        ) from error
    try:
        selected = tuple(
            Span(start, end, SpanReason(reason), score) for start, end, reason, score in spans
        )
    except ValueError:  # a later version wrote it
        return ReadMap(importance=importance)
    return ReadMap(selected, tuple(SpanText(*text) for text in texts), importance)
