"""Loads a pair of models; the target may be sharded over several machines."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import mlx.core as mx

from app.engine.backend import memory
from app.engine.backend.device import Backend
from app.engine.cache.prefill import StepSize
from app.engine.model.loader import (
    LoadedModel,
    ModelPair,
    Stopped,
    load_encoder,
    load_one,
    weight_bytes,
)
from app.engine.model.prompt import PairPrompts, PromptBuilder, Prompts
from app.protocol.commands import Load
from app.sandbox.process import TextProcess

LoadSpread = Callable[[Load, StepSize, Stopped, TextProcess], LoadedModel]
"""Loads a target over several machines. Raises LoadError or NotEnoughMemory."""


def load_pair(
    command: Load,
    step: int | None = None,
    stopped: Stopped = lambda: False,
    backend: Backend | None = None,
    load_spread: LoadSpread | None = None,
    remembered: Path | None = None,
) -> ModelPair:
    """Load and probe a pair from its folders. `step`: fixed prefill step in tokens (None:
    adaptive). `stopped`: whether to stop loading. `backend`: default is the device's.
    `load_spread`: for targets on several machines. `remembered`: folder with the findings of
    earlier loads. Raises LoadError, PromptError or NotEnoughMemory."""
    target_name, draft_name = command.names
    with ExitStack() as on_failure:
        texts = TextProcess()
        if command.hosts is not None and load_spread is not None:
            loaded = load_spread(command, StepSize(step, backend=backend), stopped, texts)
            on_failure.callback(loaded.close)
        else:
            loaded = load_one(
                command.target,
                target_name,
                step,
                command.kv_bits,
                stopped,
                texts,
                backend,
                probes=True,
                remembered=remembered,
            )
        builder = _prompts_for(loaded, texts)
        prompts: Prompts = builder
        draft = encoder = None
        if command.draft is None or draft_name is None or command.draft_is_encoder:
            if command.draft is not None and draft_name is not None:
                memory.check_fits({"loading": draft_name}, weight_bytes(Path(command.draft)))
                encoder = load_encoder(command.draft, draft_name)
                memory.check_fits({"loading": draft_name}, encoder.batch_bytes)
        else:
            if weight_bytes(Path(command.draft)) > memory.free():
                loaded.unload()  # they are loaded alternately; the draft is needed first
                gc.collect()
                mx.clear_cache()
            draft_texts = TextProcess() if command.foreign_draft else None
            draft = load_one(
                command.draft,
                draft_name,
                step,
                None,
                stopped,
                draft_texts,
                backend,
                remembered=remembered,
            )
            if draft_texts is None:
                builder.set_vocab_limit(draft.vocab_size)
            else:
                draft_builder = PromptBuilder(draft.tokenizer, draft_texts, wrote_answers=False)
                draft_builder.set_vocab_limit(draft.vocab_size)
                prompts = PairPrompts(builder, draft_builder)
        on_failure.pop_all()
        return ModelPair(loaded, draft, loaded.dense_only, prompts, command.only_quotes, encoder)


def _prompts_for(target: LoadedModel, texts: TextProcess) -> PromptBuilder:
    """The target's prompt builder. Also adds the chat template's end tokens to the target's."""
    prompts = PromptBuilder(target.tokenizer, texts)
    prompts.set_vocab_limit(target.vocab_size)
    ends = target.tokenizer.eos_token_ids | prompts.turn_ends()
    # With `ignore_eos`, a token outside the vocabulary would be written beyond the logits.
    known = range(target.vocab_size or 1 << 31)
    target.tokenizer.eos_token_ids = {token for token in ends if token in known}
    return prompts
