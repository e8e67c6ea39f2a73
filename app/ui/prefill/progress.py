"""What is known of how a turn is being read, gathered from the engine's events. No widgets here."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.engine.messages import (
    Ended,
    Event,
    Failed,
    FellBack,
    Finished,
    ImportanceMap,
    Phase,
    PhaseProgress,
    Planned,
    Reading,
    Selected,
    Statistics,
)

SPARSE_PHASES = (
    Phase.TOKENISE,
    Phase.SCORE,
    Phase.LOOKAHEAD,
    Phase.SELECT,
    Phase.PREFILL,
    Phase.DECODE,
)
DENSE_PHASES = (Phase.TOKENISE, Phase.PREFILL, Phase.DECODE)


@dataclass
class ReadingProgress:
    """The state behind a prefill panel. `preview` is a selection tried out after the turn."""

    asked_keep: float
    started: float = 0.0
    """Monotonic time at which the question was asked."""
    stopped_at: float | None = None
    phases: dict[Phase, PhaseProgress] = field(default_factory=dict)
    planned: Planned | None = None
    importance: ImportanceMap | None = None
    selected: Selected | None = None
    preview: Selected | None = None
    fallback: str | None = None
    statistics: Statistics | None = None
    ended: Ended | None = None
    failed: bool = False

    def apply(self, event: Event, now: float) -> None:
        """Take in an event of this turn."""
        match event:
            case PhaseProgress():
                self.phases[event.phase] = event
            case Planned():
                self.planned = event
            case ImportanceMap():
                self.importance = event
            case Selected() if self.over:
                self.preview = event
            case Selected():
                self.selected = event
            case FellBack():
                self.fallback = event.reason
            case Finished():
                self.ended = event.ended
                self.statistics = event.statistics
                self.stopped_at = now
                if event.statistics is not None and event.statistics.fallback is not None:
                    self.fallback = event.statistics.fallback
            case Failed():
                self.failed = True
                self.stopped_at = now
            case _:
                pass

    @property
    def over(self) -> bool:
        return self.ended is not None or self.failed

    @property
    def reading(self) -> Reading | None:
        """How it is read; None until that was decided."""
        if self.statistics is not None:
            return self.statistics.reading
        if self.fallback is not None:
            return Reading.DENSE
        return self.planned.reading if self.planned else None

    @property
    def scored(self) -> bool:
        """Whether there are scores to select from again."""
        return self.selected is not None and self.importance is not None

    @property
    def keep(self) -> float:
        """The keep to show: what was selected, else what was planned, else what was asked for."""
        if self.preview is not None:
            return self.preview.keep
        if self.reading is Reading.DENSE:
            return 1.0
        if self.selected is not None:
            return self.selected.keep
        return self.planned.keep if self.planned else self.asked_keep

    @property
    def running(self) -> Phase | None:
        """The phase under way, None before the first one and after the last."""
        if self.over:
            return None
        begun = [phase for phase in Phase if phase in self.phases]
        unfinished = [phase for phase in begun if not self.phases[phase].finished]
        return unfinished[-1] if unfinished else None

    def elapsed(self, now: float) -> float:
        return (self.stopped_at if self.stopped_at is not None else now) - self.started

    def expected_phases(self) -> tuple[Phase, ...]:
        """The phases to show, in order: what this reading goes through, and what was begun."""
        dense = self.reading is Reading.DENSE
        usual = DENSE_PHASES if dense else SPARSE_PHASES
        return tuple(phase for phase in Phase if phase in usual or phase in self.phases)
