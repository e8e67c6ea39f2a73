"""One turn, from conversation to answer, in three steps: prepare, read, decode."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import mlx.core as mx
import numpy as np

from app.engine.backend import memory
from app.engine.model.prompt import Prompt
from app.engine.model.text_encoder import built_in_encoder, encoding_bytes
from app.engine.progress import TurnCancelled, TurnError
from app.engine.recovery import TargetLost, UnfinishedAnswer
from app.engine.turn.answer import AnswerWriter
from app.engine.turn.citations import cite, read_texts
from app.engine.turn.context import TurnContext
from app.engine.turn.decode import is_unsure
from app.engine.turn.preparation import Prepared, prepare
from app.engine.turn.prompt_reader import PromptReader
from app.protocol.commands import Ask
from app.protocol.cost_model import CostTerm, Timing
from app.protocol.events import Cited, EngineWarning, Finished
from app.protocol.reasons import FailureKind, Reason, ReasonCode
from app.protocol.stats import FinishReason, Phase, PhaseTime, Reading, Statistics


@dataclass(frozen=True, slots=True)
class Measured:
    """What a turn tells about its pair: timings, and the confidence of its answer (0..1)."""

    timings: tuple[Timing, ...] = ()
    confidence: float | None = None


def run_turn(ask: Ask, context: TurnContext, prompt: Prompt | None = None) -> Measured:
    """Run a turn, and emit its events up to `Finished`. Raises PromptError, TurnError,
    NotEnoughMemory or LoadError; TargetLost, with the unfinished answer. Any other exception leaves
    the cache in an unknown state; drop it then."""
    clock = context.clock
    mx.reset_peak_memory()
    try:
        clock.check_cancel()
        prepared = prepare(ask, context, prompt)
    except TurnCancelled as stop:
        _require_memory(stop.ended)
        clock.emit(Finished(clock.turn, stop.ended, "", (), None))
        return Measured()
    turn = _PreparedTurn(prepared, context)
    try:
        turn.run()
    except TargetLost as error:
        error.answer = turn.unfinished()
        raise
    finally:
        context.caches.keep_scores(ask.conversation, prepared.cache)
    return Measured(turn.timings, turn.decoder.confidence)


def _require_memory(ended: FinishReason) -> None:
    """Raise TurnError if a turn without any answer ended because memory ran out."""
    if ended is FinishReason.MEMORY:
        raise TurnError(FailureKind.MEMORY_EXHAUSTED)


class _PreparedTurn:
    """Reads the prompt of a prepared turn, decodes its answer, and counts what both did."""

    def __init__(self, prepared: Prepared, context: TurnContext) -> None:
        self._prepared, self._context = prepared, context
        self._pair, self._clock, self._ask = context.pair, context.clock, prepared.ask
        self._reader = PromptReader(
            prepared.ask, prepared.prompt, prepared.cache, context, prepared.max_keep
        )
        self._read = self._reader.so_far
        self._writer = AnswerWriter(prepared, context)
        self.decoder = self._writer.decoder

    def run(self) -> None:
        try:
            ended = self._writer.decode(self._reader.read_prompt(self._prepared))
        except TurnCancelled as stop:
            ended = stop.ended
        if not self._writer.written_tokens:
            _require_memory(ended)
        peak_bytes = mx.get_peak_memory()  # citations may raise it
        self._cite(ended)
        self._clock.emit(self._finished(ended, peak_bytes))

    def unfinished(self) -> UnfinishedAnswer:
        """The answer so far, after TargetLost."""
        written = self._finished(FinishReason.CANCELLED, mx.get_peak_memory())
        return UnfinishedAnswer(self._ask, written)

    def _finished(self, ended: FinishReason, peak_bytes: int) -> Finished:
        ids, text = tuple(self.decoder.ids), self.decoder.text
        return Finished(self._clock.turn, ended, text, ids, self._statistics(peak_bytes))

    def _cite(self, ended: FinishReason) -> None:
        """Find the citations of the answer. It is complete without them, so a failure is only
        reported, and stopping the turn stops only this."""
        answer, ask, clock = self.decoder.text, self._ask, self._clock
        if not answer or not ask.cite or ask.messages[-1].plain:
            return
        if self._read.quotes_nothing or self._pair.target.recovery is not None:
            return
        prompt = self._read.prompt
        texts = read_texts(prompt, self._prepared.cache.target.cached[: len(prompt.ids)])
        if not texts:
            return
        stopped = clock.stop_reason() is not None  # that ended the answer
        check = (lambda: None) if stopped else partial(clock.check_cancel, within_step=True)
        try:
            # The encoder stays loaded, and the next turn needs memory, too.
            needed = encoding_bytes(None)
            scarce = ended is FinishReason.MEMORY or memory.free() < 2 * needed
            read = [answer, *(text.text for text in texts)]
            encoder = None if scarce else built_in_encoder(ask.question, read)
            citations = cite(answer, ask.question, texts, encoder, check)
            if self._pair.only_quotes:  # what is not quoted is about the demo model
                citations = replace(citations, uncited=0)
        except TurnCancelled:
            reason = Reason(ReasonCode.CITATIONS_STOPPED)
            clock.emit(EngineWarning(reason, ask.conversation))
        except Exception as error:
            memory.reraise_gpu_lost(error)
            reason = Reason(ReasonCode.CITATIONS_UNKNOWN, memory.cause_of(error))
            clock.emit(EngineWarning(reason, ask.conversation))
        else:
            clock.emit(Cited(clock.turn, citations))

    @property
    def timings(self) -> tuple[Timing, ...]:
        """Measured timings for the cost model; empty before the first token, after a fallback and
        for a continued answer."""
        first, work, plan = self.decoder.first_token_at, self._read.work, self._prepared.plan
        prompt = self._prepared.prompt
        if prompt.answer_prefix_len or not first or self._read.fallback is not None:
            return ()
        by_draft = plan.scores and self._pair.draft is not None
        if by_draft and CostTerm.DRAFT not in work:
            return ()
        return tuple(self._clock.timings(first, work, by_draft, plan.scores, len(prompt.ids)))

    def _statistics(self, peak_bytes: int) -> Statistics:
        plan, prompt, read = self._prepared.plan, self._prepared.prompt, self._read
        decoder, writer, clock = self.decoder, self._writer, self._clock
        reading = Reading.DENSE if read.fallback else plan.reading
        selects = reading is Reading.SPARSE or plan.show_selection
        first, last = decoder.first_token_at, decoder.last_token_at
        recall_refusals = () if writer.recall_refusal is None else (writer.recall_refusal,)
        ttft = first - clock.started_at if first else 0.0
        parts = [PhaseTime(p, clock.phases[p]) for p in Phase if p in clock.phases]
        if first:
            rest = ttft - sum(part.seconds for part in parts)
            parts.append(PhaseTime(Phase.DECODE, max(rest, 0.0)))
        cached = self._prepared.cache.target.cached
        return Statistics(
            reading=reading,
            mode=self._ask.mode,
            keep_ratio=read.keep if selects else 1.0,
            reasons=(*plan.reasons, *read.reasons, *recall_refusals),
            prompt_tokens=len(prompt.ids),
            eligible_tokens=prompt.eligible_tokens,
            read_tokens=read.read_tokens + writer.recalled_tokens,
            reused_tokens=read.reused_tokens,
            recalled_tokens=read.recalled_tokens,
            generated_tokens=writer.written_tokens,
            seed=decoder.seed,
            ttft=ttft,
            phases=tuple(parts),
            decode_seconds=last - first if first and last else 0.0,
            peak_bytes=peak_bytes,
            fallback=read.fallback,
            confidence=decoder.confidence,
            unsure=not cached.all()
            and is_unsure(decoder.confidence, self._context.usual_confidence),
            proposed_tokens=decoder.proposed,
            accepted_tokens=decoder.accepted,
            verified_steps=decoder.verified_steps,
            plain_rate=self._pair.target.gate.plain_rate,
            documents=prompt.documents_read(np.flatnonzero(cached), read.reused),
        )
