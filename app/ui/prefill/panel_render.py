"""The prefill panel as lines of text, from its state, a width and a time. No widgets, no clock."""

from __future__ import annotations

from dataclasses import dataclass

from textual.content import Content

from app.chat import heatmap
from app.protocol.events import Selected
from app.protocol.memory import format_bytes
from app.protocol.options import AUTO_KEEP
from app.protocol.stats import FinishReason, Phase, Reading, Statistics
from app.ui.keep.slider import keep_bar
from app.ui.prefill.progress import STOPPED, PhaseStatus, TurnProgress
from app.ui.text import spread, with_full_stop
from app.util import formatting
from app.util.sanitize import sanitize_line

INDENT = "  "
LABEL_WIDTH = 22
MAX_STRIP_WIDTH = 96
DIM, FAINT, ACCENT, BAD = "$ink-dim", "$ink-faint", "$accent", "$error"
MIN_SHOWN_SECONDS = 0.05
"""Phases shorter than this are shown without their time."""
PARTS_OF_TTFT = (Phase.SCORE, Phase.PREFILL)


@dataclass(frozen=True, slots=True)
class Viewport:
    """A width in cells, and the monotonic time to draw at."""

    width: int
    now: float

    @property
    def strip_width(self) -> int:
        return max(8, min(MAX_STRIP_WIDTH, self.width - len(INDENT) - LABEL_WIDTH))


def panel_lines(state: TurnProgress, view: Viewport, folded: bool) -> list[Content]:
    """All lines of the panel, each at most `view.width` cells wide."""
    lines = [_head(state, view, folded)]
    if state.fallback is not None:
        lines.extend(_fallback(state.fallback, view))
    if not folded:
        lines.extend(_details(state, view))
    return [line.truncate(view.width, ellipsis=True) for line in lines]


def _details(state: TurnProgress, view: Viewport) -> list[Content]:
    if state.restored and state.statistics is None:
        return []  # nothing was stored of it
    lines = [*_phases(state, view), _keep(state, view)]
    scored = state.importance is not None or state.selected is not None
    if scored or (state.reading is not Reading.DENSE and not state.restored):
        lines.append(_heat(state, view))
        lines.append(_spans(state, view))
        if state.finished and state.selected is not None:
            lines.append(
                _legend(view, bool(state.selected.read_on))
                if state.would_select is None
                else _hypothetical_legend(state.would_select)
            )
    if state.finished:
        lines.extend(_afterwards(state, view))
    return lines


# ------------------------------------------------------------------------------ the head line


def _head(state: TurnProgress, view: Viewport, folded: bool) -> Content:
    if not state.finished:
        return spread(_activity(state), _clock(state, view), view.width, gap=1)
    mark = ("▸ " if folded else "▾ ", DIM)
    if state.failed:
        return Content.assemble(mark, ("✗ failed", BAD), (_after(state, view), DIM))
    if state.statistics is None or not state.statistics.ttft:
        when = "" if state.has_text else " before the first word"
        return Content.assemble(mark, (f"■ stopped{when}", DIM), (_after(state, view), DIM))
    line = stats_line(state.statistics, state.finish_reason, view.width - 2)
    lead, dot, rest = line.partition(" · ")
    return Content.assemble(mark, (lead, "bold"), (dot + rest, DIM))


def _after(state: TurnProgress, view: Viewport) -> str:
    elapsed = state.elapsed(view.now)
    return f" · after {formatting.seconds(elapsed)}" if elapsed > 0 else ""


def _activity(state: TurnProgress) -> Content:
    if state.running_phase is Phase.DECODE or _finished(state, Phase.PREFILL):
        text = "answering"
    else:
        text = "getting ready" if state.reading is None else "reading"
    if Phase.RETRIEVE in state.phases and state.retrieved is None:
        text = "choosing files"
    details = "" if state.reading is None else f" · {_mode(state.reading)}"
    return Content.assemble(("▶ ", ACCENT), (text, "bold"), (details, DIM))


def _mode(reading: Reading) -> str:
    return "full" if reading is Reading.DENSE else "sparse"


def _clock(state: TurnProgress, view: Viewport) -> Content:
    running = state.phases.get(state.running_phase) if state.running_phase else None
    eta = f" · ETA {formatting.seconds(running.eta)}" if running and running.eta is not None else ""
    return Content.styled(formatting.seconds(state.elapsed(view.now)) + eta, DIM)


def _fallback(reason: str, view: Viewport) -> list[Content]:
    text = f"! {sanitize_line(with_full_stop(reason))}"
    wrapped = Content(text).wrap(max(10, view.width - len(INDENT)))
    return [Content.assemble(INDENT, line.stylize(ACCENT)) for line in wrapped]


# ------------------------------------------------------------------------------ the phases


def _phases(state: TurnProgress, view: Viewport) -> list[Content]:
    """While the turn runs, one line in the most detail that fits: with tokens and times, times,
    names, or marks only. Afterwards all details, on as many lines as needed."""
    phases = state.expected_phases()
    if state.finished:
        return _flow([_phase(state, phase, 3) for phase in phases], view.width)
    for detail in (3, 2, 1, 0):
        parts = [_phase(state, phase, detail) for phase in phases]
        line = Content(INDENT) + Content("  " if detail >= 2 else " ").join(parts)
        if line.cell_length <= view.width:
            break
    return [line]


def _flow(parts: list[Content], width: int) -> list[Content]:
    """`parts`, each on a new line if it does not fit on the last one."""
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
    """The progress of a running phase."""
    if phase is Phase.DECODE:
        return f" {state.generated_tokens}"
    progress = state.phases[phase]
    return f" {formatting.progress(progress.done, progress.total)}" if progress.total else ""


def _result(state: TurnProgress, phase: Phase, detail: int) -> str:
    text = ""
    progress = state.phases.get(phase)
    counted = progress is not None and progress.total and phase in (Phase.SCORE, Phase.PREFILL)
    if detail >= 3 and progress is not None and counted:
        text += f" {formatting.short_count(progress.total)}"
    if detail >= 2 and state.seconds(phase) >= MIN_SHOWN_SECONDS:
        text += f" {formatting.seconds(state.seconds(phase))}"
    return text


def _finished(state: TurnProgress, phase: Phase) -> bool:
    return phase in state.phases and state.phases[phase].finished


# ------------------------------------------------------------------------------ keep and strips


def _keep(state: TurnProgress, view: Viewport) -> Content:
    after = Content("")
    if state.preview is not None:
        text = would_read(state.preview)
        if state.would_select is not None:
            text = text.replace("read", "select")
        after = Content.styled("  " + text, ACCENT)
    else:
        found = []
        if state.reused_tokens:
            found.append(f"reused {formatting.plural(state.reused_tokens, 'token')}")
        if state.selected is not None and (later := state.selected.read_on):
            found.append(f"read on: {formatting.plural(len(later), 'passage')}")
        after = Content.styled("".join(f"  {each}" for each in found), DIM)
    before, percent = Content.styled(f"{INDENT}keep ", DIM), f" {formatting.percent(state.keep)}"
    free = view.width - before.cell_length - len(" 100%") - after.cell_length
    if state.keep == AUTO_KEEP:
        return before + Content.styled("auto", "bold")
    bar = keep_bar(state.keep, max(10, min(36, view.width // 3, free)))
    return Content.assemble(before, bar, percent, after)


def would_read(selected: Selected) -> str:
    """The effect of a keep on the turn that it is tried on."""
    read, total = map(formatting.count, (selected.selected_tokens, selected.prompt_tokens))
    auto = (
        ""
        if selected.auto_keep is None
        else f"; auto keeps {formatting.percent(selected.auto_keep)}"
    )
    return f"would read {read} of {total} tokens{auto}"


def _heat(state: TurnProgress, view: Viewport) -> Content:
    width = view.strip_width
    importance = state.importance
    if importance is not None:
        # Observing may end early, at the end of the text. There is a selection then, too.
        complete = importance.observed >= importance.to_observe or state.selected is not None
        row = heatmap.heat_row(importance.buckets, width, complete)
        label = "importance"
        if not complete:
            label += f" {importance.observed}/{importance.to_observe}"
        return _row(_heated(row), label)
    score = state.phases.get(Phase.SCORE)
    fraction = score.done / score.total if score and score.total else 0.0
    row = heatmap.skim_row(fraction, width)
    return _row(Content.styled(row, FAINT), f"scored {formatting.percent(fraction)}")


def _heated(row: str) -> Content:
    """Higher values are brighter, too."""

    def style(character: str) -> str:
        height = heatmap.BLOCKS.find(character)
        return FAINT if height < 1 else (f"{ACCENT} 60%" if height < 4 else ACCENT)

    return Content.assemble(*((character, style(character)) for character in row))


def _spans(state: TurnProgress, view: Viewport) -> Content:
    shown = state.preview or state.selected
    if shown is None:
        return _row(Content(" " * view.strip_width), "")
    row = heatmap.span_row(shown.spans, shown.prompt_tokens, view.strip_width)
    styles = {heatmap.PINNED: DIM, heatmap.PARTIAL: f"{ACCENT} 60%"}
    marks = Content.assemble(*((character, styles.get(character, ACCENT)) for character in row))
    label = "selected" if state.would_select is None else formatting.percent(shown.keep_ratio)
    return _row(marks, f"{label} · {formatting.plural(len(shown.spans), 'span')}")


def _row(cells: Content, label: str) -> Content:
    return Content.assemble(INDENT, cells, "  ", (label, DIM))


def _legend(view: Viewport, with_read_on: bool) -> Content:
    pinned = " pinned: your question, chat template"
    long = view.width >= 70 and not with_read_on
    later = [(heatmap.READ_ON, ACCENT), (" read while it wrote  ", DIM)] if with_read_on else []
    return Content.assemble(
        INDENT,
        (heatmap.SELECTED, ACCENT),
        (" selected  ", DIM),
        (heatmap.PARTIAL, f"{ACCENT} 60%"),
        (" partly selected  ", DIM),
        *later,
        (heatmap.PINNED, DIM),
        (pinned if long else " pinned", DIM),
    )


def _hypothetical_legend(selected: Selected) -> Content:
    keep = formatting.percent(selected.keep_ratio)
    text = f" what keep {keep} would select; everything was read"
    return Content.assemble(INDENT, (heatmap.SELECTED, ACCENT), (text, DIM))


# ------------------------------------------------------------------------------ afterwards


def _afterwards(state: TurnProgress, view: Viewport) -> list[Content]:
    """Why it was read sparsely or in full, and the totals."""
    reason = state.statistics.reason if state.statistics else None
    if reason is None and state.planned is not None:
        reason = state.planned.reason
    lines = []
    if reason:
        room = max(10, view.width - len(INDENT))
        wrapped = Content(f"why: {sanitize_line(with_full_stop(reason))}").wrap(room)
        lines = [Content.assemble(INDENT, line.stylize(DIM)) for line in wrapped]
    if state.statistics is not None:
        peak = f"peak memory {format_bytes(state.statistics.peak_bytes)}"
        wrote = f"wrote {formatting.plural(state.statistics.generated_tokens, 'token')}"
        if state.statistics.confidence is not None:
            wrote += f", {formatting.percent(state.statistics.confidence)} sure of each"
        total = formatting.seconds(state.elapsed(view.now))
        lines.append(Content.styled(f"{INDENT}{wrote} · {total} total · {peak}", DIM))
        if state.statistics.proposed_tokens:
            lines.append(Content.styled(f"{INDENT}{ahead(state.statistics)}", DIM))
    return lines


def ahead(statistics: Statistics) -> str:
    """What was proposed, and what that made faster."""
    steps = statistics.verified_steps
    proposed = formatting.plural(statistics.proposed_tokens, "token")
    text = f"proposed {proposed} in {formatting.plural(steps, 'step')}"
    text += f": {statistics.accepted_tokens / statistics.proposed_tokens:.0%} right"
    text += f", {statistics.accepted_tokens / max(steps, 1):.1f} a step"
    if statistics.is_sped_up:
        text += f"; {statistics.decode_rate:.0f} a second instead of {statistics.plain_rate:.0f}"
    return text


# ------------------------------------------------------------------------------ the stats line


def stats_line(statistics: Statistics, ended: FinishReason | None, width: int) -> str:
    """The longest version that fits into `width` cells, or else the shortest."""
    versions = _stats_versions(statistics, ended)
    return next((line for line in versions if len(line) <= width), versions[-1])


def _stats_versions(statistics: Statistics, ended: FinishReason | None) -> list[str]:
    """From longest to shortest. All say how much was read, and sparse or full."""
    read = f"read {formatting.percent(statistics.read_fraction)}"
    mode = _mode(statistics.reading)
    tokens = _tokens(statistics)
    first = f"first token {formatting.seconds(statistics.ttft)}" if statistics.ttft > 0 else ""
    rate = f"{statistics.decode_rate:.0f} tok/s" if statistics.decode_rate else ""
    stopped = "stopped" if ended in STOPPED else ""
    parts = _parts_of_ttft(statistics)
    return [
        _join(stopped, read, tokens, mode, first + parts, rate),
        _join(stopped, read, tokens, mode, first, rate),
        _join(stopped, read, tokens.removesuffix(" tokens"), mode, first, rate),
        _join(stopped, read, mode, first, rate),
        _join(stopped, read, mode, first),
        _join(stopped, read, mode),
    ]


def _tokens(statistics: Statistics) -> str:
    total = formatting.count(statistics.prompt_tokens)
    if statistics.read_tokens >= statistics.prompt_tokens:
        return f"{total} tokens"
    return f"{formatting.count(statistics.read_tokens)} of {total} tokens"


def _parts_of_ttft(statistics: Statistics) -> str:
    """` (score 0.8, prefill 0.9)`, in seconds; empty for a full prefill."""
    if statistics.reading is Reading.DENSE or statistics.ttft <= 0:
        return ""
    spent = {time.phase: time.seconds for time in statistics.phases}
    named = [f"{phase.value} {spent[phase]:.1f}" for phase in PARTS_OF_TTFT if phase in spent]
    return f" ({', '.join(named)})" if named else ""


def _join(*parts: str) -> str:
    return " · ".join(part for part in parts if part)
