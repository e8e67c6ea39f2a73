"""What a draft model would write next: proposals for the target (arXiv 2211.17192)."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from mlx_lm.generate import generation_stream
from numpy.typing import NDArray

from app.engine.backend import memory
from app.engine.cache.caches import can_drop_last
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.model.loader import LoadedModel


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
