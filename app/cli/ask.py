"""`specchat ask`: one question, one answer, for a shell."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from app.chat.conversation import Conversation, Question, check_sampling
from app.chat.pairs import pair
from app.chat.session import EngineError, Session
from app.cli.interrupt import first_interrupt
from app.cli.main import INTERRUPTED
from app.cli.report import Report
from app.engine.messages import (
    DEFAULT_KEEP,
    Ask,
    Ended,
    Event,
    Failed,
    Finished,
    Mode,
    Sampling,
    Statistics,
)
from app.ingest.reader import read


def ask(options: argparse.Namespace) -> int:
    """Answer `options.question`. Everything that can be checked is checked before a model loads."""
    command = _command(options)
    models = pair(options.target, options.draft)
    report = JsonLines() if options.json else Report(command, options.map)
    with Session() as session:
        report.show(session.load(models))
        events = session.run(command)
        with first_interrupt(lambda: session.cancel(command.turn)):
            for event in events:
                report.show(event)
    if isinstance(event, Failed):
        raise EngineError(event.problem, event.advice)
    cancelled = isinstance(event, Finished) and event.ended is Ended.CANCELLED
    return INTERRUPTED if cancelled else 0


def _command(options: argparse.Namespace) -> Ask:
    mode, keep = Mode.AUTO, DEFAULT_KEEP
    if options.full:
        mode = Mode.FULL
    elif options.keep is not None:
        mode, keep = Mode.SPARSE, options.keep
    sampling = Sampling(options.max_tokens, options.temp, seed=options.seed)
    check_sampling(sampling)
    question = Question(options.question, (), mode, keep)
    question.check()
    gathered = read(options.files, sys.stdin.buffer if sys.stdin else None)
    for skipped in gathered.skipped:
        sys.stderr.write(f"Skipped {skipped.path}: {skipped.reason}\n")
    question = dataclasses.replace(question, documents=gathered.documents)
    return Conversation(sampling).begin(question)[1]


class JsonLines:
    """Every event as one JSON object: its class's name under `event`, then its fields."""

    def show(self, event: Event) -> None:
        sys.stdout.write(json.dumps({"event": type(event).__name__} | _plain(event)) + "\n")
        sys.stdout.flush()


def _plain(event: Event) -> dict[str, Any]:
    fields = dataclasses.asdict(event)
    statistics: Statistics | None = getattr(event, "statistics", None)
    if statistics is not None:
        fields["statistics"] |= {
            "read_fraction": statistics.read_fraction,
            "decode_rate": statistics.decode_rate,
        }
    return fields
