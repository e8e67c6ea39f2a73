"""Estimates from config.json, before download, whether a pair of models fits in a machine's memory,
and up to which prompt length.

The estimate has an item for each part: weights, both caches, and what one prefill step adds.
All sizes are in bytes. A machine's memory is given in GiB, as it is sold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from app.errors import UserError
from app.estimate import memory as memory_model
from app.estimate.memory import (
    BUDGET_SHARE,
    FORCED_HEAD_DIMS,
    FUSED_HEAD_DIMS,
    KV_GROUP_SIZES,
    LARGEST_STEP,
    MIN_CHECKPOINTS,
    MTP_ROWS,
    largest_that_fits,
    step_elements,
    unfused_copies,
)
from app.models.architecture import Architecture, Layer
from app.models.errors import ModelError
from app.protocol.options import DEFAULT_KEEP_RATIO

PREFILL_STEP, DRAFT_PREFILL_STEP = 512, LARGEST_STEP
"""Tokens of a prefill step. On a GPU a target uses at least 512, and more only if there is memory
for it. A draft is assumed to use the largest step."""
SSM_CHUNK = 256
"""Tokens of a chunk in which a Mamba layer computes all pairs (`mlx_lm/models/ssm.py`)."""
_GRAIN = 1024
DEFAULT_CONTEXT = 1 << 20
"""Longest prompt considered, in tokens, if a model names no context length."""
MIN_TOKENS = 4096
"""A pair that does not fit with a prompt of this many tokens counts as not fitting."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Sizes of a model that determine its memory. `weight_bytes` is the size of its weights in
    memory."""

    name: str
    architecture: Architecture
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine's memory in bytes: the `total`, and `ceiling`, the limit for models."""

    total: int
    ceiling: int

    @property
    def budget(self) -> int:
        return int(self.ceiling * BUDGET_SHARE)


def mac_with(total: int) -> Machine:
    """A Mac with `total` bytes. Reported values of the share that Metal recommends are two thirds
    with 16 and 32 GiB, and three quarters with 64 GiB (issues 687 of llama-cpp-python, 434 of
    ollama and 1870 of llama.cpp). In between, two thirds are assumed."""
    return Machine(total, total * 3 // 4 if total >= 64 << 30 else total * 2 // 3)


def parse_memory(text: str) -> int:
    """Parse `32GB`, `32 GiB` or `32` (all GiB) to bytes. Raises UserError."""
    found = re.fullmatch(r"\s*(\d{1,5})\s*(?:G|GB|GiB)?\s*", text, re.IGNORECASE | re.ASCII)
    if found is None or not int(found[1]):
        raise UserError(f"{text!r} is not a memory size", "write it as 32GB")
    return int(found[1]) << 30


# ---------------------------------------------------------------------------------- parts


def cache_bytes(
    shape: Architecture, tokens: int, step: int = PREFILL_STEP, windows: bool = True
) -> int:
    """Size of a model's cache after `tokens` tokens, the last `step` of which were one step, and of
    its MTP head's. With `windows` False, sliding windows evict nothing, as in sparse prefill, where
    skipped tokens may be recalled later."""
    size = 0.0
    for layer in shape.layers:
        seen = min(tokens, layer.window + step - 1) if layer.window and windows else tokens
        size += layer_bytes_per_token(shape, layer) * seen + layer.state_bytes
    if (mtp := shape.mtp_layer) is not None:  # its cache is never quantised
        size += mtp.kv_elements * shape.element_bytes * min(tokens, MTP_ROWS)
    return round(size)


def checkpoint_bytes(shape: Architecture) -> int:
    """Bytes of the states in a target's checkpoints."""
    return MIN_CHECKPOINTS * sum(layer.state_bytes for layer in shape.layers)


def layer_bytes_per_token(shape: Architecture, layer: Layer) -> float:
    """Bytes that a layer caches per token. Groups of quantised elements share a scale and an
    offset. Windows and recurrent states are never quantised."""
    if shape.kv_bits is None or not layer.heads or layer.window is not None:
        return layer.kv_elements * shape.element_bytes
    shared = next(
        (size for size in KV_GROUP_SIZES if layer.head_dim % size == 0), KV_GROUP_SIZES[-1]
    )
    return layer.kv_elements * (shape.kv_bits / 8 + 2 * shape.element_bytes / shared)


def with_kv_bits(shape: Architecture, bits: int | None) -> Architecture:
    """The same model with keys and values quantised to 8 or 4 bits; None: not quantised. Raises
    ModelError if they cannot be quantised."""
    grown = [layer for layer in shape.layers if layer.heads and layer.window is None]
    why = ""
    if not grown:
        why = "it has no full-attention layers"
    elif any(layer.head_dim % KV_GROUP_SIZES[-1] for layer in grown):
        why = f"its heads are not a multiple of {KV_GROUP_SIZES[-1]} wide"
    if bits is not None and why:
        raise ModelError(
            f"The cache of {shape.model_type} cannot be quantised to {bits} bits: {why}",
            "turn KV quantisation off",
        )
    return replace(shape, kv_bits=bits)


def bytes_per_token(shape: Architecture) -> int:
    """Bytes that each token adds to the cache once all windows are full."""
    return round(
        sum(layer_bytes_per_token(shape, each) for each in shape.layers if each.window is None)
    )


def step_bytes(
    shape: Architecture,
    tokens: int,
    step: int = PREFILL_STEP,
    fused: frozenset[int] = FUSED_HEAD_DIMS | FORCED_HEAD_DIMS,
) -> int:
    """Bytes that a prefill step needs in addition to weights and caches, if it ends after `tokens`
    tokens.

    Layers run one after another, so the largest layer counts: its scores if attention is not fused
    for its head width (`fused` has the widths; by default all that can be, because the engine
    forces the fused kernel if scores do not fit), the mask, a second copy of its cache while the
    buffer grows, and the step's activations. Memory of a Mamba layer before it is still allocated.
    """
    step = min(step, tokens)
    pairwise = max((layer.ssm_heads for layer in shape.layers), default=0)
    return 3 * 4 * pairwise * min(step, SSM_CHUNK) ** 2 + max(
        (_layer_step(shape, layer, tokens, step, fused) for layer in shape.layers), default=0
    )


def _layer_step(
    shape: Architecture, layer: Layer, tokens: int, step: int, fused: frozenset[int]
) -> int:
    context = min(tokens, layer.window + step) if layer.window else tokens
    copies = mask = 0
    if layer.expanded_kv and layer.unfused:
        # Scores of the rotated part are a mask of floats, which exists twice: plain and masked.
        copies = 2
    elif layer.heads and (layer.unfused or layer.head_dim not in fused):
        copies = unfused_copies(shape.has_sinks)
        mask = 2 * step * context
    if layer.window:
        mask = 2 * step * context
    dequantised = layer.kv_elements if shape.kv_bits and layer.heads and not layer.window else 0
    elements = step_elements(
        layer.heads, step, context, copies, step, layer.activations, layer.expanded_kv + dequantised
    )
    grown = round(layer_bytes_per_token(shape, layer) * context)
    return int(shape.element_bytes * elements) + grown + mask


def scoring_bytes(shape: Architecture, tokens: int) -> int:
    """Bytes that scoring with a draft needs, in the full-attention layer with the most heads."""
    spanning = [layer for layer in shape.layers if layer.window is None and layer.heads]
    if not spanning:
        return 0
    layer = max(spanning, key=lambda layer: layer.heads)
    return memory_model.scoring_bytes(tokens, layer.heads, layer.head_dim)


# ------------------------------------------------------------------------------- estimate


@dataclass(frozen=True, slots=True)
class MemoryItem:
    label: str
    bytes: int
    explanation: str


@dataclass(frozen=True, slots=True)
class Fit:
    """The estimate for a pair on a machine. `items` are for a prompt of `tokens` tokens.
    `max_tokens` is the longest prompt that can be read in full, `max_sparse_tokens` the longest
    that can be read sparsely; 0 if the pair does not fit."""

    machine: Machine
    tokens: int
    items: tuple[MemoryItem, ...]
    max_tokens: int
    max_sparse_tokens: int

    @property
    def total(self) -> int:
        return sum(line.bytes for line in self.items)

    @property
    def verdict(self) -> str:
        return f"fits {format_tokens(self.max_tokens)}" if self.max_tokens else "too big"


def format_tokens(tokens: int) -> str:
    """Format tokens in units of 1,024, as contexts are named: `40K`."""
    return f"{tokens >> 20}M" if tokens and tokens % DEFAULT_CONTEXT == 0 else f"{tokens >> 10}K"


def fit(
    target: ModelSize, draft: ModelSize | None, machine: Machine, tokens: int | None = None
) -> Fit:
    """Estimate a pair. Without `tokens`, the items are for the longest prompt that fits, or else
    for MIN_TOKENS."""
    # A draft may be used beyond its own context.
    context = target.architecture.context or DEFAULT_CONTEXT

    def longest(keep_ratio: float) -> int:
        """The largest multiple of 1,024 tokens that fits; 0 if below MIN_TOKENS."""
        grains = largest_that_fits(
            lambda n: peak_bytes(target, draft, n * _GRAIN, keep_ratio),
            machine.budget,
            max(context // _GRAIN, 1),
        )
        return grains * _GRAIN if grains * _GRAIN >= min(MIN_TOKENS, context) else 0

    full = longest(1.0)
    sparse = full if draft is None else longest(DEFAULT_KEEP_RATIO)
    at = tokens or full or MIN_TOKENS
    return Fit(machine, at, breakdown(target, draft, at), full, sparse)


def peak_bytes(
    target: ModelSize, draft: ModelSize | None, tokens: int, keep_ratio: float = 1.0
) -> int:
    """Peak memory for a prompt of `tokens` tokens, of which the target reads the share
    `keep_ratio`. With 1 the target reads all of it while the draft's cache still exists."""
    shape, read = target.architecture, max(int(tokens * keep_ratio), 1)
    prefill = cache_bytes(shape, read, windows=keep_ratio == 1) + step_bytes(shape, read)
    prefill += checkpoint_bytes(shape)
    if draft is None:
        return target.weight_bytes + prefill
    draft_cache = cache_bytes(draft.architecture, tokens, DRAFT_PREFILL_STEP)
    # The draft runs before the target has a cache.
    running = max(_draft_peak(draft, tokens), prefill)
    return target.weight_bytes + draft.weight_bytes + draft_cache + running


def _draft_peak(draft: ModelSize, tokens: int) -> int:
    """Bytes that the draft needs, in addition to weights and cache, while it reads or scores."""
    reading = step_bytes(draft.architecture, tokens, DRAFT_PREFILL_STEP)
    return max(reading, scoring_bytes(draft.architecture, tokens))


def breakdown(target: ModelSize, draft: ModelSize | None, tokens: int) -> tuple[MemoryItem, ...]:
    """Peak memory for a prompt of `tokens` tokens, part by part."""
    shape = target.architecture
    cache = cache_bytes(shape, tokens) + checkpoint_bytes(shape)
    step = step_bytes(shape, tokens)
    items = [
        MemoryItem("target, weights", target.weight_bytes, target.name),
        MemoryItem("target, cache", cache, _cache_why(shape, tokens, cache)),
    ]
    transient = MemoryItem("one step", step, _step_why(shape, PREFILL_STEP))
    if draft is not None:
        shape, step_tokens = draft.architecture, DRAFT_PREFILL_STEP
        size = cache_bytes(shape, tokens, step_tokens)
        why = _cache_why(shape, tokens, size)
        items.append(MemoryItem("draft, weights", draft.weight_bytes, draft.name))
        if not shape.is_encoder:
            items.append(MemoryItem("draft, cache", size, why))
        draft_peak = _draft_peak(draft, tokens)
        if draft_peak - cache > step:
            scores = draft_peak > step_bytes(shape, tokens, step_tokens)
            how = "scoring" if scores else _step_why(shape, step_tokens)
            why = f"draft, before the target reads: {how}"
            transient = MemoryItem("one step", draft_peak - cache, why)
    return (*items, transient)


def _cache_why(shape: Architecture, tokens: int, size: int) -> str:
    each = bytes_per_token(shape)
    fixed = size - each * tokens
    why = f"{each:,} bytes per token, {tokens:,} tokens"
    return f"{why}, and {fixed / 1e6:,.0f} MB of windows and states" if fixed > 1e6 else why


def _step_why(shape: Architecture, step: int) -> str:
    fused = FUSED_HEAD_DIMS | FORCED_HEAD_DIMS
    slow = sorted({x.head_dim for x in shape.layers if x.heads and x.head_dim not in fused})
    why = f"{step:,} tokens at once"
    if any(layer.expanded_kv for layer in shape.layers):
        return f"{why}; latent attention expands all keys"
    if any(layer.unfused for layer in shape.layers):
        return f"{why}; attention is not fused"
    if slow:
        widths = " and ".join(map(str, slow))
        return f"{why}; attention is not fused for head dimension {widths}"
    if shape.kv_bits:
        return f"{why}; attention is fused, on one layer's keys and values dequantised"
    return f"{why}; attention is fused"
