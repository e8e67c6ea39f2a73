"""`specchat demo`: answers a question about a long file, reading sparsely and in full."""

from __future__ import annotations

import argparse
import io
import re
import sys
from dataclasses import replace
from pathlib import Path

from app.chat import reading_words
from app.chat.conversation import Conversation, Question, Turn
from app.chat.engine_session import EngineSession
from app.chat.model_pairs import resolve_pair
from app.chat.sample import QUESTION, REAL_QUESTION, first_half, sample
from app.cli.models import pull
from app.cli.report import Report
from app.models.cache import default_cache
from app.models.first_model import ON_CPU, WITH_GPU, first_model
from app.protocol.options import Mode, Sampling
from app.protocol.stats import Phase, Statistics
from app.util.tables import TextTable

KEEP = 0.2
PICTURE_WIDTH = 100
_CHOOSING = (Phase.SCORE, Phase.LOOKAHEAD, Phase.SELECT)
MAX_TOKENS = 256
ONLY_QUOTES = (
    f"This demo model can only quote. `specchat demo --real` asks {first_model().name_and_size},"
    f" {first_model().promise}.\n"
)
_WORTH_SAYING = 1.05


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--picture", metavar="SVG", help="write a picture of what the sparse answer read"
    )
    command.add_argument(
        "--real",
        action="store_true",
        help=f"use a small real model, which is downloaded once ({WITH_GPU.download / 1e6:.0f} MB;"
        f" on Linux {ON_CPU.download / 1e6:.0f} MB)",
    )


def run(args: argparse.Namespace) -> int:
    """Print the answers in both modes, the map, and the statistics side by side. With --real, the
    model is downloaded if it is not installed, and the built-in scorer scores. Raises UserError."""
    document, question, pair, real = sample(), QUESTION, resolve_pair(), args.real
    if real:
        model, cache = first_model(), default_cache()
        if cache.find(model.repository) is None:
            sys.stderr.write(f"Downloading {model.name_and_size} once…\n")
            if status := pull(cache, model.repository):
                return status
        document, question = first_half(), REAL_QUESTION
        pair = resolve_pair(model.repository)
    sys.stdout.write(f"{document.name}, {len(document.text):,} characters. {question}\n")
    with EngineSession() as session:
        session.load(pair)
        asked = Question(question, (document,), Mode.SPARSE, KEEP)
        report, turn = _answer(session, asked, "Reading a fifth of it", not real)
        whole = replace(asked, mode=Mode.FULL)
        _, full_turn = _answer(session, whole, "Reading all of it", not real)
    sparse, full = turn.statistics, full_turn.statistics
    assert sparse is not None
    assert full is not None
    sys.stdout.write(_side_by_side(sparse, full))
    if not real:
        sys.stdout.write(ONLY_QUOTES)
    if args.picture is not None:
        _draw_map(args.picture, turn, report, sparse, full)
    return 0


def _answer(
    session: EngineSession, question: Question, title: str, quotes: bool
) -> tuple[Report, Turn]:
    sys.stdout.write(f"\n── {title} ──\n\n")
    cut_off = f"Cut off after {MAX_TOKENS} tokens."
    conversation = Conversation(sampling=Sampling(MAX_TOKENS))
    turn, command = conversation.start_turn(question)
    report = Report(turn, conversation, question.mode is Mode.SPARSE, cut_off, quotes)
    for event in session.run(command):
        turn.apply(event)
        report.show(event)
    return report, turn


def _side_by_side(sparse: Statistics, full: Statistics) -> str:
    rows = [
        ("tokens read", f"{_read(sparse):,}", f"{_read(full):,}"),
        ("of the document", f"{sparse.read_fraction:.1%}", f"{full.read_fraction:.1%}"),
        ("first word", f"{sparse.ttft:.2f} s", f"{full.ttft:.2f} s"),
        ("peak memory", f"{sparse.peak_bytes / 1e6:.0f} MB", f"{full.peak_bytes / 1e6:.0f} MB"),
    ]
    table = TextTable(["", "sparse", "full"], rows).plain()
    return f"\n{table}\n\n{_comparison(sparse, full)}\n"


def _read(statistics: Statistics) -> int:
    return 0 if statistics.documents is None else statistics.documents.read


def _comparison(sparse: Statistics, full: Statistics) -> str:
    """Which answer's first word came sooner, and why."""
    if full.ttft >= _WORTH_SAYING * sparse.ttft:
        return f"The first word came {full.ttft / sparse.ttft:.1f} times faster."
    choosing = sum(each.seconds for each in sparse.phases if each.phase in _CHOOSING)
    return (
        f"The first word did not come sooner: choosing what to read took {choosing:.1f} of"
        f" {sparse.ttft:.1f} s."
    )


def _draw_map(path: str, turn: Turn, report: Report, sparse: Statistics, full: Statistics) -> None:
    """Write a picture of question, strips, answer and statistics, as an SVG of a terminal."""
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
    console.print(Text(f"❯ {turn.question.text}\n", style="bold"))
    console.print(Text(importance, style="#e0a040"))
    console.print(Text(selected + "\n", style="#60b0f0"))
    console.print(Text(f"◆ {' '.join(turn.text.split())}\n"))
    console.print(Text(reading_words.reading_line(sparse), style="dim"))
    console.print(Text(reading_words.reading_line(full), style="dim"))
    # Remove remote fonts from the format, because a picture should not load anything.
    local = re.sub(r"@font-face {{[^{}]*+}}\n", "", CONSOLE_SVG_FORMAT)
    svg = console.export_svg(title="specchat", code_format=local)
    Path(path).write_text(svg, encoding="utf-8")
