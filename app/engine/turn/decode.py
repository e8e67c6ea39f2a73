"""Writes the answer over a prefilled cache, and reports it."""

from __future__ import annotations

import copy
import math
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial
from statistics import fmean
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import TextStateMachine, make_stop_sequences
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from mlx_lm.tokenizer_utils import NaiveStreamingDetokenizer
from numpy.typing import NDArray

from app.engine.cache.prefix_cache import PrefixCache
from app.engine.model.reasoning import ANSWER, REASONING, Reasoning
from app.engine.model.speculation import Gate
from app.engine.model.token_stream import (
    CopyIndex,
    DraftProposals,
    Match,
    Processor,
    Sampler,
    TokenStream,
)
from app.engine.progress import ShardsLost
from app.engine.turn.mid_answer_recall import MidAnswerRecall
from app.protocol.commands import Ask
from app.protocol.events import Token
from app.protocol.options import NO_ANSWER_LIMIT, Sampling
from app.protocol.prompt import Message, Role
from app.protocol.stats import SURE, FinishReason

FLUSH_SECONDS = 0.05
"""Seconds between two `Token` events: 20 a second is more than a screen needs."""
NEARLY_ZERO = 1e-5
"""Temperatures and `top_p` below it leave the likeliest token only: their float32 quotients or sums
are not exact enough for mlx-lm's functions."""
LONGEST_PERIOD = 64
REPEATS = 4
SHORTEST_LOOP = 256
"""Tokens. A table's rule, a row of zeros or some equal lines of code are shorter than that."""
SENTENCE, SENTENCE_LOOP = 12, 96
"""Tokens from which on a passage counts as a sentence, and its shortest loop: nobody repeats one on
purpose."""


def is_unsure(confidence: float | None, usual: float | None) -> bool:
    """Whether an answer's confidence is far below the usual one of its model pair, both 0..1;
    False where one is unknown."""
    return confidence is not None and usual is not None and confidence < min(usual**2, SURE)


class Decoder:
    """Generates one answer and reports it in coalesced `Token` events.

    `ids` are the generated tokens with the end-of-text token, `text` the answer so far. With
    `trim_space` the answer loses a space that it begins with, as SentencePiece's texts do.
    """

    def __init__(
        self,
        turn: int,
        tokenizer: Any,
        sampling: Sampling,
        emit: Callable[[Token], None],
        *,
        trim_space: bool = False,
    ) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.first_token_at: float | None = None
        """By `time.perf_counter`."""
        self.last_token_at: float | None = None
        self._ended: FinishReason | None = None
        """Why the last token was the answer's last one, if it was."""
        self.answer_prefix_len = 0
        """How many of `ids` an earlier turn wrote."""
        self.proposed = self.accepted = self.verified_steps = 0
        """Tokens that were verified several at a time, and those of them that were right."""
        self.confidence: float | None = None
        """The geometric mean of the probabilities of what this turn wrote."""
        self.seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        self._turn, self._tokenizer, self._sampling, self._emit = turn, tokenizer, sampling, emit
        self._detokenizer = _detokenizer(tokenizer, trim_space)
        self._reasoning = Reasoning(tokenizer)
        self._machine = self._reasoning.machine()
        self._state = self._machine.make_state()
        self._stops = make_stop_sequences(tokenizer).matcher()
        self._thinking_tokens = 0
        self._shown = 0
        """Characters of the held text (see `_held`) that were shown before."""
        self._pending: tuple[list[int], str, str] = ([], "", "")
        self._flushed_at = 0.0

    def run(
        self,
        model: Any,
        prefix: PrefixCache,
        prompt_ids: NDArray[np.int32],
        max_tokens: int,
        stop: Callable[[], FinishReason | None],
        answer_prefix_len: int = 0,
        quotation: str | None = None,
        gate: Gate | None = None,
        draft: DraftProposals | None = None,
        recall: MidAnswerRecall | None = None,
    ) -> FinishReason:
        """Feed the prompt's last token and write until a stop sequence, the limit, a loop if those
        are to end it, or until `stop` returns a reason after a token.

        `prompt_ids` is the whole prompt, of which `prefix` has all but the last token. Its last
        `answer_prefix_len` tokens are of the answer, which is continued. With a `quotation`,
        only that is written. Raises what reading for `recall` raises, and ShardsLost unless the
        answer is complete then.
        """
        sampling = self._sampling
        prompt, answer = np.split(prompt_ids, [len(prompt_ids) - answer_prefix_len])
        self._state = self._machine.make_state(
            REASONING if self._reasoning.is_open(prompt.tolist()) else ANSWER
        )
        for token in answer.tolist():
            self.ids.append(token)
            segments = self._advance(token)
            self.text += _answered(segments)
        held = self._held(cut_off=True)
        self.text += _answered(held)
        self._shown = sum(len(part) for _, part in held)
        self.answer_prefix_len = answer_prefix_len
        index = CopyIndex(prompt_ids) if sampling.speculate or recall is not None else None
        stream = TokenStream(
            model,
            prefix,
            gate or Gate(),
            index,
            _sampler(sampling, self._tokenizer.eos_token_ids),
            self._processors(quotation),
            self.seed,
            draft,
            sampling.speculate,
            prompt_ids[-1 - answer_prefix_len : -1],
        )
        last, end = int(prompt_ids[-1]), answer_prefix_len + max_tokens
        loop = LoopDetector() if sampling.stop_repeats else None
        reason: FinishReason | None = None
        try:
            while (reason := self._write(stream, last, end, stop, loop, recall)) is None:
                if recall is not None and recall.is_due:
                    stream.feed_last_again()
                    last = recall.read(self.ids[answer_prefix_len:])
                else:
                    last = self._end_thinking(stream)
        except ShardsLost:  # after the last token, it is only fed
            if self._ended is None:
                raise
            reason = self._ended
        finally:
            self.proposed, self.accepted = stream.proposed, stream.accepted
            self.verified_steps = stream.verified_steps
            if stream.log_probabilities and quotation is None:
                self.confidence = math.exp(fmean(stream.log_probabilities))
            if draft is not None:
                draft.close()
            self._add_text(self._unshown(self._held(cut_off=reason is not FinishReason.STOP)))
            self.flush()
        return reason

    def _write(
        self,
        stream: TokenStream,
        last: int,
        end: int,
        stop: Callable[[], FinishReason | None],
        loop: LoopDetector | None,
        recall: MidAnswerRecall | None,
    ) -> FinishReason | None:
        """From the `last` token on, until the answer has `end` tokens; None if it has thought for
        long enough, or something is to be read first."""
        closing = len(self._closing)
        hold = None if recall is None else partial(self._needs, recall)
        tokens = stream.tokens(last, end - len(self.ids), len(self.ids), hold)
        try:
            for token in tokens:
                self._record(token)
                self._ended = self._end_after(token, stop, loop)
                if self._ended is not None:
                    return self._ended
                if len(self.ids) >= end:
                    self._ended = FinishReason.LENGTH
                if self._thinks_too_long and len(self.ids) + closing < end:
                    return None
        finally:
            tokens.close()
        return None if recall is not None and recall.is_due else FinishReason.LENGTH

    def _needs(self, recall: MidAnswerRecall, match: Match | None) -> bool:
        """Whether something is to be read before the next token. Only what the answer has written
        is a sign of that: a prompt ends as the one before the last answer did."""
        if match is not None:
            match = replace(match, length=min(match.length, len(self.ids)))
        return recall.find(match)

    def _end_after(
        self, token: int, stop: Callable[[], FinishReason | None], loop: LoopDetector | None
    ) -> FinishReason | None:
        """Why the answer ends with this token, its limit apart; None if it goes on."""
        if self._stops.advance(token) or token in self._sampling.stop_ids:
            return FinishReason.STOP
        self._add_text(self._advance(token))
        if (stopped := stop()) is not None:
            return stopped
        return FinishReason.REPEATED if loop is not None and loop.advance(token) else None

    def _advance(self, token: int) -> list[tuple[str, str]]:
        """What becomes readable with the answer's next token: texts, and whether they are
        "reasoning"."""
        self._detokenizer.add_token(token)
        self._state, segments = TextStateMachine.split(self._state, self._detokenizer.last_segment)
        self._thinking_tokens += self._state[0] == "reasoning"
        return self._unshown(segments)

    def _held(self, cut_off: bool) -> list[tuple[str, str]]:
        """The end of the text that waits for the next token: a space, or what may begin a tag;
        unless the answer is `cut_off`, also half a character. Changes nothing."""
        detokenizer = copy.copy(self._detokenizer)
        detokenizer.finalize()
        rest: str = detokenizer.last_segment
        state, segments = TextStateMachine.split(
            self._state, rest.rstrip("\ufffd") if cut_off else rest
        )
        _, tag, name = TextStateMachine.flush(state)
        return [*segments, (name, tag)]

    def _unshown(self, segments: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Segments without what was held when an answer that is continued was cut off, because that
        was shown."""
        (name, text), *rest = segments
        shown = min(self._shown, len(text))
        self._shown = 0 if rest else self._shown - shown
        return [(name, text[shown:]), *rest]

    @property
    def _thinks_too_long(self) -> bool:
        budget = self._sampling.thinking_budget
        return 0 < budget <= self._thinking_tokens and self._state[0] == "reasoning"

    @cached_property
    def _closing(self) -> list[int]:
        """What ends the thinking."""
        found = self._reasoning.format
        if found is None or not self._sampling.thinking_budget:
            return []
        ids: list[int] = self._tokenizer.encode(found.closes, add_special_tokens=False)
        return ids

    def _end_thinking(self, stream: TokenStream) -> int:
        """The last token of what is written for the model."""
        stream.write(self._closing)
        for token in self._closing:
            self._record(token)
            self._add_text(self._advance(token))
        return self._closing[-1]

    def _processors(self, quotation: str | None) -> list[Processor]:
        if quotation is not None:
            return [self._only(quotation)]
        sampling = self._sampling
        repetition = sampling.repetition_penalty
        bias = dict(sampling.logit_bias)
        if sampling.ignore_eos:
            bias |= dict.fromkeys(self._tokenizer.eos_token_ids, -math.inf)
        found: list[Processor] = make_logits_processors(
            bias, None if repetition == 1 else repetition, sampling.penalty_tokens
        )
        of_answer: list[Processor] = make_logits_processors(
            presence_penalty=sampling.presence_penalty,
            presence_context_size=NO_ANSWER_LIMIT,
            frequency_penalty=sampling.frequency_penalty,
            frequency_context_size=NO_ANSWER_LIMIT,
        )
        return [*found, *map(_without_first, of_answer)]

    def _only(self, text: str) -> Callable[[mx.array, mx.array], mx.array]:
        """A processor of logits that leaves nothing but this text, and then the end."""
        stop = min(self._tokenizer.eos_token_ids)
        ids = [*self._tokenizer.encode(text, add_special_tokens=False), stop]

        def only_next(before: mx.array, logits: mx.array) -> mx.array:
            wanted = ids[min(len(before), len(ids)) - 1]  # the first before is the prompt's last
            return mx.where(mx.arange(logits.shape[-1]) == wanted, logits, -mx.inf)

        return only_next

    def continued(self, ask: Ask) -> Ask:
        """What continues the answer to `ask` where it is now: it is not complete."""
        if not self.ids:
            return ask
        before = ask.messages[:-1] if ask.messages[-1].role is Role.ASSISTANT else ask.messages
        answer = Message(Role.ASSISTANT, self.text, token_ids=tuple(self.ids))
        left = ask.sampling.max_tokens - len(self.ids) + self.answer_prefix_len
        sampling = replace(ask.sampling, max_tokens=left, seed=self.seed)
        return replace(ask, messages=(*before, answer), sampling=sampling)

    def flush(self) -> None:
        """Report what has not been reported yet."""
        ids, text, thinking = self._pending
        if ids or text or thinking:
            self._emit(Token(self._turn, tuple(ids), text, thinking))
        self._pending = ([], "", "")
        self._flushed_at = time.perf_counter()

    def _record(self, token: int) -> None:
        self.last_token_at = time.perf_counter()
        self.first_token_at = self.first_token_at or self.last_token_at
        self.ids.append(token)
        self._pending[0].append(token)

    def _add_text(self, segments: list[tuple[str, str]]) -> None:
        ids, text, thinking = self._pending
        for state, part in segments:
            if state == "reasoning":
                thinking += part
            else:
                text += part
                self.text += part
        self._pending = (ids, text, thinking)
        if time.perf_counter() - self._flushed_at >= FLUSH_SECONDS:
            self.flush()


def _without_first(processor: Processor) -> Processor:
    """The first token that was fed is the prompt's last one, not the answer's."""
    return lambda fed, logits: processor(fed[1:], logits)


def _answered(segments: list[tuple[str, str]]) -> str:
    return "".join(text for name, text in segments if name != "reasoning")


def _detokenizer(tokenizer: Any, trim_space: bool) -> Any:
    """A detokenizer of mlx-lm. Most drop the space before the first text: to keep it, there is some
    already."""
    found = tokenizer.detokenizer
    if not trim_space and not isinstance(found, NaiveStreamingDetokenizer):
        found.text, found.offset = " ", 1
    return found


def _sampler(sampling: Sampling, ends: Iterable[int] = ()) -> Sampler | None:
    """None for the likeliest token. XTC never excludes the `ends`."""
    if min(sampling.temperature, sampling.top_p) < NEARLY_ZERO:
        return None

    def sample(log_probabilities: mx.array) -> mx.array:
        most = log_probabilities.shape[-1] - 1  # mlx-lm takes no more
        sampler: Sampler = make_sampler(
            sampling.temperature,
            sampling.top_p,
            sampling.min_p,
            top_k=min(sampling.top_k, most),
            xtc_probability=sampling.xtc_probability,
            xtc_threshold=sampling.xtc_threshold,
            xtc_special_tokens=list(ends),
        )
        return sampler(log_probabilities)

    return sample


class LoopDetector:
    """Detects, token by token, that an answer only repeats itself: a passage of up to
    `LONGEST_PERIOD` tokens, exactly the same `REPEATS` times in a row, and for at least
    `SHORTEST_LOOP` tokens, or `SENTENCE_LOOP` if it is a sentence."""

    def __init__(self) -> None:
        periods = np.arange(1, LONGEST_PERIOD + 1)
        shortest = np.where(periods < SENTENCE, SHORTEST_LOOP, SENTENCE_LOOP)
        self._needed = np.maximum(shortest, REPEATS * periods) - periods
        self._recent = np.full(LONGEST_PERIOD, -1)
        """The last tokens, the newest first."""
        self._run = np.zeros(LONGEST_PERIOD, np.int64)
        """By period - 1: how many of the last tokens each equal the one a period before them."""

    def advance(self, token: int) -> bool:
        """Add the next token; True when the answer is in a loop."""
        self._run = np.where(self._recent == token, self._run + 1, 0)
        self._recent[1:] = self._recent[:-1].copy()
        self._recent[0] = token
        short = self._run[: SENTENCE - 1]  # what repeats after 2 tokens does so after 12, too
        looping = self._run >= self._needed
        return bool((looping[: SENTENCE - 1] if (short >= SENTENCE).any() else looping).any())
