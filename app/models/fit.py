"""Whether a model pair fits into a machine's memory, and up to which prompt length: estimated from
its `config.json`, before it is downloaded.

The estimate has an item for each part: weights, both caches, and what one prefill step adds.
Bytes throughout; a machine's memory is counted in GiB, as it is sold.
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
    largest_that_fits,
    step_elements,
    unfused_copies,
)
from app.models.architecture import Architecture, Layer
from app.models.errors import ModelError
from app.protocol.options import DEFAULT_KEEP_RATIO

PREFILL_STEP, DRAFT_PREFILL_STEP = 512, LARGEST_STEP
"""Tokens of a prefill step. On a GPU a target gets at least 512, and more only where there is
memory for it. A draft is assumed to use the largest step."""
SSM_CHUNK = 256
"""Tokens of a chunk in which a Mamba layer relates all pairs (`mlx_lm/models/ssm.py`)."""
_GRAIN = 1024
DEFAULT_CONTEXT = 1 << 20
"""Tokens: the longest prompt considered where a model names no context length."""
MIN_TOKENS = 4096
"""Tokens: a pair that takes no prompt of this length counts as not fitting."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What matters of a model for memory. `weight_bytes` are those in memory once it is loaded."""

    name: str
    architecture: Architecture
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """`ceiling` is what its GPU may use of the `total`."""

    total: int
    ceiling: int

    @property
    def budget(self) -> int:
        return int(self.ceiling * BUDGET_SHARE)


def mac_with(total: int) -> Machine:
    """A Mac with `total` bytes. Reported values of the share that Metal recommends are two thirds
    with 16 and 32 GiB and three quarters with 64 (issues 687 of llama-cpp-python, 434 of ollama and
    1870 of llama.cpp); between them the lower one is assumed."""
    return Machine(total, total * 3 // 4 if total >= 64 << 30 else total * 2 // 3)


def parse_memory(text: str) -> int:
    """Bytes from `32GB`, `32 GiB` or `32`; a Mac's GB are GiB. UserError."""
    found = re.fullmatch(r"\s*(\d{1,5})\s*(?:G|GB|GiB)?\s*", text, re.IGNORECASE | re.ASCII)
    if found is None or not int(found[1]):
        raise UserError(f"{text!r} is not a memory size", "write it as 32GB")
    return int(found[1]) << 30


# ---------------------------------------------------------------------------------- parts


def cache_bytes(
    shape: Architecture, tokens: int, step: int = PREFILL_STEP, windows: bool = True
) -> int:
    """The size of a model's cache after `tokens`, the last `step` of them in one step. With
    `windows` False, sliding windows evict nothing, as in sparse prefill: skipped tokens may be
    recalled later."""
    size = 0.0
    for layer in shape.layers:
        seen = min(tokens, layer.window + step - 1) if layer.window and windows else tokens
        size += layer_bytes_per_token(shape, layer) * seen + layer.state_bytes
    return round(size)


def layer_bytes_per_token(shape: Architecture, layer: Layer) -> float:
    """What one layer caches of one token. Quantised elements share a scale and an offset in groups;
    windows and recurrent states are never quantised."""
    if shape.kv_bits is None or not layer.heads or layer.window is not None:
        return layer.kv_elements * shape.element_bytes
    shared = next(
        (size for size in KV_GROUP_SIZES if layer.head_dim % size == 0), KV_GROUP_SIZES[-1]
    )
    return layer.kv_elements * (shape.kv_bits / 8 + 2 * shape.element_bytes / shared)


def with_kv_bits(shape: Architecture, bits: int | None) -> Architecture:
    """The same model with keys and values quantised to 8 or 4 bits; None: not quantised. ModelError
    where they cannot be."""
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
    """Bytes that each further token adds to the cache once every window is full."""
    return round(
        sum(layer_bytes_per_token(shape, each) for each in shape.layers if each.window is None)
    )


def step_bytes(
    shape: Architecture,
    tokens: int,
    step: int = PREFILL_STEP,
    fused: frozenset[int] = FUSED_HEAD_DIMS | FORCED_HEAD_DIMS,
) -> int:
    """What a prefill step that ends after `tokens` needs on top of weights and caches.

    The largest layer counts, since layers run one after another: its scores where attention is not
    `fused` (by default: cannot be; the engine forces it where scores do not fit), the mask, a
    second copy of its cache while the buffer grows, and the step's activations. What a Mamba layer
    used before it is still allocated.
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
        # The rotated part's scores are a mask of floats, which exists twice: plain and masked.
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
    """What scoring with a draft needs: for its full-attention layer with the most heads."""
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
    """A model pair on a machine; `items` are for a prompt of `tokens`. `max_tokens` is the longest
    prompt that can be read sparsely and in full, `max_sparse_tokens` if it is never read in full; 0
    where the pair does not fit."""

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
    """`40K`: in units of 1,024, as contexts are named."""
    return f"{tokens >> 20}M" if tokens and tokens % DEFAULT_CONTEXT == 0 else f"{tokens >> 10}K"


def fit(
    target: ModelSize, draft: ModelSize | None, machine: Machine, tokens: int | None = None
) -> Fit:
    """Estimate a pair. Without `tokens`, the items are for the longest prompt that fits, or for the
    shortest that would count."""
    # A draft may be used past its own context: the question finds the passage.
    context = target.architecture.context or DEFAULT_CONTEXT

    def longest(keep_ratio: float) -> int:
        """The largest multiple of 1,024 tokens that fits; 0 below MIN_TOKENS."""
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
    """The peak for a prompt of `tokens`, of which the target reads the share `keep_ratio`: with 1,
    all of it, while the draft's cache still exists."""
    shape, read = target.architecture, max(int(tokens * keep_ratio), 1)
    prefill = cache_bytes(shape, read, windows=keep_ratio == 1) + step_bytes(shape, read)
    if draft is None:
        return target.weight_bytes + prefill
    draft_cache = cache_bytes(draft.architecture, tokens, DRAFT_PREFILL_STEP)
    # The draft runs before the target has a cache.
    running = max(_draft_peak(draft, tokens), prefill)
    return target.weight_bytes + draft.weight_bytes + draft_cache + running


def _draft_peak(draft: ModelSize, tokens: int) -> int:
    """Bytes that the draft needs on top of weights and cache while it reads or scores."""
    reading = step_bytes(draft.architecture, tokens, DRAFT_PREFILL_STEP)
    return max(reading, scoring_bytes(draft.architecture, tokens))


def breakdown(target: ModelSize, draft: ModelSize | None, tokens: int) -> tuple[MemoryItem, ...]:
    """The peak for a prompt of `tokens`, part by part."""
    shape = target.architecture
    cache, step = cache_bytes(shape, tokens), step_bytes(shape, tokens)
    items = [
        MemoryItem("target, weights", target.weight_bytes, target.name),
        MemoryItem("target, cache", cache, _cache_why(shape, tokens)),
    ]
    transient = MemoryItem("one step", step, _step_why(shape, PREFILL_STEP))
    if draft is not None:
        shape, step_tokens = draft.architecture, DRAFT_PREFILL_STEP
        size, why = cache_bytes(shape, tokens, step_tokens), _cache_why(shape, tokens, step_tokens)
        items.append(MemoryItem("draft, weights", draft.weight_bytes, draft.name))
        items.append(MemoryItem("draft, cache", size, why))
        draft_peak = _draft_peak(draft, tokens)
        if draft_peak - cache > step:
            scores = draft_peak > step_bytes(shape, tokens, step_tokens)
            how = "scoring" if scores else _step_why(shape, step_tokens)
            why = f"of the draft, before the target reads: {how}"
            transient = MemoryItem("one step", draft_peak - cache, why)
    return (*items, transient)


def _cache_why(shape: Architecture, tokens: int, step: int = PREFILL_STEP) -> str:
    each = bytes_per_token(shape)
    fixed = cache_bytes(shape, tokens, step) - each * tokens
    why = f"{each:,} bytes a token, {tokens:,} tokens"
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
