"""Writes results as a table for a terminal, as Markdown with a figure, and as JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from app.protocol.options import DEFAULT_TUNING, Mode
from app.protocol.stats import FinishReason, Reading
from app.util.tables import TextTable
from benchmarks.quality import results
from benchmarks.quality.results import (
    EQUIVALENCE_MARGIN,
    KEEP_CURVE,
    AnswerCell,
    EquivalencePoint,
    GuardStats,
    Interval,
    KeepRow,
    RealCell,
    ResultCell,
    SparseCell,
    confidence_note,
    keep_rows,
    keep_table,
)
from benchmarks.quality.results_log import Record
from benchmarks.quality.settings import Scoring, Settings
from benchmarks.quality.suites import ANSWERED, ONLY_PASSAGES

COLUMNS = 80
BY_CASE = ("adversarial",)
"""Suites with a row for each case."""
KINDS = {True: "safe", False: "unsafe", None: "open"}
NOTHING_DENSE = (
    "Nothing was read in full: these are the answers that came out right, and the median of the"
    " seconds to the first token. What a full prefill would have answered is not known."
)
EQUIVALENCE = (
    "The smallest keep from which on the safe suites together stay within"
    f" {100 * EQUIVALENCE_MARGIN:.0f} points of dense, how many times faster the first token then"
    " comes than with a full prefill, and how many times slower than with the default scoring"
    f" ({Scoring.BOTH}) at its own smallest keep:"
)

REAL_DOCUMENTS = (
    "Passage: the items whose answer's passage was read whole. Same: answers with the same tokens"
    " as dense."
)
ANSWERS = (
    "Full, right: answers that are right read in full, and as the row says. Kept: those right in"
    " full that are right here, too, with its interval. Gained: right here and wrong in full. In"
    " full: how often this configuration read everything, and how often because of the guard."
)
PASSAGES = "The items whose answer's passage was selected whole, %, at each keep."


@dataclass(frozen=True)
class Study:
    """The data of a report. `pair`: displayed names of target and draft. `command`: reproduces the
    report."""

    settings: Settings
    pair: tuple[str, str | None]
    version: str
    machine: str
    command: str
    records: tuple[Record, ...]
    skipped: tuple[str, ...] = ()
    stale: int = 0

    @cached_property
    def cells(self) -> tuple[ResultCell, ...]:
        return results.cells(self.records)

    @cached_property
    def cases(self) -> tuple[ResultCell, ...]:
        return results.cells(self.records, by_case=True)

    @cached_property
    def equals(self) -> tuple[EquivalencePoint, ...]:
        return results.equivalence_points(self.records)

    @cached_property
    def real(self) -> tuple[RealCell, ...]:
        return results.real_cells(self.records)

    @cached_property
    def answer_cells(self) -> tuple[AnswerCell, ...]:
        return results.answer_cells(self.records)

    @property
    def answered(self) -> list[RealCell]:
        return [cell for cell in self.real if cell.suite not in ONLY_PASSAGES]

    @property
    def passages(self) -> list[RealCell]:
        return [cell for cell in self.real if cell.suite in ONLY_PASSAGES]

    @cached_property
    def keep_curve(self) -> tuple[KeepRow, ...]:
        return keep_rows(self.records)

    @cached_property
    def guard(self) -> GuardStats | None:
        return results.guard_stats(self.records)

    @cached_property
    def sparse_only(self) -> tuple[SparseCell, ...]:
        """Cells without dense answers; empty unless `sparse_only`."""
        return results.sparse_cells(self.records) if self.settings.sparse_only else ()

    @property
    def title(self) -> str:
        target, draft = self.pair
        return f"{target} with {draft}" if draft else target

    @property
    def answers(self) -> list[Record]:
        """Records of suites that have answers."""
        return [record for record in self.records if record.suite not in ONLY_PASSAGES]

    def notes(self) -> list[str]:
        """Sentences about skipped, failed or stale runs."""
        notes = list(self.skipped)
        exact = [cell for cell in self.cells if cell.differing is not None]
        for cell in exact:
            if cell.differing:
                where = f"{cell.suite} at {cell.length:,} tokens, scoring {cell.scoring}"
                notes.append(f"{where}: {cell.differing} of {cell.n} differ from dense at keep 1.")
        if exact and not any(cell.differing for cell in exact):
            notes.append(f"At keep 1, all {sum(c.n for c in exact)} answers equal the dense ones.")
        if (note := confidence_note(self.answers)) is not None:
            notes.append(note)
        for sentence, times in results.failures(self.records).items():
            turns = "1 turn" if times == 1 else f"{times} turns"
            notes.append(f"{turns} of {len(self.records)}: {sentence}")
        dense_runs = [
            r for r in self.records if r.mode == Mode.SPARSE and r.reading == Reading.DENSE
        ]
        if dense := sum(record.fallback is None for record in dense_runs):
            notes.append(f"{dense} turns should have been read sparsely, and were read in full.")
        if cut := sum(
            r.ended == FinishReason.LENGTH and not r.answer.strip() for r in self.answers
        ):
            notes.append(
                f"{cut} of {len(self.answers)} answers were cut off before their first word:"
                " this happens with models that think first."
            )
        if self.stale:
            notes.append(
                f"{self.stale} of {len(self.records)} results were measured earlier, with other"
                " code of specchat; with --fresh all are measured again."
            )
        return notes


# ------------------------------------------------------------------------------- the tables


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _range(interval: Interval) -> str:
    return f"{100 * interval.low:.0f}–{100 * interval.high:.0f}"


def _times(ratio: float | None, form: str = ".2f") -> str:
    return "" if ratio is None else f"{ratio:{form}}x"


def _groups(cells: Iterable[ResultCell | AnswerCell]) -> list[tuple[int, str]]:
    groups = {(cell.length, cell.scoring) for cell in cells}
    return sorted(groups, key=lambda group: (group[0], results.scoring_order(group[1])))


def _short_table(cells: Iterable[ResultCell]) -> TextTable:
    """A table for one length and scoring, narrow enough for a terminal."""
    head = ("suite", "keep", "n", "dense", "right", "95 %", "lost", "gained", "read", "faster")
    body = []
    for cell in cells:
        shares = [f"{share:.0%}" for share in (cell.dense.share, cell.accuracy.share)]
        row = [
            cell.suite,
            results.keep_label(cell.keep),
            str(cell.n),
            *shares,
            _range(cell.accuracy),
        ]
        row += [str(cell.regressions), str(cell.repairs), f"{cell.read_fraction:.0%}"]
        body.append([*row, _times(cell.ttft_ratio, ".1f")])
    return TextTable(head, body)


def _cell_table(cells: Sequence[ResultCell], by_case: bool) -> TextTable:
    head = ["case"] if by_case else []
    head += ["scoring", "length", "keep", "n", "dense", "right", "95 %", "lost", "lost, %"]
    head += ["gained", "read, %", "faster", "fell back", "failed"]
    body = []
    for cell in cells:
        row = [cell.case or "all"] if by_case else []
        row += [cell.scoring, f"{cell.length:,}", results.keep_label(cell.keep), str(cell.n)]
        row += [_percent(cell.dense.share), _percent(cell.accuracy.share), _range(cell.accuracy)]
        row += [str(cell.regressions), _percent(cell.regressed), str(cell.repairs)]
        row += [_percent(cell.read_fraction), _times(cell.ttft_ratio, ".1f")]
        body.append([*row, str(cell.fell_back), str(cell.failed)])
    return TextTable(head, body, texts=2 if by_case else 1)


def _sparse_table(cells: Sequence[SparseCell]) -> TextTable:
    head = ("suite", "scoring", "length", "keep", "n", "right", "95 %", "read, %", "TTFT, s")
    body = []
    for cell in cells:
        row = [
            cell.suite,
            cell.scoring,
            f"{cell.length:,}",
            results.keep_label(cell.keep),
            str(cell.n),
        ]
        row += [str(cell.right), _range(cell.accuracy), _percent(cell.read_fraction)]
        body.append([*row, "" if cell.ttft is None else f"{cell.ttft:.1f}"])
    return TextTable(head, body, texts=2)


def _equivalence_table(rows: Sequence[EquivalencePoint]) -> TextTable:
    body = []
    for r in rows:
        row = [f"{r.length:,}", r.scoring, "none" if r.keep is None else f"{r.keep:g}", str(r.n)]
        row += [_percent(r.dense), _percent(r.right), _times(r.faster), _times(r.slowdown)]
        body.append(row)
    head = ("length", "scoring", "keep", "n", "dense", "right", "faster", "slower")
    return TextTable(head, body, texts=2)


def _real_table(rows: Iterable[RealCell]) -> TextTable:
    head = ["suite", "scoring", "length", "keep", "n", "passage, %", "95 %"]
    head += ["same, %"]
    body = []
    for r in rows:
        row = [r.suite, r.scoring, f"{r.length:,}", results.keep_label(r.keep), str(r.n)]
        row += [_percent(r.passage.share), _range(r.passage)]
        body.append([*row, "" if r.agreed is None else _percent(r.agreed.share)])
    return TextTable(head, body, texts=2)


def _answer_table(cells: Iterable[AnswerCell], narrow: bool = False) -> TextTable:
    """`narrow`: for one length and scoring, in a terminal."""
    head = ["kind"] if narrow else ["kind", "scoring", "length"]
    head += ["keep", "n", "full", "right", "kept", "95 %", "gained", "read", "in full"]
    body = []
    for c in cells:
        row = [c.kind] if narrow else [c.kind, c.scoring, f"{c.length:,}"]
        row += [c.label, str(c.n)]
        row += [f"{share:.0%}" for share in (c.dense.share, c.accuracy.share)]
        row += [f"{c.kept.share:.0%}" if c.dense.share else "", _range(c.kept), str(c.gained)]
        in_full = f"{c.in_full} ({c.flagged})" if c.flagged else str(c.in_full)
        body.append([*row, f"{c.read_fraction:.0%}", in_full])
    return TextTable(head, body, texts=1 if narrow else 2)


def _passage_table(cells: Sequence[RealCell]) -> TextTable:
    """A row for each suite, a column for each keep."""
    keeps = sorted({cell.keep for cell in cells})
    rows: dict[tuple[str, str, int], dict[float, RealCell]] = {}
    for cell in cells:
        rows.setdefault((cell.suite, cell.scoring, cell.length), {})[cell.keep] = cell
    body = []
    for (suite, scoring, length), by_keep in rows.items():
        shares = [_percent(by_keep[k].passage.share) if k in by_keep else "" for k in keeps]
        n = max(cell.n for cell in by_keep.values())
        body.append([suite, scoring, f"{length:,}", str(n), *shares])
    head = ("suite", "scoring", "length", "n", *map(results.keep_label, keeps))
    return TextTable(head, body, texts=2)


def _guard_table(guard: GuardStats) -> TextTable:
    body = []
    for r in guard.suites:
        shares = [_percent(r.dense_right / r.n), _percent(r.right / r.n)]
        spread = "" if r.spread is None else f"{r.spread:.2f}"
        body.append([r.suite, KINDS[r.safe], str(r.n), str(r.flagged), *shares, spread])
    head = ("suite", "kind", "n", "flagged", "dense right, %", "auto right, %", "spread")
    return TextTable(head, body, texts=2)


def _guard_summary(guard: GuardStats) -> str:
    recall = f"{guard.recall.share:.0%} ({_range(guard.recall)})" if guard.unsafe else "not known"
    precision = f"{guard.precision.share:.0%} ({_range(guard.precision)})"
    precision = precision if guard.flagged else "not known"
    separation = ""
    if guard.separation is not None:
        separation = (
            f" The spread of importance alone would separate {guard.separation:.0%} of the pairs of"
            " an unsafe and a safe item."
        )
    return (
        f"The guard in auto mode: recall {recall} of {guard.unsafe} unsafe items,"
        f" precision {precision} of {guard.flagged} flagged items.{separation}"
    )


# ------------------------------------------------------------------------------- in a terminal


def table(study: Study) -> str:
    """The tables for a terminal, at most COLUMNS wide, one for each length and scoring."""
    parts: list[str] = []
    cells = [cell for cell in study.cells if cell.suite not in ANSWERED]
    for length, scoring in _groups(cells):
        group = [cell for cell in cells if (cell.length, cell.scoring) == (length, scoring)]
        parts.append(f"{length:,} tokens, scoring {scoring}\n{_short_table(group).plain()}")
    answers = study.answer_cells
    for length, scoring in _groups(answers):
        here = [cell for cell in answers if (cell.length, cell.scoring) == (length, scoring)]
        rows = _answer_table(here, narrow=True).plain()
        parts.append(f"Answers, {length:,} tokens, scoring {scoring}\n{rows}")
    parts += [_wrapped(ANSWERS)] if answers else []
    if study.sparse_only:
        parts += [_wrapped(NOTHING_DENSE), _sparse_table(study.sparse_only).plain()]
    if study.equals:
        parts.append(f"{_wrapped(EQUIVALENCE)}\n{_equivalence_table(study.equals).plain()}")
    if study.answered:
        parts.append(f"{_wrapped(REAL_DOCUMENTS)}\n{_real_table(study.answered).plain()}")
    if study.passages:
        parts.append(f"{_wrapped(PASSAGES)}\n{_passage_table(study.passages).plain()}")
    if study.guard is not None:
        parts.append(
            f"{_wrapped(_guard_summary(study.guard))}\n{_guard_table(study.guard).plain()}"
        )
    if notes := study.notes():
        parts.append("\n".join(map(_wrapped, notes)))
    return "\n\n".join(parts) + "\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, COLUMNS - 1)


# ---------------------------------------------------------------------------------- Markdown


def markdown(study: Study) -> str:
    """The whole report as Markdown."""
    against = "by itself" if study.settings.sparse_only else "against dense"
    parts = [f"# Sparse reading {against}: {_escape(study.title)}", _about(study)]
    parts.append(f"```sh\n{study.command}\n```")
    if study.sparse_only:
        parts += [NOTHING_DENSE, _sparse_table(study.sparse_only).markdown()]
    if study.cells:
        parts += _overview(study)
        if study.equals:
            points = _equivalence_table(study.equals).markdown()
            parts += ["## Equal answers", EQUIVALENCE, points]
        parts += _details(study)
    if study.answered:
        parts += ["## Real documents", REAL_DOCUMENTS, _real_table(study.answered).markdown()]
    if study.answer_cells:
        parts += ["## Answers", ANSWERS, _answer_table(study.answer_cells).markdown()]
    if study.passages:
        parts += ["## Passages", PASSAGES, _passage_table(study.passages).markdown()]
    if study.keep_curve:
        parts += ["## Keep that the scores choose", KEEP_CURVE]
        parts.append(keep_table(study.keep_curve).markdown())
    if study.guard is not None:
        parts += ["## The guard", _guard_summary(study.guard), _guard_table(study.guard).markdown()]
    if notes := study.notes():
        parts += ["## Notes", "\n".join(f"- {_escape(note)}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def _about(study: Study) -> str:
    settings = study.settings
    tuning = asdict(settings.tunings[0] if len(settings.tunings) == 1 else DEFAULT_TUNING)
    held_out = "held-out wordings" if settings.held_out else "trained wordings"
    only = "" if settings.only is None else ", only of those answered right in full before"
    lines = [
        f"specchat {study.version}; {_escape(study.machine)}.",
        f"Up to {settings.n} items a suite and length{only}, seed {settings.seed}, {held_out},"
        " greedy.",
        "Tuning, unless stated otherwise: "
        + ", ".join(f"{name} {value}" for name, value in tuning.items())
        + ".",
        "Intervals are Wilson's at 95 %. Read: mean share of the prompt that the target read.",
    ]
    if not settings.sparse_only:
        lines[-1] = (
            "Lost: right when read in full and wrong when read sparsely; gained: the other way"
            f" round. {lines[-1]} Faster: median of the time to the first token, dense over sparse."
        )
    return "\n".join(f"- {line}" for line in lines)


def _overview(study: Study) -> list[str]:
    """A table for each length: a row per suite and scoring, a column per keep."""
    parts = ["## Accuracy, %"]
    for length in sorted({cell.length for cell in study.cells}):
        group = [cell for cell in study.cells if cell.length == length]
        keeps = sorted({cell.keep for cell in group})
        rows: dict[tuple[str, str], dict[float, ResultCell]] = {}
        for cell in group:
            rows.setdefault((cell.suite, cell.scoring), {})[cell.keep] = cell
        body = []
        for (suite, scoring), by_keep in rows.items():
            dense = max(by_keep.values(), key=lambda cell: cell.n).dense
            shares = [_percent(by_keep[k].accuracy.share) if k in by_keep else "" for k in keeps]
            body.append([suite, scoring, _percent(dense.share), *shares])
        head = [
            "suite",
            "scoring",
            "dense",
            *(f"keep {results.keep_label(keep)}" for keep in keeps),
        ]
        parts += [f"### {length:,} tokens", TextTable(head, body, texts=2).markdown()]
    return parts


def _details(study: Study) -> list[str]:
    parts = ["## Each suite"]
    for suite in dict.fromkeys(cell.suite for cell in study.cells):
        group = [cell for cell in study.cells if cell.suite == suite]
        if suite in BY_CASE:
            group += [cell for cell in study.cases if cell.suite == suite]
        parts += [f"### {suite}", _cell_table(group, suite in BY_CASE).markdown()]
    return parts


def _escape(text: str) -> str:
    """Escape Markdown's special characters in text from outside."""
    flat = " ".join(text.split())
    return "".join(f"\\{c}" if c in "\\`*_[]<>|" else c for c in flat)


def as_json(study: Study) -> str:
    """Settings, machine, cells and records as JSON."""
    settings: dict[str, Any] = {f.name: getattr(study.settings, f.name) for f in fields(Settings)}
    settings["files"] = [document.name for document in study.settings.files]
    settings["tunings"] = [asdict(tuning) for tuning in study.settings.tunings]
    content = {
        "specchat": study.version,
        "command": study.command,
        "pair": study.pair,
        "machine": study.machine,
        "settings": settings,
        "skipped": study.skipped,
        "stale": study.stale,
        "cells": [asdict(cell) for cell in study.cells],
        "sparse_only": [asdict(cell) for cell in study.sparse_only],
        "cases": [asdict(cell) for cell in study.cases],
        "equal": [asdict(row) for row in study.equals],
        "keep_curve": [asdict(row) for row in study.keep_curve],
        "real": [asdict(cell) for cell in study.real],
        "answers": [asdict(cell) for cell in study.answer_cells],
        "guard": None if study.guard is None else asdict(study.guard),
        "records": [asdict(record) for record in study.records],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
