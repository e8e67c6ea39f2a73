"""A prefill panel as lines of styled text, from its state and a width. No widgets, no clock."""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content

from app.chat import heatmap
from app.protocol.events import Selected
from app.protocol.memory import format_bytes
from app.protocol.stats import Phase, Reading
from app.ui.keep.bar import keep_bar
from app.ui.prefill.progress import PhaseStatus, TurnProgress
from app.ui.prefill.stats_line import stats_line
from app.ui.text import with_full_stop
from app.util import formatting
from app.util.sanitize import sanitize_line

INDENT = "  "
LABEL_WIDTH = 20
WIDEST_STRIP = 96
DIM, FAINT, ACCENT, BAD = "$ink-dim", "$ink-faint", "$accent", "$error"
BRIEF = 0.05
"""Phases shorter than this many seconds are shown without their time."""


@dataclass(frozen=True, slots=True)
class Viewport:
    """Where to draw: how wide, and at what monotonic time."""

    width: int
    now: float

    @property
    def strip_width(self) -> int:
        return max(8, min(WIDEST_STRIP, self.width - len(INDENT) - LABEL_WIDTH))


def panel_lines(state: TurnProgress, page: Viewport, folded: bool) -> list[Content]:
    """All lines of the panel, each at most `page.width` cells wide."""
    lines = [_head(state, page, folded)]
    if state.fallback is not None:
        lines.extend(_fallback(state.fallback, page))
    if not folded:
        lines.extend(_details(state, page))
    return [line.truncate(page.width, ellipsis=True) for line in lines]


def _details(state: TurnProgress, page: Viewport) -> list[Content]:
    if state.restored and state.statistics is None:
        return []  # it was stored without
    lines = [*_phases(state, page), _keep(state, page)]
    scored = state.importance is not None or state.selected is not None
    if scored or (state.reading is not Reading.DENSE and not state.restored):
        lines.append(_heat(state, page))
        lines.append(_spans(state, page))
        if state.finished and state.selected is not None:
            lines.append(
                _legend(page) if state.would_select is None else _choice_legend(state.would_select)
            )
    if state.finished:
        lines.extend(_afterwards(state, page))
    return lines


# ------------------------------------------------------------------------------ the head line


def _head(state: TurnProgress, page: Viewport, folded: bool) -> Content:
    if not state.finished:
        return _spread(_doing(state), _clock(state, page), page.width)
    mark = ("▸ " if folded else "▾ ", DIM)
    room = page.width - 2
    if state.failed:
        return Content.assemble(mark, ("✗ failed", BAD), (_after(state, page), DIM))
    if state.statistics is None or not state.statistics.ttft:
        stopped = "■ stopped" if state.has_text else "■ stopped before the first word"
        return Content.assemble(mark, (stopped, DIM), (_after(state, page), DIM))
    line = stats_line(state.statistics, state.ended, room)
    lead, dot, rest = line.partition(" · ")
    return Content.assemble(mark, (lead, "bold"), (dot + rest, DIM))


def _after(state: TurnProgress, page: Viewport) -> str:
    elapsed = state.elapsed(page.now)
    return f" · after {formatting.seconds(elapsed)}" if elapsed > 0 else ""


def _doing(state: TurnProgress) -> Content:
    if state.running is Phase.DECODE or _finished(state, Phase.PREFILL):
        way = "full" if state.reading is Reading.DENSE else "sparse"
        return Content.assemble(("▶ ", ACCENT), ("answering", "bold"), (f" · {way}", DIM))
    words = {
        None: "getting ready",
        Reading.SPARSE: "reading sparsely",
        Reading.DENSE: "reading in full",
    }[state.reading]
    return Content.assemble(("▶ ", ACCENT), (words, "bold"))


def _clock(state: TurnProgress, page: Viewport) -> Content:
    running = state.phases.get(state.running) if state.running else None
    eta = f" · ETA {formatting.seconds(running.eta)}" if running and running.eta is not None else ""
    return Content.styled(formatting.seconds(state.elapsed(page.now)) + eta, DIM)


def _fallback(reason: str, page: Viewport) -> list[Content]:
    text = f"! {sanitize_line(with_full_stop(reason))}"
    wrapped = Content(text).wrap(max(10, page.width - len(INDENT)))
    return [Content.assemble(INDENT, line.stylize(ACCENT)) for line in wrapped]


# ------------------------------------------------------------------------------ the phases


def _phases(state: TurnProgress, page: Viewport) -> list[Content]:
    """The phases in the most detail that fits: tokens and times, times, names, marks only. While
    it runs on one line, so that nothing jumps; afterwards with all times, on as many as it takes.
    """
    phases = state.expected_phases()
    if state.finished:
        return _flow([_phase(state, phase, 3) for phase in phases], page.width)
    for detail in (3, 2, 1, 0):
        parts = [_phase(state, phase, detail) for phase in phases]
        line = Content(INDENT) + Content("  " if detail >= 2 else " ").join(parts)
        if line.cell_length <= page.width:
            break
    return [line]


def _flow(parts: list[Content], width: int) -> list[Content]:
    """`parts` one after the other, on a new line where one does not fit."""
    lines = [Content(INDENT)]
    for part in parts:
        if lines[-1].cell_length + part.cell_length > width:
            lines.append(Content(INDENT))
        lines[-1] += part + Content("  ")
    return [line.rstrip() for line in lines]


def _phase(state: TurnProgress, phase: Phase, detail: int) -> Content:
    """One phase. `detail` 0 is its mark alone, 1 with its name, 2 and its time, 3 and tokens."""
    name = f" {phase.value}" if detail else ""
    match state.status(phase):
        case PhaseStatus.WAITING:
            return Content.styled(f"·{name}", FAINT)
        case PhaseStatus.RUNNING:
            return Content.assemble(("▶ ", ACCENT), (phase.value + _amount(state, phase), "bold"))
        case PhaseStatus.DONE:
            return Content.assemble(("✓", ACCENT), (name + _result(state, phase, detail), DIM))
        case PhaseStatus.STOPPED:
            return Content.assemble(("■", DIM), (name, DIM))
        case PhaseStatus.FAILED:
            return Content.assemble(("✗", BAD), (name, DIM))


def _amount(state: TurnProgress, phase: Phase) -> str:
    """How far a running phase has come."""
    if phase is Phase.DECODE:
        return f" {state.generated_tokens}"
    progress = state.phases[phase]
    return f" {formatting.progress(progress.done, progress.total)}" if progress.total else ""


def _result(state: TurnProgress, phase: Phase, detail: int) -> str:
    words = ""
    progress = state.phases.get(phase)
    counted = progress is not None and progress.total and phase in (Phase.SCORE, Phase.PREFILL)
    if detail >= 3 and progress is not None and counted:
        words += f" {formatting.short_count(progress.total)}"
    if detail >= 2 and state.seconds(phase) >= BRIEF:
        words += f" {formatting.seconds(state.seconds(phase))}"
    return words


def _finished(state: TurnProgress, phase: Phase) -> bool:
    return phase in state.phases and state.phases[phase].finished


# ------------------------------------------------------------------------------ keep and strips


def _keep(state: TurnProgress, page: Viewport) -> Content:
    after = Content("")
    if state.preview is not None:
        words = would_read(state.preview)
        if state.would_select is not None:
            words = words.replace("read", "choose")
        after = Content.styled("  " + words, ACCENT)
    elif state.reused:
        after = Content.styled(f"  reused {formatting.plural(state.reused, 'token')}", DIM)
    before, percent = Content.styled(f"{INDENT}keep ", DIM), f" {formatting.percent(state.keep)}"
    free = page.width - before.cell_length - len(" 100%") - after.cell_length
    bar = keep_bar(state.keep, max(10, min(36, page.width // 3, free)))
    return Content.assemble(before, bar, percent, after)


def would_read(selected: Selected) -> str:
    """What a keep would mean for the turn it was tried on."""
    kept, total = (
        formatting.count(selected.selected_tokens),
        formatting.count(selected.prompt_tokens),
    )
    return f"would read {kept} of {total} tokens"


def _heat(state: TurnProgress, page: Viewport) -> Content:
    width = page.strip_width
    importance = state.importance
    if importance is not None:
        # It may end early, at the end of text. Then there is a selection all the same.
        complete = importance.observed >= importance.to_observe or state.selected is not None
        row = heatmap.heat_row(importance.buckets, width, complete)
        label = "importance"
        if not complete:
            label += f" {importance.observed}/{importance.to_observe}"
        return _row(_heated(row), label)
    score = state.phases.get(Phase.SCORE)
    fraction = score.done / score.total if score and score.total else 0.0
    row = heatmap.skim_row(fraction, width)
    return _row(Content.styled(row, FAINT), f"skimmed {formatting.percent(fraction)}")


def _heated(row: str) -> Content:
    """Higher is brighter, on top of being taller."""

    def style(character: str) -> str:
        height = heatmap.BLOCKS.find(character)
        return FAINT if height < 1 else (f"{ACCENT} 60%" if height < 4 else ACCENT)

    return Content.assemble(*((character, style(character)) for character in row))


def _spans(state: TurnProgress, page: Viewport) -> Content:
    shown = state.preview or state.selected
    if shown is None:
        return _row(Content(" " * page.strip_width), "")
    row = heatmap.span_row(shown.spans, shown.prompt_tokens, page.strip_width)
    styles = {heatmap.PINNED: DIM, heatmap.PARTIAL: f"{ACCENT} 60%"}
    marks = Content.assemble(*((character, styles.get(character, ACCENT)) for character in row))
    label = "kept" if state.would_select is None else formatting.percent(shown.keep_ratio)
    return _row(marks, f"{label} · {formatting.plural(len(shown.spans), 'span')}")


def _row(cells: Content, label: str) -> Content:
    return Content.assemble(INDENT, cells, "  ", (label, DIM))


def _legend(page: Viewport) -> Content:
    always = " always kept: your question, the frame"
    return Content.assemble(
        INDENT,
        (heatmap.SELECTED, ACCENT),
        (" kept  ", DIM),
        (heatmap.PARTIAL, f"{ACCENT} 60%"),
        (" kept in part  ", DIM),
        (heatmap.PINNED, DIM),
        (always if page.width >= 66 else " always kept", DIM),
    )


def _choice_legend(choice: Selected) -> Content:
    keep = formatting.percent(choice.keep_ratio)
    words = f" what keep {keep} would choose; everything was read"
    return Content.assemble(INDENT, (heatmap.SELECTED, ACCENT), (words, DIM))


# ------------------------------------------------------------------------------ when it is over


def _afterwards(state: TurnProgress, page: Viewport) -> list[Content]:
    """Why it was read so, and what it took."""
    reason = state.statistics.reason if state.statistics else None
    if reason is None and state.planned is not None:
        reason = state.planned.reason
    lines = []
    if reason:
        room = max(10, page.width - len(INDENT))
        wrapped = Content(f"why: {sanitize_line(with_full_stop(reason))}").wrap(room)
        lines = [Content.assemble(INDENT, line.stylize(DIM)) for line in wrapped]
    if state.statistics is not None:
        peak = f"peak memory {format_bytes(state.statistics.peak_bytes)}"
        wrote = f"wrote {formatting.plural(state.statistics.generated_tokens, 'token')}"
        total = formatting.seconds(state.elapsed(page.now))
        lines.append(Content.styled(f"{INDENT}{wrote} · {total} in all · {peak}", DIM))
    return lines


def _spread(left: Content, right: Content, width: int) -> Content:
    """`left` and `right` at the two ends of a line."""
    gap = max(1, width - left.cell_length - right.cell_length)
    return left + Content(" " * gap) + right
