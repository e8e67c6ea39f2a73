"""Whether a turn fits and what it has to read, told before it begins, and what would fit where it
does not."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from app.engine import memory_estimates
from app.engine.conversation_cache import ConversationCache
from app.engine.loader import ModelPair
from app.engine.memory import NotEnoughMemory
from app.engine.memory_manager import MemoryManager
from app.engine.planner import PredictedTtft
from app.engine.prompt import Prompt
from app.engine.prompt_reader import draft_work
from app.protocol.commands import Ask
from app.protocol.cost_model import AttentionWork, Costs, ReadPlan, recalled_tokens
from app.protocol.memory_model import largest_that_fits
from app.protocol.options import Scoring
from app.protocol.stats import Reading


@dataclass(frozen=True, slots=True)
class TurnEstimate:
    """For one turn, on what is `remembered` of its conversation. Everything that `room` can give
    up counts as free."""

    pair: ModelPair
    ask: Ask
    prompt: Prompt
    cache: ConversationCache
    memory_manager: MemoryManager

    def check(self, reading: Reading) -> None:
        """Raise NotEnoughMemory, with what would fit, when this way of reading does not."""
        found = self._shortfall(self._scoring_need()) if reading is Reading.SPARSE else None
        if found is None:
            sparse = reading is Reading.SPARSE
            found = self._shortfall(
                self._sparse_need(self.ask.keep_ratio) if sparse else self._dense_need()
            )
        if found is not None:
            found.advice = self._advice(reading)
            if length := self._longest_dense_prompt():
                found.excess = max(0, len(self.prompt.ids) - length)
            raise found

    def fits(self, reading: Reading) -> bool:
        try:
            self.check(reading)
        except NotEnoughMemory:
            return False
        return True

    def predict_ttft(self, costs: Costs) -> PredictedTtft:
        """Seconds from now on until the first word."""
        total, draft = len(self.prompt.ids), self.cache.draft
        full = costs.seconds(ReadPlan(total, self._dense_work()))
        if draft is None or not self._uses_draft or self.pair.dense_only is not None:
            return PredictedTtft(None, full)
        sparse = ReadPlan(
            total, self._sparse_work(), draft_work(draft, self.prompt, self.ask.tuning)
        )
        return PredictedTtft(costs.seconds(sparse), full)

    # ------------------------------------------------------------------------------ inside

    @property
    def _uses_draft(self) -> bool:
        return self.ask.tuning.scoring not in (Scoring.RANDOM, Scoring.LEXICAL)

    def _dense_work(self) -> AttentionWork:
        held, ids = self.cache.target, self.prompt.ids
        start = held.rewind_target(min(held.common_prefix_len(ids[:-1]), held.dense_prefix_len))
        return AttentionWork(len(ids) - 1 - start, start)

    def _sparse_work(self) -> AttentionWork:
        """As `Reader.sparsely` does, as far as that can be known before the draft has scored."""
        held, prompt, tuning = self.cache.target, self.prompt, self.ask.tuning
        ids, pinned, keep = prompt.ids, prompt.pinned, self.ask.keep_ratio
        shared = held.common_prefix_len(ids[:-1]) if held.supports_gaps else 0
        back = held.rewind_target(shared)
        read = held.cached[:back]
        share = 0.0 if not tuning.recall or shared == len(ids) - 1 else tuning.recall_share
        old, left_out = int((~pinned[:back]).sum()), int((~pinned[:back] & ~read).sum())
        again = recalled_tokens(keep, share, old, left_out) if tuning.recall else 0
        missing = again + int((pinned[:back] & ~read).sum())
        count = int(pinned[back:].sum()) - 1 + math.ceil(keep * int((~pinned[back:]).sum()))
        before = int(read.sum())
        if missing:
            first = int(np.argmin(read))
            if held.can_insert_at(first):
                # The question, and what goes on where a recalled chunk ends, are read once more.
                lost = int(read[prompt.question_start :].sum()) + missing * before // back
            else:
                lost = int(read[held.rewind_target(first) :].sum())
            lost = min(lost, before)
            count, before = count + missing + lost, before - lost
        return AttentionWork(max(count, 0), before)

    def _shortfall(self, need: memory_estimates.MemoryNeed | None) -> NotEnoughMemory | None:
        if need is None:
            return None
        free = self.memory_manager.max_available(need.model, self.cache)
        return NotEnoughMemory(need.what, need.minimum, free) if need.minimum > free else None

    def _scoring_need(self) -> memory_estimates.MemoryNeed | None:
        """Nothing where the draft is not asked."""
        draft, held = self.pair.draft, self.cache.draft
        if draft is None or held is None or not self._uses_draft:
            return None
        total = len(self.prompt.ids)
        return memory_estimates.scoring_need(
            draft, total - held.common_prefix_len(self.prompt.ids), total
        )

    def _dense_need(self) -> memory_estimates.MemoryNeed:
        work = self._dense_work()
        return memory_estimates.prefill_need(
            self.pair.target, work.tokens, work.cached + work.tokens
        )

    def _sparse_need(self, keep: float) -> memory_estimates.MemoryNeed:
        held, prompt = self.cache.target, self.prompt
        shared = held.common_prefix_len(prompt.ids)
        read = int(held.cached[:shared].sum())
        wanted = len(prompt.ids) - prompt.eligible_tokens + math.ceil(keep * prompt.eligible_tokens)
        count = max(wanted - read, len(prompt.ids) - max(shared, prompt.question_start))
        return memory_estimates.prefill_need(
            self.pair.target, count, read + count, keep_evicted=True
        )

    def _advice(self, reading: Reading) -> str:
        """What would fit: in keep, in length, or nothing of it."""
        ways = []
        keep = self._largest_keep_percent(self.ask.keep_ratio if reading is Reading.SPARSE else 1.0)
        if keep:
            how = "lower keep to" if reading is Reading.SPARSE else "read it sparsely, at keep"
            ways.append(f"{how} {keep} % or less")
        if length := self._longest_dense_prompt():
            ways.append(f"attach less, {length:,} tokens can be read in full")
        return ", or ".join([*ways, "close other programs, or choose a smaller model"])

    def _largest_keep_percent(self, below: float) -> int:
        """The largest keep, in percent, or 0."""
        possible = self.pair.dense_only is None and self.prompt.eligible_tokens
        if not possible or self._shortfall(self._scoring_need()) is not None:
            return 0
        highest = math.ceil(below * 100) - 1

        def fits(percent: int) -> bool:
            return self._shortfall(self._sparse_need(percent / 100)) is None

        return next((percent for percent in range(highest, 0, -1) if fits(percent)), 0)

    def _longest_dense_prompt(self) -> int:
        """The longest prompt that could be read in full, in round numbers."""
        target = self.pair.target
        free = self.memory_manager.max_available(target, self.cache) + self.cache.target.nbytes
        longest = largest_that_fits(
            lambda n: memory_estimates.prefill_need(target, n, n).minimum,
            free,
            len(self.prompt.ids),
        )
        return longest // 100 * 100
