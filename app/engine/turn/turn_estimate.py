"""Predicts the memory and time of a turn before it starts, and what would fit if it does not."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np

from app.engine.backend.memory import NotEnoughMemory
from app.engine.memory.conversation_cache import ConversationCache
from app.engine.memory.manager import (
    MemoryManager,
    MemoryNeed,
    encoding_need,
    prefill_need,
    scoring_need,
)
from app.engine.model.loader import ModelPair
from app.engine.model.prompt import Prompt
from app.engine.model.text_encoder import ENCODER_OPERATIONS
from app.engine.progress import ScoringPart, Step
from app.engine.scorers.attention import draft_work
from app.engine.scorers.choice import ChooseScorer, choose_scorer
from app.engine.scorers.overview import OverviewScorer
from app.engine.scorers.scorer import Scorer
from app.estimate.memory import largest_that_fits
from app.estimate.plan import PredictedTtft
from app.estimate.work import MIN_SAVING, MIN_SAVING_LOSING, recalled_tokens, sparse_work
from app.protocol.commands import Ask
from app.protocol.cost_model import AttentionWork, Costs, LinearCost, ReadPlan
from app.protocol.options import expected_keep
from app.protocol.prompt import SegmentKind
from app.protocol.reasons import Data
from app.protocol.stats import Phase, Reading
from app.util.sentences import asks_for_overview

MIN_KEEP = 0.01
"""Lower limit for an automatic keep."""


@dataclass(frozen=True, slots=True)
class TurnEstimate:
    """Predictions for one turn on its conversation's cache. Everything that the memory manager can
    evict counts as free."""

    pair: ModelPair
    ask: Ask
    prompt: Prompt
    cache: ConversationCache
    memory_manager: MemoryManager
    choose_scorer: ChooseScorer = choose_scorer

    def check(self, reading: Reading) -> None:
        """Raise NotEnoughMemory, with what would fit, if the prompt cannot be read this way."""
        if reading is Reading.SPARSE:
            error = self._shortfall(self._scoring_need())
            lowest = self.ask.keep_ratio or MIN_KEEP
            error = error or self._shortfall(self._sparse_need(lowest))
        else:
            error = self._shortfall(self._dense_need())
        if error is not None:
            error.add(self._options(reading))
            raise error

    def fits(self, reading: Reading) -> bool:
        try:
            self.check(reading)
        except NotEnoughMemory:
            return False
        return True

    def predict_ttft(self, costs: Costs) -> PredictedTtft:
        """Predict the seconds from now until the first token."""
        full = costs.seconds(ReadPlan(len(self.prompt.ids), self._dense_work()))
        if self.pair.dense_only is not None:
            return PredictedTtft(None, full)
        return PredictedTtft(self._sparse_ttft(costs, self._expected_keep), full)

    def steps(self, costs: Costs, reading: Reading, spent: float) -> list[Step]:
        """Predicted steps until the first token, `spent` seconds after the turn began; empty if
        the costs are unknown."""
        sparse = reading is Reading.SPARSE
        costs = self._with_built_in(costs)
        rest_cost = (costs.sparse or costs.full) if sparse else (costs.full or costs.sparse)
        if costs.target is None or rest_cost is None:
            return []
        first = costs.target.seconds(AttentionWork(1))
        rest = rest_cost.seconds(AttentionWork(len(self.prompt.ids))) - spent - first
        rest = max(rest, 0.0)
        scorers = self._scorers(sparse)
        by_draft = sparse and costs.draft is not None and self.pair.draft is not None
        steps = []
        if scorers:
            scoring = rest
            if by_draft and costs.draft is not None:
                scoring = costs.draft.seconds(self._draft_work())
            weight = sum(scorers.values())
            steps = [
                Step(Phase.SCORE, scoring * ops / weight, part) for part, ops in scorers.items()
            ]
            rest = rest if by_draft else 0.0
        if by_draft:
            steps.append(Step(Phase.LOOKAHEAD, rest))
        work = self._planned_work(costs, self._expected_keep) if sparse else self._dense_work()
        steps.append(Step(Phase.PREFILL, costs.target.seconds(work)))
        return [*steps, Step(Phase.DECODE, first)]

    def _scorers(self, sparse: bool) -> dict[ScoringPart, float]:
        """Operations per token of each part of scoring, in the order in which they run."""
        scorers: dict[ScoringPart, float] = {}
        if self.pair.only_quotes:
            scorers[ScoringPart.QUOTATION] = ENCODER_OPERATIONS
        if not sparse:
            return scorers
        parts = self.scorer.parts
        if ScoringPart.BUILT_IN in parts:
            scorers[ScoringPart.BUILT_IN] = self.pair.encoder_operations
        if ScoringPart.DRAFT in parts and self.pair.draft is not None:
            scorers[ScoringPart.DRAFT] = 2 * max(self.pair.draft.info.parameters, 1)
        return scorers

    def max_keep(self, costs: Costs, waited: float) -> float:
        """The largest keep, in steps of 0.01, that fits into memory and whose predicted first token
        is within the user's time limit, of which `waited` seconds have passed; else `MIN_KEEP`."""
        left = self.ask.within_seconds - waited

        def fits(keep: float) -> bool:
            if self._shortfall(self._sparse_need(keep)) is not None:
                return False
            expected = self._sparse_ttft(costs, keep) if self.ask.within_seconds else None
            return expected is None or expected <= left

        percents = range(1, 101)
        highest = bisect_left(percents, True, key=lambda percent: not fits(percent / 100))
        return max(highest / 100, MIN_KEEP)

    def can_recall(self, count: int) -> bool:
        """Whether memory suffices to cache `count` more tokens."""
        cached = int(self.cache.target.cached.sum())
        target = self.pair.target
        need = prefill_need(target, count, cached + count, retain_all=True, checkpoints=1)
        return self._shortfall(need) is None

    @property
    def scorer(self) -> Scorer:
        if asks_for_overview(self.ask.question):
            return OverviewScorer()
        return self.choose_scorer(self.pair, len(self.prompt.draft_prompt.ids))

    @property
    def scores_quickly(self) -> bool:
        """Whether scoring is quick: no draft is needed, or it has cached the documents."""
        draft, read = self.cache.draft, self.prompt.draft_prompt
        if not self._uses_draft:
            return True
        ends = (s.end for s in read.segments if s.kind is SegmentKind.DOCUMENT)
        return draft is not None and draft.common_prefix_len(read.ids) >= max(ends, default=0)

    # ------------------------------------------------------------------------------ inside

    @property
    def _expected_keep(self) -> float:
        scored = self.cache.scored
        before = scored.auto_keep if scored is not None else 0.0
        return expected_keep(self.ask.keep_ratio, before, self.prompt.eligible_tokens)

    def _sparse_ttft(self, costs: Costs, keep: float) -> float | None:
        work, costs = self._planned_work(costs, keep), self._with_built_in(costs)
        return costs.seconds(ReadPlan(len(self.prompt.ids), work, self._draft_work()))

    def _with_built_in(self, costs: Costs) -> Costs:
        """The costs, with the draft's increased by the built-in scorer's if that scores this prompt
        only because of its length: the other turns were timed without it. Without scoring, the
        draft costs nothing."""
        draft, usual = costs.draft, self.choose_scorer(self.pair, 0)
        if draft is None or usual.parts == self.scorer.parts:
            return costs
        if not self.scorer.parts:
            return replace(costs, draft=replace(draft, per_token=0.0))
        scorers, timed = self._scorers(True), {ScoringPart.QUOTATION, *usual.parts}
        ratio = sum(scorers.values()) / sum(scorers[part] for part in timed & scorers.keys())
        return replace(costs, draft=replace(draft, per_token=ratio * draft.per_token))

    def _draft_work(self) -> AttentionWork:
        draft = self.cache.draft
        if draft is None or not self._uses_draft:
            return AttentionWork(0)
        return draft_work(draft, self.prompt.draft_prompt)

    def _planned_work(self, costs: Costs, keep: float) -> AttentionWork:
        """The target's work in a sparse read at this keep, from scratch if that is faster."""
        work = self._sparse_work(keep)
        if costs.target is not None and reread_pays(costs.target, self.prompt, keep, work):
            return _reread_work(self.prompt, keep)
        return work

    @property
    def _uses_draft(self) -> bool:
        return ScoringPart.DRAFT in self.scorer.parts

    def _dense_work(self) -> AttentionWork:
        target, ids = self.cache.target, self.prompt.ids
        reusable = min(target.common_prefix_len(ids[:-1]), target.dense_prefix_len)
        start = target.rewind_target(reusable)
        return AttentionWork(len(ids) - 1 - start, start)

    def _sparse_work(self, keep: float) -> AttentionWork:
        """The target's work in `PromptReader.read_sparse`, as far as known before scoring."""
        target, prompt, tuning = self.cache.target, self.prompt, self.ask.tuning
        ids, pinned = prompt.ids, prompt.pinned
        shared = target.common_prefix_len(ids[:-1]) if target.supports_gaps else 0
        start = target.rewind_target(shared)
        cached = target.cached[:start]
        recall_share = 0.0 if shared == len(ids) - 1 else tuning.recall_share
        droppable = ~pinned[:start]
        skipped = int((droppable & ~cached).sum())
        recalled = recalled_tokens(keep, recall_share, int(droppable.sum()), skipped)
        recalled += int((pinned[:start] & ~cached).sum())
        new = int(pinned[start:].sum()) - 1 + math.ceil(keep * int((~pinned[start:]).sum()))
        question = int(cached[prompt.question_start :].sum())
        lost = question if target.is_recurrent else None
        if recalled and not target.can_insert_at(int(np.argmin(cached))):
            # Chunks may be recalled anywhere: the first of n is after one of n + 1 equal parts.
            uncached = np.flatnonzero(~cached)
            chunks = -(-recalled // tuning.chunk)
            first = int(uncached[len(uncached) // (chunks + 1)])
            lost = int(cached[target.rewind_target(first) :].sum())
        return sparse_work(new, recalled, int(cached.sum()), start, question, lost)

    def _shortfall(self, need: MemoryNeed | None) -> NotEnoughMemory | None:
        if need is None:
            return None
        free = self.memory_manager.max_available(need.model, self.cache)
        return NotEnoughMemory(need.task, need.minimum, free) if need.minimum > free else None

    def _scoring_need(self) -> MemoryNeed | None:
        """None if nothing has to be computed. A draft that scores joins a built-in encoder only if
        there is memory for that."""
        draft, cache = self.pair.draft, self.cache.draft
        ids = self.prompt.draft_prompt.ids
        if self.scorer.parts == (ScoringPart.BUILT_IN,):
            return encoding_need(self.pair.target, self.pair.encoder, len(ids))
        if draft is None or cache is None or not self._uses_draft:
            return None
        new = len(ids) - cache.common_prefix_len(ids)
        return scoring_need(draft, new, len(ids))

    def _dense_need(self) -> MemoryNeed:
        work, target = self._dense_work(), self.pair.target
        return prefill_need(target, work.tokens, work.cached + work.tokens)

    def _sparse_need(self, keep_ratio: float) -> MemoryNeed:
        cache, prompt = self.cache.target, self.prompt
        total, shared = len(prompt.ids), cache.common_prefix_len(prompt.ids)
        cached = int(cache.cached[:shared].sum())
        selected = total - prompt.eligible_tokens + math.ceil(keep_ratio * prompt.eligible_tokens)
        count = max(selected - cached, total - max(shared, prompt.question_start))
        return prefill_need(self.pair.target, count, cached + count, retain_all=True)

    def _options(self, reading: Reading) -> Data:
        """What would fit instead: a lower `keep` in percent, or a dense prompt of `full_tokens`,
        which this one exceeds by `excess_tokens`."""
        options: dict[str, int | bool] = {"sparse": reading is Reading.SPARSE}
        below = self.ask.expected_keep if reading is Reading.SPARSE else 1.0
        if keep := self._largest_keep_percent(below):
            options["keep"] = keep
        if length := self._longest_dense_prompt():
            options |= {
                "full_tokens": length,
                "excess_tokens": max(0, len(self.prompt.ids) - length),
            }
        return options

    def _largest_keep_percent(self, below: float) -> int:
        """The largest keep below `below` that fits, in percent; 0 if none does."""
        possible = self.pair.dense_only is None and self.prompt.eligible_tokens
        if not possible or self._shortfall(self._scoring_need()) is not None:
            return 0
        highest = math.ceil(below * 100) - 1

        def fits(percent: int) -> bool:
            return self._shortfall(self._sparse_need(percent / 100)) is None

        return next((percent for percent in range(highest, 0, -1) if fits(percent)), 0)

    def _longest_dense_prompt(self) -> int:
        """Tokens of the longest prompt that could be read densely, rounded down to hundreds."""
        target = self.pair.target
        free = self.memory_manager.max_available(target, self.cache) + self.cache.target.nbytes
        longest = largest_that_fits(
            lambda n: prefill_need(target, n, n).minimum,
            free,
            len(self.prompt.ids),
        )
        return longest // 100 * 100


def reread_pays(cost: LinearCost, prompt: Prompt, keep: float, recall: AttentionWork) -> bool:
    """Whether reading the selection from scratch saves enough time over recalling it (`recall` is
    the target's work then). It must save more if tokens that were read for earlier questions would
    be lost, because later questions may refer to them."""
    earlier = prompt.tokens_of(SegmentKind.HISTORY).any()
    saving = MIN_SAVING_LOSING if earlier else MIN_SAVING
    return cost.saves(saving, _reread_work(prompt, keep), recall)


def _reread_work(prompt: Prompt, keep: float) -> AttentionWork:
    """The target's work from scratch. Earlier questions and answers are read as a whole."""
    skippable = int((~prompt.pinned & ~prompt.tokens_of(SegmentKind.HISTORY)).sum())
    before = prompt.first_eligible
    return AttentionWork(len(prompt.ids) - 1 - before - int((1 - keep) * skippable), before)
