"""`specchat demo`: the main job without a screen. A real long file, read sparsely and in full."""

from __future__ import annotations

import sys

from app.chat.conversation import Conversation, Question
from app.chat.engine_session import EngineSession
from app.chat.model_pairs import resolve_pair
from app.chat.sample import FILE, QUESTION, sample
from app.cli.report import Report
from app.protocol.commands import Ask
from app.protocol.events import Finished
from app.protocol.options import Mode
from app.protocol.prompt import Document
from app.protocol.stats import Statistics

KEEP = 0.2


def demo(picture: str | None = None) -> int:
    """Ask both ways and print the answers, the map, and the figures side by side."""
    document = sample()
    sys.stdout.write(f"{FILE}, {len(document.text):,} characters. {QUESTION}\n")
    with EngineSession() as session:
        session.load(resolve_pair())
        report, sparse = _answer(session, _ask(document, Mode.SPARSE), "Reading a fifth of it")
        _, full = _answer(session, _ask(document, Mode.FULL), "Reading all of it")
    sys.stdout.write(_side_by_side(sparse, full))
    if picture is not None:
        from app.cli.picture import draw_map

        draw_map(picture, QUESTION, report, sparse, full)
    return 0


def _ask(document: Document, mode: Mode) -> Ask:
    return Conversation().start_turn(Question(QUESTION, (document,), mode, KEEP))[1]


def _answer(session: EngineSession, command: Ask, title: str) -> tuple[Report, Statistics]:
    sys.stdout.write(f"\n── {title} ──\n\n")
    report = Report(command, with_map=command.mode is Mode.SPARSE)
    for event in session.run(command):
        report.show(event)
        if isinstance(event, Finished) and event.statistics is not None:
            return report, event.statistics
    raise AssertionError("a turn that was not cancelled ends with statistics")


def _side_by_side(sparse: Statistics, full: Statistics) -> str:
    rows = [
        ("", "sparse", "full"),
        ("tokens read", f"{sparse.read_tokens:,}", f"{full.read_tokens:,}"),
        ("of the prompt", f"{sparse.read_fraction:.1%}", f"{full.read_fraction:.1%}"),
        ("first word", f"{sparse.ttft:.2f} s", f"{full.ttft:.2f} s"),
        ("peak memory", f"{sparse.peak_bytes / 1e6:.0f} MB", f"{full.peak_bytes / 1e6:.0f} MB"),
    ]
    table = "".join(f"{name:<14}{a:>10}{b:>10}\n" for name, a, b in rows)
    return f"\n{table}\nThe first word came {full.ttft / sparse.ttft:.1f} times sooner.\n"
