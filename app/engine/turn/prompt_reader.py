"""The second step of a turn: reads its prompt, all tokens (dense) or the selected ones (sparse).
Tokens that earlier turns cached are not read again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from app.engine.backend import memory
from app.engine.cache.positions import Positions
from app.engine.cache.prefill import observed_steps, set_next_position
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.memory.conversation_cache import ConversationCache, ScoredPrompt
from app.engine.memory.manager import TurnMemory, encoding_need, prefill_need
from app.engine.model.mtp import MTPProposals, head_of
from app.engine.model.prompt import Prompt
from app.engine.model.speculation import PREDICTED
from app.engine.progress import ScoringPart, TurnCancelled
from app.engine.recovery import TargetLost
from app.engine.scorers.scorer import Importance, Scorer, ScoringContext, show_importance
from app.engine.scorers.selection import Selection
from app.engine.turn.context import TurnContext
from app.engine.turn.preparation import Prepared
from app.engine.turn.quotation import far_above_average, quote
from app.engine.turn.turn_estimate import TurnEstimate, reread_pays
from app.estimate.memory import MIN_CHECKPOINTS
from app.protocol.commands import Ask
from app.protocol.cost_model import AttentionWork, CostTerm
from app.protocol.events import FellBackToDense
from app.protocol.options import AUTO_KEEP
from app.protocol.prompt import SegmentKind
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import Phase, Reading

CHECKPOINT_SHARE, MAX_WITHIN = 0.1, 8
"""Maximum share of free memory for checkpoints within the documents, and their maximum number. With
k checkpoints, a rewind goes back too far by 1 / (2k + 2) of the tokens on average."""


@dataclass(slots=True)
class ReadPrompt:
    """What a turn has read of its `prompt` so far. Counts are in tokens of the prompt."""

    prompt: Prompt
    """With the pins of what is quoted."""
    keep: float
    """The expected one, until the scores are known."""
    reused: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    """Positions that were cached before the turn and are used again."""
    read_tokens: int = 0
    """Cached now, with the reused ones."""
    recalled_tokens: int = 0
    """Skipped by earlier turns, and read by this one."""
    work: dict[CostTerm, AttentionWork] = field(default_factory=dict)
    """Attention work of draft and target in this turn; the cost model learns from it."""
    reasons: list[Reason] = field(default_factory=list)
    """How keep was chosen, and whether cached tokens were read again."""
    fallback: Reason | None = None
    """Why the prompt was read densely, or why no selection is shown, if either failed."""
    quotation: str | None = None
    """The answer of a target that only quotes."""
    quotes_nothing: bool = False
    """Whether that answer is from no passage."""
    mtp: MTPProposals | None = None
    """The target's MTP head, which has read the end of the prompt."""

    @property
    def reused_tokens(self) -> int:
        return len(self.reused)


class PromptReader:
    """The second step of a turn: reads the prompt into the conversation's caches. `max_keep` limits
    an automatic keep."""

    def __init__(
        self,
        ask: Ask,
        prompt: Prompt,
        conversation: ConversationCache,
        context: TurnContext,
        max_keep: float = 1.0,
    ) -> None:
        self.so_far = ReadPrompt(prompt, ask.expected_keep)
        self._ask, self._conversation, self._max_keep = ask, conversation, max_keep
        self._context = context
        self._pair, self._clock, self._costs = context.pair, context.clock, context.costs
        self._memory = TurnMemory(context.memory, conversation, self._clock, ask.skip_memory_check)

    @property
    def _target(self) -> PrefixCache:
        return self._conversation.target

    def read_prompt(self, prepared: Prepared) -> ReadPrompt:
        """Read the prompt as planned, except its last token. If scoring, selecting or sparse
        reading fails, it is read densely. Raises TurnCancelled, NotEnoughMemory or TargetLost."""
        if self._pair.only_quotes:
            self._quote()
        with observed_steps(self._observe_step):
            self._read(prepared)
        self._load_mtp()
        if self.so_far.quotes_nothing:
            self._quote_by_scores()
        return self.so_far

    def _read(self, prepared: Prepared) -> None:
        prompt, plan = self.so_far.prompt, prepared.plan
        estimate = replace(prepared.estimate, prompt=prompt)
        if prepared.resume_from is not None:
            return self.resume(prompt, prepared.resume_from)
        if plan.reading is Reading.SPARSE:
            try:
                return self.read_sparse(prompt, estimate.scorer)
            except (TurnCancelled, memory.NotEnoughMemory, TargetLost):
                raise
            except Exception as error:  # any bug in scoring or selection: read densely instead
                memory.reraise_device_failure(error)
                self._fall_back(error, estimate)
        elif plan.show_selection:
            self._show_selection(estimate)
        self.read_dense(prompt)

    def _show_selection(self, estimate: TurnEstimate) -> None:
        """Show what a sparse read would select if nothing were cached. The answer does not depend
        on it, so a failure is only reported."""
        try:
            self._select(self._score(estimate.prompt, estimate.scorer))
        except (TurnCancelled, TargetLost):
            raise
        except Exception as error:
            memory.reraise_gpu_lost(error)
            if self._conversation.draft is not None:
                self._conversation.draft.clear()
            mx.clear_cache()
            self._report_fallback(ReasonCode.SELECTION_UNKNOWN, error)

    def _fall_back(self, error: Exception, estimate: TurnEstimate) -> None:
        self.so_far.reasons = []
        self._conversation.reset_to_stock()
        mx.clear_cache()
        self._context.forecast(estimate, Reading.DENSE)
        self._report_fallback(ReasonCode.SPARSE_FAILED, error)

    def _report_fallback(self, code: ReasonCode, error: Exception) -> None:
        self.so_far.fallback = Reason(code, memory.cause_of(error))
        self._clock.emit(FellBackToDense(self._clock.turn, self.so_far.fallback))

    def _quote(self) -> None:
        """Find the passages to quote, and pin them."""
        before, question = self.so_far.prompt, self._ask.question
        total = len(before.ids)
        report = self._clock.report(Phase.SCORE, total, ScoringPart.QUOTATION)
        with self._clock.timed(Phase.SCORE):
            self.so_far.prompt, self.so_far.quotation = quote(
                before,
                self._ask.messages,
                question,
                lambda done, sentences: report(total * done // sentences),
            )
        self.so_far.quotes_nothing = self.so_far.prompt.user_pins == before.user_pins

    def _quote_by_scores(self) -> None:
        """Where no passage was found to quote: quote the one that the scorer found far more
        important than the others, if there is one."""
        scored = self._conversation.scored
        if scored is None or scored.turn != self._clock.turn:
            return
        found = far_above_average(self.so_far.prompt, self._ask.messages, scored.importance)
        if found is not None:
            self.so_far.quotation, self.so_far.quotes_nothing = found, False

    def _load_mtp(self) -> None:
        """Let the target's MTP head, if it has one, propose tokens of the answer."""
        target = self._pair.target
        head = head_of(target.model)
        if self.so_far.mtp is None and head is not None and self._ask.sampling.speculate:
            self.so_far.mtp = MTPProposals(target.model, head, self.so_far.prompt.ids)
            target.gate.guess_draft_cost(PREDICTED, self.so_far.mtp.cost_guess)

    def _observe_step(self, model: Any, positions: Positions) -> Callable[[mx.array], None] | None:
        """A `StepObserver`: the MTP head reads the end of the prompt."""
        if model is not self._pair.target.model:  # the draft, while the target may be unloaded
            return None
        self._load_mtp()
        return None if self.so_far.mtp is None else self.so_far.mtp.observe(positions)

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
            self.so_far.reasons.append(Reason(ReasonCode.RE_READ, {"cached": cached_count}))
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
        self.so_far.recalled_tokens = skipped
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
        return reread_pays(self._costs.target, prompt, self.so_far.keep, recall)

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

    def resume(self, prompt: Prompt, start: int) -> None:
        """Prefill from position `start` on (see `resume_position`). Tokens before `start` that were
        skipped stay skipped."""
        target, last = self._target, len(prompt.ids) - 1
        start = target.rewind(start)
        self._reuse()
        self._prefill(prompt, np.arange(start, last, dtype=np.int32))
        set_next_position(target.cache, last)

    def _reuse(self) -> None:
        """Note what is cached before the turn reads more."""
        self.so_far.reused = np.flatnonzero(self._target.cached)

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
        return ScoredPrompt(
            clock.turn,
            prompt,
            scorer,
            importance,
            ask.tuning,
            cached=np.zeros(0, bool),
            one_budget=ask.keep_ratio == AUTO_KEEP,
            recalled=recalled,
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
            self.so_far.work[CostTerm.DRAFT] = context.draft_work
        return importance

    def _select(self, scored: ScoredPrompt) -> Selection:
        self._conversation.scored = scored
        with self._clock.timed(Phase.SELECT):
            if scored.one_budget:
                self._choose_keep(scored.auto_keep)
            selection, event = scored.select(self.so_far.keep)
            self._clock.emit(event)
        return selection

    def _choose_keep(self, wanted: float) -> None:
        self.so_far.keep = min(wanted, self._max_keep)
        reason = Reason(ReasonCode.KEEP_CHOSEN, {"keep": wanted})
        if wanted > self._max_keep:
            data = {"wanted": wanted, "keep": self._max_keep, "timed": self._ask.within_seconds > 0}
            reason = Reason(ReasonCode.KEEP_LIMITED, data)
        self.so_far.reasons = [reason]

    def _prefill(self, prompt: Prompt, positions: Positions) -> None:
        """Prefill the target at these ascending positions. Checkpoints before and within the
        documents, and before and after the question, let later turns rewind to these points."""
        model, target, count = self._pair.target, self._target, len(positions)
        before = int(target.cached.sum())
        work, total = AttentionWork(count, before), before + count
        self.so_far.work[CostTerm.TARGET] = work
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
                    self.so_far.read_tokens = int(target.cached.sum())
                    report(before + now)
                    if before + now < count:
                        self._memory.check_step(model, self.so_far.read_tokens, fits)

                def on_part(now: int, before: int = done) -> None:
                    report(before + now, within_step=True)

                if len(part):
                    target.prefill_at(model.model, prompt.ids, part, model.step, on_step, on_part)
                done += len(part)
                if border is not None:
                    target.extend(prompt.ids[:border])
                    target.add_checkpoint(limit, borders[border])
        self.so_far.read_tokens = int(target.cached.sum()) + 1  # the decoder feeds the last one

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
