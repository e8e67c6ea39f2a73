"""One turn on given token ids, by us and by plain mlx-lm: no text, no tokenizer's time."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.messages import (
    Ask,
    Event,
    Finished,
    Message,
    Mode,
    ModelInfo,
    Role,
    Sampling,
    Segment,
    SegmentKind,
    Statistics,
)

TAIL = 32
"""Tokens of question and generation prompt at the end."""


def plain(model: Any, ids: NDArray[np.int32], step: int) -> float:
    """Seconds until plain mlx-lm has the first token after `ids` (M,)."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    begun = time.perf_counter()
    tokens = generate_step(mx.array(ids), model, max_tokens=1, prefill_step_size=step)
    next(tokens)
    seconds = time.perf_counter() - begun
    tokens.close()
    return seconds


def sparse_turn(
    target: Any, draft: Any, ids: NDArray[np.int32], keep: float, step: int
) -> Statistics:
    """The figures of one sparse turn of ours on `ids` (M,), to its first token. Raises
    RuntimeError when it was not read sparsely."""
    from app.engine.loader import LoadedModel, Pair
    from app.engine.memory import CacheSize
    from app.engine.prefill import StepSize
    from app.engine.progress import Progress
    from app.engine.reading import Remembered
    from app.engine.turn import Turn

    info = ModelInfo("random", "llama", 0, 0, 0)
    loaded = [
        LoadedModel(model, tokenizer(), info, CacheSize(0, 0), StepSize(step))
        for model in (target, draft)
    ]
    events: list[Event] = []
    models = Pair(loaded[0], loaded[1], None, _Ids(ids))
    ask = Ask(1, (Message(Role.USER, ""),), Mode.SPARSE, keep, Sampling(max_tokens=1))
    progress = Progress(ask.turn, events.append, lambda: False)
    Turn(models, ask, Remembered(models), progress).run()
    finished = events[-1]
    if not isinstance(finished, Finished) or finished.statistics is None:
        raise RuntimeError("the turn did not finish")
    if finished.statistics.fallback:
        raise RuntimeError(finished.statistics.fallback)
    return finished.statistics


def tokenizer() -> Any:
    """Any: a turn cannot do without one."""
    from mlx_lm.utils import load_tokenizer

    from app.models.embedded import target_path

    return load_tokenizer(target_path())


class _Ids:
    """Stands in for a prompt builder: the ids are given."""

    def __init__(self, ids: NDArray[np.int32]) -> None:
        self._ids = ids

    def build(self, messages: tuple[Message, ...]) -> Any:
        from app.engine.prompt import Prompt

        border = len(self._ids) - TAIL
        segments = (
            Segment(SegmentKind.DOCUMENT, 0, border, 0, 0),
            Segment(SegmentKind.QUESTION, border, len(self._ids), 0),
        )
        offsets = np.arange(border + 1, dtype=np.int64)
        return Prompt(self._ids, segments, {(0, 0): offsets})
