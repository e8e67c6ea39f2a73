"""Recalls skipped chunks while an answer is written.

An answer that follows references ("VAR a = b", then the line of b) mentions what it needs only as
it is generated. If its last tokens also occur in a skipped chunk, the text after them is prefilled
at its own positions before the answer continues, and the end of the answer is read again (not with
recurrent layers, whose states already contain it).
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

COINCIDENCE_BITS = 6.0
"""A match must carry this many bits more than it takes to name a place in the prompt. With fewer,
it may be a coincidence."""
LOOKAHEAD_TOKENS = 8
"""The chunks of this many tokens after a match are recalled."""
REREAD_TOKENS = 32
"""Number of last tokens that are read again after a recall."""


class MidAnswerRecall:
    """Recall for one answer, of at most `budget` tokens. `on_read` gets the positions recalled.
    `on_step` is called after each prefill step, `on_part` within long ones; both raise to
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
        """Information in bits of each token of `_ids`."""
        self._needed_bits = math.log2(length) + COINCIDENCE_BITS
        self._due: list[int] = []

    @staticmethod
    def is_possible(target: PrefixCache) -> bool:
        """Whether skipped tokens can be inserted into this cache."""
        return target.can_insert_at(int(np.argmin(target.cached)), aside=True)

    @property
    def is_due(self) -> bool:
        return bool(self._due)

    def find(self, match: Match | None) -> bool:
        """Whether chunks are due before the next token. `match` is where the last tokens occur in
        the prompt."""
        if match is None or match.start >= len(self._skipped) or not self._skipped[match.start]:
            return False
        if self._rarity(match) < self._needed_bits:
            return False
        ahead = np.arange(match.start, match.start + LOOKAHEAD_TOKENS)
        found = np.unique(np.searchsorted(self._starts, ahead, "right") - 1).tolist()
        chunks = [chunk for chunk in found if self._count_of(chunk)]
        if sum(map(self._count_of, chunks)) <= self._budget:
            self._due = chunks
        return self.is_due

    def _rarity(self, match: Match) -> float:
        """Information of the matching tokens, in bits."""
        same = np.unique(self._prompt.ids[match.start - match.length : match.start])
        return float(self._bits[np.searchsorted(self._ids, same)].sum())

    def _count_of(self, chunk: int) -> int:
        """Number of skipped tokens in a chunk."""
        return int(self._skipped[self._starts[chunk] : self._ends[chunk]].sum())

    def read(self, written: Sequence[int]) -> int:
        """Prefill the due chunks after the answer's token ids `written`, of which all but the last
        were fed. Returns the last token id of answer or prompt, to be fed next. The cache stays
        consistent if `on_step` raises."""
        target, prompt = self._target, self._prompt
        ids = np.concatenate([prompt.ids, np.array(written, np.int32)])
        start = last = len(ids) - 1
        target.append(ids[len(target) : last])
        if not target.is_recurrent:
            start = target.rewind(max(prompt.question_start, last - REREAD_TOKENS))
        parts = [np.arange(self._starts[c], self._ends[c], dtype=np.int32) for c in self._due]
        missing = target.uncached(np.concatenate(parts))
        # Tokens right after a recalled chunk were read without its context: read them again.
        stale = target.stale_runs(missing, self._chunk)
        if len(stale):
            target.evict(stale)
        reread = np.arange(start, last, dtype=np.int32)
        self._due = []
        self._skipped[missing] = False
        self._budget -= len(missing)
        try:
            target.prefill_at(
                self._model.model,
                ids,
                np.union1d(np.concatenate([missing, stale]), reread),
                self._model.step,
                self._on_step,
                self._on_part,
            )
        finally:
            self._on_read(np.setdiff1d(missing, target.uncached(missing)))
        set_next_position(target.cache, last)
        return int(ids[-1])
