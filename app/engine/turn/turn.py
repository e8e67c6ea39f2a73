"""One turn, from conversation to answer: plan, score, select, prefill, decode.

If scoring, selecting or sparse reading fails, the turn falls back to reading densely.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

from app.engine.backend import memory
from app.engine.cache.positions import Positions
from app.engine.cache.prefill import observed_steps
from app.engine.memory.cache_pool import CachePool
from app.engine.memory.conversation_cache import ConversationCache
from app.engine.memory.manager import MemoryManager
from app.engine.model.loader import ModelPair
from app.engine.model.mtp import MTPProposals, head_of
from app.engine.model.prompt import Prompt
from app.engine.model.speculation import DRAFTED, PREDICTED
from app.engine.model.text_encoder import built_in_encoder, encoding_bytes
from app.engine.model.token_stream import DraftProposals
from app.engine.progress import (
    Forecast,
    Interrupted,
    ScoringPart,
    ShardsLost,
    TurnCancelled,
    TurnClock,
    TurnError,
)
from app.engine.scorers.choice import ChooseScorer, choose_scorer
from app.engine.turn.citations import cite, read_texts
from app.engine.turn.decode import Decoder, is_unsure
from app.engine.turn.mid_answer_recall import MidAnswerRecall
from app.engine.turn.prompt_reader import PromptReader
from app.engine.turn.quotation import far_above_average, quote
from app.engine.turn.retrieval import Retriever
from app.engine.turn.turn_estimate import TurnEstimate
from app.estimate import plan as planner
from app.estimate.plan import Plan
from app.protocol.commands import Ask
from app.protocol.cost_model import UNKNOWN_COSTS, Costs, CostTerm, Timing
from app.protocol.events import (
    Cited,
    EngineWarning,
    FellBackToDense,
    Finished,
    PhaseProgress,
    Planned,
    Retrieved,
    Retrieving,
    Token,
)
from app.protocol.options import AUTO_KEEP, Mode
from app.protocol.prompt import Document
from app.protocol.reasons import FailureKind, Reason, ReasonCode, too_long
from app.protocol.stats import (
    DocumentsRead,
    FinishReason,
    Phase,
    PhaseTime,
    Reading,
    Statistics,
)


class Turn:
    """Runs one `Ask` on its conversation's cache."""

    def __init__(
        self,
        pair: ModelPair,
        ask: Ask,
        cache: ConversationCache,
        clock: TurnClock,
        memory_manager: MemoryManager | None = None,
        costs: Costs = UNKNOWN_COSTS,
        usual_confidence: float | None = None,
        pool: CachePool | None = None,
        choose_scorer: ChooseScorer = choose_scorer,
        prompt: Prompt | None = None,
    ) -> None:
        """Benchmarks pass a `prompt`; otherwise it is built from the messages of `ask`."""
        ask = replace(ask, sampling=ask.sampling.resolved(pair.target.info.sampling))
        self._pair, self._ask, self._emit = pair, ask, clock.emit
        self._cache, self._clock, self._pool = cache, clock, pool
        self._choose_scorer, self._given_prompt = choose_scorer, prompt
        self._memory_manager = memory_manager or MemoryManager(pair, clock.emit)
        self._costs, self._usual_confidence = costs, usual_confidence
        self._reader = PromptReader(pair, ask, cache, clock, self._memory_manager, costs)
        self._decoder = Decoder(
            clock.turn,
            pair.target.tokenizer,
            ask.sampling,
            clock.emit,
            trim_space=not ask.messages[-1].plain,
            others_wait=clock.others_wait,
        )
        self._prompt: Prompt | None = None
        self._plan: Plan | None = None
        self._recall_refusal: Reason | None = None
        """Why nothing can be recalled while the answer is written, if it should be."""
        self._recalled_mid_answer = 0
        """Tokens recalled while the answer was written."""
        self._mtp: MTPProposals | None = None
        self._resume_from: int | None = None
        """Where prefill starts when the turn continues an answer whose prompt is cached."""
        self._fallback: Reason | None = None
        self._sharing_refusal: Reason | None = None
        """Why a prefix that another conversation has cached cannot be shared."""
        self._peak_bytes = 0
        """Peak of MLX's memory until the answer was complete; 0 before that."""
        self._quotes_nothing = False
        """The target can only quote, and no passage seems to answer the question."""

    def run(self) -> None:
        """Emit the turn's events up to `Finished`. Raises PromptError, TurnError, NotEnoughMemory
        or LoadError. Any other exception leaves the cache in an unknown state; drop it then."""
        mx.reset_peak_memory()
        try:
            ended = self._answer()
        except TurnCancelled as stop:
            ended = stop.ended
        except ShardsLost:
            self._decoder.flush()
            raise
        if ended is FinishReason.MEMORY and not self._written_tokens:
            raise TurnError(FailureKind.MEMORY_EXHAUSTED)
        self._peak_bytes = mx.get_peak_memory()
        self._cite(ended)
        self._emit(self._clock.whole(self._finished(ended)))

    def _cite(self, ended: FinishReason) -> None:
        """Find the citations of the answer. It is complete without them, so a failure is only
        reported, and stopping the turn stops only this."""
        prompt, answer = self._prompt, self._decoder.text
        if prompt is None or not answer or not self._ask.cite or self._ask.messages[-1].plain:
            return
        if self._quotes_nothing or self._pair.target.lost is not None:
            return
        texts = read_texts(prompt, self._cache.target.cached[: len(prompt.ids)])
        if not texts:
            return
        stopped = self._clock.stop_reason() is not None  # that ended the answer
        check = (lambda: None) if stopped else partial(self._clock.check_cancel, within_step=True)
        question = self._ask.question
        try:
            # The encoder stays loaded, and the next turn needs memory, too.
            needed = encoding_bytes(None)
            scarce = ended is FinishReason.MEMORY or memory.free() < 2 * needed
            read = [answer, *(text.text for text in texts)]
            encoder = None if scarce else built_in_encoder(question, read)
            citations = cite(answer, question, texts, encoder, check)
            if self._pair.only_quotes:  # what is not quoted is about the demo model
                citations = replace(citations, uncited=0)
        except TurnCancelled:
            reason = Reason(ReasonCode.CITATIONS_STOPPED)
            self._emit(EngineWarning(reason, self._ask.conversation))
        except Exception as error:
            memory.reraise_gpu_lost(error)
            reason = Reason(ReasonCode.CITATIONS_UNKNOWN, memory.cause_of(error))
            self._emit(EngineWarning(reason, self._ask.conversation))
        else:
            self._emit(Cited(self._clock.turn, citations))

    def _finished(self, ended: FinishReason) -> Finished:
        ids, text = tuple(self._decoder.ids), self._decoder.text
        return Finished(self._clock.turn, ended, text, ids, self._statistics())

    def interrupted(self) -> Interrupted:
        """The rest of the turn, to be continued on another pair; after ShardsLost."""
        cancelled = self._finished(FinishReason.CANCELLED)
        return Interrupted(self._decoder.continued(self._ask), cancelled)

    # --------------------------------------------------------------------------- the steps

    def _answer(self) -> FinishReason:
        self._check_logit_bias()
        prompt = self._given_prompt or self._build_prompt()
        self._clock.check_cancel()
        if (found := self._cache.drop_damaged()) is not None:
            self._emit(EngineWarning(found, self._ask.conversation))
        if self._ask.read_again:
            self._cache.target.clear()
        elif self._pool is not None:
            self._sharing_refusal = self._pool.start_from_longest(self._ask, prompt, self._clock)
        room = self._answer_budget(prompt)
        plan = self._make_plan(prompt)
        prompt, quotation = self._quote(prompt)
        with observed_steps(partial(self._observe_step, prompt)):
            self._read(prompt, plan)
        quotation = self._by_scorer(prompt) or quotation
        self._emit(PhaseProgress(self._clock.turn, Phase.DECODE, 0, room, 0.0))
        model, target = self._pair.target.model, self._cache.target
        if prompt.answer_prefix_len and self._ask.messages[-1].token_ids is None:
            ids = tuple(prompt.ids[-prompt.answer_prefix_len :].tolist())
            self._emit(Token(self._clock.turn, ids, ""))
        stop = self._clock.stop_reason
        ended = self._decoder.run(
            model,
            target,
            prompt.ids,
            room,
            stop,
            prompt.answer_prefix_len,
            quotation,
            self._pair.target.gate,
            self._draft_proposals(prompt),
            self._mid_answer_recall(prompt, plan, quotation),
            self._mtp_proposals(prompt),
        )
        if self._pair.target.lost is not None:
            return ended
        # The decoder has fed every token that it yielded, so all of them are cached.
        written = self._decoder.ids[prompt.answer_prefix_len :] + self._decoder.dropped
        target.append(np.append(prompt.ids, np.array(written, np.int32))[len(target) :])
        target.eval()
        return ended

    def _check_logit_bias(self) -> None:
        """Raise TurnError if `logit_bias` names a token outside the vocabulary: indexing the
        logits with it would access memory out of bounds."""
        size = self._pair.target.vocab_size
        if any(not 0 <= token < size for token, _ in self._ask.sampling.logit_bias):
            raise TurnError(FailureKind.UNKNOWN_TOKENS_BIASED, {"highest": max(size - 1, 0)})

    def _build_prompt(self) -> Prompt:
        """Build the prompt. If the documents exceed the context, retrieval first chooses the parts
        that are relevant to the question."""
        ask, clock, started_at = self._ask, self._clock, time.perf_counter()
        context, sampling = self._pair.target.info.context_length, ask.sampling
        retriever = Retriever(
            self._pair.prompts,
            context,
            sampling.thinking,
            clock.check_cancel,
            sampling.template_values,
            self._pair.encoder,
        )
        typed = [Document("", each.text) for each in ask.messages]
        typed += [part for each in ask.messages if each.plain for part in each.in_prompt]
        if retriever.is_far_too_long(typed):
            raise self._too_long(retriever.estimate(typed), estimated=True)
        report: Callable[[int], None] | None = None

        def on_progress(done: int, total: int) -> None:
            nonlocal report
            if report is None:
                names = (document.name for each in ask.messages for document in each.documents)
                self._emit(Retrieving(clock.turn, DocumentsRead.of(dict.fromkeys(names), 0, 0)))
                report = clock.report(Phase.RETRIEVE, total)
            report(done)

        found = retriever.fit(ask.messages, ask.files, ask.sampling.max_tokens, on_progress)
        chosen = found.parts is not None
        clock.add(Phase.RETRIEVE if chosen else Phase.TOKENISE, time.perf_counter() - started_at)
        self._ask = replace(ask, messages=found.messages)
        for rule in sorted(found.prompt.rules - self._pair.reported_rules):
            self._pair.reported_rules.add(rule)
            reason = Reason(ReasonCode.TEMPLATE_RULE, {"rule": str(rule)})
            self._emit(EngineWarning(reason, ask.conversation))
        if found.parts is not None and (whole := found.prompt.documents) is not None:
            turn = self._clock.turn
            parts, ranked, room = found.parts, found.ranked, found.room
            self._emit(Retrieved(turn, parts, ranked, whole, room, found.stands_out))
        return found.prompt

    def _mid_answer_recall(
        self, prompt: Prompt, plan: Plan, quotation: str | None
    ) -> MidAnswerRecall | None:
        """The recall of skipped tokens during decoding; None if it is off, not needed, or cannot
        be done."""
        target, tuning = self._cache.target, self._ask.tuning
        budget = int(tuning.read_on * self._ask.expected_keep * prompt.eligible_tokens)
        sparse = plan.reading is Reading.SPARSE and self._fallback is None
        if not budget or not sparse or quotation or target.cached.all():
            return None
        if not MidAnswerRecall.is_possible(target):
            if self._resume_from is None:
                self._recall_refusal = Reason(ReasonCode.CANNOT_INSERT)
            return None
        if not self._ask.skip_memory_check and not self._estimate(prompt).can_recall(budget):
            self._recall_refusal = Reason(ReasonCode.NO_MEMORY_TO_READ_ON)
            return None
        return MidAnswerRecall(
            self._pair.target,
            target,
            prompt,
            tuning.chunk,
            budget,
            self._show_recalled,
            lambda done: self._clock.check_cancel(),
            lambda done: self._clock.check_cancel(within_step=True),
        )

    def _show_recalled(self, positions: Positions) -> None:
        self._recalled_mid_answer += len(positions)
        if self._cache.scored is not None:
            self._cache.scored = self._cache.scored.with_recalled(positions)
            event = self._cache.scored.select(self._reader.keep)[1]
            self._emit(replace(event, turn=self._clock.turn))

    def _draft_proposals(self, prompt: Prompt) -> DraftProposals | None:
        """Speculative tokens from the draft; None unless it is loaded, shares the target's
        tokenizer and has read the prompt."""
        draft, target, prefix = self._pair.draft, self._pair.target, self._cache.draft
        if (
            draft is None
            or prefix is None
            or not draft.is_loaded
            or not self._ask.sampling.speculate
        ):
            return None
        if prompt.for_draft is not None or not DraftProposals.is_possible(prefix, prompt.ids):
            return None
        share = draft.info.weight_bytes / max(target.info.weight_bytes, 1)
        target.gate.guess_draft_cost(DRAFTED, share)
        return DraftProposals(draft, prefix, prompt.ids, target.vocab_size)

    def _mtp_proposals(self, prompt: Prompt) -> MTPProposals | None:
        """Speculative tokens from the target's MTP head; None if it has none."""
        target = self._pair.target
        head = head_of(target.model)
        if self._mtp is None and head is not None and self._ask.sampling.speculate:
            self._mtp = MTPProposals(target.model, head, prompt.ids)
            target.gate.guess_draft_cost(PREDICTED, self._mtp.cost_guess)
        return self._mtp

    def _observe_step(
        self, prompt: Prompt, model: Any, positions: Positions
    ) -> Callable[[mx.array], None] | None:
        """A `StepObserver`: the MTP head reads the end of the prompt."""
        if model is not self._pair.target.model:
            return None
        mtp = self._mtp_proposals(prompt)
        return None if mtp is None else mtp.observe(positions)

    def _quote(self, prompt: Prompt) -> tuple[Prompt, str | None]:
        """If the pair only quotes: the prompt with the quoted passages pinned, and the
        answer."""
        question = self._ask.question
        if not self._pair.only_quotes:
            return prompt, None
        total = len(prompt.ids)
        report = self._clock.report(Phase.SCORE, total, ScoringPart.QUOTATION)
        with self._clock.timed(Phase.SCORE):
            found, text = quote(
                prompt,
                self._ask.messages,
                question,
                lambda done, sentences: report(total * done // sentences),
            )
        self._quotes_nothing = found.user_pins == prompt.user_pins
        return found, text

    def _by_scorer(self, prompt: Prompt) -> str | None:
        """Where no passage was found to quote: the one that the scorer found far more important
        than the others, as an answer; otherwise None."""
        scored = self._cache.scored
        if not self._quotes_nothing or scored is None or scored.turn != self._clock.turn:
            return None
        found = far_above_average(prompt, self._ask.messages, scored.importance)
        self._quotes_nothing = found is None
        return found

    def _answer_budget(self, prompt: Prompt) -> int:
        """Maximum tokens to generate. Raises TurnError if the prompt fills the context."""
        requested, context = self._ask.sampling.max_tokens, self._pair.target.info.context_length
        if not context:
            return requested
        total = len(prompt.ids)
        if total >= context:
            raise self._too_long(total)
        return min(requested, context - total)

    def _too_long(self, tokens: int, estimated: bool = False) -> TurnError:
        info = self._pair.target.info
        failure = too_long(tokens, info.name, info.context_length, estimated)
        return TurnError(failure.kind, failure.data)

    def _make_plan(self, prompt: Prompt) -> Plan:
        total, target = len(prompt.ids), self._cache.target
        shared = target.common_prefix_len(prompt.ids)
        skipped = int((~target.cached[:shared]).sum())
        eligible = skipped + int((~prompt.pinned[shared:]).sum())
        cached = int((~prompt.pinned[:shared] & target.cached[:shared]).sum())
        estimate = self._estimate(prompt)
        expected, dense_only = estimate.predict_ttft(self._costs), self._pair.dense_only
        self._resume_from = self._reader.resume_position(prompt)
        if self._resume_from is None:
            quotes = self._pair.only_quotes
            plan = planner.plan(self._ask, eligible, dense_only, expected, cached, quotes)
            plan = self._fit_to_memory(plan, estimate)
            lacking = None if quotes else planner.parts_only(self._ask)
            if lacking is not None:
                plan = replace(plan, reasons=(*plan.reasons, lacking), guard=lacking)
            if self._ask.keep_ratio == AUTO_KEEP:
                self._reader.max_keep = estimate.max_keep(self._costs, self._clock.waited)
        else:
            reading = Reading.SPARSE if skipped else Reading.DENSE
            plan = Plan(reading, (Reason(ReasonCode.CONTINUED),))
            expected = planner.PredictedTtft()
        if plan.show_selection and not estimate.scores_quickly:
            plan = replace(plan, show_selection=False)
        if self._sharing_refusal is not None:
            plan = replace(plan, reasons=(*plan.reasons, self._sharing_refusal))
        self._prompt, self._plan = prompt, plan
        scores = plan.reading is Reading.SPARSE or plan.show_selection
        chosen_reading, other = (Reading.SPARSE, Reading.DENSE)[:: 1 if scores else -1]
        if self._resume_from is None:
            self._forecast(estimate, chosen_reading)
        self._emit(
            Planned(
                turn=self._clock.turn,
                reading=plan.reading,
                reasons=plan.reasons,
                keep_ratio=self._ask.keep_ratio if plan.reading is Reading.SPARSE else 1.0,
                prompt_tokens=total,
                eligible_tokens=prompt.eligible_tokens,
                reused_tokens=shared - skipped,
                prompt_ids=tuple(prompt.ids.tolist()),
                segments=prompt.segments,
                guard=plan.guard,
                ttft=self._since_sent(expected.for_reading(chosen_reading)),
                ttft_alternative=self._since_sent(expected.for_reading(other)),
                documents=prompt.documents_read(
                    np.arange(total if plan.reading is Reading.DENSE else 0)
                ),
            )
        )
        return plan

    def _estimate(self, prompt: Prompt) -> TurnEstimate:
        return TurnEstimate(
            self._pair, self._ask, prompt, self._cache, self._memory_manager, self._choose_scorer
        )

    def _since_sent(self, expected: float | None) -> float | None:
        """Seconds from sending the question: the prediction plus the time in the queue."""
        return None if expected is None else self._clock.waited + expected

    def _forecast(self, estimate: TurnEstimate, reading: Reading) -> None:
        steps = estimate.steps(self._costs, reading, self._clock.seconds_spent)
        self._clock.forecast = Forecast(steps)

    def _fit_to_memory(self, plan: Plan, estimate: TurnEstimate) -> Plan:
        """The plan, or in auto mode a sparse one if only that fits into memory. Raises
        NotEnoughMemory."""
        if self._ask.skip_memory_check:
            return plan
        try:
            estimate.check(plan.reading)
        except memory.NotEnoughMemory as error:
            is_auto = self._ask.mode is Mode.AUTO and self._pair.dense_only is None
            is_auto = is_auto and plan.guard is None and plan.reading is Reading.DENSE
            if (
                not is_auto
                or not estimate.prompt.eligible_tokens
                or not estimate.fits(Reading.SPARSE)
            ):
                raise
            reason = Reason(ReasonCode.ONLY_SPARSE_FITS, error.failure.data)
            return Plan(Reading.SPARSE, (reason,))
        return plan

    def _read(self, prompt: Prompt, plan: Plan) -> None:
        """Prefill the whole prompt or the selected tokens, except the last one."""
        if self._resume_from is not None:
            return self._reader.resume(prompt, self._resume_from)
        if plan.reading is Reading.SPARSE:
            try:
                return self._reader.read_sparse(prompt, self._estimate(prompt).scorer)
            except (TurnCancelled, memory.NotEnoughMemory, ShardsLost):
                raise
            except Exception as error:  # any bug in scoring or selection: read densely instead
                memory.reraise_device_failure(error)
                self._fall_back(error)
        elif plan.show_selection:
            self._show_selection(prompt)
        self._reader.read_dense(prompt)

    def _show_selection(self, prompt: Prompt) -> None:
        """Show what a sparse read would select. The answer does not depend on it, so a failure is
        only reported."""
        try:
            self._reader.preview_selection(prompt, self._estimate(prompt).scorer)
        except (TurnCancelled, ShardsLost):
            raise
        except Exception as error:
            memory.reraise_gpu_lost(error)
            if self._cache.draft is not None:
                self._cache.draft.clear()
            mx.clear_cache()
            self._fallback = Reason(ReasonCode.SELECTION_UNKNOWN, memory.cause_of(error))
            self._emit(FellBackToDense(self._clock.turn, self._fallback))

    def _fall_back(self, error: Exception) -> None:
        self._reader.reasons = []
        self._fallback = Reason(ReasonCode.SPARSE_FAILED, memory.cause_of(error))
        self._cache.reset_to_stock()
        mx.clear_cache()
        if self._prompt is not None:
            self._forecast(self._estimate(self._prompt), Reading.DENSE)
        self._emit(FellBackToDense(self._clock.turn, self._fallback))

    # ------------------------------------------------------------------------- bookkeeping

    @property
    def _written_tokens(self) -> int:
        """Tokens that this turn generated."""
        return len(self._decoder.ids) - self._decoder.answer_prefix_len

    @property
    def confidence(self) -> float | None:
        """Geometric mean of the generated tokens' probabilities, 0..1."""
        return self._decoder.confidence

    @property
    def timings(self) -> list[Timing]:
        """Measured timings for the cost model; empty before the first token, after a fallback and
        for a continued answer."""
        first, work = self._decoder.first_token_at, self._reader.work
        if self._prompt is not None and self._prompt.answer_prefix_len:
            return []
        if not first or self._prompt is None or self._plan is None or self._fallback is not None:
            return []
        sparse = self._plan.reading is Reading.SPARSE or self._plan.show_selection
        if (scored := sparse and self._pair.draft is not None) and CostTerm.DRAFT not in work:
            return []
        return self._clock.timings(first, work, scored, sparse, len(self._prompt.ids))

    def _statistics(self) -> Statistics | None:
        if self._prompt is None or self._plan is None:
            return None
        reading = Reading.DENSE if self._fallback else self._plan.reading
        first, last = self._decoder.first_token_at, self._decoder.last_token_at
        phases = self._clock.phases
        recall_refusals = () if self._recall_refusal is None else (self._recall_refusal,)
        ttft = first - self._clock.started_at if first else 0.0
        parts = [PhaseTime(p, phases[p]) for p in Phase if p in phases]
        if first:
            rest = ttft - sum(part.seconds for part in parts)
            parts.append(PhaseTime(Phase.DECODE, max(rest, 0.0)))
        return Statistics(
            reading=reading,
            mode=self._ask.mode,
            keep_ratio=self._reader.keep
            if reading is Reading.SPARSE or self._plan.show_selection
            else 1.0,
            reasons=(*self._plan.reasons, *self._reader.reasons, *recall_refusals),
            prompt_tokens=len(self._prompt.ids),
            eligible_tokens=self._prompt.eligible_tokens,
            read_tokens=self._reader.read_tokens + self._recalled_mid_answer,
            reused_tokens=self._reader.reused_tokens,
            recalled_tokens=self._reader.recalled_tokens,
            generated_tokens=self._written_tokens,
            seed=self._decoder.seed,
            ttft=ttft,
            phases=tuple(parts),
            decode_seconds=last - first if first and last else 0.0,
            peak_bytes=self._peak_bytes or mx.get_peak_memory(),
            fallback=self._fallback,
            confidence=self.confidence,
            unsure=not self._cache.target.cached.all()
            and is_unsure(self.confidence, self._usual_confidence),
            proposed_tokens=self._decoder.proposed,
            accepted_tokens=self._decoder.accepted,
            verified_steps=self._decoder.verified_steps,
            plain_rate=self._pair.target.gate.plain_rate,
            documents=self._prompt.documents_read(
                np.flatnonzero(self._cache.target.cached), self._reader.reused
            ),
        )
