"""Reads a prompt for one turn: all of it, or what the draft finds important, beside what earlier
turns of the conversation have read already."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from app.engine import baseline_scorers, memory, memory_estimates
from app.engine.attention_observer import Importance, Observations, ScoringError
from app.engine.cache_check import disagreement
from app.engine.cache_growth import reserved
from app.engine.loader import Pair
from app.engine.memory_manager import Room
from app.engine.positions import Positions
from app.engine.prefill import dense_cache, seek, sparse_cache
from app.engine.prefix_cache import Held
from app.engine.progress import Progress
from app.engine.prompt import Prompt
from app.engine.scoring import score
from app.engine.selection import Selection, select
from app.protocol.commands import Ask
from app.protocol.cost_model import UNKNOWN, Costs, Line, Part, Work, skimmed
from app.protocol.events import ImportanceMap, Selected
from app.protocol.options import Scoring, Tuning
from app.protocol.prompt import SegmentKind, SpanText
from app.protocol.stats import Phase

BUCKETS = 200
"""Resolution of the importance strip: finer than most terminals are wide."""


@dataclass(frozen=True, slots=True)
class Scored:
    """What a later `Reselect` needs of a turn. `read` bool (L,) is what had been read before it."""

    turn: int
    prompt: Prompt
    importance: Importance
    tuning: Tuning
    read: NDArray[np.bool_]

    def selected(self, keep: float) -> tuple[Selection, Selected]:
        selection = select(self.importance, self.prompt.pinned, keep, self.tuning, self.read)
        event = Selected(
            turn=self.turn,
            keep=keep,
            kept_tokens=len(selection.positions),
            prompt_tokens=len(self.prompt.ids),
            spans=selection.spans,
            texts=tuple(_texts(self.prompt, selection)),
        )
        return selection, event


class Remembered:
    """What target and draft have read of one conversation, and the last turn's scores."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.target = self._placed() if pair.dense_only is None else self._plain()
        draft = pair.draft
        self.draft = Held(partial(dense_cache, draft.caches)) if draft else None
        self.scored: Scored | None = None

    # What makes a cache must not hold this object: in a circle of references gigabytes would wait
    # for Python's collector, which counts objects.
    def _placed(self) -> Held:
        return Held(partial(sparse_cache, self._pair.target.caches))

    def _plain(self) -> Held:
        return Held(partial(dense_cache, self._pair.target.caches))

    def start_plainly(self) -> None:
        """Forget what both have read, and let the target read on into mlx-lm's own caches."""
        self.target, self.scored = self._plain(), None
        if self.draft is not None:
            self.draft.clear()

    def drop_damaged(self) -> str | None:
        """Drop what does not hold what is noted of it, so that it is read again; one sentence on
        what was found, or None."""
        found = []
        for name, held in (("target", self.target), ("draft", self.draft)):
            if held is not None and (problem := disagreement(held)) is not None:
                held.clear()
                found.append(f"the {name}'s cache was damaged ({problem})")
        if not found:
            return None
        what = " and ".join(found)
        return f"{what[0].upper()}{what[1:]}, so it was dropped and is read again."

    def expect_gaps(self) -> None:
        """Make sure that tokens can be left out of the target's caches."""
        if not self.target.takes_gaps:
            self.target = self._placed()

    @property
    def nbytes(self) -> int:
        return self.target.nbytes + (self.draft.nbytes if self.draft else 0)


class Reader:
    """Brings what one turn needs into the conversation's caches.

    `reused` are prompt tokens that were not read again, `kept` those that the target has, and
    `recalled` those it read now though they stand before what it had read.
    """

    def __init__(
        self,
        pair: Pair,
        ask: Ask,
        remembered: Remembered,
        progress: Progress,
        room: Room,
        costs: Costs = UNKNOWN,
    ) -> None:
        self.reused = self.kept = self.recalled = 0
        self.work: dict[Part, Work] = {}
        """What each model has read."""
        self._costs = costs
        self._pair, self._ask, self._remembered = pair, ask, remembered
        self._progress, self._room = progress, room

    @property
    def _target(self) -> Held:
        return self._remembered.target

    def densely(self, prompt: Prompt) -> None:
        """Read everything but the last token, from the first one on that was left out."""
        ids = prompt.ids
        target = self._target
        start = target.rewind(min(target.shared(ids[:-1]), target.exact))
        target.retain(False)
        self.reused = start
        self._prefill(prompt, np.arange(start, len(ids) - 1, dtype=np.int32))

    def sparsely(self, prompt: Prompt) -> None:
        """Read what is pinned or important and was not read yet, but for the last token."""
        self._remembered.expect_gaps()
        ask, target, ids, tuning = self._ask, self._target, prompt.ids, self._ask.tuning
        shared = target.shared(ids[:-1])
        if shared == len(ids) - 1:  # asked again: what a later question would recall was read
            tuning = replace(tuning, recall_share=0.0)
        start = target.rewind(shared)
        importance = self._importance(prompt)
        scored = Scored(ask.turn, prompt, importance, tuning, target.read.copy())
        self._remembered.scored = scored
        with self._progress.timed(Phase.SELECT):
            selection, event = scored.selected(ask.keep)
            self._progress.emit(event)
        wanted = selection.positions[:-1]
        missing = target.missing(wanted)
        if len(missing) and missing[0] < start:
            if target.inserts(int(missing[0])):
                start = target.rewind(prompt.question_start)  # it must see what is recalled for it
                # What goes on where a recalled chunk ends was read as if nothing stood before it.
                if len(cut := target.after(missing, tuning.chunk)):
                    target.forget(cut)
            else:  # recurrent layers cannot take in what stands before what they have seen
                target.rewind(int(missing[0]))
            missing = target.missing(wanted)
        self.reused = int(target.read.sum())
        self.recalled = int((missing < start).sum())
        target.retain(True)
        self._prefill(prompt, missing)
        seek(target.cache, len(ids) - 1)

    def resumes_at(self, prompt: Prompt) -> int | None:
        """From which token on the answer that `prompt` ends with is read again to be continued;
        None where more than that is lacking."""
        target, ids = self._target, prompt.ids
        if not prompt.begun:
            return None
        start = target.back_to(target.shared(ids[:-1]))
        question = prompt.question_start
        return start if start > question and target.read[question:start].all() else None

    def resume(self, prompt: Prompt, start: int) -> None:
        """Make ready to continue that answer; what was skipped before it stays so."""
        target, last = self._target, len(prompt.ids) - 1
        start = target.rewind(start)
        self.reused = int(target.read.sum())
        self._prefill(prompt, np.arange(start, last, dtype=np.int32))
        seek(target.cache, last)

    def can_show_choice(self, prompt: Prompt) -> bool:
        """Whether the draft has read the documents already, so that scoring takes little."""
        draft = self._remembered.draft
        ends = (s.end for s in prompt.segments if s.kind is SegmentKind.DOCUMENT)
        return draft is not None and draft.shared(prompt.ids) >= max(ends, default=0)

    def show_choice(self, prompt: Prompt) -> None:
        """Score and select as if nothing were cached: for what is shown of a turn that skips
        nothing."""
        none = np.zeros(0, bool)
        scored = Scored(self._ask.turn, prompt, self._importance(prompt), self._ask.tuning, none)
        self._remembered.scored = scored
        with self._progress.timed(Phase.SELECT):
            self._progress.emit(scored.selected(self._ask.keep)[1])

    def _prefill(self, prompt: Prompt, positions: Positions) -> None:
        """The target reads these positions, ascending. It can come back to where the documents
        begin, and to where the question ends."""
        model, target, count = self._pair.target, self._target, len(positions)
        before = int(target.read.sum())
        work, seen = Work(count, before), before + count
        self.work[Part.TARGET] = work
        if self._costs.target is not None:
            self._progress.expect(Phase.PREFILL, _until(self._costs.target, work), count)
        fits = self._make_room(memory_estimates.reading(model, count, seen, target.retains), seen)
        report = self._progress.report(Phase.PREFILL, count)
        ends = [s.start for s in prompt.segments if s.kind is SegmentKind.GENERATION]
        places = [int(np.argmin(prompt.pinned)), *ends] if target.forgets else []
        borders = np.searchsorted(positions, places)
        done = 0
        with self._progress.timed(Phase.PREFILL), reserved(target.cache, count * fits):
            for part in np.split(positions, borders):

                def read(now: int, before: int = done) -> None:
                    self.kept = int(target.read.sum())
                    report(before + now)
                    if before + now < count:
                        self._room.check_step(model, self.kept, fits)

                if len(part):
                    target.take_in(model.model, prompt.ids, part, model.step, read)
                done += len(part)
                if done in borders:
                    target.mark_border()
        self.kept = int(target.read.sum()) + 1  # with the prompt's last token, which decoding feeds

    def _make_room(self, need: memory_estimates.Need, seen: int) -> bool:
        """For one phase, and choose its step: what is kept grows, and one step comes on top. False
        when it does not fit but is tried: then room is taken only as it is needed."""
        self._room.make(need, self._remembered, self._progress, self._ask.despite_memory)
        model, step = need.model, memory.SMALLEST_STEP
        rest, free = need.least - model.transient.bytes(step, seen), memory.free()
        model.step.most = model.transient.step(free - rest, seen)
        return need.least <= free

    def _importance(self, prompt: Prompt) -> Importance:
        tuning = self._ask.tuning
        match tuning.scoring:
            case Scoring.RANDOM:
                return baseline_scorers.by_lot(prompt.ids, tuning.chunk)
            case Scoring.LEXICAL:
                return baseline_scorers.lexical(prompt.ids, prompt.question_start, tuning.chunk)
        return self._score(prompt)

    def _score(self, prompt: Prompt) -> Importance:
        draft, held, progress = self._pair.draft, self._remembered.draft, self._progress
        if draft is None or held is None:
            raise ScoringError("no draft model is loaded")
        # What was asked decides, as it did for the beginning of an answer that is continued.
        ids = prompt.ids[: len(prompt.ids) - prompt.begun]
        total = len(ids)
        self.work[Part.DRAFT] = work = skimming(held, prompt, self._ask.tuning)
        new = total - held.shared(ids)
        if self._costs.draft is not None:
            self._progress.expect(Phase.SCORE, _until(self._costs.draft, work, work.before), total)
        fits = self._make_room(memory_estimates.scoring(draft, new, total), total)
        eligible = ~prompt.pinned[:total]
        report = progress.report(Phase.SCORE, total)
        begun, read = time.perf_counter(), 0.0
        looking: Callable[[int], None] | None = None

        def reading(done: int) -> None:
            report(done)
            if done < total:
                self._room.check_step(draft, done, fits)

        def observed(observations: Observations, expected: int) -> None:
            nonlocal looking, read
            if looking is None:
                read = time.perf_counter()
                looking = progress.report(Phase.LOOKAHEAD, expected)
            progress.emit(_importance_map(progress.turn, observations, expected, eligible))
            looking(observations.observed)

        try:
            with reserved(held.cache, (new + self._ask.tuning.lookahead) * fits):
                importance = score(
                    draft.model,
                    held,
                    ids,
                    prompt.question_start,
                    self._pair.target.tokenizer.eos_token_ids,
                    draft.step,
                    reading,
                    observed,
                    self._ask.tuning,
                )
            return np.pad(importance, (0, prompt.begun))
        finally:
            if self._ask.conversation is None:
                held.clear()  # no later turn will want it, and the target needs the room
            self._room.scored(self._remembered)
            ended = time.perf_counter()
            progress.add(Phase.SCORE, (read or ended) - begun)
            progress.add(Phase.LOOKAHEAD, ended - (read or ended))


def skimming(held: Held, prompt: Prompt, tuning: Tuning) -> Work:
    """What the draft reads to score a prompt: the question in any case, since it is observed."""
    total = len(prompt.ids) - prompt.begun
    start = held.back_to(min(held.shared(prompt.ids), prompt.question_start, total - 1))
    return skimmed(total - start, start, tuning)


def _until(line: Line, work: Work, counted: int = 0) -> Callable[[int], float]:
    """Seconds until so many tokens are done, with those `counted` that were read before."""
    return lambda done: line.seconds(replace(work, tokens=min(done - counted, work.tokens)))


def _importance_map(
    turn: int, observations: Observations, expected: int, eligible: NDArray[np.bool_]
) -> ImportanceMap:
    importance = observations.importance * eligible
    count = min(BUCKETS, len(importance))
    borders = np.arange(count) * len(importance) // count
    means = np.add.reduceat(importance, borders) / np.diff([*borders, len(importance)])
    buckets = tuple((means / max(float(means.max()), 1e-12)).tolist())
    return ImportanceMap(turn, buckets, observations.observed, expected)


def _texts(prompt: Prompt, selection: Selection) -> Iterator[SpanText]:
    """Where each kept span lies in its document's text."""
    documents = [s for s in prompt.segments if s.document is not None and s.message is not None]
    ends = [segment.end for segment in documents]
    for number, span in enumerate(selection.spans):
        for index in range(bisect_right(ends, span.start), len(documents)):
            segment = documents[index]
            if segment.start >= span.end:
                break
            if segment.message is None or segment.document is None:
                continue
            start, end = max(span.start, segment.start), min(span.end, segment.end)
            starts = prompt.offsets[segment.message, segment.document]
            yield SpanText(
                number,
                segment.message,
                segment.document,
                int(starts[start - segment.start]),
                int(starts[end - segment.start]),
            )
