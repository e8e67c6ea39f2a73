"""Latency of the conversation store in milliseconds.

Uses a temporary store of 50 conversations with 200 messages each, one of them with a document of
5 MB, and a document of 100 MB.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from app.protocol.prompt import Role
from app.store.records import AttachmentRecord
from app.store.store import Store
from benchmarks.harness import Bench, Column, Goal, Options, Progress, Result, Row, Run, columns

CONVERSATIONS, MESSAGES, SCREENFUL = 50, 200, 30
DOCUMENT, LARGE = 5 * 2**20, 100 * 2**20
"""Sizes in bytes."""
VOCABULARY = 5000
GOAL = 50


def measure(options: Options, progress: Progress) -> Iterator[Row]:
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(VOCABULARY)]

    def text(count: int) -> str:
        return " ".join(["everywhere", *rng.choices(words, k=count)])

    def timed(name: str, goal: int | None, action: Callable[[], Any], times: Progress) -> Row:
        runs = times.repeat(name, partial(_milliseconds, action), warm_up=False)
        return Row({"operation": name, "goal": goal}, runs)

    with tempfile.TemporaryDirectory() as folder:
        with Store(Path(folder)) as store:
            progress.show("filling the store")
            conversation = _fill(store, text)
            large = text(LARGE // 8).encode()
            attached = store.attach("large.txt", large)
            for name, goal, action in (
                ("last 30 of 200 messages", GOAL, lambda: store.branch(conversation, SCREENFUL)),
                ("list of conversations", None, store.conversations),
                ("search, a rare word", GOAL, lambda: store.search(words[0])),
                ("search, two letters", GOAL, lambda: store.search(words[0][:2])),
                ("search, in every message", GOAL, lambda: store.search("everywhere")),
                ("a message, on the disk", None, lambda: _ask(store, conversation, text(50))),
            ):
                yield timed(name, goal, action, progress)
            once = Progress()
            save, load = "attach a document of 100 MB", "read a document of 100 MB"
            yield timed(save, None, lambda: store.attach("x", large), once)
            yield timed(load, None, lambda: sum(map(len, store.iter_bytes(attached))), once)
        yield timed("open and close", None, lambda: Store(Path(folder)).close(), progress)


def _fill(store: Store, text: Callable[[int], str]) -> int:
    """Add all conversations. Returns the id of the one with a document."""
    first = store.create().id
    document = text(DOCUMENT // 8).encode()
    _ask(store, first, text(50), store.attach("document.txt", document))
    for number in range(CONVERSATIONS):
        conversation = first if number == 0 else store.create().id
        for _ in range(len(store.branch(conversation)), MESSAGES):
            _ask(store, conversation, text(50))
    return first


def _ask(store: Store, conversation: int, text: str, *attachments: AttachmentRecord) -> None:
    store.add_message(conversation, Role.USER, text, attachments)


def _milliseconds(action: Callable[[], Any]) -> Run:
    started = time.perf_counter()
    action()
    return {"ms": (time.perf_counter() - started) * 1000}


def about(result: Result) -> str:
    return (
        f"Milliseconds in a store of {CONVERSATIONS} conversations of {MESSAGES} messages, one of"
        " them with a document of 5 MB."
    )


def goals(result: Result) -> Iterator[Goal]:
    for row in result.rows:
        if goal := row["goal"]:
            ms = row.median("ms")
            yield Goal(f"{row['operation']}: below {goal:g} ms", f"{ms:.1f} ms", ms < goal)


BENCH = Bench(
    "store",
    "latency of saving and opening conversations",
    "The store",
    measure,
    about,
    columns(
        Column("", "operation"),
        Column("ms", "ms", ".1f", spread=True),
        Column("goal", "goal", "g"),
    ),
    goals,
    flags={"runs": "5"},
)
