"""Runs a turn on given token ids in our engine and in mlx-lm, without a tokenizer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from app.chat import wording
from app.errors import UserError
from app.estimate.memory import largest_that_fits
from app.protocol.commands import Ask
from app.protocol.events import Event, Finished, ModelInfo
from app.protocol.options import Mode, Sampling
from app.protocol.prompt import Message, Role, Segment, SegmentKind
from app.protocol.stats import Statistics
from benchmarks.shapes import weights

if TYPE_CHECKING:
    from app.engine.model.loader import LoadedModel, ModelPair
    from app.engine.model.prompt import Prompt
    from app.engine.turn.turn import Measured

QUESTION_TOKENS = 32
"""Length of the question at the end, including the generation prompt."""


def plain(model: Any, ids: NDArray[np.int32], step: int) -> float:
    """Seconds that mlx-lm needs for the first token after token ids (M,)."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    started = time.perf_counter()
    tokens = generate_step(mx.array(ids), model, max_tokens=1, prefill_step_size=step)
    next(tokens)
    seconds = time.perf_counter() - started
    tokens.close()
    return seconds


def loaded(model: Any, config: dict[str, Any], step: int) -> LoadedModel:
    """Wrap a model without a folder. If `config` is empty, its memory is not estimated."""
    import mlx.core as mx

    from app.engine.cache.prefill import StepSize, device_backend, forward, make_stock_cache
    from app.engine.cache.sizes import NO_TRANSIENT, CacheSize, Transient
    from app.engine.model.loader import LoadedModel

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
) -> Statistics:
    """Run a turn of target and draft on token ids (M,) to its first token, in a new conversation.
    Raises RuntimeError if it fell back to another mode."""
    from app.engine.memory.conversation_cache import ConversationCache

    pair = model_pair(models)
    ask = Ask((Message(Role.USER, ""),), mode, keep, Sampling(max_tokens=1))
    events: list[Event] = []
    run_turn(pair, ask, ConversationCache(pair), events, prompt=document_prompt(ids))
    return finished(events)


def run_turn(
    pair: ModelPair,
    ask: Ask,
    cache: Any,
    events: list[Event],
    prompt: Prompt | None = None,
    **more: Any,
) -> Measured:
    """Run a turn without an engine and return what it measured; appends its events to `events`.
    `more` are fields of its TurnContext."""
    from app.engine.memory.manager import MemoryManager
    from app.engine.progress import TurnClock
    from app.engine.turn import turn
    from app.engine.turn.context import OneConversation, TurnContext

    clock = TurnClock(0, events.append, lambda: False)
    memory = MemoryManager(pair, clock.emit)
    context = TurnContext(pair, clock, OneConversation(cache), memory, **more)
    return turn.run_turn(ask, context, prompt)


def finished(events: Sequence[Event]) -> Statistics:
    """The statistics of a turn. Raises RuntimeError if it did not finish or fell back."""
    last = events[-1]
    if not isinstance(last, Finished) or last.statistics is None:
        raise RuntimeError("the turn did not finish")
    if last.statistics.fallback:
        raise RuntimeError(wording.reason(last.statistics.fallback))
    return last.statistics


def model_pair(models: Sequence[LoadedModel]) -> ModelPair:
    """A pair that cannot build prompts; its turns are given one."""
    from app.engine.model.loader import ModelPair

    target, draft = models
    no_prompts: Any = None
    return ModelPair(target, draft, None, no_prompts)


def tokenizer() -> Any:
    """The tokenizer of the embedded target."""
    from mlx_lm.utils import load_tokenizer

    from app.models.embedded import target_path

    return load_tokenizer(target_path())


def document_prompt(ids: NDArray[np.int32]) -> Any:
    """A prompt of one document and a question of `QUESTION_TOKENS`."""
    from app.engine.model.prompt import Prompt

    end = len(ids) - QUESTION_TOKENS
    segments = (
        Segment(SegmentKind.DOCUMENT, 0, end, 0, 0),
        Segment(SegmentKind.QUESTION, end, len(ids), 0),
    )
    return Prompt(ids, segments, {(0, 0): np.arange(end + 1, dtype=np.int64)})


ROUND = 1024


def check_fits(target: LoadedModel, lengths: Iterable[int], step: int) -> None:
    """Raise UserError, with the longest prompt that fits, if mlx-lm's prefill of one of the lengths
    does not fit into memory: its attention materialises all scores of a step."""
    from app.engine.backend import memory
    from app.engine.memory.manager import transient_bytes
    from app.protocol.memory import format_bytes

    mlx_lm = replace(target, transient=replace(target.transient, rows=step))

    def needed(tokens: int) -> float:
        return mlx_lm.cache_size.bytes(tokens) + transient_bytes(mlx_lm, step, tokens)

    length, free = max(lengths), memory.free()
    if target.info.context_length and length > target.info.context_length:
        raise UserError(
            f"{target.info.name} takes at most {target.info.context_length:,} tokens",
            "give shorter lengths",
        )
    if needed(length) <= free:
        return
    longest = largest_that_fits(needed, free, length) // ROUND * ROUND
    raise UserError(
        f"A dense prefill of {length:,} tokens needs about {format_bytes(needed(length))}, and"
        f" {format_bytes(free)} is free",
        f"give lengths up to {longest:,}" if longest else "choose smaller models, or fewer layers",
    )
