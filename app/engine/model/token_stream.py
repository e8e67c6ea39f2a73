"""Generates the tokens of an answer one by one, or several per step with speculative decoding.

Speculative decoding (arXiv 2211.17192, 2302.01318): proposed tokens are fed together with the last
one and accepted as far as the model itself chooses the same. Proposals are copies of text that
followed the last tokens elsewhere (prompt lookup), or come from the draft or the target's MTP head
(`mtp.py`). Every token is chosen from the target's own distribution, so the answer is the same as
without speculation. Random numbers are seeded per place in the answer, so that holds for sampling
too, up to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generation_stream
from numpy.typing import NDArray

from app.engine.backend import memory
from app.engine.cache.caches import can_drop_last, step_undo
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.model.loader import LoadedModel
from app.engine.model.mtp import MTPProposals
from app.engine.model.speculation import (
    DRAFTED,
    MAX_PREDICTED,
    PREDICTED,
    SIZES,
    Gate,
    kind_of_copy,
)

MIN_MATCH, MAX_MATCH = 2, 16
"""Minimum length of a match in tokens; longer matches than `MAX_MATCH` count as equal."""
CANDIDATES = 64
"""Maximum number of places (the last ones) among which the longest match is chosen."""
_BITS = 21
"""Bits of a token id in a key, which holds three."""


@dataclass(frozen=True, slots=True)
class Match:
    """An earlier occurrence of the last `length` tokens. `ids` followed them there; they begin at
    index `start` of prompt + answer."""

    ids: tuple[int, ...]
    start: int
    length: int


class CopyIndex:
    """Finds earlier occurrences of an answer's last tokens in the `prompt` int32 (M,), skipped
    tokens included, or in the answer (prompt lookup). Building takes milliseconds for 128K tokens,
    a search microseconds."""

    def __init__(self, prompt: NDArray[np.int32]) -> None:
        wide = np.pad(prompt.astype(np.int64), (0, 2))
        keys = _key(wide[:-2], wide[1:-1], wide[2:])
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        self._ids = prompt.copy()
        self._length = self._prompt_length = len(prompt)
        self._written: dict[tuple[int, ...], int] = {}
        """By the last two or three tokens: the index after their last occurrence in the answer."""

    def append(self, token: int) -> None:
        """Add the answer's next token."""
        if self._length == len(self._ids):
            self._ids = np.pad(self._ids, (0, max(self._length // 8, 1024)))
        for count in (2, 3):  # the tokens before this one now have a successor
            start = self._length - count
            if start >= self._prompt_length:
                key = tuple(self._ids[start : self._length].tolist())
                self._written[key] = self._length
        self._ids[self._length] = token
        self._length += 1

    def find(self, count: int) -> Match | None:
        """The longest match, with up to `count` tokens that may come next."""
        if self._length < MIN_MATCH or count < 1:
            return None
        recent = self._ids[max(self._length - MAX_MATCH, 0) : self._length][::-1]
        places = [*self._in_prompt(recent[2::-1]), *self._in_answer(recent[2::-1])]
        if not places:
            places = [*self._in_prompt(recent[1::-1]), *self._in_answer(recent[1::-1])]
        if not places:
            return None
        ends = np.array(places)
        back = ends[:, None] - 1 - np.arange(len(recent))
        same = (self._ids[np.maximum(back, 0)] == recent) & (back >= 0)
        lengths = np.where(same.all(axis=1), len(recent), np.argmin(same, axis=1))
        best = len(ends) - 1 - int(np.argmax(lengths[::-1]))  # the last one of the longest
        start = int(ends[best])
        period = self._length - start  # a repetition may continue beyond the end
        ids = tuple(self._ids[start + np.arange(count) % period].tolist())
        return Match(ids, start, int(lengths[best]))

    def _in_prompt(self, last: Sequence[int] | NDArray[np.int32]) -> NDArray[np.int64]:
        """Indices after the occurrences of these two or three tokens in the prompt."""
        ids = [int(token) for token in last]
        if len(ids) < MIN_MATCH:
            return np.zeros(0, np.int64)
        missing = 3 - len(ids)
        first = _key(*ids, *[0] * missing)
        span = 1 << (_BITS * missing)
        low, high = np.searchsorted(self._keys, [first, first + span])
        found = np.sort(self._order[low:high])[-CANDIDATES:] + len(ids)
        return found[found < self._prompt_length]

    def _in_answer(self, last: Sequence[int] | NDArray[np.int32]) -> list[int]:
        place = self._written.get(tuple(int(token) for token in last))
        return [] if place is None else [place]


def _key(first: Any, second: Any, third: Any) -> Any:
    """Combine three token ids (numbers or arrays) to one sortable key."""
    return (first << 2 * _BITS) | (second << _BITS) | third


class Proposals(Protocol):
    """Proposes tokens by computing them."""

    failed: bool
    """Whether it proposes nothing any more."""

    def after(self, answer: Sequence[int], count: int) -> tuple[int, ...]:
        """At most `count` tokens after the `answer` so far; none once it has `failed`."""
        ...


class DraftProposals:
    """Speculative tokens from a draft that has read the whole `prompt` (M,) and shares the target's
    tokenizer.

    The draft reads the answer only when asked for a proposal. `close` rewinds its cache to the
    prompt. If the draft is unloaded meanwhile, it proposes nothing any more.
    """

    def __init__(
        self,
        draft: LoadedModel,
        prefix: PrefixCache,
        prompt: NDArray[np.int32],
        vocab_size: int,
    ) -> None:
        """`vocab_size`: the target's; larger token ids are not proposed (0: unknown)."""
        self._draft, self._prefix, self._prompt_length = draft, prefix, len(prompt)
        self._vocab_size = vocab_size
        self.failed = False

    @staticmethod
    def is_possible(prefix: PrefixCache, prompt: NDArray[np.int32]) -> bool:
        """Whether the draft's cache holds exactly the prompt and can drop later tokens."""
        return (
            np.array_equal(prefix.ids, prompt)
            and bool(prefix.cached.all())
            and can_drop_last(prefix.cache)
        )

    def after(self, answer: Sequence[int], count: int) -> tuple[int, ...]:
        """`count` greedy tokens after the `answer` so far; fewer if one is not in the target's
        vocabulary, none once the draft has `failed`."""
        if not self._draft.is_loaded or len(self._prefix) < self._prompt_length:
            self.failed = True
            return ()
        try:
            return self._write(answer, count)
        except Exception as error:  # e.g. out of memory: the target continues without the draft
            memory.reraise_gpu_lost(error)
            self._prefix.clear()
            self.failed = True
            return ()

    def _write(self, answer: Sequence[int], count: int) -> tuple[int, ...]:
        self._rewind_to_common(answer)
        unread = answer[len(self._prefix) - self._prompt_length :]
        following = mx.array(np.array(unread, np.int32))
        written: list[mx.array] = []
        with mx.stream(generation_stream):
            for _ in range(count):
                logits = self._draft.model(following[None], cache=self._prefix.cache)[0, -1:]
                following = mx.argmax(logits, axis=-1)
                written.append(following)
        ids = np.array(mx.concatenate(written), np.int32)
        self._prefix.append(np.concatenate([np.array(unread, np.int32), ids[:-1]]))
        unknown = ids >= self._vocab_size if self._vocab_size else np.zeros(count, bool)
        return tuple(ids[: int(np.argmax(np.append(unknown, True)))].tolist())

    def _rewind_to_common(self, answer: Sequence[int]) -> None:
        """Drop proposed tokens that the target rejected, and always the answer's last one: its
        logits are needed."""
        read = self._prefix.ids[self._prompt_length :]
        size = min(len(read), len(answer) - 1)
        different = np.flatnonzero(read[:size] != np.array(answer[:size], np.int32))
        same = int(different[0]) if len(different) else size
        self._prefix.rewind(self._prompt_length + same)

    def close(self) -> None:
        self._prefix.rewind(self._prompt_length)


Sampler = Callable[[mx.array], mx.array]
"""Chooses token ids (n,) from log probabilities (n, vocabulary)."""
Processor = Callable[[mx.array, mx.array], mx.array]
"""(tokens fed so far (n,), logits (1, vocabulary)) -> new logits."""
Hold = Callable[[Match | None], bool]
"""Whether to stop before the next token, given the match of the last ones."""
SPREAD = 0x9E3779B97F4A7C15
"""Odd multiplier, so that different seeds share no random numbers."""
CLEAR_EVERY = 256
"""MLX's unused buffers are freed after this many tokens."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """What may propose tokens of one answer: copies of text (`index`), a draft, and the target's
    MTP head. `gate` decides how many, and by which. `copies` False: the index serves only
    `Hold`."""

    gate: Gate = field(default_factory=Gate)
    index: CopyIndex | None = None
    draft: DraftProposals | None = None
    mtp: MTPProposals | None = None
    copies: bool = True


@dataclass(frozen=True, slots=True)
class _Proposal:
    """Proposed token ids and their kind (see `speculation.py`)."""

    ids: tuple[int, ...]
    kind: int


class _Chosen(NamedTuple):
    """Token ids int32 (n,) and their log probabilities (n,)."""

    ids: mx.array
    log_probabilities: mx.array


class TokenStream:
    """Generates after a prompt of which `prefix` has cached all but the last token. When the
    generator `tokens` ends or is closed, the cache holds exactly the tokens yielded, but they are
    not recorded in `prefix` yet.

    Recurrent layers cannot drop rejected tokens. Their states before the verified step are put
    back, and the next step feeds the accepted tokens again.

    `sampler`: None for greedy decoding. `fed` int32 (n,): tokens that processors see before those
    of this stream.
    """

    def __init__(
        self,
        model: Any,
        prefix: PrefixCache,
        speculation: Speculation,
        sampler: Sampler | None = None,
        processors: Sequence[Processor] = (),
        seed: int = 0,
        fed: NDArray[np.int32] | None = None,
    ) -> None:
        self.proposed = self.accepted = self.verified_steps = 0
        """Tokens proposed and accepted, and the number of steps that verified them."""
        self.log_probabilities: list[float] = []
        """Log probabilities of the tokens yielded, from the model's unprocessed logits."""
        self._model, self._prefix, self._gate = model, prefix, speculation.gate
        self._drops_exactly = can_drop_last(prefix.cache)
        can_verify = self._drops_exactly or step_undo(prefix.cache) is not None
        self._gate.begin(feeds_again=not self._drops_exactly)
        self._index, self._copies = speculation.index, speculation.copies and can_verify
        self._mtp = speculation.mtp if can_verify else None
        self._proposals: dict[int, Proposals] = {}
        """By kind: what computes tokens to propose."""
        if speculation.draft is not None and can_verify:
            self._proposals[DRAFTED] = speculation.draft
        if self._mtp is not None:
            self._proposals[PREDICTED] = self._mtp
        self._undo: tuple[Callable[[int], None], mx.array] | None = None
        """Undoes the last step, given its number of tokens, and its token ids."""
        self._may_hold = False
        """Whether any step may have to be undone, because `hold` is given."""
        self._again: list[int] = []
        """Accepted token ids that the next step feeds again, because their step was undone."""
        self._answer: list[int] = []
        """Token ids of the answer."""
        self._learning: int | None = None
        """The kind of which a single token is proposed, to measure its acceptance."""
        self._sampler, self._processors, self._seed = sampler, processors, seed
        self._context = mx.zeros(0, mx.int32) if fed is None else mx.array(fed)
        """Token ids fed so far; logits processors read them."""
        self._place = self._fed = self._yielded = self._start = 0

    def tokens(
        self, last: int, max_tokens: int, place: int = 0, hold: Hold | None = None
    ) -> Generator[int]:
        """Feed the token `last` and yield up to `max_tokens` token ids after it. `place` is the
        index of the first one in the answer. Ends before a token if `hold` returns True; the cache
        then lacks the last one yielded, or `last`, which must be fed again."""
        self._place, self._fed, self._yielded = place, -1, 0
        self._may_hold, held = hold is not None, 0
        self._start = len(self._answer) - 1  # the index of `last` in this stream's answer
        before = len(self.log_probabilities)
        following = self._feed(mx.array([last]))
        mx.async_eval(*following)  # type: ignore[no-untyped-call]
        known_at: float | None = None
        try:
            while self._yielded < max_tokens:
                if held := self._must_stop(hold):
                    return
                if not self._may_propose(max_tokens - self._yielded):
                    fed_ahead, is_plain = None, not self._again
                    if not self._prefix.is_remote:
                        fed_ahead = self._feed(following.ids)  # overlaps with reading the token
                        mx.async_eval(*fed_ahead)  # type: ignore[no-untyped-call]
                    token = self._value(following)
                    now = time.perf_counter()
                    if known_at is not None:
                        self._gate.record_plain(now - known_at)
                    known_at = now if is_plain else None
                    self._remember(token)
                    yield self._count_yield(token)
                    following = fed_ahead or self._feed(following.ids)
                    continue
                token, known_at = self._value(following), None
                started_at = time.perf_counter()
                self._remember(token)
                if (proposal := self._propose(max_tokens - self._yielded - 1)) is None:
                    following = self._feed(following.ids)
                    mx.async_eval(*following)  # type: ignore[no-untyped-call]
                    yield self._count_yield(token)
                    continue
                drafted_at, again = time.perf_counter(), len(self._again)
                following, right = self._verify(token, proposal)
                yield self._count_yield(token)
                for accepted in proposal.ids[:right]:
                    if held := self._must_stop(hold):
                        return
                    self._remember(accepted)
                    yield self._count_yield(accepted)
                seconds = time.perf_counter() - drafted_at
                if proposal.kind in self._proposals:
                    drafting = drafted_at - started_at
                    self._gate.record_drafted(proposal.kind, len(proposal.ids), drafting)
                tokens = 1 + len(proposal.ids)
                self._gate.record_verified(proposal.kind, tokens, right, seconds, again)
        finally:
            if self._yielded > self._fed >= 0:  # the last token was yielded before it was fed
                self._feed(mx.array(self._answer[-1:]))
            self._drop_last(self._fed - self._yielded + held)
            if self._again:
                self._forward(mx.zeros(0, mx.int32))
            self._undo = None
            del self.log_probabilities[before + self._yielded :]

    def write(self, ids: Sequence[int]) -> None:
        """Force these token ids after those that `tokens` yielded. All but the last are fed; pass
        that one to `tokens` next."""
        for token in ids:
            self._remember(token)
        if len(ids) > 1:
            mx.eval(*self._feed(mx.array(list(ids[:-1]))))

    def _must_stop(self, hold: Hold | None) -> bool:
        return hold is not None and self._index is not None and hold(self._index.find(1))

    def _may_propose(self, left: int) -> bool:
        """Whether to propose tokens after the next one, which is still unknown; at most `left`
        tokens may be generated."""
        kinds = {kind: available for kind, available, _ in self._options(left)}
        if any(self._gate.choose(*each).count for each in kinds.items()):
            self._learning = None
        else:
            self._learning = next(filter(self._gate.wants_to_learn, kinds), None)
            if self._learning is None:
                return False
        return True

    def _propose(self, left: int) -> _Proposal | None:
        """The proposal after the last remembered token with the highest expected gain, or None."""
        options = self._options(left)
        choices = [self._gate.choose(kind, available) for kind, available, _ in options]
        best = max(range(len(options)), key=lambda i: choices[i].gain, default=None)
        if best is None:
            return None
        count = choices[best].count
        if not count and self._learning is not None:
            learning = [i for i, (kind, _, _) in enumerate(options) if kind == self._learning]
            best, count = (learning[0], 1) if learning else (best, 0)
        if not count:
            return None
        kind, _, match = options[best]
        if match is not None:
            return _Proposal(match.ids[:count], kind)
        ids = self._proposals[kind].after(self._answer, count)
        return _Proposal(ids, kind) if ids else None

    def _options(self, left: int) -> list[tuple[int, int, Match | None]]:
        """The available (kind, number of tokens, match)."""
        left = min(left, SIZES[-1] - 1)
        found: list[tuple[int, int, Match | None]] = []
        match = self._index.find(left) if self._index is not None and self._copies else None
        if match is not None:
            found.append((kind_of_copy(match.length), len(match.ids), match))
        for kind, proposals in self._proposals.items():
            if left > 0 and not proposals.failed:
                available = min(left, MAX_PREDICTED) if kind == PREDICTED else left
                found.append((kind, available, None))
        return found

    def _remember(self, token: int) -> None:
        self._answer.append(token)
        if self._index is not None:
            self._index.append(token)

    def _verify(self, token: int, proposal: _Proposal) -> tuple[_Chosen, int]:
        """Feed a token and a proposal. Returns the model's choice after the last accepted token,
        and the number of tokens accepted."""
        chosen = self._feed(mx.array([token, *proposal.ids]), undoable=True)
        mx.eval(*chosen)
        agree = [bool(a == b) for a, b in zip(np.array(chosen.ids), proposal.ids, strict=False)]
        right = [*agree, False].index(False)
        self.log_probabilities += np.array(chosen.log_probabilities)[:right].tolist()
        self._drop_last(len(proposal.ids) - right)
        self.proposed, self.accepted = self.proposed + len(proposal.ids), self.accepted + right
        self.verified_steps += 1
        return _Chosen(*(each[right : right + 1] for each in chosen)), right

    def _count_yield(self, token: int) -> int:
        self._yielded += 1
        if self._yielded % CLEAR_EVERY == 0:
            mx.clear_cache()
        return token

    def _feed(self, tokens: mx.array, undoable: bool = False) -> _Chosen:
        """Feed token ids (n,); returns the model's choice after each of them, lazily."""
        with mx.stream(generation_stream):
            logits = self._forward(tokens, undoable)
            first = self._place + self._fed + 1
            self._fed += len(tokens)
            if self._processors:
                self._context = mx.concatenate([self._context, tokens.astype(mx.int32)])
            if self._sampler is None and not self._processors:
                ids = mx.argmax(logits, axis=-1)
            else:
                rows = [self._choose(logits, row, first + row) for row in range(len(tokens))]
                ids = mx.concatenate(rows)
            logits = logits.astype(mx.float32)
            chosen_logits = mx.take_along_axis(logits, ids[:, None], axis=-1)[:, 0]
            return _Chosen(ids, chosen_logits - mx.logsumexp(logits, axis=-1))

    def _forward(self, tokens: mx.array, undoable: bool = False) -> mx.array:
        """Feed token ids (n,), after those that must be fed again. Returns logits (n, vocabulary),
        lazily. `undoable`: some of these tokens may be dropped."""
        fed, again = tokens, len(self._again)
        if again:
            fed = mx.concatenate([mx.array(self._again), tokens.astype(mx.int32)])
        self._again, self._undo = [], None
        if (undoable or self._may_hold) and not self._drops_exactly:
            undo = self._prefix.step_undo()
            self._undo = None if undo is None else (undo, fed)
        if self._mtp is not None:
            first = self._start + self._fed + 1
            return self._mtp.forward(fed, self._prefix.cache, first, again)
        logits: mx.array = self._model(fed[None], cache=self._prefix.cache)[0, again:]
        return logits

    def _choose(self, logits: mx.array, row: int, place: int) -> mx.array:
        """Choose the token (1,) at index `place` of the answer from row `row` of the logits."""
        row_logits = logits[row : row + 1]
        for processor in self._processors:
            seen = len(self._context) - len(logits) + row + 1
            row_logits = processor(self._context[:seen], row_logits)
        if self._sampler is None:
            return mx.argmax(row_logits, axis=-1)
        mx.random.seed((self._seed * SPREAD + place) % 2**64)
        return self._sampler(row_logits - mx.logsumexp(row_logits, axis=-1, keepdims=True))

    def _drop_last(self, count: int) -> None:
        if count <= 0:
            return
        if self._drops_exactly:
            self._prefix.drop_last(count)
        elif self._undo is not None:
            undo, fed = self._undo
            undo(len(fed))
            self._again, self._undo = np.array(fed).tolist()[:-count], None
        else:
            self._again = self._again[:-count]
        self._fed -= count
        if self._processors:
            self._context = self._context[:-count]

    def _value(self, chosen: _Chosen) -> int:
        """Evaluate the next token id and record its log probability."""
        self.log_probabilities.append(float(np.array(chosen.log_probabilities)[0]))
        return int(np.array(chosen.ids)[0])
