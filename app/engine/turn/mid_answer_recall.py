"""Recall while an answer is written: skipped chunks that it turns out to need.

An answer that follows references ("VAR a = b", then b's own line) names what it needs only as it is
written. When its last tokens stand in a skipped chunk, what follows them there is read before it
goes on: at its own positions, as between turns, and the end of the answer is read again after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from app.engine.cache.positions import Positions
from app.engine.cache.prefill import OnStep, set_next_position
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.model.loader import LoadedModel
from app.engine.model.prompt import Prompt
from app.engine.model.token_stream import Match
from app.engine.scorers.selection import chunk_bounds

COINCIDENCE_BITS = 10.0
"""By how many bits tokens must be rarer than one place in the prompt, so that it is no coincidence
that an answer has them as well."""
AHEAD = 8
"""Tokens after a match whose chunks are read."""
READ_AGAIN = 32
"""Last tokens that are read again, of the answer, and if it is shorter of the prompt."""


class MidAnswerRecall:
    """Of one answer. `budget` is how many tokens may be recalled. `on_read` gets their
    positions; `on_step` is called after each step, `on_part` within long ones, and they raise to
    cancel."""

    def __init__(
        self,
        model: LoadedModel,
        target: PrefixCache,
        prompt: Prompt,
        chunk: int,
        budget: int,
        on_read: Callable[[Positions], None],
        on_step: OnStep,
        on_part: OnStep | None = None,
    ) -> None:
        self._model, self._target, self._prompt, self._chunk = model, target, prompt, chunk
        self._budget, self._on_read = budget, on_read
        self._on_step, self._on_part = on_step, on_part
        self._starts, self._ends = chunk_bounds(prompt.pinned, chunk)
        length = len(prompt.ids)
        self._skipped = np.append(~target.cached, [False] * length)[:length]
        self._ids, counts = np.unique(prompt.ids, return_counts=True)
        self._bits = np.log2(length / counts)
        """By token of `_ids`: how rare it is."""
        self._needed_bits = math.log2(length) + COINCIDENCE_BITS
        self._needed: list[int] = []

    @staticmethod
    def possible(target: PrefixCache) -> bool:
        """Whether this cache, which lacks something of the prompt, can insert it."""
        return target.can_insert_at(int(np.argmin(target.cached)))

    @property
    def is_due(self) -> bool:
        """Whether something is to be read."""
        return bool(self._needed)

    def find(self, match: Match | None) -> bool:
        """Whether something is to be read before the next token, which may be a copy of `match`."""
        if match is None or match.start >= len(self._skipped) or not self._skipped[match.start]:
            return False
        if self._rarity(match) < self._needed_bits:
            return False
        ahead = np.arange(match.start, match.start + AHEAD)
        found = np.unique(np.searchsorted(self._starts, ahead, "right") - 1).tolist()
        chunks = [chunk for chunk in found if self._count_of(chunk)]
        if sum(map(self._count_of, chunks)) <= self._budget:
            self._needed = chunks
        return self.is_due

    def _rarity(self, match: Match) -> float:
        """Bits of the tokens that are the same."""
        same = np.unique(self._prompt.ids[match.start - match.length : match.start])
        return float(self._bits[np.searchsorted(self._ids, same)].sum())

    def _count_of(self, chunk: int) -> int:
        """How many of a chunk's tokens were skipped."""
        return int(self._skipped[self._starts[chunk] : self._ends[chunk]].sum())

    def read(self, written: Sequence[int]) -> int:
        """Read what is due, after the answer's tokens `written`. Returns the last one, or the
        prompt's: what comes next follows it.

        Whatever `on_step` raises, the cache holds what it records.
        """
        target, prompt = self._target, self._prompt
        ids = np.concatenate([prompt.ids, np.array(written, np.int32)])
        target.append(ids[len(target) :])
        last = len(ids) - 1
        start = target.rewind(max(prompt.question_start, last - READ_AGAIN))
        parts = [np.arange(self._starts[c], self._ends[c], dtype=np.int32) for c in self._needed]
        missing = target.uncached(np.concatenate(parts))
        # Tokens right after a recalled chunk were read as if nothing came before them.
        following = target.runs_following(missing, self._chunk)
        if len(following):
            target.evict(following)
        again = np.arange(start, last, dtype=np.int32)
        self._needed = []
        self._skipped[missing] = False
        self._budget -= len(missing)
        target.prefill_at(
            self._model.model,
            ids,
            np.union1d(np.concatenate([missing, following]), again),
            self._model.step,
            self._on_step,
            self._on_part,
        )
        set_next_position(target.cache, last)
        self._on_read(missing)
        return int(ids[-1])
