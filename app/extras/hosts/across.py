"""Estimates whether a target fits when it is spread over several machines, and up to which prompt
length, from its `config.json`.

mlx-lm divides attention heads, MLPs and experts by the number of machines (*ranks*). Each rank has
all embeddings, the output head, norms and routers. Routers and norms are less than a thousandth of
the parameters; here they count as divided. Sizes are in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from app.estimate.memory import BUDGET_SHARE
from app.models.architecture import Architecture, Config, Layer
from app.models.fit import Machine, ModelSize, fit, mac_with
from app.models.machines import FitAcross
from app.protocol.hosts import HostMachine
from app.protocol.options import DEFAULT_KEEP_RATIO


def indivisible(shape: Architecture, config: Config, ranks: int) -> str:
    """A clause that says why a model cannot be divided by this number of machines; an empty string
    if it can."""
    values = {**config, **(config.get("text_config") or {})}
    if ranks > 1 and not shape.divisible:
        return f"mlx-lm cannot divide the architecture {shape.model_type!r}"
    groups = (config.get("quantization") or {}).get("group_size", 1)
    for name, least in (
        ("intermediate_size", groups),
        ("moe_intermediate_size", groups),
        ("linear_num_key_heads", 1),
        ("linear_num_value_heads", 1),
        # Other heads are padded before they are divided (`app/extras/hosts/runner.py`).
        ("num_attention_heads", 1 if "kv_lora_rank" in values else None),
    ):
        number = values.get(name)
        if least and number and int(number) % (ranks * least):
            return f"its {name} of {int(number):,} cannot be divided by {ranks}"
    return ""


def shard_of(shape: Architecture, ranks: int) -> Architecture:
    """One machine's shard of a model. If `ranks` does not divide the number of key heads, heads of
    zeros are added. Latent attention caches the same on every machine."""
    return replace(
        shape, layers=tuple(_shard_layer(each, shape.hidden_size, ranks) for each in shape.layers)
    )


def _shard_layer(layer: Layer, hidden: int, ranks: int) -> Layer:
    keys = layer.kv_elements // (2 * layer.head_dim) if layer.head_dim else 0
    padded = 1.0
    if keys and not layer.expanded_kv:
        padded = math.ceil(keys / ranks) * ranks / keys
    attention = 2 * (1 + 1 / max(layer.heads // max(keys, 1), 1)) * layer.heads * layer.head_dim
    added = round((padded - 1) * attention * hidden)
    kv = layer.kv_elements if layer.expanded_kv else round(layer.kv_elements * padded / ranks)
    whole = min(3 * hidden, layer.activations)
    return replace(
        layer,
        kv_elements=kv,
        heads=math.ceil(layer.heads * padded / ranks),
        state_bytes=layer.state_bytes // ranks,
        expanded_kv=layer.expanded_kv // ranks,
        ssm_heads=math.ceil(layer.ssm_heads / ranks),
        macs=(layer.macs + added) // ranks,
        params=(layer.params + added) // ranks,
        activations=whole + (layer.activations - whole) // ranks,
    )


def shard_size(target: ModelSize, ranks: int) -> ModelSize:
    """Architecture and weight bytes of one machine's shard."""
    shard = shard_of(target.architecture, ranks)
    share = shard.parameters / target.architecture.parameters
    return ModelSize(target.name, shard, math.ceil(target.weight_bytes * share))


def fit_across(
    config: Config, target: ModelSize, draft: ModelSize | None, machines: Sequence[HostMachine]
) -> FitAcross:
    """Estimate a pair over all `machines`, the first of which runs the app."""
    ranks = len(machines)
    shard = shard_size(target, ranks)
    problem = indivisible(target.architecture, config, ranks) if ranks > 1 else ""
    if unusable := next((each for each in machines if each.problem), None):
        problem = f"{unusable.name} cannot be used: {unusable.problem}"
    if problem:
        return FitAcross(ranks, shard.weight_bytes, 0, 0, problem)
    fits = [
        fit(shard, None if number else draft, _memory(machine))
        for number, machine in enumerate(machines)
    ]
    longest = min(each.max_tokens for each in fits)
    first, *others = (each.max_sparse_tokens for each in fits)
    sparse = min([first, *(int(tokens / DEFAULT_KEEP_RATIO) for tokens in others)])
    return FitAcross(ranks, shard.weight_bytes, longest, max(sparse, longest))


def _memory(machine: HostMachine) -> Machine:
    """The machine's free memory, but at most what Metal may use."""
    usable = min(machine.free, mac_with(machine.total).budget)
    return Machine(machine.total, int(usable / BUDGET_SHARE))
