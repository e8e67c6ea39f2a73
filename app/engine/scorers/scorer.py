"""What a scorer is: it finds how important each token of a prompt is for the prompt's question.

`attention.py` asks a draft, `built_in.py` does without one, and `choice.py` chooses among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from app.engine.cache.prefix_cache import PrefixCache
from app.engine.model.loader import LoadedModel, ModelPair
from app.engine.model.prompt import Prompt
from app.engine.progress import ScoringPart, TurnClock
from app.protocol.cost_model import AttentionWork, LinearCost
from app.protocol.events import ImportanceMap

Importance = NDArray[np.float32]

BUCKETS = 200
"""Parts of a prompt that are shown while it is scored: finer than most terminals are wide."""


class ScoringError(RuntimeError):
    """A prompt cannot be scored; the turn reads densely instead."""


class ScoringMemory(Protocol):
    """Memory for a draft while it scores."""

    def ensure_scoring(self, draft: LoadedModel, new: int, total: int) -> bool:
        """Free memory for the draft to score a prompt of `total` tokens, `new` of which it reads,
        and load it. Returns False when that does not fit but is tried. Raises NotEnoughMemory,
        LoadError or TurnCancelled."""
        ...

    def check_step(self, model: LoadedModel, context: int, reserved: bool) -> None:
        """Raise TurnCancelled if the model's next step, after `context` tokens, would use up nearly
        all memory; `reserved` says whether its cache has its memory already."""
        ...

    def end_scoring(self) -> None:
        """The draft is not run any more."""
        ...


@dataclass(slots=True)
class ScoringContext:
    """What scorers need in addition to the prompt: models, the turn's clock, and memory."""

    pair: ModelPair
    question: str
    chunk: int
    """Tokens that are selected together."""
    clock: TurnClock
    memory: ScoringMemory
    draft_cache: PrefixCache | None
    keeps_draft_cache: bool
    """Whether later turns use the draft's cache."""
    draft_cost: LinearCost | None
    """What the draft's prefill costs, if that is known."""
    draft_work: AttentionWork | None = None
    """What the draft read, as scorers set it. None if no draft was run, or if the time that scoring
    took says little about the draft."""


class Scorer(Protocol):
    """Equal scorers give equal importance."""

    @property
    def parts(self) -> tuple[ScoringPart, ...]:
        """What is run, one after another: the draft, the built-in scorer, both or nothing."""
        ...

    def score(self, prompt: Prompt, context: ScoringContext) -> Importance:
        """The importance (M,) of the prompt's tokens. Reports progress, and the map of importance
        that the screen shows, through the context's clock. Raises ScoringError, and
        what the context's memory and clock raise."""
        ...


def show_importance(
    clock: TurnClock, importance: Importance, observed: int = 1, expected: int = 1
) -> None:
    """Show what was found after `observed` of `expected` observations."""
    clock.emit(ImportanceMap(clock.turn, buckets(importance), observed, expected))


def show_above_middle(clock: TurnClock, importance: Importance, prompt: Prompt) -> None:
    """Show what is more important than most of the prompt; the rest is shown as nothing."""
    middle = np.median(importance[~prompt.pinned]) if prompt.eligible_tokens else 0.0
    show_importance(clock, np.maximum(importance - middle, 0.0) * ~prompt.pinned)


def buckets(importance: Importance) -> tuple[float, ...]:
    """The means of equal parts, the highest of which is 1."""
    count = min(BUCKETS, len(importance))
    starts = np.arange(count) * len(importance) // count
    means = np.add.reduceat(importance, starts) / np.diff([*starts, len(importance)])
    return tuple((means / max(float(means.max()), 1e-12)).tolist())


def rarity(holders: Any, total: int) -> Any:
    """How much it says that a place has a word which `holders` of all `total` places have: inverse
    document frequency, as in BM25. Elementwise for arrays."""
    return np.log(1 + (total - holders + 0.5) / (holders + 0.5))


def means_between(
    borders: NDArray[np.floating], score_borders: NDArray[np.floating], scores: NDArray[np.floating]
) -> NDArray[np.floating]:
    """The mean score (n,) of the characters between each two `borders` (n + 1,), 0 where there are
    none: an answer that was stopped may have tokens and no text. Each of `scores` (m,) is that of
    the characters between two of `score_borders` (m + 1,)."""
    until = np.append(0.0, np.cumsum(scores * np.diff(score_borders)))
    sums, widths = np.diff(np.interp(borders, score_borders, until)), np.diff(borders)
    return np.asarray(np.divide(sums, widths, out=np.zeros_like(sums), where=widths > 0))


def token_borders(starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Where tokens start and the last one ends. Those that are parts of the same characters, and so
    start at the same one, divide them equally."""
    first, index, count = np.unique(starts[:-1], return_index=True, return_counts=True)
    width = np.diff(np.append(first, starts[-1])) / count
    part = np.arange(len(starts) - 1) - np.repeat(index, count)
    return np.append(np.repeat(first, count) + part * np.repeat(width, count), starts[-1])
