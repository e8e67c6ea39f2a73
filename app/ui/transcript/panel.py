"""The panel that shows how a turn is read: lines of text from its state, a width and a time, and
the widget that draws them. Afterwards it is one line, until details are wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from textual.content import Content
from textual.events import Click
from textual.geometry import Size
from textual.reactive import reactive
from textual.widget import Widget

from app.chat import heatmap, reading_words, wording
from app.chat.turn_progress import PhaseStatus, TurnProgress
from app.protocol.events import Selected
from app.protocol.stats import Phase, Reading
from app.ui.text import spread
from app.util import formatting
from app.util.sanitize import sanitize_line

INDENT = "  "
LABEL_WIDTH = 12
"""Cells of the labels of the details."""
STRIP_LABEL_WIDTH = 25
MAX_STRIP_WIDTH = 96
DIM, FAINT, ACCENT, BAD = "$ink-dim", "$ink-faint", "$accent", "$error"
MIN_TEXT_WIDTH = 10


@dataclass(frozen=True, slots=True)
class Viewport:
    """A width in cells, and the monotonic time to draw at."""

    width: int
    now: float

    @property
    def strip_width(self) -> int:
        return max(8, min(MAX_STRIP_WIDTH, self.width - len(INDENT) - STRIP_LABEL_WIDTH))


def panel_lines(
    state: TurnProgress, view: Viewport, details: bool = False, hints: Sequence[str] = ()
) -> list[Content]:
    """All lines of the panel, each at most `view.width` cells wide: what happens, or how much was
    read; the strips while it runs or another keep is tried; with `details`, everything known.
    `hints` are the keys to name after the first line, the most important last."""
    lines = [_head(state, view, details, hints), *_fallback(state, view)]
    if details or not state.finished or state.preview is not None:
        lines.extend(_strips(state, view))
    if details:
        lines.extend(_details(state, view))
    return [line.truncate(view.width, ellipsis=True) for line in lines]


# ------------------------------------------------------------------------------ the head line


def _head(state: TurnProgress, view: Viewport, details: bool, hints: Sequence[str]) -> Content:
    if not state.finished:
        return _activity(state, view)
    mark = ("▾ " if details else "▸ ", DIM)
    elapsed = state.elapsed(view.now)
    after = f" · after {formatting.seconds(elapsed)}" if elapsed > 0 else ""
    if state.failed:
        return Content.assemble(mark, ("✗ failed", BAD), (after, DIM))
    if state.statistics is None or not state.statistics.ttft:
        when = "" if state.has_text else " before the first word"
        return Content.assemble(mark, (f"■ stopped{when}", DIM), (after, DIM))
    some = [" · ".join(hints[at:]) for at in range(len(hints))]
    lines = [Content(each) for each in reading_words.reading_lines(state.statistics)]
    tries = [(line, keys) for line in lines for keys in some] + [(line, "") for line in lines]
    room = view.width - len(mark[0])
    said, keys = next(
        (
            (line, keys)
            for line, keys in tries
            if line.cell_length + (2 + len(keys) if keys else 0) <= room
        ),
        tries[-1],
    )
    line = Content.assemble(mark, said.stylize("bold"))
    return spread(line, Content.styled(keys, DIM), view.width) if keys else line


def _activity(state: TurnProgress, view: Viewport) -> Content:
    """What the turn is doing, and when the first word is expected, in the longest form that
    fits."""
    spent = formatting.seconds(state.elapsed(view.now))
    running = state.phases.get(state.running_phase) if state.running_phase else None
    eta = None if running is None or running.phase is Phase.DECODE else running.eta
    expected = None if eta is None else formatting.seconds(eta)
    what, amount = _doing(state), _amount(state)
    lefts = [what + amount, what] if amount else [what]
    rights = [spent]
    if expected is not None:
        rights = [f"{spent} · first word in {expected}", f"first word in {expected}", expected]
    tries = [(left, right) for right in rights for left in lefts]
    fitting = (each for each in tries if 2 + len(each[0]) + 2 + len(each[1]) <= view.width)
    left, right = next(fitting, tries[-1])
    bold, rest = left[: len(what)], left[len(what) :]
    start = Content.assemble(("▶ ", ACCENT), (bold, "bold"), (rest, DIM))
    return spread(start, Content.styled(right, DIM), view.width, gap=1)


def _doing(state: TurnProgress) -> str:
    if state.thinking_started_at is not None and not state.has_text:
        return "Thinking"
    phase = state.latest_phase
    if phase is Phase.PREFILL and state.status(phase) is PhaseStatus.DONE:
        phase = Phase.DECODE
    return reading_words.activity(phase, state)


def _amount(state: TurnProgress) -> str:
    """The progress of the phase or, while answering, how much was read."""
    phase = state.running_phase
    if phase is not None and (done := reading_words.amount_done(state.phases[phase])):
        return f" · {done}"
    share = reading_words.share_read(state)
    if phase is not Phase.DECODE or not share:
        return ""
    read = f" · {share} read"
    later = 0 if state.selected is None else len(state.selected.read_on)
    return f"{read} and {formatting.plural(later, 'more passage')}" if later else read


def _fallback(state: TurnProgress, view: Viewport) -> list[Content]:
    """Why sparse reading failed, if it did."""
    if state.fallback is None:
        return []
    text = Content(f"! {sanitize_line(wording.reason(state.fallback))}").stylize(ACCENT)
    room = max(MIN_TEXT_WIDTH, view.width - len(INDENT))
    return [Content.assemble(INDENT, line) for line in text.wrap(room)]


# ------------------------------------------------------------------------------ the strips


def _strips(state: TurnProgress, view: Viewport) -> list[Content]:
    """Importance, and what was selected, over the whole prompt."""
    if state.restored and state.statistics is None:
        return []  # nothing was stored of it
    scored = state.importance is not None or state.selected is not None
    if not scored and (state.reading is Reading.DENSE or state.restored):
        return []
    lines = [_heat(state, view), _spans(state, view)]
    if state.finished and state.selected is not None:
        lines.append(
            _legend(view, bool(state.selected.read_on))
            if state.would_select is None
            else _hypothetical_legend(state.would_select)
        )
    return lines


def would_read(selected: Selected) -> str:
    """The effect of a keep on the turn that it is tried on."""
    if selected.documents is None:
        read = f"{selected.selected_tokens:,} of {selected.prompt_tokens:,} tokens"
    else:
        tokens = formatting.short_count(selected.documents.read)
        read = f"{reading_words.share_of(selected.documents)} ({tokens} tokens)"
    auto = "" if selected.auto_keep is None else f"; auto {formatting.percent(selected.auto_keep)}"
    return f"would read {read}{auto}"


def _heat(state: TurnProgress, view: Viewport) -> Content:
    width = view.strip_width
    importance = state.importance
    if importance is not None:
        # Observing may end early, at the end of the text. There is a selection then, too.
        complete = importance.observed >= importance.to_observe or state.selected is not None
        row = heatmap.heat_row(importance.buckets, width, complete)
        label = "importance"
        if not complete:
            label += " so far"
        return _row(_heated(row), label)
    score = state.phases.get(Phase.SCORE)
    fraction = score.done / score.total if score and score.total else 0.0
    row = heatmap.skim_row(fraction, width)
    return _row(Content.styled(row, FAINT), f"scored {formatting.percent(fraction)}")


def _heated(row: str) -> Content:
    """The heat row, with brighter colours for higher values."""

    def style(character: str) -> str:
        height = heatmap.BLOCKS.find(character)
        return FAINT if height < 1 else (f"{ACCENT} 60%" if height < 4 else ACCENT)

    return _runs(row, style)


def _runs(row: str, style: Callable[[str], str]) -> Content:
    """Neighbours of one style are one run, which takes fewer bytes to draw."""
    runs = (("".join(cells), name) for name, cells in groupby(row, style))
    return Content.assemble(*runs)


def _spans(state: TurnProgress, view: Viewport) -> Content:
    shown = state.preview or state.selected
    if shown is None:
        return _row(Content(" " * view.strip_width), "")
    row = heatmap.span_row(shown.spans, shown.prompt_tokens, view.strip_width)
    styles = {heatmap.PINNED: DIM, heatmap.PARTIAL: f"{ACCENT} 60%"}
    marks = _runs(row, lambda character: styles.get(character, ACCENT))
    tried = shown is state.preview or state.would_select is not None
    label = f"keep {formatting.percent(shown.keep_ratio)}" if tried else "selected"
    everything = shown.selected_tokens >= shown.prompt_tokens
    passages = shown.spans if shown.documents is None else shown.texts
    amount = "everything" if everything else formatting.plural(len(passages), "passage")
    return _row(marks, f"{label} · {amount}")


def _row(cells: Content, label: str) -> Content:
    return Content.assemble(INDENT, cells, "  ", (label, DIM))


def _legend(view: Viewport, with_read_on: bool) -> Content:
    always = " always read: question, template"
    long = view.width >= 70 and not with_read_on
    later = [(heatmap.READ_ON, ACCENT), (" read while answering  ", DIM)] if with_read_on else []
    return Content.assemble(
        INDENT,
        (heatmap.SELECTED, ACCENT),
        (" selected  ", DIM),
        (heatmap.PARTIAL, f"{ACCENT} 60%"),
        (" partly selected  ", DIM),
        *later,
        (heatmap.PINNED, DIM),
        (always if long else " always read", DIM),
    )


def _hypothetical_legend(selected: Selected) -> Content:
    keep = formatting.percent(selected.keep_ratio)
    text = f" what keep {keep} would select; everything was read"
    return Content.assemble(INDENT, (heatmap.SELECTED, ACCENT), (text, DIM))


# ------------------------------------------------------------------------------ the details


def _details(state: TurnProgress, view: Viewport) -> list[Content]:
    """The details, one label and value in each line; phases have marks."""
    if state.restored and state.statistics is None:
        return []
    lines: list[Content] = []
    for label, text in _known(state):
        parts = [Content(sanitize_line(text))]
        if label == reading_words.PHASES:
            parts = [_phase(state, phase) for phase in state.expected_phases()]
        lines += _detail(label, parts, view)
    return lines


def _known(state: TurnProgress) -> list[tuple[str, str]]:
    """Labels and texts from the statistics, or from the plan until there are statistics."""
    read_on = 0 if state.selected is None else len(state.selected.read_on)
    if state.statistics is not None:
        return reading_words.reading_details(state.statistics, read_on)
    rows = [(reading_words.PHASES, "")]
    if state.planned is not None:
        rows.insert(0, ("Prompt", formatting.plural(state.planned.prompt_tokens, "token")))
        if state.reused_tokens:
            rows.append(reading_words.reused(state.reused_tokens))
        keep = f"sparse, keep {formatting.keep(state.keep)}"
        rows.append(("Mode", keep if state.reading is Reading.SPARSE else "in full"))
        rows.append(("Why", wording.reasons(state.planned.reasons)))
    return rows


def _detail(label: str, parts: Sequence[Content], view: Viewport) -> list[Content]:
    """A label and its `parts`, wrapped; a part is not divided where it fits on a line."""
    room = max(MIN_TEXT_WIDTH, view.width - len(INDENT) - LABEL_WIDTH)
    lines = [Content("")]
    for part in (piece for each in parts for piece in each.wrap(room)):
        if lines[-1].cell_length and lines[-1].cell_length + 2 + part.cell_length <= room:
            lines[-1] = Content.assemble(lines[-1], "  ", part)
        elif lines[-1].cell_length:
            lines.append(part)
        else:
            lines[-1] = part
    labels = [label, *[""] * (len(lines) - 1)]
    return [
        Content.assemble(INDENT, (f"{name:<{LABEL_WIDTH}}", DIM), line)
        for name, line in zip(labels, lines, strict=True)
    ]


def _phase(state: TurnProgress, phase: Phase) -> Content:
    """`✓ score 7.5K tokens 0.8 s`."""
    name = reading_words.PHASE_NAMES[phase]
    match state.status(phase):
        case PhaseStatus.WAITING:
            return Content.styled(f"· {name}", FAINT)
        case PhaseStatus.RUNNING:
            progress = state.phases[phase]
            amount = f" {reading_words.amount_done(progress)}"
            if phase is Phase.DECODE and progress.total:
                amount = f" {formatting.plural(state.generated_tokens, 'token')}"
            return Content.assemble(("▶ ", ACCENT), (f"{name}{amount}".rstrip(), "bold"))
        case PhaseStatus.DONE:
            return Content.assemble(("✓ ", ACCENT), (name + _result(state, phase), DIM))
        case PhaseStatus.STOPPED:
            return Content.assemble(("■ ", DIM), (name, DIM))
        case PhaseStatus.FAILED:
            return Content.assemble(("✗ ", BAD), (name, DIM))


def _result(state: TurnProgress, phase: Phase) -> str:
    """How many tokens a finished phase had, and how long it took."""
    text, progress = "", state.phases.get(phase)
    if progress is not None and progress.total and phase in (Phase.SCORE, Phase.PREFILL):
        text = f" {formatting.short_count(progress.total)} tokens"
    if state.seconds(phase) >= reading_words.MIN_PHASE_SECONDS:
        text += f" {formatting.seconds(state.seconds(phase))}"
    return text


class PrefillPanel(Widget):
    """Draws a `TurnProgress`. Call `update_progress` after each change of it."""

    details: reactive[bool] = reactive(False, layout=True)

    def __init__(self, progress: TurnProgress, clock: Callable[[], float]) -> None:
        super().__init__()
        self._progress = progress
        self._clock = clock
        self._line_count = 0
        self._previewing = False
        self.hints: Sequence[str] = ()
        """The keys that the line after the answer names."""

    def update_progress(self) -> None:
        """Draw again."""
        if self._previewing != (self._progress.preview is not None):
            self._previewing = not self._previewing
            self._stay_visible()
        if len(self._lines(self.content_size.width)) == self._line_count:
            self.refresh()
        else:
            self.refresh(layout=True)

    def render(self) -> Content:
        lines = self._lines(self.content_size.width)
        self._line_count = len(lines)
        return Content("\n").join(lines)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._lines(width))

    def toggle(self) -> None:
        """Show or hide the details."""
        self.details = not self.details
        self._stay_visible()

    def on_click(self, event: Click) -> None:
        event.stop()
        self.toggle()

    def _lines(self, width: int) -> list[Content]:
        return panel_lines(self._progress, Viewport(width, self._clock()), self.details, self.hints)

    def _stay_visible(self) -> None:
        """A panel that has grown grows upwards, out of a transcript that is scrolled to its end."""
        if self.details or self._previewing:
            self.call_after_refresh(self.scroll_visible, animate=False)
