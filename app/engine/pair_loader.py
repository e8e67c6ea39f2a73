"""Loads a pair of models; the target may be sharded over several machines."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import mlx.core as mx

from app.engine.backend import memory
from app.engine.backend.device import Backend
from app.engine.cache.prefill import StepSize
from app.engine.cache.sizes import CacheSize, Transient, attention_cost_ratio
from app.engine.model.findings import weight_arrays
from app.engine.model.loader import (
    LoadedModel,
    ModelPair,
    Stopped,
    fingerprint,
    load_encoder,
    load_lazily,
    load_one,
    load_tokenizer_of,
    model_info,
    weight_bytes,
)
from app.engine.model.prompt import PairPrompts, PromptBuilder, Prompts
from app.engine.sharded.model import ShardedModel, ShardedTarget, Shards
from app.protocol.commands import Load
from app.protocol.reasons import Reason, reason_from_plain
from app.sandbox.process import TextProcess
from app.util.model_config import text_part

Connect = Callable[[Load, Stopped], Shards]
"""Makes all machines of a command load their shards, each in a process of its own. Raises LoadError
or NotEnoughMemory."""


def load_pair(
    command: Load,
    step: int | None = None,
    stopped: Stopped = lambda: False,
    backend: Backend | None = None,
    connect: Connect | None = None,
    remembered: Path | None = None,
) -> ModelPair:
    """Load and probe a pair from its folders. `step`: fixed prefill step in tokens (None:
    adaptive). `stopped`: whether to stop loading. `backend`: default is the device's. `connect`:
    for sharded targets. `remembered`: folder with the findings of earlier loads. Raises LoadError,
    PromptError or NotEnoughMemory."""
    target_name, draft_name = command.names
    with ExitStack() as on_failure:
        texts = TextProcess()
        if command.hosts is not None and connect is not None:
            shards = connect(command, stopped)
            on_failure.callback(shards.close)
            loaded, refusal = _load_sharded(command, shards, step, stopped, texts, backend)
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
            refusal = loaded.dense_only
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
        return ModelPair(loaded, draft, refusal, prompts, command.only_quotes, encoder)


def _prompts_for(target: LoadedModel, texts: TextProcess) -> PromptBuilder:
    """The target's prompt builder. Also adds the chat template's end tokens to the target's."""
    prompts = PromptBuilder(target.tokenizer, texts)
    prompts.set_vocab_limit(target.vocab_size)
    ends = target.tokenizer.eos_token_ids | prompts.turn_ends()
    # With `ignore_eos`, a token outside the vocabulary would be written beyond the logits.
    known = range(target.vocab_size or 1 << 31)
    target.tokenizer.eos_token_ids = {token for token in ends if token in known}
    return prompts


def _load_sharded(
    command: Load,
    shards: Shards,
    step: int | None,
    stopped: Stopped,
    texts: TextProcess,
    backend: Backend | None,
) -> tuple[LoadedModel, Reason | None]:
    """A sharded target, and why it can only be read densely, or None. This process holds the
    tokenizer, the input embeddings and an outline of the caches."""
    name, path = command.names[0], Path(command.target)
    texts.open(path)
    skeleton, config = load_lazily(path, with_head=False)
    tokenizer = load_tokenizer_of(path, config, texts, stopped)
    described = shards.described
    text = text_part(config)
    kv = f"/{command.kv_bits}" if command.kv_bits else ""
    size, transient = StepSize(step, backend=backend), Transient(**described["transient"])
    size.expect(0.0, transient.head_dim)
    loaded = ShardedTarget(
        ShardedModel(skeleton, shards),
        tokenizer,
        replace(model_info(name, skeleton, config, path), weight_bytes=described["weight_bytes"]),
        CacheSize(**described["cache_size"]),
        size,
        f"{fingerprint(path)}{kv}/{described['ranks']} ranks",
        transient=transient,
        vocab_size=int(text.get("vocab_size") or 0),
        attention_cost_ratio=attention_cost_ratio(
            text, sum(array.size for array in weight_arrays(skeleton))
        ),
        shards=shards,
    )
    reasons = [reason_from_plain(plain) for plain in described["dense_only"]]
    return loaded, next(iter(reasons), None)
