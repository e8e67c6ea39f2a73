"""The README's picture: the map of one real answer, as an SVG of a terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from app.cli.report import Report, figures
from app.protocol.stats import Statistics

WIDTH = 100


def draw_map(
    path: str, question: str, report: Report, sparse: Statistics, full: Statistics
) -> None:
    """Write what was asked, the two strips, the answer and the figures to an SVG file."""
    console = Console(
        width=WIDTH, record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor"
    )
    importance, kept = report.strips(WIDTH - len(" importance")).splitlines()
    console.print(Text(f"❯ {question}\n", style="bold"))
    console.print(Text(importance, style="#e0a040"))
    console.print(Text(kept + "\n", style="#60b0f0"))
    console.print(Text(f"◆ {' '.join(report.answer.split())}\n"))
    console.print(Text(figures(sparse), style="dim"))
    console.print(Text(f"reading everything: first word {full.ttft:.2f} s", style="dim"))
    # Without the remote fonts that the format names: a picture should not fetch anything.
    local = re.sub(r"@font-face {{.*?}}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    svg = console.export_svg(title="specchat", code_format=local)
    Path(path).write_text(svg, encoding="utf-8")
