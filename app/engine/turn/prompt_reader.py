"""Brings a turn's prompt into the conversation's caches: all of it, or what the draft finds
important. Tokens that earlier turns cached are not read again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import memory
from app.engine.cache.growth import reserve_capacity
from app.engine.cache.positions import Positions
from app.engine.cache.prefill import set_next_position
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.memory import estimates as memory_estimates
from app.engine.memory.conversation_cache import ConversationCache, ScoredPrompt
from app.engine.memory.manager import MemoryManager
from app.engine.model.embeddings import NoEmbeddings
from app.engine.model.loader import ModelPair
from app.engine.model.prompt import Prompt
from app.engine.model.text_encoder import ENCODER_BYTES, OnPieces, built_in_encoder
from app.engine.progress import Part, TurnClock
from app.engine.scorers import baseline_scorers
from app.engine.scorers.attention_scores import AttentionObserver, Importance, ScoringError
from app.engine.scorers.built_in_draft import built_in_scores, join
from app.engine.scorers.draft_scoring import draft_work, score
from app.engine.scorers.embedding_scores import embedding_scores
from app.engine.scorers.foreign_draft import importance_for_target
from app.engine.scorers.importance_map import buckets, importance_map
from app.engine.scorers.question_likelihood import (
    BATCH_TOKENS,
    QuestionFrame,
    question_likelihood,
    question_messages,
)
from app.engine.scorers.selection import Selection
from app.engine.turn.turn_estimate import afresh_pays, joins_for_length, scoring_of
from app.protocol.commands import Ask
from app.protocol.cost_model import (
    UNKNOWN_COSTS,
    AttentionWork,
    Costs,
    CostTerm,
    LinearCost,
)
from app.protocol.events import ImportanceMap
from app.protocol.memory_model import SMALLEST_STEP
from app.protocol.options import AUTO_KEEP, Scoring, Tuning
from app.protocol.prompt import SegmentKind
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import Phase

ATTENTION_WEIGHT, LIKELIHOOD_WEIGHT = 0.5, 1.0
"""Of what the draft finds, beside the built-in one."""


class PromptReader:
    """Reads one turn's prompt. `reused_tokens` were cached before, `read_tokens` are cached now,
    and `recalled_tokens` were read now although they come before cached ones."""

    def __init__(
        self,
        pair: ModelPair,
        ask: Ask,
        conversation: ConversationCache,
        clock: TurnClock,
        memory_manager: MemoryManager,
        costs: Costs = UNKNOWN_COSTS,
    ) -> None:
        self.reused_tokens = self.read_tokens = self.recalled_tokens = 0
        self.work: dict[CostTerm, AttentionWork] = {}
        """What each model read."""
        self.keep = ask.expected_keep
        self.most_keep = 1.0
        """What memory and the time that is allowed have room for."""
        self.reasons: list[Reason] = []
        """Why that keep, if it was left to the scores, and whether the prompt was re-read."""
        self._costs = costs
        self._pair, self._ask, self._conversation = pair, ask, conversation
        self._clock, self._memory_manager = clock, memory_manager

    @property
    def _target(self) -> PrefixCache:
        return self._conversation.target

    # The last token is never read here: decoding feeds it.

    def read_dense(self, prompt: Prompt) -> None:
        """Read everything from the first skipped token on."""
        ids, target = prompt.ids, self._target
        start = target.rewind(min(target.common_prefix_len(ids[:-1]), target.dense_prefix_len))
        target.set_retain_all(False)
        self.reused_tokens = start
        self._prefill(prompt, np.arange(start, len(ids) - 1, dtype=np.int32))

    def read_sparse(self, prompt: Prompt) -> None:
        """Read the pinned and the important tokens that are not cached."""
        self._conversation.ensure_positioned()
        target, ids, tuning = self._target, prompt.ids, self._ask.tuning
        shared = target.common_prefix_len(ids[:-1])
        if shared == len(ids) - 1:  # the same question again: it has recalled what it needs
            tuning = replace(tuning, recall_share=0.0)
        start = target.rewind(shared)
        cached = self._cached_before(prompt, tuning)
        importance = self._importance(prompt)
        selected = self._select(prompt, importance, tuning, cached).positions[:-1]
        missing = target.uncached(selected)
        if self._afresh_is_faster(prompt, missing, start):
            many = int(target.cached.sum())
            start = target.rewind(prompt.first_eligible)
            cached &= prompt.tokens_of(SegmentKind.HISTORY)[: len(cached)]
            selected = self._select(prompt, importance, tuning, cached).positions[:-1]
            self.reasons.append(Reason(ReasonCode.RE_READ, {"cached": many}))
            missing = target.uncached(selected)
        elif len(missing) and missing[0] < start:
            if target.can_insert_at(int(missing[0])):
                start = target.rewind(prompt.question_start)  # it must attend to recalled tokens
                # Tokens right after a recalled chunk were read as if nothing came before them.
                if len(following := target.runs_following(missing, tuning.chunk)):
                    target.evict(following)
            else:  # recurrent layers cannot read a token before those they have read
                target.rewind(int(missing[0]))
            missing = target.uncached(selected)
        self.reused_tokens = int(target.cached.sum())
        self.recalled_tokens = int((missing < start).sum())
        target.set_retain_all(True)
        self._prefill(prompt, missing)
        set_next_position(target.cache, len(ids) - 1)

    def _afresh_is_faster(self, prompt: Prompt, missing: Positions, start: int) -> bool:
        """Whether it saves much to read what matters as if nothing of the documents were cached,
        instead of what is `missing` of it, some of it before the token `start` up to which the
        prompt is cached."""
        target = self._target
        if self._costs.target is None or not len(missing) or (first := int(missing[0])) >= start:
            return False
        if target.can_insert_at(first):
            again = len(target.runs_following(missing, self._ask.tuning.chunk))
            again += int(target.cached[prompt.question_start :].sum())
        else:
            again = int(target.cached[target.rewind_target(first) :].sum())
        recall = AttentionWork(len(missing) + again, int(target.cached.sum()) - again)
        return afresh_pays(self._costs.target, prompt, self.keep, recall)

    def _cached_before(self, prompt: Prompt, tuning: Tuning) -> NDArray[np.bool_]:
        """Which tokens were cached before the turn; of one that was stopped while it read, before
        it began, so that the same is selected again."""
        cached, scored = self._target.cached, self._conversation.scored
        if scored is not None and scored.is_of(prompt, tuning):
            selected = scored.select(self._ask.keep_ratio)[0].positions
            if np.isin(np.flatnonzero(cached), selected).all():
                return scored.cached
        return cached.copy()

    def resume_position(self, prompt: Prompt) -> int | None:
        """The token from which on the answer at the end of `prompt` must be read again to continue
        it; None where more than the answer is missing."""
        target, ids, question = self._target, prompt.ids, prompt.question_start
        if not prompt.answer_prefix_len:
            return None
        start = target.rewind_target(target.common_prefix_len(ids[:-1]))
        return start if start > question and target.cached[question:start].all() else None

    def resume(self, prompt: Prompt, start: int) -> None:
        """Prepare to continue that answer; tokens skipped before it stay skipped."""
        target, last = self._target, len(prompt.ids) - 1
        start = target.rewind(start)
        self.reused_tokens = int(target.cached.sum())
        self._prefill(prompt, np.arange(start, last, dtype=np.int32))
        set_next_position(target.cache, last)

    def can_preview_selection(self, prompt: Prompt) -> bool:
        """Whether scoring is quick: the draft has cached the documents, or is the built-in one."""
        draft = self._conversation.draft
        if self._pair.draft is None:
            return True
        read = prompt.draft_prompt
        ends = (s.end for s in read.segments if s.kind is SegmentKind.DOCUMENT)
        return draft is not None and draft.common_prefix_len(read.ids) >= max(ends, default=0)

    def preview_selection(self, prompt: Prompt) -> None:
        """Score and select as if nothing were cached, to show it in a turn that skips nothing."""
        importance = self._importance(prompt)
        self._select(prompt, importance, self._ask.tuning, np.zeros(0, bool))

    def _select(
        self, prompt: Prompt, importance: Importance, tuning: Tuning, cached: NDArray[np.bool_]
    ) -> Selection:
        auto = self._ask.keep_ratio == AUTO_KEEP
        scored = ScoredPrompt(self._clock.turn, prompt, importance, tuning, cached, auto)
        earlier = self._conversation.scored
        if earlier is not None and earlier.is_of(prompt, tuning):  # its answer needed that, too
            scored = scored.with_recalled(earlier.recalled)
        self._conversation.scored = scored
        with self._clock.timed(Phase.SELECT):
            if auto:
                self._choose_keep(scored.auto_keep)
            selection, event = scored.select(self.keep)
            self._clock.emit(event)
        return selection

    def _choose_keep(self, wanted: float) -> None:
        self.keep = min(wanted, self.most_keep)
        reason = Reason(ReasonCode.KEEP_CHOSEN, {"keep": wanted})
        if wanted > self.most_keep:
            data = {"wanted": wanted, "keep": self.most_keep, "timed": self._ask.within_seconds > 0}
            reason = Reason(ReasonCode.KEEP_LIMITED, data)
        self.reasons = [reason]

    def _prefill(self, prompt: Prompt, positions: Positions) -> None:
        """The target reads these ascending positions. It can later rewind to the start of the
        documents and to the end of the question."""
        model, target, count = self._pair.target, self._target, len(positions)
        before = int(target.cached.sum())
        work, total = AttentionWork(count, before), before + count
        self.work[CostTerm.TARGET] = work
        curve = None
        if self._costs.target is not None:
            curve = _seconds_until(self._costs.target, work)
            self._clock.forecast.expect(Phase.PREFILL, curve(count))
        need = memory_estimates.prefill_need(model, count, total, target.retain_all)
        fits = self._ensure_memory(need, total)
        report = self._clock.report(Phase.PREFILL, count, seconds=curve)
        ends = [s.start for s in prompt.segments if s.kind is SegmentKind.GENERATION]
        checkpoints = [prompt.first_eligible, *ends] if target.needs_checkpoints else []
        boundaries = np.searchsorted(positions, checkpoints)
        done = 0
        with self._clock.timed(Phase.PREFILL), reserve_capacity(target.cache, count * fits):
            for part in np.split(positions, boundaries):

                def on_step(now: int, before: int = done) -> None:
                    self.read_tokens = int(target.cached.sum())
                    report(before + now)
                    if before + now < count:
                        self._memory_manager.check_step_fits(model, self.read_tokens, fits)

                def on_part(now: int, before: int = done) -> None:
                    report(before + now, within_step=True)

                if len(part):
                    target.prefill_at(model.model, prompt.ids, part, model.step, on_step, on_part)
                done += len(part)
                if done in boundaries:
                    target.add_checkpoint()
        self.read_tokens = int(target.cached.sum()) + 1  # with the last one, which decoding feeds

    def _ensure_memory(self, need: memory_estimates.MemoryNeed, total: int) -> bool:
        """Free memory for one phase, and choose its step size: the cache grows, and one step comes
        on top. False when the phase does not fit but is tried: it then takes memory only as it
        goes."""
        self._memory_manager.ensure_free(
            need, self._conversation, self._clock, self._ask.skip_memory_check
        )
        model = need.model
        rest = need.minimum - model.transient.bytes(SMALLEST_STEP, total, forced=True)
        free = model.free_memory()
        model.step.limit(
            *(model.transient.largest_step(free - rest, total, f) for f in (True, False))
        )
        return need.minimum <= free

    def _importance(self, prompt: Prompt) -> Importance:
        tuning, scored = self._ask.tuning, self._conversation.scored
        if scored is not None and scored.is_of(prompt, tuning):
            self._show(scored.importance * ~prompt.pinned)
            return scored.importance
        match scoring := scoring_of(self._pair, tuning, len(prompt.draft_prompt.ids)):
            case Scoring.RANDOM:
                return baseline_scorers.random_scores(prompt.ids, tuning.chunk)
            case Scoring.LEXICAL:
                return baseline_scorers.bm25_scores(prompt.ids, prompt.question_start, tuning.chunk)
            case Scoring.EMBEDDING | Scoring.BUILT_IN:
                importance = self._importance_without_draft(prompt, scoring)
                self._show_above_middle(importance, prompt)
                return importance
            case Scoring.JOINED | Scoring.LIKELIHOOD:
                return self._joined_importance(prompt, scoring)
        return self._draft_importance(prompt)

    def _joined_importance(self, prompt: Prompt, scoring: Scoring) -> Importance:
        """What the draft finds, and, if there is memory for it, the built-in one: first, because
        the draft may need the target's memory, and without its weights there are no embeddings."""
        built_in = None
        if memory.free() >= ENCODER_BYTES:
            total = len(prompt.draft_prompt.ids)
            report = self._clock.report(Phase.SCORE, total, Part.BUILT_IN)
            with contextlib.suppress(NoEmbeddings), self._clock.timed(Phase.SCORE):
                built_in = self._built_in_importance(
                    prompt, lambda done, pieces: report(total * done // pieces)
                )
        if scoring is Scoring.LIKELIHOOD:
            by_draft, weight = self._question_likelihood(prompt), LIKELIHOOD_WEIGHT
        else:
            by_draft, weight = self._draft_importance(prompt), ATTENTION_WEIGHT
        if built_in is None:
            return by_draft
        tuning = self._ask.tuning
        if joins_for_length(self._pair, tuning, len(prompt.draft_prompt.ids)):
            self.work.pop(CostTerm.DRAFT, None)  # its seconds say little of what the draft takes
        chunk = tuning.chunk
        importance = join(built_in, by_draft, weight, prompt.pinned, chunk)
        self._show_above_middle(importance, prompt)
        return importance

    def _show(self, importance: Importance) -> None:
        self._clock.emit(ImportanceMap(self._clock.turn, buckets(importance), 1, 1))

    def _show_above_middle(self, importance: Importance, prompt: Prompt) -> None:
        """What is less important than most is shown as nothing."""
        middle = np.median(importance[~prompt.pinned]) if prompt.eligible_tokens else 0.0
        self._show(np.maximum(importance - middle, 0.0) * ~prompt.pinned)

    def _importance_without_draft(self, prompt: Prompt, scoring: Scoring) -> Importance:
        target, total = self._pair.target, len(prompt.ids)
        report = self._clock.report(Phase.SCORE, total, Part.BUILT_IN)
        with self._clock.timed(Phase.SCORE):
            if scoring is Scoring.BUILT_IN:
                importance = self._built_in_importance(
                    prompt, lambda done, pieces: report(total * done // pieces)
                )
            else:
                importance = embedding_scores(
                    target.model,
                    target.embedding_space,
                    prompt.ids,
                    prompt.pinned,
                    prompt.question,
                    self._ask.tuning.chunk,
                )
        report(total)
        return importance

    def _built_in_importance(self, prompt: Prompt, on_pieces: OnPieces) -> Importance:
        encoder, question = built_in_encoder(), self._ask.question
        chunk = self._ask.tuning.chunk
        return built_in_scores(self._pair.target, encoder, prompt, question, chunk, on_pieces)

    def _question_likelihood(self, prompt: Prompt) -> Importance:
        draft, read, clock = self._pair.draft, prompt.draft_prompt, self._clock
        if draft is None:
            raise ScoringError("no draft model is loaded")
        frame = QuestionFrame.of(
            self._pair.prompts.build(question_messages(), clock.check_cancel).draft_prompt, read
        )
        total = len(read.ids)
        self._ensure_memory(memory_estimates.prefill_need(draft, BATCH_TOKENS, BATCH_TOKENS), total)
        report = clock.report(Phase.SCORE, total, Part.DRAFT)
        try:
            with clock.timed(Phase.SCORE):
                likelihood = question_likelihood(
                    draft.model, read, frame, lambda done, pieces: report(total * done // pieces)
                )
        finally:
            self._memory_manager.after_scoring(self._conversation)
        return likelihood if read is prompt else importance_for_target(likelihood, prompt)

    def _draft_importance(self, prompt: Prompt) -> Importance:
        draft, cache, clock = self._pair.draft, self._conversation.draft, self._clock
        if draft is None or cache is None:
            raise ScoringError("no draft model is loaded")
        # The question decides, also for an answer that is continued.
        read = prompt.draft_prompt
        ids = read.ids[: len(read.ids) - read.answer_prefix_len]
        total, tuning = len(ids), self._ask.tuning
        self.work[CostTerm.DRAFT] = work = draft_work(cache, prompt, tuning)
        new = total - cache.common_prefix_len(ids)
        curve = None
        if self._costs.draft is not None:
            curve = _seconds_until(self._costs.draft, work, work.cached)
        fits = self._ensure_memory(memory_estimates.scoring_need(draft, new, total), total)
        eligible = ~read.pinned[:total]
        report_prefill = clock.report(Phase.SCORE, total, Part.DRAFT, curve)
        started_at, prefilled_at = time.perf_counter(), 0.0
        report_lookahead: Callable[[int], None] | None = None

        def on_step(done: int) -> None:
            report_prefill(done)
            if done < total:
                self._memory_manager.check_step_fits(draft, done, fits)

        def on_observed(observer: AttentionObserver, expected: int) -> None:
            nonlocal report_lookahead, prefilled_at
            if report_lookahead is None:
                prefilled_at = time.perf_counter()
                report_lookahead = clock.report(Phase.LOOKAHEAD, expected)
            clock.emit(importance_map(clock.turn, observer, expected, eligible))
            report_lookahead(observer.observed)

        try:
            with reserve_capacity(cache.cache, (new + tuning.lookahead) * fits):
                importance = score(
                    draft.model,
                    cache,
                    ids,
                    read.question_start,
                    self._pair.draft_stop_ids,
                    draft.step,
                    on_step,
                    on_observed,
                    tuning,
                    partial(report_prefill, within_step=True),
                )
            importance = np.pad(importance, (0, read.answer_prefix_len))
            return importance if read is prompt else importance_for_target(importance, prompt)
        finally:
            if self._ask.conversation is None:
                cache.clear()  # no later turn needs it, and the target needs the memory
            self._memory_manager.after_scoring(self._conversation)
            ended_at = time.perf_counter()
            prefilled_at = prefilled_at or ended_at
            clock.add(Phase.SCORE, prefilled_at - started_at)
            clock.add(Phase.LOOKAHEAD, ended_at - prefilled_at)


def _seconds_until(
    cost: LinearCost, work: AttentionWork, counted: int = 0
) -> Callable[[int], float]:
    """Predicts seconds from the number of tokens done, of which `counted` were cached before."""
    return lambda done: cost.seconds(replace(work, tokens=min(done - counted, work.tokens)))
