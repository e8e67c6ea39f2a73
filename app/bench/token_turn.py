"""One turn on given token ids, by us and by plain mlx-lm: no text, no tokenizer's time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from app.bench.shapes import weights
from app.protocol.commands import Ask
from app.protocol.events import Event, Finished, ModelInfo
from app.protocol.options import DEFAULT_TUNING, Mode, Sampling, Tuning
from app.protocol.prompt import Message, Role, Segment, SegmentKind
from app.protocol.stats import Statistics

if TYPE_CHECKING:
    from app.engine.conversation_cache import ConversationCache
    from app.engine.loader import LoadedModel, ModelPair

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
    target: Any,
    draft: Any,
    ids: NDArray[np.int32],
    keep: float,
    step: int,
    tuning: Tuning = DEFAULT_TUNING,
) -> Statistics:
    """The figures of one sparse turn of ours on `ids` (M,), to its first token. Raises
    RuntimeError when it was not read sparsely."""
    return turn([loaded(target, {}, step), loaded(draft, {}, step)], ids, keep, tuning=tuning)


def dense_turn(target: Any, draft: Any, ids: NDArray[np.int32], step: int) -> Statistics:
    """The figures of one turn of ours on `ids` (M,) that reads everything, to its first token."""
    models = [loaded(target, {}, step), loaded(draft, {}, step)]
    return turn(models, ids, 1.0, Mode.FULL)


def loaded(model: Any, config: dict[str, Any], step: int) -> LoadedModel:
    """A model that is in no folder, with what its cache and a step of it take. Without a `config`
    nothing is foretold of it."""
    import mlx.core as mx

    from app.engine.loader import LoadedModel
    from app.engine.memory import NO_TRANSIENT, CacheSize, Transient
    from app.engine.prefill import StepSize, device_backend, forward, make_stock_cache

    size, transient = CacheSize(0, 0), NO_TRANSIENT
    if config:
        cache = make_stock_cache(model)
        mx.eval(forward(model, cache, np.ones(1, np.int32)))
        size = CacheSize.of(cache)
        element = 4 if device_backend().on_cpu else 2
        transient = Transient.of(config, element, False, False, device_backend())
    info = ModelInfo("random", "random", 0, sum(each.nbytes for each in weights(model)), 0)
    return LoadedModel(model, tokenizer(), info, size, StepSize(step), transient=transient)


def turn(
    models: Sequence[LoadedModel],
    ids: NDArray[np.int32],
    keep: float,
    mode: Mode = Mode.SPARSE,
    remembered: ConversationCache | None = None,
    tuning: Tuning = DEFAULT_TUNING,
) -> Statistics:
    """The figures of one turn of ours of target and draft on `ids` (M,), to its first token, in a
    conversation that is new, or what is `remembered` of one. Raises RuntimeError when it was read
    in another way."""
    from app.engine.conversation_cache import ConversationCache
    from app.engine.progress import TurnClock
    from app.engine.turn import Turn

    events: list[Event] = []
    pair = paired(models, ids)
    ask = Ask(1, (Message(Role.USER, ""),), mode, keep, Sampling(max_tokens=1), tuning)
    progress = TurnClock(ask.turn, events.append, lambda: False)
    Turn(pair, ask, remembered or ConversationCache(pair), progress).run()
    finished = events[-1]
    if not isinstance(finished, Finished) or finished.statistics is None:
        raise RuntimeError("the turn did not finish")
    if finished.statistics.fallback:
        raise RuntimeError(finished.statistics.fallback)
    return finished.statistics


def paired(models: Sequence[LoadedModel], ids: NDArray[np.int32]) -> ModelPair:
    """Target and draft, of which every prompt is `ids`."""
    from app.engine.loader import ModelPair

    target, draft = models
    return ModelPair(target, draft, None, _Ids(ids))


def tokenizer() -> Any:
    """The embedded target's."""
    from mlx_lm.utils import load_tokenizer

    from app.models.embedded import target_path

    return load_tokenizer(target_path())


class _Ids:
    """Stands in for a prompt builder: the ids are given."""

    def __init__(self, ids: NDArray[np.int32]) -> None:
        self._ids = ids

    def build(self, messages: tuple[Message, ...], check: object = None) -> Any:
        from app.engine.prompt import Prompt

        border = len(self._ids) - TAIL
        segments = (
            Segment(SegmentKind.DOCUMENT, 0, border, 0, 0),
            Segment(SegmentKind.QUESTION, border, len(self._ids), 0),
        )
        offsets = np.arange(border + 1, dtype=np.int64)
        return Prompt(self._ids, segments, {(0, 0): offsets})
