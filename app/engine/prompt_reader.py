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
from app.engine.attention_observer import AttentionObserver, Importance, ScoringError
from app.engine.cache_check import find_mismatch
from app.engine.cache_growth import reserve_capacity
from app.engine.loader import Pair
from app.engine.memory_manager import Room
from app.engine.positions import Positions
from app.engine.prefill import make_positioned_cache, make_stock_cache, set_next_position
from app.engine.prefix_cache import PrefixCache
from app.engine.progress import Progress
from app.engine.prompt import Prompt
from app.engine.scoring import score
from app.engine.selection import Selection, select
from app.protocol.commands import Ask
from app.protocol.cost_model import (
    UNKNOWN_COSTS,
    AttentionWork,
    Costs,
    CostTerm,
    LinearCost,
    scoring_work,
)
from app.protocol.events import ImportanceMap, Selected
from app.protocol.options import Scoring, Tuning
from app.protocol.prompt import SegmentKind, SpanText
from app.protocol.stats import Phase

BUCKETS = 200
"""Resolution of the importance strip: finer than most terminals are wide."""


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """What a later `Reselect` needs of a turn. `read` bool (L,) is what had been read before it."""

    turn: int
    prompt: Prompt
    importance: Importance
    tuning: Tuning
    cached: NDArray[np.bool_]

    def select(self, keep: float) -> tuple[Selection, Selected]:
        selection = select(self.importance, self.prompt.pinned, keep, self.tuning, self.cached)
        event = Selected(
            turn=self.turn,
            keep_ratio=keep,
            selected_tokens=len(selection.positions),
            prompt_tokens=len(self.prompt.ids),
            spans=selection.spans,
            texts=tuple(_texts(self.prompt, selection)),
        )
        return selection, event


class ConversationCache:
    """What target and draft have read of one conversation, and the last turn's scores."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self.target = self._positioned_cache() if pair.dense_only is None else self._stock_cache()
        draft = pair.draft
        self.draft = PrefixCache(partial(make_stock_cache, draft.caches)) if draft else None
        self.scored: ScoredPrompt | None = None

    # What makes a cache must not hold this object: in a circle of references gigabytes would wait
    # for Python's collector, which counts objects.
    def _positioned_cache(self) -> PrefixCache:
        return PrefixCache(partial(make_positioned_cache, self._pair.target.caches))

    def _stock_cache(self) -> PrefixCache:
        return PrefixCache(partial(make_stock_cache, self._pair.target.caches))

    def reset_to_stock(self) -> None:
        """Forget what both have read, and let the target read on into mlx-lm's own caches."""
        self.target, self.scored = self._stock_cache(), None
        if self.draft is not None:
            self.draft.clear()

    def drop_damaged(self) -> str | None:
        """Drop what does not hold what is noted of it, so that it is read again; one sentence on
        what was found, or None."""
        found = []
        for name, held in (("target", self.target), ("draft", self.draft)):
            if held is not None and (problem := find_mismatch(held)) is not None:
                held.clear()
                found.append(f"the {name}'s cache was damaged ({problem})")
        if not found:
            return None
        what = " and ".join(found)
        return f"{what[0].upper()}{what[1:]}, so it was dropped and is read again."

    def ensure_positioned(self) -> None:
        """Make sure that tokens can be left out of the target's caches."""
        if not self.target.supports_gaps:
            self.target = self._positioned_cache()

    @property
    def nbytes(self) -> int:
        return self.target.nbytes + (self.draft.nbytes if self.draft else 0)


class PromptReader:
    """Brings what one turn needs into the conversation's caches.

    `reused` are prompt tokens that were not read again, `kept` those that the target has, and
    `recalled` those it read now though they stand before what it had read.
    """

    def __init__(
        self,
        pair: Pair,
        ask: Ask,
        remembered: ConversationCache,
        progress: Progress,
        room: Room,
        costs: Costs = UNKNOWN_COSTS,
    ) -> None:
        self.reused_tokens = self.cached_tokens = self.recalled_tokens = 0
        self.work: dict[CostTerm, AttentionWork] = {}
        """What each model has read."""
        self._costs = costs
        self._pair, self._ask, self._conversation = pair, ask, remembered
        self._progress, self._room = progress, room

    @property
    def _target(self) -> PrefixCache:
        return self._conversation.target

    def read_dense(self, prompt: Prompt) -> None:
        """Read everything but the last token, from the first one on that was left out."""
        ids = prompt.ids
        target = self._target
        start = target.rewind(min(target.common_prefix_len(ids[:-1]), target.dense_prefix_len))
        target.set_retain_all(False)
        self.reused_tokens = start
        self._prefill(prompt, np.arange(start, len(ids) - 1, dtype=np.int32))

    def read_sparse(self, prompt: Prompt) -> None:
        """Read what is pinned or important and was not read yet, but for the last token."""
        self._conversation.ensure_positioned()
        ask, target, ids, tuning = self._ask, self._target, prompt.ids, self._ask.tuning
        shared = target.common_prefix_len(ids[:-1])
        if shared == len(ids) - 1:  # asked again: what a later question would recall was read
            tuning = replace(tuning, recall_share=0.0)
        start = target.rewind(shared)
        importance = self._importance(prompt)
        scored = ScoredPrompt(ask.turn, prompt, importance, tuning, target.cached.copy())
        self._conversation.scored = scored
        with self._progress.timed(Phase.SELECT):
            selection, event = scored.select(ask.keep_ratio)
            self._progress.emit(event)
        wanted = selection.positions[:-1]
        missing = target.uncached(wanted)
        if len(missing) and missing[0] < start:
            if target.can_insert_at(int(missing[0])):
                start = target.rewind(prompt.question_start)  # it must see what is recalled for it
                # What goes on where a recalled chunk ends was read as if nothing stood before it.
                if len(cut := target.runs_following(missing, tuning.chunk)):
                    target.evict(cut)
            else:  # recurrent layers cannot take in what stands before what they have seen
                target.rewind(int(missing[0]))
            missing = target.uncached(wanted)
        self.reused_tokens = int(target.cached.sum())
        self.recalled_tokens = int((missing < start).sum())
        target.set_retain_all(True)
        self._prefill(prompt, missing)
        set_next_position(target.cache, len(ids) - 1)

    def resume_position(self, prompt: Prompt) -> int | None:
        """From which token on the answer that `prompt` ends with is read again to be continued;
        None where more than that is lacking."""
        target, ids = self._target, prompt.ids
        if not prompt.answer_prefix_len:
            return None
        start = target.rewind_target(target.common_prefix_len(ids[:-1]))
        question = prompt.question_start
        return start if start > question and target.cached[question:start].all() else None

    def resume(self, prompt: Prompt, start: int) -> None:
        """Make ready to continue that answer; what was skipped before it stays so."""
        target, last = self._target, len(prompt.ids) - 1
        start = target.rewind(start)
        self.reused_tokens = int(target.cached.sum())
        self._prefill(prompt, np.arange(start, last, dtype=np.int32))
        set_next_position(target.cache, last)

    def can_preview_selection(self, prompt: Prompt) -> bool:
        """Whether the draft has read the documents already, so that scoring takes little."""
        draft = self._conversation.draft
        ends = (s.end for s in prompt.segments if s.kind is SegmentKind.DOCUMENT)
        return draft is not None and draft.common_prefix_len(prompt.ids) >= max(ends, default=0)

    def preview_selection(self, prompt: Prompt) -> None:
        """Score and select as if nothing were cached: for what is shown of a turn that skips
        nothing."""
        none = np.zeros(0, bool)
        scored = ScoredPrompt(
            self._ask.turn, prompt, self._importance(prompt), self._ask.tuning, none
        )
        self._conversation.scored = scored
        with self._progress.timed(Phase.SELECT):
            self._progress.emit(scored.select(self._ask.keep_ratio)[1])

    def _prefill(self, prompt: Prompt, positions: Positions) -> None:
        """The target reads these positions, ascending. It can come back to where the documents
        begin, and to where the question ends."""
        model, target, count = self._pair.target, self._target, len(positions)
        before = int(target.cached.sum())
        work, seen = AttentionWork(count, before), before + count
        self.work[CostTerm.TARGET] = work
        if self._costs.target is not None:
            self._progress.expect(Phase.PREFILL, _seconds_until(self._costs.target, work), count)
        fits = self._ensure_memory(
            memory_estimates.reading(model, count, seen, target.retain_all), seen
        )
        report = self._progress.report(Phase.PREFILL, count)
        ends = [s.start for s in prompt.segments if s.kind is SegmentKind.GENERATION]
        places = [int(np.argmin(prompt.pinned)), *ends] if target.needs_checkpoints else []
        borders = np.searchsorted(positions, places)
        done = 0
        with self._progress.timed(Phase.PREFILL), reserve_capacity(target.cache, count * fits):
            for part in np.split(positions, borders):

                def read(now: int, before: int = done) -> None:
                    self.cached_tokens = int(target.cached.sum())
                    report(before + now)
                    if before + now < count:
                        self._room.check_step(model, self.cached_tokens, fits)

                if len(part):
                    target.prefill_at(model.model, prompt.ids, part, model.step, read)
                done += len(part)
                if done in borders:
                    target.add_checkpoint()
        self.cached_tokens = (
            int(target.cached.sum()) + 1
        )  # with the prompt's last token, which decoding feeds

    def _ensure_memory(self, need: memory_estimates.Need, seen: int) -> bool:
        """For one phase, and choose its step: what is kept grows, and one step comes on top. False
        when it does not fit but is tried: then room is taken only as it is needed."""
        self._room.make(need, self._conversation, self._progress, self._ask.skip_memory_check)
        model, step = need.model, memory.SMALLEST_STEP
        rest, free = need.least - model.transient.bytes(step, seen), memory.free()
        model.step.max_tokens = model.transient.step(free - rest, seen)
        return need.least <= free

    def _importance(self, prompt: Prompt) -> Importance:
        tuning = self._ask.tuning
        match tuning.scoring:
            case Scoring.RANDOM:
                return baseline_scorers.random_scores(prompt.ids, tuning.chunk)
            case Scoring.LEXICAL:
                return baseline_scorers.bm25_scores(prompt.ids, prompt.question_start, tuning.chunk)
        return self._draft_importance(prompt)

    def _draft_importance(self, prompt: Prompt) -> Importance:
        draft, held, progress = self._pair.draft, self._conversation.draft, self._progress
        if draft is None or held is None:
            raise ScoringError("no draft model is loaded")
        # What was asked decides, as it did for the beginning of an answer that is continued.
        ids = prompt.ids[: len(prompt.ids) - prompt.answer_prefix_len]
        total = len(ids)
        self.work[CostTerm.DRAFT] = work = draft_work(held, prompt, self._ask.tuning)
        new = total - held.common_prefix_len(ids)
        if self._costs.draft is not None:
            self._progress.expect(
                Phase.SCORE, _seconds_until(self._costs.draft, work, work.cached), total
            )
        fits = self._ensure_memory(memory_estimates.scoring(draft, new, total), total)
        eligible = ~prompt.pinned[:total]
        report = progress.report(Phase.SCORE, total)
        begun, read = time.perf_counter(), 0.0
        looking: Callable[[int], None] | None = None

        def reading(done: int) -> None:
            report(done)
            if done < total:
                self._room.check_step(draft, done, fits)

        def observed(observations: AttentionObserver, expected: int) -> None:
            nonlocal looking, read
            if looking is None:
                read = time.perf_counter()
                looking = progress.report(Phase.LOOKAHEAD, expected)
            progress.emit(_importance_map(progress.turn, observations, expected, eligible))
            looking(observations.observed)

        try:
            with reserve_capacity(held.cache, (new + self._ask.tuning.lookahead) * fits):
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
            return np.pad(importance, (0, prompt.answer_prefix_len))
        finally:
            if self._ask.conversation is None:
                held.clear()  # no later turn will want it, and the target needs the room
            self._room.scored(self._conversation)
            ended = time.perf_counter()
            progress.add(Phase.SCORE, (read or ended) - begun)
            progress.add(Phase.LOOKAHEAD, ended - (read or ended))


def draft_work(held: PrefixCache, prompt: Prompt, tuning: Tuning) -> AttentionWork:
    """What the draft reads to score a prompt: the question in any case, since it is observed."""
    total = len(prompt.ids) - prompt.answer_prefix_len
    start = held.rewind_target(
        min(held.common_prefix_len(prompt.ids), prompt.question_start, total - 1)
    )
    return scoring_work(total - start, start, tuning)


def _seconds_until(
    line: LinearCost, work: AttentionWork, counted: int = 0
) -> Callable[[int], float]:
    """Seconds until so many tokens are done, with those `counted` that were read before."""
    return lambda done: line.seconds(replace(work, tokens=min(done - counted, work.tokens)))


def _importance_map(
    turn: int, observations: AttentionObserver, expected: int, eligible: NDArray[np.bool_]
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
