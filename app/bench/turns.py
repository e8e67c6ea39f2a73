"""`specchat bench turns`: how soon the first word of a later turn comes.

The embedded pair and a text of more than 4,096 tokens. Turn 2 asks about another place than turn 1,
of an engine that still holds the conversation, and of a new one that finds its snapshot on disk.
Seconds run from sending the question to the first piece of the answer, so they include fetching
the snapshot. Ratios are to turn 1 of the same run and reading.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from typing import TextIO

from app.bench.median_range import spread
from app.chat.conversation import Conversation, Question
from app.chat.engine_session import EngineSession
from app.chat.model_pairs import resolve_pair
from app.paths import assets_path
from app.protocol.commands import CachePolicy, Load
from app.protocol.events import Finished, Token
from app.protocol.options import Heal, Mode, Sampling
from app.protocol.prompt import Document
from app.protocol.stats import Statistics

FILE, KEEP = "gpl-3.0.txt", 0.1
QUESTIONS = (
    'What does it say of "Corresponding Source"?',
    'What does it say of "Limitation of Liability"?',
)
READINGS = {"sparse": Mode.SPARSE, "full": Mode.FULL}
_TOKENS = 32
"""Of an answer."""


@dataclass(frozen=True, slots=True)
class Turn:
    """`seconds` to the first word; the others are tokens."""

    seconds: float
    prompt: int
    kept: int
    reused: int
    recalled: int


@dataclass(frozen=True, slots=True)
class Run:
    """One conversation: turn 1, turn 2, and turn 2 after a restart."""

    first: Turn
    second: Turn
    restarted: Turn


def turns(runs: int, as_json: bool, out: TextIO) -> int:
    """Measure `runs` times and print medians; returns the exit status."""
    from app.bench.machine import machine

    load, document = resolve_pair(), _document()
    measured: dict[str, list[Run]] = {name: [] for name in READINGS}
    for index in range(max(runs, 1) + 1):  # the first one warms up and is not counted
        for name, mode in READINGS.items():
            run = _run(load, document, mode)
            measured[name] += [run] if index else []
    report = _json if as_json else _table
    out.write(report(measured, machine()))
    return 0


def _document() -> Document:
    return Document(FILE, (assets_path() / "demo" / FILE).read_text(encoding="utf-8"))


def _run(load: Load, document: Document, mode: Mode) -> Run:
    first, second = QUESTIONS
    with tempfile.TemporaryDirectory() as folder:
        upkeep = CachePolicy(Heal.NEVER, snapshot_folder=folder)
        # The one that is saved after turn 1 alone, and read again by another engine.
        chat = Conversation(Sampling(max_tokens=_TOKENS))
        with EngineSession(upkeep=upkeep) as session:
            session.load(load)
            _ask(session, chat, Question(first, (document,), mode, KEEP))
        with EngineSession(upkeep=upkeep) as session:
            session.load(load)
            restarted = _ask(session, chat, Question(second, (), mode, KEEP))
    chat = Conversation(Sampling(max_tokens=_TOKENS))
    with EngineSession(upkeep=CachePolicy(Heal.NEVER)) as session:
        session.load(load)
        return Run(
            _ask(session, chat, Question(first, (document,), mode, KEEP)),
            _ask(session, chat, Question(second, (), mode, KEEP)),
            restarted,
        )


def _ask(session: EngineSession, chat: Conversation, question: Question) -> Turn:
    turn, command = chat.start_turn(question)
    begun, seconds = time.perf_counter(), 0.0
    figures: Statistics | None = None
    for event in session.run(replace(command, conversation="bench")):
        turn.apply(event)
        if isinstance(event, Token) and not seconds:
            seconds = time.perf_counter() - begun
        if isinstance(event, Finished):
            figures = event.statistics
    if figures is None or not seconds or figures.fallback:
        raise RuntimeError("the turn was not answered as it was asked")
    return Turn(
        seconds,
        figures.prompt_tokens,
        figures.read_tokens,
        figures.reused_tokens,
        figures.recalled_tokens,
    )


def _ratios(runs: list[Run], later: str) -> list[float]:
    return [getattr(run, later).seconds / run.first.seconds for run in runs]


def _table(measured: dict[str, list[Run]], described: str) -> str:
    count, prompt = len(measured["full"]), measured["full"][0].first.prompt
    lines = [f"{prompt:,} tokens, sparse at keep {KEEP:.0%}, medians of {count}", described]
    for name, runs in measured.items():
        first = statistics.median(run.first.seconds for run in runs)
        lines += ["", f"{f'{name}, turn 1':<34}{first:9.3f} s"]
        for later, what in (("second", "turn 2"), ("restarted", "turn 2 after a restart")):
            turn: Turn = getattr(runs[-1], later)
            seconds = statistics.median(getattr(run, later).seconds for run in runs)
            ratio = spread(_ratios(runs, later))
            lines.append(
                f"{f'{name}, {what}':<34}{seconds:9.3f} s   {ratio.text('.1%')} of turn 1"
                f"   ({turn.reused:,} reused, {turn.recalled:,} recalled)"
            )
    return "\n".join(lines) + "\n"


def _json(measured: dict[str, list[Run]], described: str) -> str:
    figures = {
        name: {
            "turn_2": statistics.median(_ratios(runs, "second")),
            "turn_2_restarted": statistics.median(_ratios(runs, "restarted")),
            "turn_2_spread": spread(_ratios(runs, "second")),
            "turn_2_restarted_spread": spread(_ratios(runs, "restarted")),
            "runs": [asdict(run) for run in runs],
        }
        for name, runs in measured.items()
    }
    return json.dumps({"machine": described, "keep": KEEP, "ratios_to_turn_1": figures}) + "\n"
