"""Prefills a turn's prompt: all tokens (dense), or the selected ones (sparse). Tokens that earlier
turns cached are not read again."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from app.engine.cache.positions import Positions
from app.engine.cache.prefill import set_next_position
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.memory.conversation_cache import ConversationCache, ScoredPrompt
from app.engine.memory.manager import MemoryManager, TurnMemory, encoding_need, prefill_need
from app.engine.model.loader import ModelPair
from app.engine.model.prompt import Prompt
from app.engine.progress import ScoringPart, TurnClock
from app.engine.scorers.scorer import Importance, Scorer, ScoringContext, show_importance
from app.engine.scorers.selection import Selection
from app.engine.turn.turn_estimate import reread_pays
from app.estimate.memory import MIN_CHECKPOINTS
from app.protocol.commands import Ask
from app.protocol.cost_model import UNKNOWN_COSTS, AttentionWork, Costs, CostTerm
from app.protocol.options import AUTO_KEEP
from app.protocol.prompt import SegmentKind
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import Phase

CHECKPOINT_SHARE, MAX_WITHIN = 0.1, 8
"""Maximum share of free memory for checkpoints within the documents, and their maximum number. With
k checkpoints, a rewind goes back too far by 1 / (2k + 2) of the tokens on average."""


class PromptReader:
    """Reads one turn's prompt into the conversation's caches.

    It counts tokens of the prompt: `reused_tokens` were cached before the turn and are used again,
    `read_tokens` are cached now (these include the reused ones), and `recalled_tokens` are those
    that earlier turns skipped and this one read."""

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
        self.reused = np.zeros(0, np.int64)
        """Positions of the tokens that were cached before the turn and are used again."""
        self.work: dict[CostTerm, AttentionWork] = {}
        """Attention work of draft and target in this turn; the cost model learns from it."""
        self.keep = ask.expected_keep
        self.max_keep = 1.0
        """Upper limit for an automatic keep, from free memory and the time limit."""
        self.reasons: list[Reason] = []
        """Reasons to report: how keep was chosen, and whether cached tokens were read again."""
        self._costs = costs
        self._pair, self._ask, self._conversation = pair, ask, conversation
        self._clock = clock
        self._memory = TurnMemory(memory_manager, conversation, clock, ask.skip_memory_check)

    @property
    def _target(self) -> PrefixCache:
        return self._conversation.target

    # Prefill stops before the last token. The decoder feeds the last token itself, because it needs
    # that token's logits.

    def read_dense(self, prompt: Prompt) -> None:
        """Prefill the whole prompt. Only the part of the cache before its first gap is
        reused."""
        ids, target = prompt.ids, self._target
        start = target.rewind(min(target.common_prefix_len(ids[:-1]), target.dense_prefix_len))
        target.set_retain_all(False)
        self._reuse()
        self._prefill(prompt, np.arange(start, len(ids) - 1, dtype=np.int32))

    def read_sparse(self, prompt: Prompt, scorer: Scorer) -> None:
        """Score the prompt, and prefill the pinned and selected tokens that are not cached yet."""
        self._conversation.ensure_positioned()
        target, ids, tuning = self._target, prompt.ids, self._ask.tuning
        shared = target.common_prefix_len(ids[:-1])
        if shared == len(ids) - 1:  # the same question again: nothing more to recall
            tuning = replace(tuning, recall_share=0.0)
        start = target.rewind(shared)
        cached = self._cached_before(prompt, scorer)
        scored = replace(self._score(prompt, scorer), tuning=tuning, cached=cached)
        selected = self._select(scored).positions[:-1]
        missing = target.uncached(selected)
        skipped = int((missing < start).sum())
        if self._reread_is_faster(prompt, missing, start):
            cached_count = int(target.cached.sum())
            target.rewind(prompt.first_eligible)
            cached &= prompt.tokens_of(SegmentKind.HISTORY)[: len(cached)]
            selected = self._select(replace(scored, cached=cached)).positions[:-1]
            self.reasons.append(Reason(ReasonCode.RE_READ, {"cached": cached_count}))
            missing, skipped = target.uncached(selected), 0
        elif skipped:
            if target.can_insert_at(int(missing[0])):
                # The question must attend to recalled tokens, so it is read again.
                target.rewind(prompt.question_start)
                # Tokens right after a recalled chunk are read again, too: they were read without
                # that chunk as context.
                if len(stale := target.stale_runs(missing, tuning.chunk)):
                    target.evict(stale)
            else:  # a recurrent state cannot take up a token before those it has read
                target.rewind(int(missing[0]))
            missing = target.uncached(selected)
        self._reuse()
        self.recalled_tokens = skipped
        target.set_retain_all(True)
        self._prefill(prompt, missing)
        set_next_position(target.cache, len(ids) - 1)

    def _reread_is_faster(self, prompt: Prompt, missing: Positions, start: int) -> bool:
        """Whether to drop the cached documents and read the whole selection again: True if that is
        predicted to be much faster than inserting the `missing` tokens into the cache. `start` is
        the position after the last cached token."""
        target = self._target
        if self._costs.target is None or not len(missing) or (first := int(missing[0])) >= start:
            return False
        if target.can_insert_at(first):
            dropped = len(target.stale_runs(missing, self._ask.tuning.chunk))
            dropped += int(target.cached[prompt.question_start :].sum())
        else:
            dropped = int(target.cached[target.rewind_target(first) :].sum())
        recall = AttentionWork(len(missing) + dropped, int(target.cached.sum()) - dropped)
        return reread_pays(self._costs.target, prompt, self.keep, recall)

    def _cached_before(self, prompt: Prompt, scorer: Scorer) -> NDArray[np.bool_]:
        """Which tokens were cached before this turn, bool (L,). If this turn repeats one that was
        stopped during prefill, tokens that the stopped turn read do not count, so that the same
        tokens are selected again."""
        cached, scored = self._target.cached, self._conversation.scored
        if scored is not None and scored.is_of(prompt, scorer, self._ask.tuning.chunk):
            selected = scored.select(self._ask.keep_ratio)[0].positions
            if np.isin(np.flatnonzero(cached), selected).all():
                return scored.cached
        return cached.copy()

    def resume_position(self, prompt: Prompt) -> int | None:
        """The position at which prefill must start so that the answer at the end of `prompt` can be
        continued. None if the question is not cached completely."""
        target, ids, question = self._target, prompt.ids, prompt.question_start
        if not prompt.answer_prefix_len:
            return None
        start = target.rewind_target(target.common_prefix_len(ids[:-1]))
        return start if start > question and target.cached[question:start].all() else None

    def resume(self, prompt: Prompt, start: int) -> None:
        """Prefill from position `start` on (see `resume_position`). Tokens before `start` that were
        skipped stay skipped."""
        target, last = self._target, len(prompt.ids) - 1
        start = target.rewind(start)
        self._reuse()
        self._prefill(prompt, np.arange(start, last, dtype=np.int32))
        set_next_position(target.cache, last)

    def preview_selection(self, prompt: Prompt, scorer: Scorer) -> None:
        """Show what a sparse read would select if nothing were cached. Used by dense turns."""
        self._select(self._score(prompt, scorer))

    def _reuse(self) -> None:
        """Note what is cached before the turn reads more."""
        self.reused = np.flatnonzero(self._target.cached)
        self.reused_tokens = len(self.reused)

    def _score(self, prompt: Prompt, scorer: Scorer) -> ScoredPrompt:
        """Score the prompt as if nothing were cached. If the last turn scored the same prompt, its
        scores are reused."""
        ask, clock, last = self._ask, self._clock, self._conversation.scored
        if last is not None and last.is_of(prompt, scorer, ask.tuning.chunk):
            # `recalled`: tokens that the last answer read on its own
            importance, recalled = last.importance, last.recalled
            show_importance(clock, importance * ~prompt.pinned)
        else:
            importance, recalled = self._importance(prompt, scorer), np.zeros(0, np.int32)
        auto, nothing = ask.keep_ratio == AUTO_KEEP, np.zeros(0, bool)
        return ScoredPrompt(
            clock.turn, prompt, scorer, importance, ask.tuning, nothing, auto, recalled
        )

    def _importance(self, prompt: Prompt, scorer: Scorer) -> Importance:
        context = ScoringContext(
            self._pair,
            self._ask.question,
            self._ask.tuning.chunk,
            self._clock,
            self._memory,
            self._conversation.draft,
            self._ask.conversation is not None,
            self._costs.draft,
        )
        if scorer.parts == (ScoringPart.BUILT_IN,):
            need = encoding_need(self._pair.target, self._pair.encoder, len(prompt.ids))
            self._memory.ensure_encoding(need)
        importance = scorer.score(prompt, context)
        if context.draft_work is not None:
            self.work[CostTerm.DRAFT] = context.draft_work
        return importance

    def _select(self, scored: ScoredPrompt) -> Selection:
        self._conversation.scored = scored
        with self._clock.timed(Phase.SELECT):
            if scored.one_budget:
                self._choose_keep(scored.auto_keep)
            selection, event = scored.select(self.keep)
            self._clock.emit(event)
        return selection

    def _choose_keep(self, wanted: float) -> None:
        self.keep = min(wanted, self.max_keep)
        reason = Reason(ReasonCode.KEEP_CHOSEN, {"keep": wanted})
        if wanted > self.max_keep:
            data = {"wanted": wanted, "keep": self.max_keep, "timed": self._ask.within_seconds > 0}
            reason = Reason(ReasonCode.KEEP_LIMITED, data)
        self.reasons = [reason]

    def _prefill(self, prompt: Prompt, positions: Positions) -> None:
        """Prefill the target at these ascending positions. Checkpoints before and within the
        documents, and before and after the question, let later turns rewind to these points."""
        model, target, count = self._pair.target, self._target, len(positions)
        before = int(target.cached.sum())
        work, total = AttentionWork(count, before), before + count
        self.work[CostTerm.TARGET] = work
        curve = None
        if self._costs.target is not None:
            curve = self._costs.target.seconds_until(work)
            self._clock.forecast.expect(Phase.PREFILL, curve(count))
        need = prefill_need(model, count, total, target.retain_all)
        within = self._checkpoints_within(model.free_memory() - need.preferred)
        limit = MIN_CHECKPOINTS + within
        new = max(limit - len(target.checkpoints), 0)
        fits = self._memory.ensure(prefill_need(model, count, total, target.retain_all, new), total)
        report = self._clock.report(Phase.PREFILL, count, seconds=curve)
        borders = self._checkpoint_positions(prompt, positions, within)
        boundaries = np.searchsorted(positions, [*borders])
        done = 0
        with self._clock.timed(Phase.PREFILL), target.reserved(count * fits):
            parts = np.split(positions, boundaries)
            for part, border in zip_longest(parts, borders):

                def on_step(now: int, before: int = done) -> None:
                    self.read_tokens = int(target.cached.sum())
                    report(before + now)
                    if before + now < count:
                        self._memory.check_step(model, self.read_tokens, fits)

                def on_part(now: int, before: int = done) -> None:
                    report(before + now, within_step=True)

                if len(part):
                    target.prefill_at(model.model, prompt.ids, part, model.step, on_step, on_part)
                done += len(part)
                if border is not None:
                    target.extend(prompt.ids[:border])
                    target.add_checkpoint(limit, borders[border])
        self.read_tokens = int(target.cached.sum()) + 1  # the decoder feeds the last one

    def _checkpoints_within(self, free: float) -> int:
        """How many checkpoints within the documents fit into their share of the `free` bytes. Only
        recurrent layers need them."""
        each = self._pair.target.cache_size.state_bytes
        return min(int(CHECKPOINT_SHARE * max(free, 0) / each), MAX_WITHIN) if each else 0

    def _checkpoint_positions(
        self, prompt: Prompt, positions: Positions, within: int
    ) -> dict[int, bool]:
        """Where to add checkpoints while `positions` are read: maps each position to whether its
        checkpoint is lasting. The `within` checkpoints in the documents are spread evenly over the
        document tokens that are read, at multiples of the step."""
        target = self._target
        if not target.needs_checkpoints:
            return {}
        ends = [s.start for s in prompt.segments if s.kind is SegmentKind.GENERATION]
        borders = dict.fromkeys([prompt.question_start, *ends], False)
        borders |= dict.fromkeys([prompt.first_eligible, prompt.first_text], True)
        documents = prompt.tokens_of(SegmentKind.DOCUMENT)
        read = positions[documents[positions]]
        if within and len(read):
            cached = np.count_nonzero(target.cached & documents[: len(target)])
            step = self._pair.target.step.tokens
            apart = -(-(cached + len(read)) // (within + 1))
            apart = -(-apart // step) * step
            borders = dict.fromkeys(read[apart::apart].tolist(), False) | borders
        return {p: borders[p] for p in sorted(borders) if p >= len(target)}
