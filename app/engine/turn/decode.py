"""Generates the answer from a prefilled cache and reports it in `Token` events."""

from __future__ import annotations

import copy
import math
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
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
from app.engine.model.token_stream import (
    CopyIndex,
    Match,
    Processor,
    Sampler,
    Speculation,
    TokenStream,
)
from app.engine.recovery import TargetLost
from app.engine.turn.mid_answer_recall import MidAnswerRecall
from app.protocol.events import Token
from app.protocol.options import NO_ANSWER_LIMIT, Sampling
from app.protocol.stats import SURE, FinishReason
from app.util.prose import is_code
from app.util.words import WORD

FLUSH_SECONDS = 0.05
"""Minimum seconds between two `Token` events."""
MIN_TEMPERATURE = 1e-5
"""A smaller `temperature` or `top_p` means greedy decoding: mlx-lm's samplers are not exact enough
for it in float32."""
MAX_PERIOD = 64
MIN_REPEATS = 4
MIN_LOOP = 256
"""Shortest loop in tokens. Table rules, rows of zeros and equal lines of code are shorter."""
MIN_SENTENCE, MIN_SENTENCE_LOOP = 12, 96
"""A repeated passage of at least `MIN_SENTENCE` tokens is repeated on purpose less often, so a loop
of `MIN_SENTENCE_LOOP` tokens is enough."""
PROSE_REPEATS = 3
"""How often prose is written in a row until that is a loop: the second repetition ends it."""
SENTENCE_WORDS, PHRASE_WORDS = 4, 3
"""Minimum words of a repeated sentence, and of a phrase, which has no end of a sentence."""
MIN_PHRASE_LOOP = 32
"""Shortest loop of a phrase in tokens."""
MIN_LINE_WORDS = 8
"""Minimum words of each line of a repeated passage: shorter ones may be a refrain or a list."""
_SENTENCE_END = re.compile(r"[.!?…](?:[\"')\]”’»*_]{0,3}(?:\s|$))|[。！？]")
_ENDED = re.compile(r"[.!?…。！？][\"')\]”»*_]{0,3}\s{0,4}\Z")
MAX_STOP = 3
"""Maximum tokens of the end of a sentence."""
_NOT_PROSE = re.compile(r"[|\t{}<>=`\\]|\w\(")


def is_unsure(confidence: float | None, usual: float | None) -> bool:
    """Whether an answer's confidence is far below the usual one of its model pair (both 0..1);
    False if either is unknown."""
    return confidence is not None and usual is not None and confidence < min(usual**2, SURE)


class Decoder:
    """Generates one answer and reports it in coalesced `Token` events.

    `ids` are the generated token ids, including the end-of-text token; `text` is the answer so far,
    without reasoning. `trim_space` drops the leading space that SentencePiece adds. `others_wait`
    tells whether other questions are queued.
    """

    def __init__(
        self,
        turn: int,
        tokenizer: Any,
        sampling: Sampling,
        emit: Callable[[Token], None],
        *,
        trim_space: bool = False,
        others_wait: Callable[[], bool] = lambda: False,
    ) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.first_token_at: float | None = None
        """In seconds of `time.perf_counter`."""
        self.last_token_at: float | None = None
        self._finish_reason: FinishReason | None = None
        """Why the answer ended, once its last token is generated."""
        self.answer_prefix_len = 0
        """How many of `ids` an earlier turn generated, when an answer is continued."""
        self.proposed = self.accepted = self.verified_steps = 0
        """Speculative tokens proposed and accepted, and the forwards that verified them."""
        self.confidence: float | None = None
        """Geometric mean of the probabilities of this turn's tokens, 0..1."""
        self.seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        self._turn, self._tokenizer, self._sampling, self._emit = turn, tokenizer, sampling, emit
        self._others_wait = others_wait
        self._detokenizer = _detokenizer(tokenizer, trim_space)
        self._reasoning = Reasoning(tokenizer)
        self._machine = self._reasoning.machine()
        self._state = self._machine.make_state()
        self._stops = make_stop_sequences(tokenizer).matcher()
        self._thinking_tokens = 0
        self._shown = 0
        """Characters of the held-back text (see `_held_back`) that an earlier turn has shown."""
        self._pending: tuple[list[int], str, str] = ([], "", "")
        self._held: deque[_Held] = deque()
        """Tokens that are not reported yet, because they repeat what stands before them."""
        self.dropped: list[int] = []
        """Token ids that were generated after `ids`: a loop's repetitions."""
        self._flushed_at = 0.0

    def generate(
        self,
        model: Any,
        prefix: PrefixCache,
        prompt_ids: NDArray[np.int32],
        max_tokens: int,
        stop: Callable[[], FinishReason | None],
        answer_prefix_len: int = 0,
        quotation: str | None = None,
        speculation: Speculation | None = None,
        recall: MidAnswerRecall | None = None,
    ) -> FinishReason:
        """Feed the prompt's last token and generate until a stop sequence, `max_tokens`, a loop (if
        `stop_repeats` is set, or `yield_repeats` and others wait), or until `stop` returns a
        reason; `stop` is called after each token. With `stop_repeats` the repetitions of a loop are
        neither reported nor part of `ids` and `text`.

        `prompt_ids` (M,) is the whole prompt; `prefix` has cached all but its last token. Its last
        `answer_prefix_len` tokens belong to an answer that is continued. A `quotation` is written
        verbatim and nothing else, or its rest after the answer. Raises what `recall` raises, and
        TargetLost if the answer is incomplete.
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
        held = self._held_back(cut_off=True)
        self.text += _answered(held)
        self._shown = sum(len(part) for _, part in held)
        self.answer_prefix_len = answer_prefix_len
        speculation = replace(speculation or Speculation(), copies=sampling.speculate)
        if sampling.speculate or recall is not None:
            speculation = replace(speculation, index=CopyIndex(prompt_ids))
        stream = TokenStream(
            model,
            prefix,
            speculation,
            _sampler(sampling, self._tokenizer.eos_token_ids),
            self._processors(quotation),
            self.seed,
            prompt_ids[-1 - answer_prefix_len : -1],
        )
        last, end = int(prompt_ids[-1]), answer_prefix_len + max_tokens
        watches = quotation is None and (sampling.stop_repeats or sampling.yield_repeats)
        loop = LoopDetector(self._tokenizer.decode) if watches else None
        reason: FinishReason | None = None
        try:
            while (reason := self._write(stream, last, end, stop, loop, recall)) is None:
                if recall is not None and recall.is_due:
                    last = recall.read(self.ids[answer_prefix_len:])
                else:
                    last = self._end_thinking(stream)
        except TargetLost:  # harmless once the last token is sampled
            if self._finish_reason is None:
                raise
            reason = self._finish_reason
        finally:
            self.proposed, self.accepted = stream.proposed, stream.accepted
            self.verified_steps = stream.verified_steps
            if stream.log_probabilities and quotation is None:
                self.confidence = math.exp(fmean(stream.log_probabilities))
            if speculation.draft is not None:
                speculation.draft.close()
            self._release()
            if not self.dropped:
                held = self._held_back(cut_off=reason is not FinishReason.STOP)
                self._add_text(self._unshown(held))
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
        """Generate after the token `last` until the answer has `end` tokens. Returns None if the
        thinking budget is used up or skipped tokens must be recalled first."""
        closing = len(self._closing_ids)
        hold = None if recall is None else partial(self._needs_recall, recall)
        tokens = stream.tokens(last, end - len(self.ids), len(self.ids), hold)
        try:
            for token in tokens:
                self._record(token)
                self._finish_reason = self._end_after(token, stop, loop)
                if self._finish_reason is not None:
                    return self._finish_reason
                if len(self.ids) >= end:
                    self._finish_reason = FinishReason.LENGTH
                if self._thinks_too_long and len(self.ids) + closing < end:
                    return None
        finally:
            tokens.close()
        return None if recall is not None and recall.is_due else FinishReason.LENGTH

    def _needs_recall(self, recall: MidAnswerRecall, match: Match | None) -> bool:
        """Whether to recall before the next token. Only generated tokens count as a match: every
        prompt ends in the same template."""
        if match is not None:
            match = replace(match, length=min(match.length, len(self.ids)))
        return recall.find(match)

    def _end_after(
        self, token: int, stop: Callable[[], FinishReason | None], loop: LoopDetector | None
    ) -> FinishReason | None:
        """Why the answer ends with this token, apart from its limit; None if it continues."""
        if self._stops.advance(token) or token in self._sampling.stop_ids:
            self._release()
            self._report(token, [])
            return FinishReason.STOP
        if loop is None or not self._sampling.stop_repeats:
            self._report(token, self._advance(token))
            repeated = 0 if loop is None else loop.advance(token)
        else:
            waiting = self._held_back(cut_off=True)
            self._held.append(_Held(token, self._advance(token), waiting))
            repeated = loop.advance(token)
            self._release(keep=loop.repeating)
        if (stopped := stop()) is not None:
            return stopped
        if not repeated or not (self._sampling.stop_repeats or self._others_wait()):
            return None
        if self._held:
            self._drop(repeated)
        return FinishReason.REPEATED

    def _release(self, keep: int = 0) -> None:
        """Report the tokens that are held, except the last ones."""
        while len(self._held) > keep:
            held = self._held.popleft()
            self._report(held.token, held.segments)

    def _drop(self, count: int) -> None:
        """Take back the last `count` tokens, none of which was reported. A full stop stays, though
        the sentences before may have the same one."""
        self._release(keep=count)
        text, kept = self.text[-MAX_PERIOD:], 0
        for number, each in enumerate([*self._held][: MAX_STOP + 1]):
            if _ENDED.search(text + _answered(each.waiting)):
                kept = number
                break
            text += _answered(each.segments)
        self._release(keep=count - kept)
        self._add_text(self._held[0].waiting)
        self.dropped = [each.token for each in self._held]
        self._held.clear()
        del self.ids[-len(self.dropped) :]

    def _advance(self, token: int) -> list[tuple[str, str]]:
        """Detokenise the next token. Returns the text that is complete now, as segments (state,
        text); the state is "reasoning" within thinking."""
        self._detokenizer.add_token(token)
        self._state, segments = TextStateMachine.split(self._state, self._detokenizer.last_segment)
        self._thinking_tokens += self._state[0] == "reasoning"
        return self._unshown(segments)

    def _held_back(self, cut_off: bool) -> list[tuple[str, str]]:
        """Segments of the text that waits for the next token: a space, the possible start of a tag,
        or, unless the answer is `cut_off`, an incomplete character. Does not change any state."""
        detokenizer = copy.copy(self._detokenizer)
        detokenizer.finalize()
        rest: str = detokenizer.last_segment
        state, segments = TextStateMachine.split(
            self._state, rest.rstrip("\ufffd") if cut_off else rest
        )
        _, tag, name = TextStateMachine.flush(state)
        return [*segments, (name, tag)]

    def _unshown(self, segments: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Segments without the text that was shown when the answer was cut off earlier."""
        (name, text), *rest = segments
        shown = min(self._shown, len(text))
        self._shown = 0 if rest else self._shown - shown
        return [(name, text[shown:]), *rest]

    @property
    def _thinks_too_long(self) -> bool:
        budget = self._sampling.thinking_budget
        return 0 < budget <= self._thinking_tokens and self._state[0] == "reasoning"

    @cached_property
    def _closing_ids(self) -> list[int]:
        """Token ids that end thinking; empty if the model does not reason or has no budget."""
        found = self._reasoning.format
        if found is None or not self._sampling.thinking_budget:
            return []
        ids: list[int] = self._tokenizer.encode(found.closes, add_special_tokens=False)
        return ids

    def _end_thinking(self, stream: TokenStream) -> int:
        """Write the end of thinking for the model. Returns its last token, to be fed next."""
        stream.write(self._closing_ids)
        self._release()
        for token in self._closing_ids:
            self._record(token)
            self._report(token, self._advance(token))
        return self._closing_ids[-1]

    def _processors(self, quotation: str | None) -> list[Processor]:
        if quotation is not None:
            return [only(self._quotation_ids(quotation))]
        sampling = self._sampling
        repetition = sampling.repetition_penalty
        bias = dict(sampling.logit_bias)
        if sampling.ignore_eos:
            bias |= dict.fromkeys(self._tokenizer.eos_token_ids, -math.inf)
        found: list[Processor] = make_logits_processors(
            bias, None if repetition == 1 else repetition, sampling.penalty_tokens
        )
        answer_processors: list[Processor] = make_logits_processors(
            presence_penalty=sampling.presence_penalty,
            presence_context_size=NO_ANSWER_LIMIT,
            frequency_penalty=sampling.frequency_penalty,
            frequency_context_size=NO_ANSWER_LIMIT,
        )
        return [*found, *map(_without_first, answer_processors)]

    def _quotation_ids(self, quotation: str) -> list[int]:
        """The tokens of a quotation and of its end. An answer that is continued may have other
        tokens than its text gives; one that is no part of the quotation ends at once."""
        stop = min(self._tokenizer.eos_token_ids)
        ids = self._tokenizer.encode(quotation, add_special_tokens=False)
        if ids[: len(self.ids)] != self.ids:
            rest = quotation[len(self.text) :] if quotation.startswith(self.text) else ""
            ids = [*self.ids, *self._tokenizer.encode(rest, add_special_tokens=False)]
        return [*ids, stop]

    def flush(self) -> None:
        """Emit a `Token` event with everything that was not reported yet."""
        ids, text, thinking = self._pending
        if ids or text or thinking:
            self._emit(Token(self._turn, tuple(ids), text, thinking))
        self._pending = ([], "", "")
        self._flushed_at = time.perf_counter()

    def _record(self, token: int) -> None:
        self.last_token_at = time.perf_counter()
        self.first_token_at = self.first_token_at or self.last_token_at
        self.ids.append(token)

    def _report(self, token: int, segments: list[tuple[str, str]]) -> None:
        self._pending[0].append(token)
        self._add_text(segments)

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


def only(ids: Sequence[int]) -> Processor:
    """A logits processor that forces these token ids, in order."""

    def only_next(before: mx.array, logits: mx.array) -> mx.array:
        wanted = ids[min(len(before), len(ids)) - 1]  # before[0] is the prompt's
        return mx.where(mx.arange(logits.shape[-1]) == wanted, logits, -mx.inf)

    return only_next


def _without_first(processor: Processor) -> Processor:
    """Hide the first fed token from a processor: it is the prompt's last one."""
    return lambda fed, logits: processor(fed[1:], logits)


def _answered(segments: list[tuple[str, str]]) -> str:
    return "".join(text for name, text in segments if name != "reasoning")


def _detokenizer(tokenizer: Any, trim_space: bool) -> Any:
    """mlx-lm's detokenizer. Most drop a leading space; text before it makes them keep it."""
    found = tokenizer.detokenizer
    if not trim_space and not isinstance(found, NaiveStreamingDetokenizer):
        found.text, found.offset = " ", 1
    return found


def _sampler(sampling: Sampling, ends: Iterable[int] = ()) -> Sampler | None:
    """A sampler over log probabilities, or None for greedy decoding. XTC never excludes `ends`."""
    if min(sampling.temperature, sampling.top_p) < MIN_TEMPERATURE:
        return None

    def sample(log_probabilities: mx.array) -> mx.array:
        max_top_k = log_probabilities.shape[-1] - 1  # mlx-lm's limit
        sampler: Sampler = make_sampler(
            sampling.temperature,
            sampling.top_p,
            sampling.min_p,
            top_k=min(sampling.top_k, max_top_k),
            xtc_probability=sampling.xtc_probability,
            xtc_threshold=sampling.xtc_threshold,
            xtc_special_tokens=list(ends),
        )
        return sampler(log_probabilities)

    return sample


@dataclass(frozen=True, slots=True)
class _Held:
    """A token, the text that is complete with it, and what waited for it: the rest of the text if
    the answer ends before it."""

    token: int
    segments: list[tuple[str, str]]
    waiting: list[tuple[str, str]]


class LoopDetector:
    """Detects an answer that repeats itself: a passage of up to `MAX_PERIOD` tokens that is written
    `PROSE_REPEATS` times in a row if it is prose, that is a sentence or a long enough phrase.
    Anything else may be a table, code, a list or a refrain. It is a loop after `MIN_REPEATS` times
    and `MIN_LOOP` tokens (`MIN_SENTENCE_LOOP` for a passage as long as a sentence)."""

    def __init__(self, decode: Callable[[list[int]], str] = lambda ids: "") -> None:
        periods = np.arange(1, MAX_PERIOD + 1)
        shortest = np.where(periods < MIN_SENTENCE, MIN_LOOP, MIN_SENTENCE_LOOP)
        self._needed = np.maximum(shortest, MIN_REPEATS * periods) - periods
        self._needed_for_prose = (PROSE_REPEATS - 1) * periods
        self._recent = np.full(MAX_PERIOD, -1)
        """The last `MAX_PERIOD` tokens, newest first."""
        self._run = np.zeros(MAX_PERIOD, np.int64)
        """At index p - 1: how many of the last tokens in a row equal the token p before them."""
        self._decode = decode

    @property
    def repeating(self) -> int:
        """How many of the last tokens may be repetitions."""
        return int(self._run.max())

    def advance(self, token: int) -> int:
        """Add the next token. Returns how many of the last tokens repeat those before them if the
        answer is in a loop, else 0."""
        self._run = np.where(self._recent == token, self._run + 1, 0)
        self._recent[1:] = self._recent[:-1].copy()
        self._recent[0] = token
        # A short period also shows at its multiples, which must not count as sentences.
        looping, short = self._run >= self._needed, slice(MIN_SENTENCE - 1)
        is_short = (self._run[short] >= MIN_SENTENCE).any()
        if (looping[short] if is_short else looping).any():
            return self.repeating
        periods = np.flatnonzero(self._run >= self._needed_for_prose) + 1
        if not len(periods):
            return 0
        period = int(periods[0])
        run = int(self._run[period - 1])
        return run if self._is_loop_of_prose(period, run + period) else 0

    def _is_loop_of_prose(self, period: int, tokens: int) -> bool:
        """Whether the last `period` tokens are prose, which nobody repeats in a row on purpose."""
        passage = self._decode(self._recent[:period][::-1].tolist())
        if _NOT_PROSE.search(passage) or is_code(passage):
            return False
        words = len(WORD.findall(passage))
        if "\n" in passage:
            return all(
                len(WORD.findall(line)) >= MIN_LINE_WORDS and _SENTENCE_END.search(line)
                for line in (2 * passage).split("\n")[1:-1]  # it may begin within a line
                if line.strip()
            )
        if _SENTENCE_END.search(passage):
            return words >= SENTENCE_WORDS
        return words >= PHRASE_WORDS and tokens >= MIN_PHRASE_LOOP
