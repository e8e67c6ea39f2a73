"""What others measured is listed beside what is predicted here."""

from __future__ import annotations

import io
import json
from pathlib import Path

from app.bench import report_sections
from app.bench.published import published, rows


def test_every_pair_is_printed_with_both_figures() -> None:
    out = io.StringIO()
    assert published(False, out) == 0
    lines = out.getvalue().splitlines()[1:]
    for row, line in zip(rows(), lines, strict=True):
        assert line.startswith(row.name)
        assert line.split()[-3:-1] == [f"{row.measured:.2f}", f"{row.predicted:.2f}"]


def test_the_section_has_every_length_and_says_whether_the_order_holds() -> None:
    out = io.StringIO()
    published(True, out)
    figures = json.loads(out.getvalue())
    section = report_sections.published(figures)
    head, _, first, *rest = section.table.splitlines()
    assert "| 8K | 16K | 32K | 64K | 128K | predicted, 16K |" in head
    assert "| 3.71 | 4.11 | 4.23 | 4.50 | 5.45 |" in first
    assert len(rest) == 4
    assert section.aims[0].met
    figures["rows"].reverse()
    assert not report_sections.published(figures).aims[0].met


def test_the_quality_page_has_the_table_that_is_printed() -> None:
    out = io.StringIO()
    published(True, out)
    page = (Path(__file__).parents[2] / "docs/quality.md").read_text("utf-8")
    assert report_sections.published(json.loads(out.getvalue())).table in page
