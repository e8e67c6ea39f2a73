"""A conversation that begins with what another one has read starts from there."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.engine.backend import memory
from app.engine.cache.prefix_cache import PrefixCache, find_mismatch
from app.engine.cache.shared_rows import FEWEST, RowsLost, Tokens, fetch, held_by, release, resized
from app.engine.memory.conversation_cache import ConversationCache
from app.engine.model.prompt import Prompt
from app.protocol.prompt import Message
from app.protocol.reasons import Reason, ReasonCode

_log = logging.getLogger(__name__)


class PrefixSharing:
    """Among `caches`, the conversations of one loaded pair, the last used one at the end. It holds
    all of its rows, and what others have in common with it, only it holds."""

    def __init__(self, caches: OrderedDict[str, ConversationCache]) -> None:
        self._caches = caches
        self.saving: ConversationCache | None = None
        """One that is being written to disk, and keeps all of its rows for that."""

    def start_from_longest(
        self,
        cache: ConversationCache,
        prompt: Prompt,
        dense: bool,
        restored: Sequence[ConversationCache] = (),
    ) -> None:
        """Let `cache` go on from the cache that has read most of the prompt, one of the others or
        of what was `restored` for it, if that is more than it has itself; for a dense reading, most
        without a gap. Target and draft each."""
        ids = [prompt.ids[:-1], prompt.draft_prompt.ids]
        replace = [cache.replace_target, cache.replace_draft]
        for index, own in enumerate(cache.prefixes):
            others = [each.prefixes[index] for each in [*self._others(cache), *restored]]
            usable = [each for each in others if each.supports_gaps or not own.supports_gaps]
            lengths = [_reusable(other, ids[index], dense) for other in usable]
            if max(lengths, default=0) < _reusable(own, ids[index], dense) + FEWEST:
                continue
            best = usable[int(np.argmax(lengths))]
            if (twin := self._forked(best, best.common_prefix_len(ids[index]))) is not None:
                replace[index](twin)
        self.leave_to(cache)

    def read_elsewhere(
        self, cache: ConversationCache, prompt: Prompt, messages: Sequence[Message]
    ) -> Reason | None:
        """Which documents of `messages` others have read after other text: what a model caches of a
        token depends on all that comes before it."""
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
            most = document[: sizes[-1]]
            if any(_has_read(other, digests[-1], most) for other in others):
                names.append(messages[segment.message].in_prompt[segment.document].name)
        return Reason(ReasonCode.READ_ELSEWHERE, {"names": names}) if names else None

    def complete(self, prefix: PrefixCache) -> None:
        """Make it hold all of its rows. Raises RowsLost, or what MLX raises; no row is lost
        then."""
        fetch(prefix, [each for each in self._prefixes() if each is not prefix])

    def complete_or_clear(self, prefix: PrefixCache) -> None:
        """Make it hold all of its rows, or empty. Raises only what MLX raises when memory runs out;
        no row is lost then."""
        try:
            self.complete(prefix)
        except Exception as error:  # MLX raises any type
            memory.reraise_device_failure(error)
            _log.warning("a cache was dropped", exc_info=error)
            prefix.clear()

    def _forked(self, lender: PrefixCache, position: int) -> PrefixCache | None:
        """A copy of what it has of the tokens before `position`, with all of their rows; None where
        that cannot be."""
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

    def leave_to(self, holder: ConversationCache) -> None:
        """What others have in common with `holder`, only that one holds from now on."""
        for other in self._others(holder):
            if other is not self.saving:
                _release(other, holder)

    def leave_to_others(self, cache: ConversationCache) -> None:
        """What `cache` has in common with others, only those hold from now on."""
        for other in self._others(cache):
            _release(cache, other)

    def rescue(self, dropping: PrefixCache, tokens: Tokens) -> None:
        """Before `dropping` drops these tokens, copy the rows that only it holds for others: each
        once, to the last used of them."""
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
                    prefix.clear()  # its tokens are read again

    def _others(self, cache: ConversationCache) -> list[ConversationCache]:
        return [other for other in self._caches.values() if other is not cache]

    def _prefixes(self) -> list[PrefixCache]:
        return [prefix for cache in self._caches.values() for prefix in cache.prefixes]


def _release(cache: ConversationCache, holder: ConversationCache) -> None:
    for mine, its in zip(cache.prefixes, holder.prefixes, strict=True):
        release(mine, its)


def _doubling(length: int) -> list[int]:
    """128, 256, 512 and so on, as far as a document is long: the last of them are most of it. Many
    documents begin with the same licence, so their first tokens alone say little."""
    return [FEWEST << n for n in range((length // FEWEST).bit_length())]


def _has_read(cache: ConversationCache, digest: int, document: NDArray[np.int32]) -> bool:
    """Whether the target has read a document of its conversation that begins with these tokens."""
    if (start := cache.documents.get(digest)) is None:
        return False
    return np.array_equal(cache.target.ids[start : start + len(document)], document)


def _reusable(prefix: PrefixCache, ids: NDArray[np.int32], dense: bool) -> int:
    """How many tokens of `ids` need not be read after this cache."""
    end = prefix.rewind_target(prefix.common_prefix_len(ids))
    return min(end, prefix.dense_prefix_len) if dense else int(prefix.cached[:end].sum())
