"""A target that is spread over several machines: whether it fits, up to which context, and the
predicted time to its first token, from its `config.json`.

mlx-lm divides attention heads, MLPs and experts by the number of machines (*ranks*). Embeddings,
the output head, norms and routers are whole on each; routers and norms are under a thousandth of
the parameters, and count as divided here. After attention and after the MLP of every layer, what
each rank has computed of the hidden states is summed over all ranks, by MLX's ring
(`mlx/distributed/ring/ring.cpp` of MLX 0.32), whose messages are followed here one by one.

Sizes in bytes, times in seconds, rates in bytes a second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.estimate.memory import BUDGET_SHARE
from app.models.architecture import Architecture, Config, Layer
from app.models.fit import Machine, ModelSize, fit, mac_with
from app.protocol.hosts import HostMachine
from app.protocol.options import DEFAULT_KEEP_RATIO

SUMS_PER_LAYER = 2
ONE_WAY_FROM = 1 << 18
"""Bytes of a rank's part of a sum from which the ring sends half of it in each direction."""
LEAST_PACKET, MOST_PACKET = 1 << 15, 8 << 20
"""Elements, and bytes, of a packet. A part is sent in two packets, if they are not too small."""


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """Latency in seconds one way, and bytes a second each way, between two machines."""

    latency: float
    rate: float


# ------------------------------------------------------------------------- what fits


def indivisible(shape: Architecture, config: Config, ranks: int) -> str:
    """Why a model cannot be divided by this number of machines, a clause, or nothing."""
    values = {**config, **(config.get("text_config") or {})}
    if ranks > 1 and not shape.divisible:
        return f"mlx-lm cannot divide the architecture {shape.model_type!r}"
    groups = (config.get("quantization") or {}).get("group_size", 1)
    for name, least in (
        ("intermediate_size", groups),
        ("moe_intermediate_size", groups),
        ("linear_num_key_heads", 1),
        ("linear_num_value_heads", 1),
        # Other heads are divided after padding (`app/engine/sharded/runner.py`).
        ("num_attention_heads", 1 if "kv_lora_rank" in values else None),
    ):
        number = values.get(name)
        if least and number and int(number) % (ranks * least):
            return f"its {name} of {int(number):,} cannot be divided by {ranks}"
    return ""


def shard_of(shape: Architecture, ranks: int) -> Architecture:
    """What one machine has of a model. Heads of keys that `ranks` do not divide are filled up with
    heads of zeros. Latent attention caches the same on every machine."""
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
    """The same with the bytes of its weights."""
    shard = shard_of(target.architecture, ranks)
    share = shard.parameters / target.architecture.parameters
    return ModelSize(target.name, shard, math.ceil(target.weight_bytes * share))


@dataclass(frozen=True, slots=True)
class FitAcross:
    """A target over `ranks` machines, the draft on the first. `max_tokens` is the longest prompt
    that can be read in full, `max_sparse_tokens` if it never is; 0 where it does not fit. A
    `problem` is why it cannot be, a clause."""

    ranks: int
    weight_bytes: int
    """On each machine."""
    max_tokens: int
    max_sparse_tokens: int
    problem: str = ""


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
    """What is free, and no more than Metal may use."""
    usable = min(machine.free, mac_with(machine.total).budget)
    return Machine(machine.total, int(usable / BUDGET_SHARE))


# ------------------------------------------------------------------------- time


def sum_seconds(elements: int, element_bytes: int, ranks: int, link: LinkSpeed) -> float:
    """Of one sum of `elements` over all ranks. Each has one line, with the `rate` in and out at
    once. First every rank adds up its part in ranks - 1 messages (reduce-scatter), then all get
    the sums in as many (all-gather). A message is sent once the one before has come; with two
    packets each, while the second of them is still on its way."""
    if ranks < 2:
        return 0.0
    ways = max(min(2, elements * element_bytes // (ranks * ONE_WAY_FROM)), 1)
    part = math.ceil(math.ceil(elements / ways) / ranks)
    packet = max(LEAST_PACKET, min(MOST_PACKET // element_bytes, part // 2))
    packets = [min(packet, part - start) for start in range(0, part, packet)]
    ahead = 1 if len(packets) > 1 else 0
    now = line_free = 0.0
    arrivals: list[float] = []
    for _ in range(2 * (ranks - 1)):
        for size in packets:
            line_free = max(line_free, now) + ways * size * element_bytes / link.rate
            arrivals.append(line_free + link.latency)
            if len(arrivals) > ahead:
                now = max(now, arrivals[-1 - ahead])
    return arrivals[-1]


def sums_of(shape: Architecture, steps: Sequence[int]) -> list[tuple[int, int]]:
    """How many sums of how many elements there are until the first token. A forward that only fills
    the caches ends in the last layer."""
    filling = SUMS_PER_LAYER * (len(shape.layers) - 1)
    sums = [(filling, tokens * shape.hidden_size) for tokens in steps]
    return [*sums, (SUMS_PER_LAYER * len(shape.layers), shape.hidden_size)]


def exchange_seconds(
    shape: Architecture, steps: Sequence[int], ranks: int, link: LinkSpeed
) -> float:
    """Of all sums of a prefill in `steps` of tokens and until the first token. Each forward is
    asked of the ranks, and answered."""
    if ranks < 2:
        return 0.0
    rounds = (len(steps) + 1) * 2 * link.latency
    return rounds + sum(
        count * sum_seconds(size, shape.element_bytes, ranks, link)
        for count, size in sums_of(shape, steps)
    )


def compute_share(shape: Architecture, ranks: int) -> float:
    """Of what one machine computes of the layers, the share of each rank."""
    return shard_of(shape, ranks).active_parameters / max(shape.active_parameters, 1)


def first_token_seconds(
    shape: Architecture,
    target_seconds: float,
    other_seconds: float,
    steps: Sequence[int],
    ranks: int = 1,
    link: LinkSpeed | None = None,
) -> float:
    """Until the first token, where one machine computes `target_seconds` in the target's layers, in
    `steps` of tokens, and `other_seconds` before: those are not divided."""
    if ranks < 2 or link is None:
        return other_seconds + target_seconds
    divided = target_seconds * compute_share(shape, ranks)
    return other_seconds + divided + exchange_seconds(shape, steps, ranks, link)


def steps_of(tokens: int, step: int) -> list[int]:
    """The steps in which `tokens` are prefilled: all but the last token."""
    whole, rest = divmod(max(tokens - 1, 0), step)
    return [step] * whole + [rest] * bool(rest)
