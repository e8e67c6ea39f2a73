"""The tokens of an answer, one after another, or several at once where they may be a copy.

Speculative decoding (arXiv 2211.17192, 2302.01318): what followed the last tokens where they
occurred before, or what a draft would write, is fed with them, and kept as far as the model chooses
the same. Every token is chosen from the model's own distribution, given all before it, so the
answer is what it would have been. Each place of an answer has its own random numbers, so that holds
for a sampled one, too, token by token, up to rounding.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generation_stream
from numpy.typing import NDArray

from app.engine.backend import memory
from app.engine.cache.caches import can_drop_last
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.model.loader import LoadedModel
from app.engine.model.speculation import DRAFTED, SIZES, Gate, kind_of_copy

SHORTEST, LONGEST = 2, 16
"""Tokens of a match that are looked for, and looked at."""
CANDIDATES = 64
"""Places of which the one with the longest match is taken: the last ones."""
_BITS = 21
"""Of a token id; three are one key."""


@dataclass(frozen=True, slots=True)
class Match:
    """`ids` followed the last `length` tokens where they occurred before: those from `start` on of
    the prompt and the answer, as one text."""

    ids: tuple[int, ...]
    start: int
    length: int


class CopyIndex:
    """Finds where the last tokens of an answer occurred before, in the `prompt` int32 (M,) or in
    the answer itself: what followed may follow here, too (prompt lookup). What was skipped counts
    as well. Building it takes milliseconds at 128K tokens, a search some microseconds."""

    def __init__(self, prompt: NDArray[np.int32]) -> None:
        wide = np.pad(prompt.astype(np.int64), (0, 2))
        keys = _key(wide[:-2], wide[1:-1], wide[2:])
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        self._ids = prompt.copy()
        self._length = self._prompt_length = len(prompt)
        self._written: dict[tuple[int, ...], int] = {}
        """After which token two or three of the answer occurred last."""

    def append(self, token: int) -> None:
        """The answer's next token."""
        if self._length == len(self._ids):
            self._ids = np.pad(self._ids, (0, max(self._length // 8, 1024)))
        for count in (2, 3):  # those before it: nothing has followed the last ones yet
            start = self._length - count
            if start >= self._prompt_length:
                key = tuple(self._ids[start : self._length].tolist())
                self._written[key] = self._length
        self._ids[self._length] = token
        self._length += 1

    def find(self, count: int) -> Match | None:
        """Up to `count` tokens that may come next."""
        if self._length < SHORTEST or count < 1:
            return None
        recent = self._ids[max(self._length - LONGEST, 0) : self._length][::-1]
        places = [*self._in_prompt(recent[2::-1]), *self._in_answer(recent[2::-1])]
        if not places:
            places = [*self._in_prompt(recent[1::-1]), *self._in_answer(recent[1::-1])]
        if not places:
            return None
        ends = np.array(places)
        back = ends[:, None] - 1 - np.arange(len(recent))
        same = (self._ids[np.maximum(back, 0)] == recent) & (back >= 0)
        lengths = np.where(same.all(axis=1), len(recent), np.argmin(same, axis=1))
        best = len(ends) - 1 - int(np.argmax(lengths[::-1]))  # the last of the longest
        start = int(ends[best])
        ahead = self._length - start  # what repeats does so again
        ids = tuple(self._ids[start + np.arange(count) % ahead].tolist())
        return Match(ids, start, int(lengths[best]))

    def _in_prompt(self, last: Sequence[int] | NDArray[np.int32]) -> NDArray[np.int64]:
        """After which tokens of the prompt these (two or three) came, that something follows."""
        ids = [int(token) for token in last]
        if len(ids) < SHORTEST:
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
    """Of numbers, or of arrays."""
    return (first << 2 * _BITS) | (second << _BITS) | third


class DraftProposals:
    """Of a draft that has read the `prompt` (M,) whole, and takes the target's tokens.

    It reads the answer only when it is asked, and several tokens at once. `close` makes its cache
    what it was. While it is used, the draft may be unloaded: then it proposes nothing any more.
    """

    def __init__(
        self,
        draft: LoadedModel,
        prefix: PrefixCache,
        prompt: NDArray[np.int32],
        vocab_size: int,
    ) -> None:
        """Tokens from `vocab_size` on are not proposed, unless it is 0: unknown."""
        self._draft, self._prefix, self._prompt_length = draft, prefix, len(prompt)
        self._vocab_size = vocab_size
        self.failed = False

    @staticmethod
    def possible(prefix: PrefixCache, prompt: NDArray[np.int32]) -> bool:
        """Whether this cache has the prompt, no more and no less, and can return to that."""
        return (
            np.array_equal(prefix.ids, prompt)
            and bool(prefix.cached.all())
            and can_drop_last(prefix.cache)
        )

    def after(self, answer: Sequence[int], count: int) -> tuple[int, ...]:
        """The `count` likeliest tokens after the answer's so far, one after another; fewer where
        the target does not know one, none once it has `failed`."""
        if not self._draft.is_loaded or len(self._prefix) < self._prompt_length:
            self.failed = True
            return ()
        try:
            return self._write(answer, count)
        except Exception as error:  # such as too little memory: the target goes on without it
            memory.reraise_gpu_lost(error)
            self._prefix.clear()
            self.failed = True
            return ()

    def _write(self, answer: Sequence[int], count: int) -> tuple[int, ...]:
        self._drop_other_than(answer)
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

    def _drop_other_than(self, answer: Sequence[int]) -> None:
        """What it wrote and the target did not; the answer's last token has to be read at least."""
        read = self._prefix.ids[self._prompt_length :]
        size = min(len(read), len(answer) - 1)
        different = np.flatnonzero(read[:size] != np.array(answer[:size], np.int32))
        same = int(different[0]) if len(different) else size
        self._prefix.rewind(self._prompt_length + same)

    def close(self) -> None:
        self._prefix.rewind(self._prompt_length)


Sampler = Callable[[mx.array], mx.array]
"""Chooses tokens (n,) by log probabilities (n, vocabulary)."""
Processor = Callable[[mx.array, mx.array], mx.array]
"""Changes logits (1, vocabulary), by all tokens before."""
Hold = Callable[[Match | None], bool]
"""Whether to stop before the next token, which may be a copy of this."""
SPREAD = 0x9E3779B97F4A7C15
"""An odd number, so that answers with different seeds share no random numbers."""
CLEAR_EVERY = 256
"""Tokens after which MLX's unused buffers are freed."""


@dataclass(frozen=True, slots=True)
class _Proposal:
    """What may come next."""

    ids: tuple[int, ...]
    kind: int


class _Chosen(NamedTuple):
    """Tokens, int32 (n,), and how likely the model found each, in nats (n,)."""

    ids: mx.array
    log_probabilities: mx.array


class TokenStream:
    """Writes after a prompt of which the cache of `prefix` has all but the last token. Once a loop
    over `tokens` ends or is closed, the cache has every token that was given, and no other; they
    are not recorded.

    Without a `sampler` the likeliest token is chosen. With an `index` or a `draft`, as many tokens
    are proposed as `gate` allows, if the cache can drop those that are not accepted. Without
    `copies` the index only tells where the last tokens occurred before. `fed` int32 (n,) are tokens
    that processors count as fed by this stream, before its own.
    """

    def __init__(
        self,
        model: Any,
        prefix: PrefixCache,
        gate: Gate,
        index: CopyIndex | None = None,
        sampler: Sampler | None = None,
        processors: Sequence[Processor] = (),
        seed: int = 0,
        draft: DraftProposals | None = None,
        copies: bool = True,
        fed: NDArray[np.int32] | None = None,
    ) -> None:
        self.proposed = self.accepted = self.verified_steps = 0
        """Tokens, and in how many steps."""
        self.log_probabilities: list[float] = []
        """Of the tokens that were given, by the model's own logits."""
        self._model, self._prefix, self._gate = model, prefix, gate
        gate.begin()
        can_verify = can_drop_last(prefix.cache)
        self._index, self._copies = index, copies and can_verify
        self._draft = draft if can_verify else None
        self._answer: list[int] = []
        """What was given, for the draft."""
        self._learning: int | None = None
        """A kind of which one token is proposed, to learn."""
        self._sampler, self._processors, self._seed = sampler, processors, seed
        self._context = mx.zeros(0, mx.int32) if fed is None else mx.array(fed)
        """What was fed, for the processors."""
        self._place = self._fed = self._given = 0

    def tokens(
        self, last: int, max_tokens: int, place: int = 0, hold: Hold | None = None
    ) -> Generator[int]:
        """From the prompt's `last` token on. The first one is the answer's at this `place`. Ends
        before a token for which `hold` says so."""
        self._place, self._fed, self._given = place, -1, 0
        before = len(self.log_probabilities)
        following = self._feed(mx.array([last]))
        mx.async_eval(*following)  # type: ignore[no-untyped-call]
        known_at: float | None = None
        try:
            while self._given < max_tokens:
                if self._must_stop(hold):
                    return
                if not self._may_propose(max_tokens - self._given):
                    then = None
                    if not self._prefix.is_remote:
                        then = self._feed(following.ids)  # while the token is on its way
                        mx.async_eval(*then)  # type: ignore[no-untyped-call]
                    token = self._value(following)
                    now = time.perf_counter()
                    if known_at is not None:
                        self._gate.record_plain(now - known_at)
                    known_at = now
                    self._remember(token)
                    yield self._give(token)
                    following = then or self._feed(following.ids)
                    continue
                token, known_at = self._value(following), None
                started_at = time.perf_counter()
                self._remember(token)
                if (proposal := self._propose(max_tokens - self._given - 1)) is None:
                    following = self._feed(following.ids)
                    mx.async_eval(*following)  # type: ignore[no-untyped-call]
                    yield self._give(token)
                    continue
                drafted_at = time.perf_counter()
                following, right = self._verify(token, proposal)
                yield self._give(token)
                for accepted in proposal.ids[:right]:
                    if self._must_stop(hold):
                        return
                    self._remember(accepted)
                    yield self._give(accepted)
                seconds = time.perf_counter() - drafted_at
                if proposal.kind == DRAFTED:
                    self._gate.record_drafted(len(proposal.ids), drafted_at - started_at)
                self._gate.record_verified(proposal.kind, 1 + len(proposal.ids), right, seconds)
        finally:
            if self._given > self._fed >= 0:  # the last token, where it was given first
                self._feed(mx.array(self._answer[-1:]))
            self._drop_last(self._fed - self._given)
            del self.log_probabilities[before + self._given :]

    def feed_last_again(self) -> None:
        """The last token that was fed is going to be fed again: the cache was changed."""
        if self._processors:
            self._context = self._context[:-1]

    def write(self, ids: Sequence[int]) -> None:
        """After what `tokens` gave, these come, whatever the model would choose. All but the last
        are fed: `tokens` goes on from that one."""
        for token in ids:
            self._remember(token)
        if len(ids) > 1:
            mx.eval(*self._feed(mx.array(list(ids[:-1]))))

    def _must_stop(self, hold: Hold | None) -> bool:
        """Whether `hold` stops the answer before its next token."""
        return hold is not None and self._index is not None and hold(self._index.find(1))

    def _may_propose(self, left: int) -> bool:
        """Whether something is to be proposed after the next token, which is not known yet; `left`
        tokens may be written."""
        kinds = {kind: available for kind, available, _ in self._options(left)}
        if any(self._gate.choose(*each).count for each in kinds.items()):
            self._learning = None
        else:
            self._learning = next(filter(self._gate.wants_to_learn, kinds), None)
            if self._learning is None:
                return False
        return True

    def _propose(self, left: int) -> _Proposal | None:
        """What comes after the last token that was remembered: the kind that gains the most."""
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
        assert self._draft is not None
        ids = self._draft.after(self._answer, count)
        return _Proposal(ids, kind) if ids else None

    def _options(self, left: int) -> list[tuple[int, int, Match | None]]:
        """Kinds of proposals, how many tokens of each there are, and the copy."""
        left = min(left, SIZES[-1] - 1)
        found: list[tuple[int, int, Match | None]] = []
        match = self._index.find(left) if self._index is not None and self._copies else None
        if match is not None:
            found.append((kind_of_copy(match.length), len(match.ids), match))
        if left > 0 and self._draft is not None and not self._draft.failed:
            found.append((DRAFTED, left, None))
        return found

    def _remember(self, token: int) -> None:
        self._answer.append(token)
        if self._index is not None:
            self._index.append(token)

    def _verify(self, token: int, proposal: _Proposal) -> tuple[_Chosen, int]:
        """What follows the last accepted token, and how many are accepted."""
        chosen = self._feed(mx.array([token, *proposal.ids]))
        mx.eval(*chosen)
        agree = [bool(a == b) for a, b in zip(np.array(chosen.ids), proposal.ids, strict=False)]
        right = [*agree, False].index(False)
        self.log_probabilities += np.array(chosen.log_probabilities)[:right].tolist()
        self._drop_last(len(proposal.ids) - right)
        self.proposed, self.accepted = self.proposed + len(proposal.ids), self.accepted + right
        self.verified_steps += 1
        return _Chosen(*(each[right : right + 1] for each in chosen)), right

    def _give(self, token: int) -> int:
        self._given += 1
        if self._given % CLEAR_EVERY == 0:
            mx.clear_cache()
        return token

    def _feed(self, tokens: mx.array) -> _Chosen:
        """What the model chooses after each of `tokens` (n,). Lazy."""
        with mx.stream(generation_stream):
            logits = self._model(tokens[None], cache=self._prefix.cache)[0]
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
            of_chosen = mx.take_along_axis(logits, ids[:, None], axis=-1)[:, 0]
            return _Chosen(ids, of_chosen - mx.logsumexp(logits, axis=-1))

    def _choose(self, logits: mx.array, row: int, place: int) -> mx.array:
        """The answer's token (1,) at a place."""
        own = logits[row : row + 1]
        for processor in self._processors:
            seen = len(self._context) - len(logits) + row + 1
            own = processor(self._context[:seen], own)
        if self._sampler is None:
            return mx.argmax(own, axis=-1)
        mx.random.seed((self._seed * SPREAD + place) % 2**64)
        return self._sampler(own - mx.logsumexp(own, axis=-1, keepdims=True))

    def _drop_last(self, count: int) -> None:
        if count <= 0:
            return
        self._prefix.drop_last(count)
        self._fed -= count
        if self._processors:
            self._context = self._context[:-count]

    def _value(self, chosen: _Chosen) -> int:
        """The next token of the answer, which is going to be given."""
        self.log_probabilities.append(float(np.array(chosen.log_probabilities)[0]))
        return int(np.array(chosen.ids)[0])
