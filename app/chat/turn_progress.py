"""How a turn's prompt is read and its answer written: from the engine's events while it runs, or
as the store has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from app.protocol.events import (
    Event,
    Failed,
    FellBackToDense,
    Finished,
    ImportanceMap,
    PhaseProgress,
    Planned,
    Retrieved,
    Retrieving,
    Selected,
    Token,
)
from app.protocol.prompt import SegmentKind
from app.protocol.reasons import Reason
from app.protocol.stats import DocumentsRead, FinishReason, Phase, Reading, Statistics
from app.store.records import ReadMap

SPARSE_PHASES = (
    Phase.TOKENISE,
    Phase.SCORE,
    Phase.LOOKAHEAD,
    Phase.SELECT,
    Phase.PREFILL,
    Phase.DECODE,
)
DRAFT_PHASES = (Phase.SCORE, Phase.LOOKAHEAD, Phase.SELECT)
DENSE_PHASES = (Phase.TOKENISE, Phase.PREFILL, Phase.DECODE)
MIN_RESTORE_SECONDS = 0.01
"""Below this, nothing was restored."""
STOPPED = (FinishReason.CANCELLED, FinishReason.MEMORY, FinishReason.REPEATED)


class PhaseStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "cut"
    """Stopped by the user."""
    FAILED = "failed"


@dataclass
class TurnProgress:
    """What the prefill panel, the spans view and the store show of a turn. `preview` is a selection
    that is tried after the turn."""

    requested_keep: float
    started_at: float | None = None
    """Monotonic time of the question; None before it is sent."""
    stopped_at: float | None = None
    phases: dict[Phase, PhaseProgress] = field(default_factory=dict)
    retrieving: DocumentsRead | None = None
    """The documents, if only parts of them fit in the context."""
    retrieved: Retrieved | None = None
    planned: Planned | None = None
    importance: ImportanceMap | None = None
    selected: Selected | None = None
    preview: Selected | None = None
    fallback: Reason | None = None
    statistics: Statistics | None = None
    generated_tokens: int = 0
    has_text: bool = False
    thinking_started_at: float | None = None
    thinking_ended_at: float = 0.0
    thinking_tokens: int = 0
    finish_reason: FinishReason | None = None
    failed: bool = False
    restored: bool = False
    """It is of an earlier run of the program: the engine no longer has its scores."""
    before_resume: TurnProgress | None = None
    """The progress before the answer was continued, if it was."""

    @classmethod
    def stored(
        cls,
        keep: float,
        ended: FinishReason | None,
        has_text: bool,
        statistics: Statistics | None,
        read_map: ReadMap | None,
        positions: Mapping[int, int],
    ) -> TurnProgress:
        """How a finished turn was read, as far as the store knows; `ended` is None if it failed.
        `positions` are those of the prompt's messages, by the ids of their questions. The engine
        no longer has its scores, so no other keep can be previewed."""
        found = cls(keep, started_at=0.0, stopped_at=0.0, restored=True, has_text=has_text)
        found.finish_reason, found.failed = ended, ended is None
        if statistics is None:
            return found
        if ended is not None:
            found.statistics, found.fallback = statistics, statistics.fallback
            found.stopped_at = statistics.ttft + statistics.decode_seconds
        found.phases = _stored_phases(statistics, has_text)
        if read_map is not None and read_map.importance:
            importance = tuple(value / 255 for value in read_map.importance)
            found.importance = ImportanceMap(0, importance, 1, 1)
        if read_map is not None and (spans := read_map.spans):
            texts = tuple(
                replace(text, message=positions[text.message])
                for text in read_map.texts
                if text.message in positions and text.span < len(spans)
            )
            selected, total = sum(s.end - s.start for s in spans), statistics.prompt_tokens
            keep, documents = statistics.keep_ratio, statistics.documents
            found.selected = Selected(0, keep, selected, total, spans, texts, documents=documents)
        return found

    def renumber(self, by: int) -> None:
        """Count the messages of the prompt from another one on."""
        if self.selected is not None:
            texts = (replace(each, message=each.message + by) for each in self.selected.texts)
            self.selected = replace(self.selected, texts=tuple(texts))
        if self.planned is not None:
            segments = (
                each if each.message is None else replace(each, message=each.message + by)
                for each in self.planned.segments
            )
            self.planned = replace(self.planned, segments=tuple(segments))

    def resume(self, now: float) -> None:
        """The answer is continued. What is known about its prompt stays."""
        self.before_resume = replace(self)
        pause = now - (self.stopped_at or now)
        self.started_at = (self.started_at or 0.0) + pause
        if self.thinking_started_at is not None:
            self.thinking_started_at += pause
        self.stopped_at = self.statistics = self.finish_reason = self.preview = None
        self.phases, self.failed = {}, False

    def apply(self, event: Event, now: float) -> None:
        """Update from an event of this turn."""
        was_read = self.before_resume is not None and self.before_resume.statistics is not None
        match event:
            case Planned() if was_read and self.planned is not None:
                pass
            case ImportanceMap() | Selected() if was_read and not self.finished:
                pass
            case PhaseProgress():
                self.phases[event.phase] = event
            case Retrieving():
                self.retrieving = event.documents
            case Retrieved():
                self.retrieved = event
            case Planned():
                if self.planned is not None:  # a machine was lost, and the prompt is read again
                    self.selected = None
                self.planned = event
            case ImportanceMap():
                self.importance = event
            case Selected() if self.finished:
                self.preview = event
            case Selected():
                self.selected = event
            case Token():
                self.generated_tokens += len(event.ids)
                self.has_text = self.has_text or bool(event.text)
                if event.thinking:
                    self._count_thinking(event, now)
            case FellBackToDense():
                self.fallback = event.reason
            case Finished():
                self.finish_reason = event.finish_reason
                self.statistics = event.statistics
                self.stopped_at = now
                if self.before_resume is not None and was_read:
                    self.phases = {**self.phases, **self.before_resume.phases}
                if event.statistics is not None and event.statistics.fallback is not None:
                    self.fallback = event.statistics.fallback
            case Failed():
                self.failed = True
                self.stopped_at = now
            case _:
                pass

    def _count_thinking(self, event: Token, now: float) -> None:
        if self.thinking_started_at is None:
            self.thinking_started_at = now
        self.thinking_ended_at = now
        self.thinking_tokens += len(event.ids)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None or self.failed

    @property
    def reading(self) -> Reading | None:
        """Sparse or dense; None until that is decided."""
        if self.statistics is not None:
            return self.statistics.reading
        if self.fallback is not None:
            return Reading.DENSE
        return self.planned.reading if self.planned else None

    @property
    def documents(self) -> DocumentsRead | None:
        """How much of the documents is read, or will be, as far as known."""
        if self.statistics is not None:
            return self.statistics.documents
        if self.reading is not Reading.DENSE:
            return None if self.selected is None else self.selected.documents
        planned = None if self.planned is None else self.planned.documents
        return None if planned is None else replace(planned, read=planned.chosen)

    @property
    def has_scores(self) -> bool:
        """Whether there are scores to select from again."""
        return self.selected is not None and self.importance is not None and not self.restored

    @property
    def would_select(self) -> Selected | None:
        """What keep would have selected from a prompt that was cached as a whole, so that nothing
        was skipped."""
        dense = self.reading is Reading.DENSE and self.fallback is None
        return self.selected if dense else None

    @property
    def keep(self) -> float:
        """The keep to show: the one of the selection, else the planned or the requested one."""
        if self.preview is not None:
            return self.preview.keep_ratio
        if self.reading is Reading.DENSE:
            return 1.0
        if self.selected is not None:
            return self.selected.keep_ratio
        return self.planned.keep_ratio if self.planned else self.requested_keep

    @property
    def reused_tokens(self) -> int:
        """Tokens that were in the cache already."""
        known = self.planned or self.statistics
        return known.reused_tokens if known else 0

    @property
    def messages_with_documents(self) -> set[int | None] | None:
        """Which messages have documents in the prompt: what was put before earlier questions may
        have made room. None if that is unknown."""
        if self.planned is None:
            return None
        segments = self.planned.segments
        return {each.message for each in segments if each.kind is SegmentKind.DOCUMENT}

    @property
    def latest_phase(self) -> Phase | None:
        """The last phase that has started."""
        return next((phase for phase in reversed(Phase) if phase in self.phases), None)

    @property
    def running_phase(self) -> Phase | None:
        """The running phase; None before the first one and between two."""
        latest = self.latest_phase
        return latest if latest and self.status(latest) is PhaseStatus.RUNNING else None

    def status(self, phase: Phase) -> PhaseStatus:
        """A phase may be too short to be reported, or end before its total (a lookahead at the end
        of the text, an answer): it is done once a later one has started."""
        progress, latest = self.phases.get(phase), self.latest_phase
        later_started = latest is not None and list(Phase).index(latest) > list(Phase).index(phase)
        if progress is not None and progress.finished:
            return PhaseStatus.DONE
        if progress is not None and self.fallback is not None and phase in DRAFT_PHASES:
            return PhaseStatus.FAILED
        if later_started or (phase is Phase.TOKENISE and self.planned is not None):
            return PhaseStatus.DONE
        if progress is None:
            return PhaseStatus.WAITING
        return self._status_of_latest()

    def _status_of_latest(self) -> PhaseStatus:
        if self.failed:
            return PhaseStatus.FAILED
        if self.finish_reason is None:
            return PhaseStatus.RUNNING
        return PhaseStatus.STOPPED if self.finish_reason in STOPPED else PhaseStatus.DONE

    def seconds(self, phase: Phase) -> float:
        """How long a phase took, from the statistics, or before the end from its last report."""
        if self.statistics is not None:
            if phase is Phase.DECODE:
                return self.statistics.decode_seconds
            times = {time.phase: time.seconds for time in self.statistics.phases}
            if phase in times:
                return times[phase]
        return self.phases[phase].elapsed if phase in self.phases else 0.0

    def elapsed(self, now: float) -> float:
        ended = self.stopped_at if self.stopped_at is not None else now
        return ended - (ended if self.started_at is None else self.started_at)

    def expected_phases(self) -> tuple[Phase, ...]:
        """The phases to show, in order: those of a sparse or dense turn, and any that started."""
        dense = self.reading is Reading.DENSE
        usual = DENSE_PHASES if dense else SPARSE_PHASES
        return tuple(phase for phase in Phase if phase in usual or phase in self.phases)


def _stored_phases(statistics: Statistics, has_text: bool) -> dict[Phase, PhaseProgress]:
    """The phases of a turn with their seconds. The numbers of tokens are not stored, so the total
    is 0, or 1 for a phase that may have been stopped."""
    seconds = {time.phase: time.seconds for time in statistics.phases}
    if has_text:
        seconds[Phase.DECODE] = statistics.decode_seconds
    seconds.pop(Phase.WAIT, None)
    if seconds.get(Phase.RESTORE, 0.0) < MIN_RESTORE_SECONDS:
        seconds.pop(Phase.RESTORE, None)
    gone_through = [phase for phase in Phase if phase in seconds]
    open_ended = set(gone_through[-1:])
    if statistics.fallback is not None:
        open_ended.update([phase for phase in gone_through if phase in DRAFT_PHASES][-1:])
    return {
        phase: PhaseProgress(0, phase, 0, int(phase in open_ended), seconds[phase])
        for phase in gone_through
    }
