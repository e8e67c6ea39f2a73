"""Lets a conversation reuse the longest prefix that another conversation has cached."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import memory
from app.engine.cache.prefix_cache import PrefixCache, find_mismatch
from app.engine.cache.shared_rows import (
    MIN_SHARED,
    RowsLost,
    Tokens,
    fetch,
    held_by,
    release,
    resized,
)
from app.engine.memory.conversation_cache import ConversationCache
from app.engine.model.prompt import Prompt
from app.protocol.prompt import Message
from app.protocol.reasons import Reason, ReasonCode

_log = logging.getLogger(__name__)


class PrefixSharing:
    """Shares prefixes among `caches`, the conversations of one loaded pair, most recently used
    last. That one holds all of its rows; others do not hold the rows that they share with it."""

    def __init__(self, caches: OrderedDict[str, ConversationCache]) -> None:
        self._caches = caches
        self.saving: ConversationCache | None = None
        """The conversation that is being saved; it keeps all of its rows meanwhile."""

    def start_from_longest(
        self,
        cache: ConversationCache,
        prompt: Prompt,
        dense: bool,
        restored: Sequence[ConversationCache] = (),
    ) -> None:
        """Replace the caches of target and draft by forks of those that have cached most of the
        prompt, among the other conversations and `restored` ones, if that is more than `cache` has.
        With `dense`, only prefixes without gaps count."""
        ids = [prompt.ids[:-1], prompt.draft_prompt.ids]
        replace = [cache.replace_target, cache.replace_draft]
        for index, own in enumerate(cache.prefixes):
            others = [each.prefixes[index] for each in [*self._others(cache), *restored]]
            usable = [each for each in others if each.supports_gaps or not own.supports_gaps]
            lengths = [_reusable(other, ids[index], dense) for other in usable]
            if max(lengths, default=0) < _reusable(own, ids[index], dense) + MIN_SHARED:
                continue
            best = usable[int(np.argmax(lengths))]
            if (twin := self._forked(best, best.common_prefix_len(ids[index]))) is not None:
                replace[index](twin)
        self.release_in_others(cache)

    def read_elsewhere(
        self, cache: ConversationCache, prompt: Prompt, messages: Sequence[Message]
    ) -> Reason | None:
        """Report documents of `messages` that other conversations have cached after other text.
        They cannot be shared: a token's keys and values depend on all tokens before it."""
        known = cache.target.common_prefix_len(prompt.ids)
        others = self._others(cache)
        cache.documents.clear()
        names = []
        for segment in prompt.segments:
            if segment.document is None or segment.message is None:
                continue
            document = prompt.ids[segment.start : segment.end]
            sizes = _doubling(len(document))
            digests = [hash(document[:size].tobytes()) for size in sizes]
            cache.documents.update(dict.fromkeys(digests, segment.start))
            if segment.start < known or not sizes:
                continue
            longest = document[: sizes[-1]]
            if any(_has_read(other, digests[-1], longest) for other in others):
                names.append(messages[segment.message].in_prompt[segment.document].name)
        return Reason(ReasonCode.READ_ELSEWHERE, {"names": names}) if names else None

    def complete(self, prefix: PrefixCache) -> None:
        """Fetch all absent rows of `prefix`. Raises RowsLost, or what MLX raises; no row is lost
        then."""
        fetch(prefix, [each for each in self._prefixes() if each is not prefix])

    def complete_or_clear(self, prefix: PrefixCache) -> None:
        """Like `complete`, but clears `prefix` on failure. Raises only if memory runs out or the
        GPU is lost; no row is lost then."""
        try:
            self.complete(prefix)
        except Exception as error:  # MLX raises any type
            memory.reraise_device_failure(error)
            _log.warning("a cache was dropped", exc_info=error)
            prefix.clear()

    def _forked(self, lender: PrefixCache, position: int) -> PrefixCache | None:
        """A fork of `lender` up to `position` with all rows; None if that fails. A damaged lender
        is cleared."""
        try:
            if (problem := find_mismatch(lender)) is None:
                twin = lender.fork(position)
                fetch(twin, [lender, *self._prefixes()])
                return twin
        except RowsLost as error:
            problem = str(error)
        except Exception as error:  # memory has run out
            memory.reraise_gpu_lost(error)
            _log.warning("a conversation cannot start from another one", exc_info=error)
            return None
        _log.warning("a cache was dropped: %s", problem)
        lender.clear()
        return None

    def release_in_others(self, holder: ConversationCache) -> None:
        """Release, in all other conversations, the rows that `holder` also holds."""
        for other in self._others(holder):
            if other is not self.saving:
                _release(other, holder)

    def release_in(self, cache: ConversationCache) -> None:
        """Release the rows of `cache` that other conversations also hold."""
        for other in self._others(cache):
            _release(cache, other)

    def rescue(self, dropping: PrefixCache, tokens: Tokens) -> None:
        """Before `dropping` drops these tokens, copy rows that only it holds to the most recently
        used of the other conversations that need them."""
        others = [each for each in reversed(self._prefixes()) if each is not dropping]
        for prefix in others:
            if not prefix.absent.any():
                continue
            needed = prefix.absent & resized(tokens, len(prefix)) & held_by(dropping, prefix)
            for holder in others:
                if needed.any() and holder is not prefix:
                    needed &= ~held_by(holder, prefix)
            try:
                fetch(prefix, [dropping], needed)
            except Exception as error:  # memory has run out
                memory.reraise_gpu_lost(error)
                _log.warning("copying what only a dropped cache held failed", exc_info=error)
                if (prefix.absent & needed).any():
                    prefix.clear()  # its tokens will be read again

    def _others(self, cache: ConversationCache) -> list[ConversationCache]:
        return [other for other in self._caches.values() if other is not cache]

    def _prefixes(self) -> list[PrefixCache]:
        return [prefix for cache in self._caches.values() for prefix in cache.prefixes]


def _release(cache: ConversationCache, holder: ConversationCache) -> None:
    for mine, its in zip(cache.prefixes, holder.prefixes, strict=True):
        release(mine, its)


def _doubling(length: int) -> list[int]:
    """Powers of two from 128 up to the length of a document, at which its prefixes are compared.
    Many documents begin with the same licence, so a short prefix is not enough."""
    return [MIN_SHARED << n for n in range((length // MIN_SHARED).bit_length())]


def _has_read(cache: ConversationCache, digest: int, document: NDArray[np.int32]) -> bool:
    """Whether the target has read a document that begins with these token ids."""
    if (start := cache.documents.get(digest)) is None:
        return False
    return np.array_equal(cache.target.ids[start : start + len(document)], document)


def _reusable(prefix: PrefixCache, ids: NDArray[np.int32], dense: bool) -> int:
    """Number of tokens of `ids` that this cache saves reading."""
    end = prefix.rewind_target(prefix.common_prefix_len(ids))
    return min(end, prefix.dense_prefix_len) if dense else int(prefix.cached[:end].sum())
