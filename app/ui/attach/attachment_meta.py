"""Facts about attachments that are saved with a draft: what was skipped, and why."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple, replace
from typing import Any

from app.ingest.records import REASON_TEXTS, FileRead, Skipped, SkipReason
from app.ui.attach.attachment import Attachment

MAX_SKIPPED = 500
"""Skipped files of one folder. If there are more, no facts are saved: drafts are saved often."""


def to_notes(attachments: Iterable[Attachment]) -> str:
    """As JSON for `with_notes`; empty if there is nothing to save."""
    notes = {
        each.documents[0].name: {
            "skipped": [_packed(skipped) for skipped in each.skipped],
            "doubtful": [astuple(file) for file in each.doubtful],
        }
        for each in attachments
        if 0 < len(each.skipped) + len(each.doubtful) <= MAX_SKIPPED
    }
    return json.dumps(notes) if notes else ""


def with_notes(attachments: Iterable[Attachment], notes: str) -> tuple[Attachment, ...]:
    """Attachments with their facts again. Damaged or unknown notes are ignored."""
    known: Any = {}
    with suppress(ValueError):
        known = json.loads(notes) if notes else {}
    return tuple(_with(each, known) for each in attachments)


def _with(thing: Attachment, known: Any) -> Attachment:
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        note = known[thing.documents[0].name]
        skipped = tuple(_unpacked(*each) for each in note["skipped"])
        doubtful = tuple(_file_read(*each) for each in note["doubtful"])
        return replace(thing, skipped=skipped, doubtful=doubtful)
    return thing


def _file_read(path: str, size: int, encoding: str, lossy: bool, guessed: bool) -> FileRead:
    return FileRead(str(path), int(size), str(encoding), bool(lossy), bool(guessed))


def _packed(skipped: Skipped) -> list[object]:
    """Without the text that the reason has by default."""
    _, detail, advice = REASON_TEXTS[skipped.reason]
    custom = [skipped.detail, skipped.advice]
    return [
        skipped.path,
        str(skipped.reason),
        skipped.limit,
        skipped.pages,
        *(custom if custom != [detail, advice] else []),
    ]


def _unpacked(path: str, reason: str, limit: str, pages: int, *custom: str) -> Skipped:
    detail, advice = custom or REASON_TEXTS[SkipReason(reason)][1:]
    why = SkipReason(reason), str(detail), str(advice)
    return Skipped(str(path), *why, str(limit), int(pages))
