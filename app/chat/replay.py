"""The events of a stored answer, as far as the store has them, so that what shows a running answer
can show a stored one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from app.chat.conversation import Turn, TurnState
from app.protocol.events import (
    Event,
    Failed,
    Finished,
    ImportanceMap,
    PhaseProgress,
    Selected,
    Token,
)
from app.protocol.stats import FinishReason, Phase, Statistics
from app.sessions import records

DRAFT_PHASES = (Phase.SCORE, Phase.LOOKAHEAD, Phase.SELECT)
MIN_RESTORE_SECONDS = 0.01
"""Below this, nothing was restored."""


def replay_events(
    turn: Turn,
    stats: records.AnswerStats | None,
    read_map: records.ReadMap | None,
    positions: Mapping[int, int],
) -> tuple[Event, ...]:
    """The events of a finished turn. `positions` are indexes in the prompt, by the ids of
    their questions. What the store does not know is skipped."""
    events: list[Event] = []
    if read_map is not None and stats is not None:
        events += _selection_events(turn.number, stats, read_map, positions)
    if stats is not None:
        events += _phases(turn, stats)
    if turn.state is TurnState.FAILED:
        return (*events, turn.failure or Failed(turn.number, *NEVER_ANSWERED))
    ids = turn.generated_ids or ()
    if turn.text or ids:
        events.append(Token(turn.number, ids, turn.text))
    stopped = turn.state is TurnState.STOPPED
    ended = FinishReason.CANCELLED if stopped else turn.ended or FinishReason.STOP
    return (*events, Finished(turn.number, ended, turn.text, ids, stats))


NEVER_ANSWERED = ("specchat ended before it was answered", "ask it again")


def _selection_events(
    number: int, stats: Statistics, read_map: records.ReadMap, positions: Mapping[int, int]
) -> list[Event]:
    events: list[Event] = []
    if read_map.importance:
        importance = tuple(value / 255 for value in read_map.importance)
        events.append(ImportanceMap(number, importance, 1, 1))
    if spans := read_map.spans:
        texts = tuple(
            replace(text, message=positions[text.message])
            for text in read_map.texts
            if text.message in positions and text.span < len(spans)
        )
        selected = sum(span.end - span.start for span in spans)
        events.append(
            Selected(number, stats.keep_ratio, selected, stats.prompt_tokens, spans, texts)
        )
    return events


def _phases(turn: Turn, statistics: Statistics) -> list[PhaseProgress]:
    """The phases of the turn with their seconds. The numbers of tokens are not stored, so the total
    is 0, or 1 for a phase that may have been stopped."""
    seconds = {time.phase: time.seconds for time in statistics.phases}
    if turn.text or turn.generated_ids:
        seconds[Phase.DECODE] = statistics.decode_seconds
    seconds.pop(Phase.WAIT, None)
    if seconds.get(Phase.RESTORE, 0.0) < MIN_RESTORE_SECONDS:
        seconds.pop(Phase.RESTORE, None)
    gone_through = [phase for phase in Phase if phase in seconds]
    open_ended = set(gone_through[-1:])
    if statistics.fallback is not None:
        open_ended.update([phase for phase in gone_through if phase in DRAFT_PHASES][-1:])
    return [
        PhaseProgress(turn.number, phase, 0, int(phase in open_ended), seconds[phase])
        for phase in gone_through
    ]
