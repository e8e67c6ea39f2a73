"""What the pictures show: documents, questions, and conversations of other days."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from app.engine.turn.citations import ReadText, cite
from app.protocol.citations import Citations
from app.protocol.prompt import Role
from app.store.records import ReadMap
from app.store.store import Store
from tests.fakes import ANSWER, Story
from tests.store.samples import answer_stats

LICENCE = Path(__file__).parents[3] / "assets" / "demo" / "gpl-3.0.txt"
QUESTION = "What is the Corresponding Source, and what does it leave out?"
BUCKETS = 128


def licence() -> str:
    return LICENCE.read_text(encoding="utf-8")


def importance(text: str, *words: str) -> tuple[float, ...]:
    """As a draft would see it, about: where the words of a question are, and a little around."""
    size = len(text) / BUCKETS
    parts = [text[round(i * size) : round((i + 1) * size)].lower() for i in range(BUCKETS)]
    found = [sum(part.count(word) for word in words) + len(set(part)) / 400 for part in parts]
    near = [0.0, *found, 0.0]
    spread = [0.45 * near[i] + near[i + 1] + 0.2 * near[i + 2] for i in range(BUCKETS)]
    return tuple(value / max(spread) for value in spread)


def story(**changes: object) -> Story:
    """Of the licence, at the pace of an 8B model."""
    heat = importance(licence(), "corresponding source", "source code", "system librar")
    settings: dict[str, object] = {"importance": heat, "slowness": 4.0, **changes}
    return Story(**settings)  # type: ignore[arg-type]


def citations() -> Citations:
    """What the answer quotes from the licence."""
    text = licence()
    whole = ReadText(0, 0, text, np.zeros(len(text) + 1, np.int64))
    return cite(ANSWER, QUESTION, [whole], None)


def earlier_conversations(folder: Path) -> None:
    """Six of them, the first one pinned."""
    said = (
        (
            "2025-11-28 09:12",
            "Lease contract, Hafenstraße",
            "The tenant pays for all repairs.",
            212,
        ),
        ("2026-02-03 17:40", "Why did the nightly backup time out?", "The lock was held.", 1_840),
        ("2026-02-19 11:05", "A tour of this repository", "Begin with app/engine/turn.py.", 640),
        ("2026-03-02 20:31", "Minutes of all meetings: who decided what?", "See below.", 96),
        ("2026-03-12 08:55", "Termination rights in the supply agreement", "Clause 14.2.", 480),
        (
            "2026-03-13 10:20",
            "Compare the two drafts of chapter 3",
            "The second one is calmer.",
            71,
        ),
    )
    for when, title, answer, kilobytes in said:
        then = datetime.strptime(when, "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
        with Store(folder, clock=lambda then=then: then) as store:
            conversation = store.create(title)
            text = f"{title}\n" * (kilobytes * 1_000 // (len(title) + 1))
            document = store.attach("document.txt", text.encode())
            asked = store.add_message(conversation.id, Role.USER, title, [document])
            reply = store.begin_reply(asked.id)
            reply.append(answer)
            reply.finish(answer_stats(), ReadMap())
            if conversation.id == 1:
                store.pin(1)
