"""The third step of a turn: decodes the answer from the prompt that was read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.engine.cache.positions import Positions
from app.engine.model.speculation import DRAFTED
from app.engine.model.token_stream import DraftProposals, Speculation
from app.engine.turn.context import TurnContext
from app.engine.turn.decode import Decoder
from app.engine.turn.mid_answer_recall import MidAnswerRecall
from app.engine.turn.preparation import Prepared
from app.engine.turn.prompt_reader import ReadPrompt
from app.protocol.events import PhaseProgress, Token
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import FinishReason, Phase, Reading


class AnswerWriter:
    """Writes the answer of one turn. It proposes tokens where it can, and reads skipped tokens that
    the answer needs."""

    def __init__(self, prepared: Prepared, context: TurnContext) -> None:
        self._prepared, self._pair, self._clock = prepared, context.pair, context.clock
        self.decoder = Decoder(
            self._clock.turn,
            self._pair.target.tokenizer,
            prepared.ask.sampling,
            self._clock.emit,
            trim_space=not prepared.ask.messages[-1].plain,
            others_wait=self._clock.others_wait,
        )
        self.recalled_tokens = 0
        """Tokens of the prompt that were read while the answer was written."""
        self.recall_refusal: Reason | None = None
        """Why nothing can be read then, although it should be."""

    @property
    def written_tokens(self) -> int:
        """Tokens that this turn generated."""
        return len(self.decoder.ids) - self.decoder.answer_prefix_len

    def decode(self, read: ReadPrompt) -> FinishReason:
        """Decode the answer. The cache then has all of its tokens. Raises what
        `Decoder.generate` raises."""
        ask, prompt, limit = self._prepared.ask, read.prompt, self._prepared.max_answer_tokens
        cache = self._prepared.cache.target
        self._clock.emit(PhaseProgress(self._clock.turn, Phase.DECODE, 0, limit, 0.0))
        if prompt.answer_prefix_len and ask.messages[-1].token_ids is None:
            ids = tuple(prompt.ids[-prompt.answer_prefix_len :].tolist())
            self._clock.emit(Token(self._clock.turn, ids, ""))
        speculation = Speculation(
            self._pair.target.gate, draft=self._draft_proposals(read), mtp=read.mtp
        )
        ended = self.decoder.generate(
            self._pair.target.model,
            cache,
            prompt.ids,
            limit,
            self._clock.stop_reason,
            prompt.answer_prefix_len,
            read.quotation,
            speculation,
            self._recall(read),
        )
        if self._pair.target.recovery is None:
            # The decoder has fed every token that it yielded, so all of them are cached.
            written = self.decoder.ids[prompt.answer_prefix_len :] + self.decoder.dropped
            cache.append(np.append(prompt.ids, np.array(written, np.int32))[len(cache) :])
            cache.eval()
        return ended

    def _draft_proposals(self, read: ReadPrompt) -> DraftProposals | None:
        """Speculative tokens from the draft; None unless it is loaded, shares the target's
        tokenizer and has read the prompt."""
        draft, target, prefix = self._pair.draft, self._pair.target, self._prepared.cache.draft
        speculates = self._prepared.ask.sampling.speculate
        if draft is None or prefix is None or not draft.is_loaded or not speculates:
            return None
        ids = read.prompt.ids
        if read.prompt.for_draft is not None or not DraftProposals.is_possible(prefix, ids):
            return None
        share = draft.info.weight_bytes / max(target.info.weight_bytes, 1)
        target.gate.guess_draft_cost(DRAFTED, share)
        return DraftProposals(draft, prefix, ids, target.vocab_size)

    def _recall(self, read: ReadPrompt) -> MidAnswerRecall | None:
        """The recall of skipped tokens during decoding; None if it is off, not needed, or cannot
        be done."""
        prepared, clock = self._prepared, self._clock
        target, ask = prepared.cache.target, prepared.ask
        budget = int(ask.tuning.read_on * ask.expected_keep * read.prompt.eligible_tokens)
        sparse = prepared.plan.reading is Reading.SPARSE and read.fallback is None
        if not budget or not sparse or read.quotation or target.cached.all():
            return None
        if not MidAnswerRecall.is_possible(target):
            if prepared.resume_from is None:
                self.recall_refusal = Reason(ReasonCode.CANNOT_INSERT)
            return None
        if not ask.skip_memory_check and not prepared.estimate.can_recall(budget):
            self.recall_refusal = Reason(ReasonCode.NO_MEMORY_TO_READ_ON)
            return None

        def show(positions: Positions) -> None:
            self.recalled_tokens += len(positions)
            if prepared.cache.scored is not None:
                prepared.cache.scored = prepared.cache.scored.with_recalled(positions)
                event = prepared.cache.scored.select(read.keep)[1]
                clock.emit(replace(event, turn=clock.turn))

        return MidAnswerRecall(
            self._pair.target,
            target,
            read.prompt,
            ask.tuning.chunk,
            budget,
            show,
            lambda done: clock.check_cancel(),
            lambda done: clock.check_cancel(within_step=True),
        )
