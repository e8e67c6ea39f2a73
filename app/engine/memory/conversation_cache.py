"""The caches of one conversation: target, draft, and the scores of the last turn."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from app.engine.cache.positions import Positions
from app.engine.cache.prefix_cache import BeforeDrop, PrefixCache
from app.engine.model.loader import ModelPair
from app.engine.model.prompt import Prompt
from app.engine.scorers.scorer import Importance, Scorer
from app.engine.scorers.selection import Selection, adaptive_keep, select
from app.protocol.events import Selected
from app.protocol.options import AUTO_KEEP, Tuning
from app.protocol.prompt import Span, SpanText
from app.protocol.reasons import Reason, ReasonCode


@dataclass(frozen=True, slots=True)
class ScoredPrompt:
    """A prompt with its importance by `scorer`, from which any keep can be selected.

    `cached` bool (L,): which of the first L tokens the target had cached before the turn.
    `recalled` int32 (n,): positions recalled while the answer was written. `one_budget`: keep
    applies to the whole prompt, instead of to new and earlier tokens separately."""

    turn: int
    prompt: Prompt
    scorer: Scorer
    importance: Importance
    tuning: Tuning
    cached: NDArray[np.bool_]
    one_budget: bool = False
    recalled: Positions = field(default_factory=lambda: np.zeros(0, np.int32))

    def is_of(self, prompt: Prompt, scorer: Scorer, chunk: int) -> bool:
        """Whether scoring this prompt with this scorer would give the same importance."""
        earlier = self.prompt
        return (
            self.scorer == scorer
            and self.tuning.chunk == chunk
            and earlier.answer_prefix_len == prompt.answer_prefix_len
            and earlier.question_start == prompt.question_start
            and np.array_equal(earlier.ids, prompt.ids)
            and np.array_equal(earlier.pinned, prompt.pinned)  # pinned tokens have no score
        )

    def with_recalled(self, positions: Positions) -> ScoredPrompt:
        """A copy with these positions added to `recalled`."""
        return replace(self, recalled=np.union1d(self.recalled, positions))

    def select(self, keep: float) -> tuple[Selection, Selected]:
        auto_keep = self.auto_keep
        keep = auto_keep if keep == AUTO_KEEP else keep
        selection = select(
            self.importance,
            self.prompt.pinned,
            keep,
            self.tuning,
            self.cached,
            self.recalled,
            self.one_budget,
        )
        event = Selected(
            turn=self.turn,
            keep_ratio=keep,
            selected_tokens=len(selection.positions),
            prompt_tokens=len(self.prompt.ids),
            spans=selection.spans,
            texts=tuple(_span_texts(self.prompt, selection.spans)),
            auto_keep=auto_keep,
            documents=self.prompt.documents_read(selection.positions),
        )
        return selection, event

    @property
    def auto_keep(self) -> float:
        return adaptive_keep(self.importance, self.prompt.pinned, self.tuning)


class ConversationCache:
    def __init__(self, pair: ModelPair) -> None:
        self._pair = pair
        self._before_drop: BeforeDrop | None = None
        self.target = self._positioned() if pair.dense_only is None else self._stock()
        draft = pair.draft
        self.draft = draft.make_prefix(positioned=False) if draft else None
        self.scored: ScoredPrompt | None = None
        self.documents: dict[int, int] = {}
        """Start of each document in the last prompt, by digests of its first tokens; see
        `prefix_sharing.py`."""

    # A prefix cache must not refer to this object: a reference cycle would keep gigabytes until
    # Python's garbage collector runs.
    def _positioned(self) -> PrefixCache:
        return self._pair.target.make_prefix(positioned=True)

    def _stock(self) -> PrefixCache:
        return self._pair.target.make_prefix(positioned=False)

    @property
    def prefixes(self) -> list[PrefixCache]:
        """The caches of the target and, if there is one, the draft."""
        return [self.target] if self.draft is None else [self.target, self.draft]

    def announce_drops(self, before_drop: BeforeDrop) -> None:
        """Call `before_drop` before tokens are dropped from either cache."""
        self._before_drop = before_drop
        for prefix in self.prefixes:
            prefix.before_drop = before_drop

    def replace_target(self, target: PrefixCache) -> None:
        before, self.target = self.target, target
        target.before_drop = self._before_drop
        before.clear()

    def replace_draft(self, draft: PrefixCache) -> None:
        before, self.draft = self.draft, draft
        draft.before_drop = self._before_drop
        if before is not None:
            before.clear()

    def ensure_positioned(self) -> None:
        """Replace the target's cache by an empty positioned one if it does not support gaps."""
        if not self.target.supports_gaps:
            self.replace_target(self._positioned())

    def reset_to_stock(self) -> None:
        """Clear both caches, and use mlx-lm's own cache for the target."""
        self.replace_target(self._stock())
        self.scored = None
        if self.draft is not None:
            self.draft.clear()

    def drop_damaged(self) -> Reason | None:
        """Clear caches that do not match their recorded tokens. Returns how they were damaged, or
        None."""
        found = {}
        for name, model, cache in (
            ("target", self._pair.target, self.target),
            ("draft", self._pair.draft, self.draft),
        ):
            if model is None or cache is None:
                continue
            if (problem := model.find_mismatch(cache)) is not None:
                cache.clear()
                found[name] = problem
        return Reason(ReasonCode.CACHE_DAMAGED, found) if found else None

    @property
    def nbytes(self) -> int:
        return self.target.nbytes + (self.draft.nbytes if self.draft else 0)


def _span_texts(prompt: Prompt, spans: Iterable[Span]) -> Iterator[SpanText]:
    """The character ranges of the selected spans in their documents."""
    documents = [
        (segment, segment.message, segment.document)
        for segment in prompt.segments
        if segment.message is not None and segment.document is not None
    ]
    ends = [segment.end for segment, _, _ in documents]
    for number, span in enumerate(spans):
        for segment, message, document in documents[bisect_right(ends, span.start) :]:
            if segment.start >= span.end:
                break
            starts = prompt.offsets[message, document]
            first = int(starts[max(span.start, segment.start) - segment.start])
            last = int(starts[min(span.end, segment.end) - segment.start])
            yield SpanText(number, message, document, first, last)
