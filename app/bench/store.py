"""`specchat bench store`: how long the store of conversations keeps one waiting.

A temporary store of 50 conversations of 200 messages, one of them about a document of 5 MB, and a
document of 100 MB. Medians of milliseconds.
"""

from __future__ import annotations

import io
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from app.bench.median_range import spread
from app.sessions.records import Attachment, Role
from app.sessions.store import Store

CONVERSATIONS, MESSAGES, SCREENFUL = 50, 200, 30
DOCUMENT, LARGE = 5 * 2**20, 100 * 2**20
"""Bytes."""
_WORDS = 5000


@dataclass(frozen=True, slots=True)
class Measure:
    """`aim` is the most milliseconds it should take, None where there is no aim."""

    name: str
    aim: float | None
    milliseconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds)


def store(runs: int, as_json: bool, out: TextIO) -> int:
    """Measure each `runs` times and print medians; returns the exit status."""
    from app.bench.machine import machine

    with tempfile.TemporaryDirectory() as folder:
        measures = _measure(Path(folder), max(runs, 1))
    report = _json if as_json else _table
    out.write(report(measures, machine()))
    return 0


def _measure(folder: Path, runs: int) -> list[Measure]:
    chance = random.Random(0)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(_WORDS)]

    def text(count: int) -> str:
        return " ".join(["everywhere", *chance.choices(words, k=count)])

    with Store(folder) as kept:
        conversation = _fill(kept, text)
        large = text(LARGE // 8).encode()
        attached = kept.attach("large.txt", io.BytesIO(large))
        measures = [
            _timed(
                "last 30 of 200 messages", 50, runs, lambda: kept.branch(conversation, SCREENFUL)
            ),
            _timed("list of conversations", None, runs, kept.conversations),
            _timed("search, a rare word", 50, runs, lambda: kept.search(words[0])),
            _timed("search, two letters", 50, runs, lambda: kept.search(words[0][:2])),
            _timed("search, in every message", 50, runs, lambda: kept.search("everywhere")),
            _timed(
                "a message, on the disk", None, runs, lambda: _ask(kept, conversation, text(50))
            ),
            _timed("100 MB document in", None, 1, lambda: kept.attach("x", io.BytesIO(large))),
            _timed("100 MB document out", None, 1, lambda: _read(kept, attached)),
        ]
    return [*measures, _timed("start and end", None, runs, lambda: Store(folder).close())]


def _fill(kept: Store, text: Callable[[int], str]) -> int:
    """Conversations of questions and answers; returns the id of the one with a document."""
    first = kept.create().id
    _ask(
        kept, first, text(50), kept.attach("document.txt", io.BytesIO(text(DOCUMENT // 8).encode()))
    )
    for number in range(CONVERSATIONS):
        conversation = first if number == 0 else kept.create().id
        for _ in range(len(kept.branch(conversation)), MESSAGES):
            _ask(kept, conversation, text(50))
    return first


def _ask(kept: Store, conversation: int, text: str, *attachments: Attachment) -> None:
    kept.add_message(conversation, Role.USER, text, attachments)


def _read(kept: Store, attachment: Attachment) -> None:
    for _ in kept.iter_bytes(attachment):
        pass


def _timed(name: str, aim: float | None, runs: int, action: Callable[[], Any]) -> Measure:
    measured = []
    for _ in range(runs):
        begun = time.perf_counter()
        action()
        measured.append((time.perf_counter() - begun) * 1000)
    return Measure(name, aim, tuple(measured))


def _table(measures: list[Measure], described: str) -> str:
    lines = [
        f"{CONVERSATIONS * MESSAGES:,} messages, medians of {len(measures[0].milliseconds)}",
        described,
        "",
    ]
    for measure in measures:
        aim = "" if measure.aim is None else f"   (aim: below {measure.aim:.0f})"
        around = f"{min(measure.milliseconds):.1f} to {max(measure.milliseconds):.1f}"
        lines.append(f"{measure.name:<28}{measure.median:9.1f} ms   {around}{aim}")
    return "\n".join(lines) + "\n"


def _json(measures: list[Measure], described: str) -> str:
    figures = {
        measure.name: {
            "median_ms": measure.median,
            "spread_ms": spread(measure.milliseconds),
            "aim_ms": measure.aim,
        }
        for measure in measures
    }
    return json.dumps({"machine": described, "figures": figures}) + "\n"
