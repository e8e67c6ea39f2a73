"""Writes the answer: mlx-lm's `generate_step` over a prefilled cache."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.generate import (
    TextStateMachine,
    generate_step,
    make_stop_sequences,
    make_text_state_machine,
)
from mlx_lm.sample_utils import make_sampler
from numpy.typing import NDArray

from app.engine.caches import Cache
from app.protocol.events import Token
from app.protocol.options import Sampling
from app.protocol.stats import FinishReason

FLUSH_SECONDS = 0.05
"""Seconds between two `Token` events: 20 a second is more than a screen needs."""
LONGEST_PERIOD = 64
REPEATS = 10
SHORTEST_LOOP = 256
"""Tokens. A table's rule, a row of zeros or some equal lines of code are shorter than that."""


class Decoder:
    """Generates one answer and reports it in coalesced `Token` events.

    `ids` are the generated tokens with the end-of-text token, `text` the answer so far.
    """

    def __init__(
        self, turn: int, tokenizer: Any, sampling: Sampling, emit: Callable[[Token], None]
    ) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.first_token_at: float | None = None
        """By `time.perf_counter`."""
        self.last_token_at: float | None = None
        self.answer_prefix_len = 0
        """How many of `ids` an earlier turn wrote."""
        self.forced_loss: float | None = None
        """Mean negative log likelihood of a forced answer, nats per token."""
        self.seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        self._turn, self._tokenizer, self._sampling, self._emit = turn, tokenizer, sampling, emit
        self._pending: tuple[list[int], str, str] = ([], "", "")
        self._flushed_at = 0.0

    def run(
        self,
        model: Any,
        cache: Cache,
        prompt_ids: NDArray[np.int32],
        max_tokens: int,
        stop: Callable[[], FinishReason | None],
        answer_prefix_len: int = 0,
    ) -> FinishReason:
        """Feed the prompt's last token and write until a stop sequence, the limit, a loop if those
        are to end it, or until `stop` returns a reason after a token.

        `prompt_ids` is the whole prompt, of which `cache` has all but the last token. Its last
        `answer_prefix_len` tokens are of the answer, which is continued.
        """
        sampling = self._sampling
        mx.random.seed(self.seed)
        stops = make_stop_sequences(self._tokenizer).matcher()
        loop = LoopDetector() if sampling.stop_repeats else None
        detokenizer = self._tokenizer.detokenizer
        machine = make_text_state_machine(self._tokenizer)
        prompt, answer = np.split(prompt_ids, [len(prompt_ids) - answer_prefix_len])
        state = machine.make_state("reasoning" if self._starts_thinking(prompt) else "normal")
        for token in answer.tolist():
            self.ids.append(token)
            detokenizer.add_token(token)
            state, segments = TextStateMachine.split(state, detokenizer.last_segment)
            self.text += "".join(part for name, part in segments if name != "reasoning")
        self.answer_prefix_len = answer_prefix_len
        tokens = generate_step(
            mx.array(prompt_ids[-1:]),
            model,
            max_tokens=max_tokens,
            sampler=make_sampler(temp=sampling.temperature, top_p=sampling.top_p),
            prompt_cache=cache,
        )
        reason = FinishReason.LENGTH
        try:
            for generated, _ in tokens:
                token = int(generated)
                self._record(token)
                if stops.advance(token):
                    reason = FinishReason.STOP
                    break
                detokenizer.add_token(token)
                state, segments = TextStateMachine.split(state, detokenizer.last_segment)
                self._add_text(segments)
                if (stopped := stop()) is not None:
                    reason = stopped
                    break
                if loop is not None and loop.advance(token):
                    reason = FinishReason.REPEATED
                    break
        finally:
            tokens.close()
        if reason is FinishReason.STOP:  # otherwise half a character or tag may be left to continue
            detokenizer.finalize()
            state, segments = TextStateMachine.split(state, detokenizer.last_segment)
            _, rest, name = TextStateMachine.flush(state)
            self._add_text([*segments, (name, rest)])
        self.flush()
        return reason

    def score_forced(
        self, model: Any, cache: Cache, prompt_ids: NDArray[np.int32], answer: str
    ) -> FinishReason:
        """Feed `answer` instead of writing one, and measure how likely the model finds it."""
        ids = self._tokenizer.encode(answer, add_special_tokens=False)
        inputs = mx.array([int(prompt_ids[-1]), *ids[:-1]])[None]
        logits = model(inputs, cache=cache)[0].astype(mx.float32)
        log_probs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        loss = -mx.take_along_axis(log_probs, mx.array(ids)[:, None], axis=-1).mean()
        self.forced_loss = float(np.array(loss))
        self.ids, self.text = list(ids), answer
        self.first_token_at = self.last_token_at = time.perf_counter()
        return FinishReason.STOP

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

    def _starts_thinking(self, prompt_ids: NDArray[np.int32]) -> bool:
        """Whether the generation prompt has already opened the model's thinking."""
        if not self._tokenizer.has_thinking:
            return False
        tail = prompt_ids[-16:].tolist()
        opened: int = self._tokenizer.rfind_think_start(tail)
        return opened > int(self._tokenizer.rfind_think_end(tail))


class LoopDetector:
    """Detects, token by token, that an answer only repeats itself: a passage of up to
    `LONGEST_PERIOD` tokens, exactly the same `REPEATS` times in a row, and for at least
    `SHORTEST_LOOP` tokens."""

    def __init__(self) -> None:
        periods = np.arange(1, LONGEST_PERIOD + 1)
        self._needed = np.maximum(SHORTEST_LOOP, REPEATS * periods) - periods
        self._recent = np.full(LONGEST_PERIOD, -1)
        """The last tokens, the newest first."""
        self._run = np.zeros(LONGEST_PERIOD, np.int64)
        """By period - 1: how many of the last tokens each equal the one a period before them."""

    def advance(self, token: int) -> bool:
        """Add the next token; True when the answer is in a loop."""
        self._run = np.where(self._recent == token, self._run + 1, 0)
        self._recent[1:] = self._recent[:-1].copy()
        self._recent[0] = token
        return bool((self._run >= self._needed).any())
