"""The time to the first word in later turns.

Uses the embedded pair, or another target (`--target`, or `--shape` for random weights) with the
built-in scorer, and a text of more than 4,096 tokens or its first `--length`. Turn 2 asks about
another part of the text than turn 1, once with the conversation in memory and once in a new engine
that loads the snapshot. Then other conversations about the same text follow: a new one, a branch
from turn 4, and a duplicate. Seconds run from sending the question to the first token, including
loading the snapshot. Ratios are within a run and mode: turn 2 over turn 1, and another
conversation's question over the same one without any cache. Memory is the size of all caches over
that of the last conversation's.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from app.chat.conversation import Conversation, Question, Turn
from app.chat.engine_session import EngineSession
from app.chat.model_pairs import resolve_pair
from app.chat.sample import sample
from app.engine.engine import MlxEngine
from app.models.embedded import BUILT_IN
from app.protocol.commands import CachePolicy, Load
from app.protocol.events import Event, Finished, Token
from app.protocol.options import (
    AUTO_KEEP,
    DEFAULT_KEEP_RATIO,
    BackgroundPolicy,
    Mode,
    Sampling,
)
from app.protocol.prompt import Document
from benchmarks.harness import Bench, Column, Options, Progress, Result, Row, Run, columns
from benchmarks.shapes import save_target

KEEP = AUTO_KEEP
PASSAGES = (
    "Corresponding Source",
    "Limitation of Liability",
    "Basic Permissions",
    "Automatic Licensing",
    "Interpretation of Sections",
    "Disclaimer of Warranty",
)
QUESTIONS = tuple(f'What does it say of "{passage}"?' for passage in PASSAGES)
MODES = {"sparse": Mode.SPARSE, "full": Mode.FULL}
TURNS = (
    "turn 1",
    "turn 2",
    "turn 2 after a restart",
    "a new conversation about the same text",
    "a branch from turn 4 on",
    "a duplicate",
    "the tenth conversation about it",
)
CHATS = 10
ANSWER_TOKENS = 32
CHARACTERS_PER_TOKEN = 4
MB = 1e6


def measure(options: Options, progress: Progress) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        load, document, keep = resolve_pair(), sample(), KEEP
        if options.shapes:
            save_target(Path(folder), options.shape, options.scale)
            load, keep = resolve_pair(folder, BUILT_IN), DEFAULT_KEEP_RATIO
        elif options.target:
            load, keep = resolve_pair(options.target, BUILT_IN), DEFAULT_KEEP_RATIO
        if options.lengths:
            characters = round(options.lengths[0] * CHARACTERS_PER_TOKEN)
            document = replace(document, text=document.text[:characters])
        yield from _rows(progress, load, document, keep)


def _rows(progress: Progress, load: Load, document: Document, keep: float) -> Iterator[Row]:
    for name, mode in MODES.items():
        measured = progress.repeat(name, partial(_conversation, load, document, mode, keep))
        for index, turn in enumerate(TURNS):
            runs = [run[index] for run in measured]
            if index:
                fresh = [run[index].pop("fresh", run[0]["seconds"]) for run in measured]
                runs = [
                    run | {"ratio": run["seconds"] / seconds}
                    for run, seconds in zip(runs, fresh, strict=True)
                ]
            yield Row({"turn": f"{name}, {turn}"}, runs)


def _conversation(load: Load, document: Document, mode: Mode, keep: float) -> list[Run]:
    """Run all of TURNS."""
    first, *later = (
        Question(text, () if index else (document,), mode, keep)
        for index, text in enumerate(QUESTIONS)
    )
    with tempfile.TemporaryDirectory() as folder:
        policy = CachePolicy(BackgroundPolicy.OFF, snapshot_folder=folder)
        # This conversation is saved after turn 1 and restored by another engine.
        chat = _new()
        with EngineSession(upkeep=policy) as session:
            session.load(load)
            _ask(session, chat, first)
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        snapshot = sum(path.stat().st_size for path in files)
        with EngineSession(upkeep=policy) as session:
            session.load(load)
            restarted = _ask(session, chat, later[0]) | {"snapshot": snapshot / MB}
    chat, engine = _new(), MlxEngine()
    with EngineSession(engine, CachePolicy(BackgroundPolicy.OFF)) as session:
        session.load(load)
        runs = [_ask(session, chat, first)]
        assert engine._loaded is not None
        runs[0]["cache"] = engine._loaded.caches.nbytes / MB
        runs += [_ask(session, chat, later[0]), restarted]
        other = replace(later[1], documents=(document,))
        runs.append(_compared(session, _new, other, "new"))
        for question in later[1:4]:
            _ask(session, chat, question)
        runs.append(_compared(session, partial(_new, chat.turns[:4]), later[4], "branch"))
        runs.append(_compared(session, partial(_new, chat.turns), later[4], "duplicate"))
        for number in range(4, CHATS):
            asked = replace(later[number % len(later)], documents=(document,))
            ask = _compared if number == CHATS - 1 else _ask_new
            run = ask(session, _new, asked, f"other {number}")
        runs.append(run)
        caches = engine._loaded.caches
        runs[-1]["memory"] = caches.nbytes / (caches.nbytes - caches.idle_bytes)
    return runs


def _new(turns: Sequence[Turn] = ()) -> Conversation:
    """A new conversation that starts with these turns."""
    conversation = Conversation(Sampling(max_tokens=ANSWER_TOKENS))
    conversation.turns += turns
    return conversation


def _ask_new(
    session: EngineSession, new: Callable[[], Conversation], question: Question, name: str
) -> Run:
    return _ask(session, new(), question, name)


def _compared(
    session: EngineSession, new: Callable[[], Conversation], question: Question, name: str
) -> Run:
    """Like `_ask_new`, and also measure the same question without any cache."""
    fresh = _ask(session, new(), question, None)
    return _ask(session, new(), question, name) | {"fresh": fresh["seconds"]}


def _ask(
    session: EngineSession,
    chat: Conversation,
    question: Question,
    name: str | None = "bench",
) -> Run:
    """Ask a question; returns seconds to the first token, and token counts."""
    turn, command = chat.start_turn(question)
    started, seconds = time.perf_counter(), 0.0
    event: Event | None = None
    for event in session.run(replace(command, conversation=name)):
        turn.apply(event)
        if isinstance(event, Token) and not seconds:
            seconds = time.perf_counter() - started
    stats = event.statistics if isinstance(event, Finished) else None
    if stats is None or not seconds or stats.fallback:
        raise RuntimeError("the turn was not answered as it was asked")
    return {
        "seconds": seconds,
        "prompt": stats.prompt_tokens,
        "read": stats.read_tokens,
        "reused": stats.reused_tokens,
        "recalled": stats.recalled_tokens,
    }


def about(result: Result) -> str:
    shapes, target = result.options.get("shapes"), result.options.get("target")
    who, keep = "the embedded pair", "auto"
    if name := f"{shapes[0]} with random weights" if shapes else target:
        who, keep = f"{name} and the built-in scorer", f"{DEFAULT_KEEP_RATIO:g}"
    return (
        f"Seconds to the first word of an answer by {who}, about a text of"
        f" {result.rows[0].median('prompt'):,.0f} tokens, sparse at keep {keep}; each"
        " later turn asks about another part of it. Turn 2 is compared with turn 1, other"
        " conversations' questions with the same ones without anything cached. Memory: of the"
        f" caches of all {CHATS} conversations, to that of the last one alone. Cache and snapshot:"
        " of one conversation after turn 1, in memory and on disk."
    )


BENCH = Bench(
    "turns",
    "time to the first word in later turns",
    "Later turns",
    measure,
    about,
    columns(
        Column("", "turn"),
        Column("seconds to the first word", "seconds", spread=True),
        Column("of the first reading", "ratio", ".1%", spread=True),
        Column("tokens reused", "reused", ",.0f"),
        Column("recalled", "recalled", ",.0f"),
        Column("memory", "memory", ".2f", spread=True),
        Column("cache, MB", "cache", ".1f"),
        Column("snapshot, MB", "snapshot", ".1f"),
    ),
    report_args="--runs 3",
    flags={"target": None, "shape": None, "scale": "1", "length": None, "runs": "5"},
)
