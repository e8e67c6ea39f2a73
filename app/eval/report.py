"""Results for people and for programs: a table for a terminal, Markdown with a figure, JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from app.eval import alone, results
from app.eval.markdown import markdown_table
from app.eval.results import (
    EQUIVALENCE_MARGIN,
    EquivalencePoint,
    GuardStats,
    Interval,
    Perplexity,
    ResultCell,
)
from app.eval.results_log import Record
from app.eval.runner import TUNING, Settings
from app.eval.suites import FORCED_TOKENS, PERPLEXITY
from app.protocol.options import DEFAULT_TUNING, Mode
from app.protocol.stats import FinishReason, Reading

COLUMNS = 80
BY_CASE = ("adversarial",)
"""Suites whose cases get rows of their own."""
KINDS = {True: "safe", False: "unsafe", None: "open"}


@dataclass(frozen=True)
class Study:
    """Everything that a report says. `pair` is the shown names of target and draft, `command` what
    makes the same report again."""

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
    def perplexities(self) -> tuple[Perplexity, ...]:
        return results.perplexities(self.records)

    @cached_property
    def guard(self) -> GuardStats | None:
        return results.guard(self.records)

    @cached_property
    def alone(self) -> tuple[alone.Alone, ...]:
        """Nothing, unless no item was to be read in full."""
        return alone.alone(self.records) if self.settings.sparse_only else ()

    @property
    def title(self) -> str:
        target, draft = self.pair
        return f"{target} with {draft}" if draft else target

    @property
    def answers(self) -> list[Record]:
        """Runs that were to end in an answer."""
        return [record for record in self.records if record.suite != PERPLEXITY]

    def notes(self) -> list[str]:
        """What must not be overlooked, a sentence each."""
        notes = list(self.skipped)
        exact = [cell for cell in self.cells if cell.differing is not None]
        for cell in exact:
            if cell.differing:
                where = f"{cell.suite} at {cell.length:,} tokens, scoring {cell.scoring}"
                notes.append(f"{where}: {cell.differing} of {cell.n} differ from dense at keep 1.")
        if exact and not any(cell.differing for cell in exact):
            notes.append(f"At keep 1, all {sum(c.n for c in exact)} answers equal the dense ones.")
        for sentence, times in results.failures(self.records).items():
            turns = "1 turn" if times == 1 else f"{times} turns"
            notes.append(f"{turns} of {len(self.records)}: {sentence}")
        unsaid = [r for r in self.records if r.mode == Mode.SPARSE and r.reading == Reading.DENSE]
        if dense := sum(record.fallback is None for record in unsaid):
            notes.append(f"{dense} turns were to be read sparsely, and were read in full.")
        if cut := sum(
            r.ended == FinishReason.LENGTH and not r.answer.strip() for r in self.answers
        ):
            notes.append(
                f"{cut} of {len(self.answers)} answers were cut off before their first word, as"
                " those of a model that thinks first are."
            )
        if self.stale:
            notes.append(
                f"{self.stale} of {len(self.records)} results were measured before with other code"
                " of specchat; with --fresh all are measured again."
            )
        return notes


# ------------------------------------------------------------------------------- in a terminal


def table(study: Study) -> str:
    """At most COLUMNS wide, a group for each length and scoring."""
    lines: list[str] = []
    head = f"{'suite':<17}{'keep':>6}{'n':>5}{'dense':>7}{'right':>7}{'95 %':>9}"
    head += f"{'lost':>6}{'gained':>8}{'read':>6}{'faster':>8}"
    for length, scoring in _groups(study.cells):
        lines += ["", f"{length:,} tokens, scoring {scoring}", head]
        for cell in study.cells:
            if (cell.length, cell.scoring) == (length, scoring):
                lines.append(_row(cell))
    if study.alone:
        lines += [*textwrap.wrap(alone.WORDS, COLUMNS - 1), "", *alone.lines(study.alone)]
    lines += _equal_lines(study.equals)
    lines += _perplexity_lines(study.perplexities)
    if study.guard is not None:
        lines += _guard_lines(study.guard)
    notes = [line for note in study.notes() for line in textwrap.wrap(note, COLUMNS - 1)]
    lines += ["", *notes] if notes else []
    return "\n".join(lines).strip("\n") + "\n"


def _groups(cells: Iterable[ResultCell]) -> list[tuple[int, str]]:
    groups = {(cell.length, cell.scoring) for cell in cells}
    return sorted(groups, key=lambda group: (group[0], results.scoring_order(group[1])))


def _row(cell: ResultCell) -> str:
    faster = "" if cell.ttft_ratio is None else f"{cell.ttft_ratio:.1f}x"
    return (
        f"{cell.suite:<17}{cell.keep:>6.3g}{cell.n:>5}{cell.dense.share:>7.0%}"
        f"{cell.accuracy.share:>7.0%}{_range(cell.accuracy):>9}{cell.regressions:>6}"
        f"{cell.repairs:>8}{cell.read_fraction:>6.0%}{faster:>8}"
    )


def _equal_lines(rows: Sequence[EquivalencePoint]) -> list[str]:
    if not rows:
        return []
    head = f"{'length':>7}  {'scoring':<28}{'keep':>6}{'n':>6}{'dense':>8}{'right':>8}"
    lines = ["", *textwrap.wrap(EQUAL_WORDS, COLUMNS - 1), head + f"{'faster':>7}{'slower':>7}"]
    for r in rows:
        if r.keep is None:
            lines.append(f"{r.length:>7,}  {r.scoring:<28}{'none':>6}")
            continue
        shares = f"{r.dense:>8.1%}{r.right:>8.1%}{_times(r.faster):>7}{_times(r.slowdown):>7}"
        lines.append(f"{r.length:>7,}  {r.scoring:<28}{r.keep:>6.3g}{r.n:>6}{shares}")
    return lines


EQUAL_WORDS = (
    "The smallest keep from which on the safe suites together stay within"
    f" {100 * EQUIVALENCE_MARGIN:.0f} points of dense, how much sooner the first token then comes"
    " than in full, and how much later than with the default scoring"
    f" ({DEFAULT_TUNING.scoring}) at its own smallest keep:"
)


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}x"


def _range(interval: Interval) -> str:
    return f"{100 * interval.low:.0f}–{100 * interval.high:.0f}"


def _perplexity_lines(rows: Sequence[Perplexity]) -> list[str]:
    if not rows:
        return []
    head = f"{'length':>7}{'scoring':>11}{'keep':>6}{'files':>7}{'dense':>10}{'sparse':>10}"
    head += f"{'ratio':>9}{'read':>6}{'failed':>8}"
    lines = ["", f"Perplexity of the next {FORCED_TOKENS} tokens of each file", head]
    for row in rows:
        lines.append(
            f"{row.length:>7,}{row.scoring:>11}{row.keep:>6.3g}{row.n:>7}{row.dense:>10.4g}"
            f"{row.sparse:>10.4g}{row.ratio:>9.3f}{row.read_fraction:>6.0%}{row.failed:>8}"
        )
    return lines


def _guard_lines(guard: GuardStats) -> list[str]:
    lines = ["", *textwrap.wrap(_guard_sentence(guard), COLUMNS - 1)]
    lines.append(f"{'suite':<17}{'':>6}{'n':>5}{'dense':>7}{'right':>7}{'flagged':>9}")
    for row in guard.suites:
        dense, auto = row.dense_right / row.n, row.right / row.n
        figures = f"{row.n:>5}{dense:>7.0%}{auto:>7.0%}{row.flagged:>9}"
        lines.append(f"{row.suite:<17}{KINDS[row.safe]:>6}{figures}")
    return lines


def _guard_sentence(guard: GuardStats) -> str:
    recall = f"{guard.recall.share:.0%} ({_range(guard.recall)})" if guard.unsafe else "not known"
    precision = f"{guard.precision.share:.0%} ({_range(guard.precision)})"
    precision = precision if guard.flagged else "not known"
    return (
        f"The guard in auto mode: recall {recall} of {guard.unsafe} unsafe items,"
        f" precision {precision} of {guard.flagged} flagged items."
        + (
            f" By the spread of importance alone, {guard.separation:.0%} of the pairs of an unsafe"
            " and a safe item would be told apart."
            if guard.separation is not None
            else ""
        )
    )


# ---------------------------------------------------------------------------------- Markdown


def markdown(study: Study, figure: str) -> str:
    """The whole report; `figure` is the file name of the picture beside it."""
    against = "by itself" if study.settings.sparse_only else "against dense"
    parts = [f"# Sparse reading {against}: {_plain(study.title)}", _about(study)]
    parts.append(f"```sh\n{study.command}\n```")
    if study.alone:
        parts += [alone.WORDS, alone.table(study.alone)]
    if study.cells:
        parts.append(f"![Accuracy over keep, one panel a suite]({figure})")
        parts += _overview(study)
        parts += _equal_parts(study.equals)
        parts += _details(study)
    if study.perplexities:
        parts += [f"## Perplexity of the next {FORCED_TOKENS} tokens", _perplexity_table(study)]
    if study.guard is not None:
        parts += ["## The guard", _guard_sentence(study.guard), _guard_table(study.guard)]
    if notes := study.notes():
        parts += ["## Notes", "\n".join(f"- {_plain(note)}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def _about(study: Study) -> str:
    settings = study.settings
    tuning = asdict(settings.tunings[0] if len(settings.tunings) == 1 else TUNING)
    del tuning["scoring"]
    held_out = "wordings that were never trained on" if settings.held_out else "trained wordings"
    lines = [
        f"specchat {study.version}; {_plain(study.machine)}.",
        f"{settings.n} items a suite and length, seed {settings.seed}, {held_out}, greedy.",
        "Tuning, where no other is named: "
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
    """One table a length: a row for each suite and scoring, a column for each keep."""
    parts = ["## Accuracy, %"]
    for length in sorted({cell.length for cell in study.cells}):
        own = [cell for cell in study.cells if cell.length == length]
        keeps = sorted({cell.keep for cell in own})
        rows: dict[tuple[str, str], dict[float, ResultCell]] = {}
        for cell in own:
            rows.setdefault((cell.suite, cell.scoring), {})[cell.keep] = cell
        body = []
        for (suite, scoring), by_keep in rows.items():
            dense = max(by_keep.values(), key=lambda cell: cell.n).dense
            shares = [_percent(by_keep[k].accuracy.share) if k in by_keep else "" for k in keeps]
            body.append([suite, scoring, _percent(dense.share), *shares])
        head = ["suite", "scoring", "dense", *(f"keep {keep:g}" for keep in keeps)]
        parts += [f"### {length:,} tokens", markdown_table(head, body, texts=2)]
    return parts


def _equal_parts(rows: Sequence[EquivalencePoint]) -> list[str]:
    if not rows:
        return []
    body = []
    for r in rows:
        row = [f"{r.length:,}", r.scoring, "none" if r.keep is None else f"{r.keep:g}", str(r.n)]
        row += [_percent(r.dense), _percent(r.right), _times(r.faster), _times(r.slowdown)]
        body.append(row)
    head = ["length", "scoring", "keep", "n", "dense", "right", "faster", "slower"]
    return ["## Equal answers", EQUAL_WORDS, markdown_table(head, body, texts=2)]


def _details(study: Study) -> list[str]:
    parts = ["## Each suite"]
    for suite in dict.fromkeys(cell.suite for cell in study.cells):
        source = study.cases if suite in BY_CASE else study.cells
        own = [cell for cell in source if cell.suite == suite]
        if suite in BY_CASE:
            own = [cell for cell in study.cells if cell.suite == suite] + own
        parts += [f"### {suite}", _cell_table(own, suite in BY_CASE)]
    return parts


def _cell_table(cells: Sequence[ResultCell], by_case: bool) -> str:
    head = ["case"] if by_case else []
    head += ["scoring", "length", "keep", "n", "dense", "right", "95 %", "lost", "lost, %"]
    head += ["gained", "read, %", "faster", "fell back", "failed"]
    body = []
    for cell in cells:
        row = [cell.case or "all"] if by_case else []
        row += [cell.scoring, f"{cell.length:,}", f"{cell.keep:g}", str(cell.n)]
        row += [_percent(cell.dense.share), _percent(cell.accuracy.share), _range(cell.accuracy)]
        row += [str(cell.regressions), _percent(cell.regressed), str(cell.repairs)]
        row += [_percent(cell.read_fraction)]
        row += ["" if cell.ttft_ratio is None else f"{cell.ttft_ratio:.1f}x"]
        body.append([*row, str(cell.fell_back), str(cell.failed)])
    return markdown_table(head, body, texts=2 if by_case else 1)


def _perplexity_table(study: Study) -> str:
    head = ["scoring", "length", "keep", "files", "dense", "sparse", "ratio", "read, %", "failed"]
    body = []
    for r in study.perplexities:
        row = [r.scoring, f"{r.length:,}", f"{r.keep:g}", str(r.n), f"{r.dense:.4g}"]
        row += [f"{r.sparse:.4g}", f"{r.ratio:.3f}", _percent(r.read_fraction), str(r.failed)]
        body.append(row)
    return markdown_table(head, body, texts=1)


def _guard_table(guard: GuardStats) -> str:
    body = []
    for r in guard.suites:
        shares = [_percent(r.dense_right / r.n), _percent(r.right / r.n)]
        spread = "" if r.spread is None else f"{r.spread:.2f}"
        body.append([r.suite, KINDS[r.safe], str(r.n), str(r.flagged), *shares, spread])
    head = ["suite", "kind", "n", "flagged", "dense right, %", "auto right, %", "spread"]
    return markdown_table(head, body, texts=2)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _plain(text: str) -> str:
    """Text that is not ours, without what Markdown would take for more than text."""
    flat = " ".join(text.split())
    return "".join(f"\\{c}" if c in "\\`*_[]<>|" else c for c in flat)


# -------------------------------------------------------------------------------------- JSON


def as_json(study: Study) -> str:
    """Settings, machine, cells and records."""
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
        "alone": [asdict(row) for row in study.alone],
        "cases": [asdict(cell) for cell in study.cases],
        "equal": [asdict(row) for row in study.equals],
        "perplexity": [asdict(row) for row in study.perplexities],
        "guard": None if study.guard is None else asdict(study.guard),
        "records": [asdict(record) for record in study.records],
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"
