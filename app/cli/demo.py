"""`specchat demo`: a question about a long file, read sparsely and in full, without the app."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from app.chat.conversation import Conversation, Question
from app.chat.engine_session import EngineSession
from app.chat.model_pairs import resolve_pair
from app.chat.sample import FILE, QUESTION, sample
from app.cli.report import Report, stats_line
from app.protocol.commands import Ask
from app.protocol.events import Finished
from app.protocol.options import Mode
from app.protocol.prompt import Document
from app.protocol.stats import Statistics

KEEP = 0.2
PICTURE_WIDTH = 100


def demo(picture: str | None = None) -> int:
    """Prints the answers in both modes, the map, and the statistics side by side; with `picture`,
    writes the map to an SVG file."""
    document = sample()
    sys.stdout.write(f"{FILE}, {len(document.text):,} characters. {QUESTION}\n")
    with EngineSession() as session:
        session.load(resolve_pair())
        report, sparse = _answer(session, _ask(document, Mode.SPARSE), "Reading a fifth of it")
        _, full = _answer(session, _ask(document, Mode.FULL), "Reading all of it")
    sys.stdout.write(_side_by_side(sparse, full))
    if picture is not None:
        _draw_map(picture, report, sparse, full)
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
        ("first token", f"{sparse.ttft:.2f} s", f"{full.ttft:.2f} s"),
        ("peak memory", f"{sparse.peak_bytes / 1e6:.0f} MB", f"{full.peak_bytes / 1e6:.0f} MB"),
    ]
    table = "".join(f"{name:<14}{a:>10}{b:>10}\n" for name, a, b in rows)
    return f"\n{table}\nThe first word came {full.ttft / sparse.ttft:.1f} times faster.\n"


def _draw_map(path: str, report: Report, sparse: Statistics, full: Statistics) -> None:
    """The README's picture: question, strips, answer and statistics, as an SVG of a terminal."""
    from rich._export_format import CONSOLE_SVG_FORMAT
    from rich.console import Console
    from rich.text import Text

    console = Console(
        width=PICTURE_WIDTH,
        record=True,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
    )
    importance, selected = report.strips(PICTURE_WIDTH - len(" importance")).splitlines()
    console.print(Text(f"❯ {QUESTION}\n", style="bold"))
    console.print(Text(importance, style="#e0a040"))
    console.print(Text(selected + "\n", style="#60b0f0"))
    console.print(Text(f"◆ {' '.join(report.answer.split())}\n"))
    console.print(Text(stats_line(sparse), style="dim"))
    console.print(Text(f"reading everything: first word {full.ttft:.2f} s", style="dim"))
    # Without the remote fonts in the format: a picture should not load anything.
    local = re.sub(r"@font-face {{.*?}}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    svg = console.export_svg(title="specchat", code_format=local)
    Path(path).write_text(svg, encoding="utf-8")
