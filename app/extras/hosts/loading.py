"""Loads a target whose shards are in other processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from app.engine.cache.prefill import StepSize
from app.engine.cache.sizes import CacheSize, Transient, attention_cost_ratio
from app.engine.model.findings import weight_arrays
from app.engine.model.loader import (
    LoadedModel,
    Stopped,
    fingerprint,
    load_lazily,
    load_tokenizer_of,
    model_info,
)
from app.extras.hosts.sharded import ShardedModel, ShardedTarget, Shards
from app.protocol.commands import Load
from app.protocol.reasons import reason_from_plain
from app.sandbox.process import TextProcess
from app.util.model_config import text_part

Connect = Callable[[Load, Stopped], Shards]
"""Makes all machines of a command load their shards, each in a process of its own. Raises LoadError
or NotEnoughMemory."""


def load_sharded(
    connect: Connect, command: Load, step: StepSize, stopped: Stopped, texts: TextProcess
) -> LoadedModel:
    """Load a sharded target; a `LoadSpread` once `connect` is given. This process holds the
    tokenizer, the input embeddings and an outline of the caches."""
    with ExitStack() as on_failure:
        shards = connect(command, stopped)
        on_failure.callback(shards.close)
        name, path = command.names[0], Path(command.target)
        texts.open(path)
        skeleton, config = load_lazily(path, with_head=False)
        tokenizer = load_tokenizer_of(path, config, texts, stopped)
        described = shards.described
        text = text_part(config)
        kv = f"/{command.kv_bits}" if command.kv_bits else ""
        transient = Transient(**described["transient"])
        step.expect(0.0, transient.head_dim)
        info = model_info(name, skeleton, config, path)
        reasons = [reason_from_plain(plain) for plain in described["dense_only"]]
        loaded = ShardedTarget(
            ShardedModel(skeleton, shards),
            tokenizer,
            replace(info, weight_bytes=described["weight_bytes"]),
            CacheSize(**described["cache_size"]),
            step,
            f"{fingerprint(path)}{kv}/{described['ranks']} ranks",
            transient=transient,
            vocab_size=int(text.get("vocab_size") or 0),
            attention_cost_ratio=attention_cost_ratio(
                text, sum(array.size for array in weight_arrays(skeleton))
            ),
            dense_only=next(iter(reasons), None),
            shards=shards,
        )
        on_failure.pop_all()
        return loaded
