"""Will a pair fit into a machine's memory, and up to which length? Told before it is downloaded.

The sum has a line for each part: weights, what both caches keep, and what one step of reading needs
for a moment. Bytes throughout; a machine's memory is counted in GiB, as it is sold.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from app.errors import UserError
from app.models.architecture import Architecture, Layer
from app.models.errors import ModelError

PREFILL_STEP, DRAFT_PREFILL_STEP = 512, 2048
"""Tokens fed at once. The engine's steps aim at half a second: a target gets more than 512 only
where more than 3,000 tokens a second are read. For a draft the largest step is taken."""
FUSED_HEAD_DIMS = frozenset({64, 72, 80, 96, 128})
"""Widths of heads for which MLX's attention on Metal never writes its scores down (of MLX 0.32.2,
`mlx/backend/metal/scaled_dot_product_attention.cpp`; `use_fallback` leaves out 192 and 256)."""
OBSERVED, COLUMNS, COPIES = 128, 512, 3
"""Rows that scoring observes at most, and numbers for each token that it works on at once, scores
taking this many times their own (`app/engine/score_blocks.py`)."""
GROUPS = (64, 32)
"""Numbers that share a scale where keys and values are quantised: the first that fits a head."""
SSM_CHUNK = 256
"""Tokens that a Mamba layer pairs with each other (`mlx_lm/models/ssm.py`)."""
_GRAIN = 1024
DEFAULT_CONTEXT = 1 << 20
"""Tokens tried at most, where a model names no context."""
MIN_TOKENS = 4096
"""Tokens below which a pair does not count as fitting: no long document."""
BUDGET_SHARE = 0.9
"""Of the device's ceiling, what a plan may take. Up to a sixteenth may lie idle in MLX's buffer
cache, and what is foretold may be off by some percent."""
DEFAULT_KEEP = 0.2
"""Of a document, what a sparse reading is reckoned with."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A model as far as memory goes. `weights` are the bytes that a loader keeps."""

    name: str
    architecture: Architecture
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """`ceiling` is what its device may hold of the `total`."""

    total: int
    ceiling: int

    @property
    def budget(self) -> int:
        return int(self.ceiling * BUDGET_SHARE)


def mac_with(total: int) -> Machine:
    """A Mac with so many bytes. The share that Metal recommends was seen to be two thirds with 16
    and 32 GiB and three quarters with 64 (issues 687 of llama-cpp-python, 434 of ollama and 1870 of
    llama.cpp); between them the lower one is taken."""
    return Machine(total, total * 3 // 4 if total >= 64 << 30 else total * 2 // 3)


def parse_memory(text: str) -> int:
    """Bytes from `32GB`, `32 GiB` or `32`; a Mac's GB are GiB. UserError."""
    found = re.fullmatch(r"\s*(\d{1,5})\s*(?:G|GB|GiB)?\s*", text, re.IGNORECASE | re.ASCII)
    if found is None or not int(found[1]):
        raise UserError(f"{text!r} is no size of a memory", "give it as 32GB")
    return int(found[1]) << 30


# ------------------------------------------------------------------------------------- the parts


def cache_bytes(
    shape: Architecture, tokens: int, step: int = PREFILL_STEP, windows: bool = True
) -> int:
    """What a model's cache keeps of so many tokens, the last `step` of which came at once. After a
    sparse reading nothing that fell out of a window is dropped: more may be recalled (`windows`
    False)."""
    size = 0.0
    for layer in shape.layers:
        seen = min(tokens, layer.window + step - 1) if layer.window and windows else tokens
        size += (
            layer_bytes_per_token(shape, layer) * seen
            + shape.element_bytes * layer.conv_elements
            + 4 * layer.state_elements
        )
    return round(size)


def layer_bytes_per_token(shape: Architecture, layer: Layer) -> float:
    """What one layer keeps of one token. Where it is quantised, some numbers share a scale and an
    offset; windows and states never are."""
    if shape.kv_bits is None or not layer.heads or layer.window is not None:
        return layer.kv_elements * shape.element_bytes
    shared = next((size for size in GROUPS if layer.head_dim % size == 0), GROUPS[-1])
    return layer.kv_elements * (shape.kv_bits / 8 + 2 * shape.element_bytes / shared)


def with_kv_bits(shape: Architecture, bits: int | None) -> Architecture:
    """With keys and values in 8 or 4 bits a number, or, with None, in full. ModelError where MLX's
    quantised attention cannot serve."""
    grown = [layer for layer in shape.layers if layer.heads and layer.window is None]
    why = ""
    if shape.has_sinks:
        why = "its attention has sinks"
    elif any(layer.expanded_kv for layer in grown):
        why = "its attention is latent"
    elif not grown:
        why = "none of its layers keeps everything"
    elif any(layer.head_dim % GROUPS[-1] for layer in grown):
        why = f"its heads are not a multiple of {GROUPS[-1]} wide"
    if bits is not None and why:
        raise ModelError(
            f"What {shape.model_type} reads cannot be kept in {bits} bits: {why}",
            "keep it in full",
        )
    return replace(shape, kv_bits=bits)


def bytes_per_token(shape: Architecture) -> int:
    """Bytes that each further token adds to the cache, once every window is full."""
    return round(
        sum(layer_bytes_per_token(shape, each) for each in shape.layers if each.window is None)
    )


def step_bytes(
    shape: Architecture,
    tokens: int,
    step: int = PREFILL_STEP,
    fused: frozenset[int] = FUSED_HEAD_DIMS,
) -> int:
    """What one step of reading needs besides weights and caches, at the end of so many tokens.

    The greatest layer counts, since one is worked on after the other: its scores where attention is
    not fused, the mask, its own cache once more while the buffer grows, and what is alive of the
    step's tokens. What a Mamba layer before it used is still there.
    """
    step = min(step, tokens)
    pairwise = max((layer.ssm_heads for layer in shape.layers), default=0)
    return 3 * 4 * pairwise * min(step, SSM_CHUNK) ** 2 + max(
        (_layer_step(shape, layer, tokens, step, fused) for layer in shape.layers), default=0
    )


def _layer_step(
    shape: Architecture, layer: Layer, tokens: int, step: int, fused: frozenset[int]
) -> int:
    seen = min(tokens, layer.window + step) if layer.window else tokens
    scores = mask = 0
    if layer.expanded_kv:
        # The rotated part's scores are a mask of numbers, made twice: as they are, and masked.
        scores = 2 * layer.heads * step * seen
    elif layer.heads and layer.head_dim not in fused:
        # A sink is one column more, so the scores are copied to make room for it, and back.
        scores = layer.heads * step * seen * (3 if shape.has_sinks else 1)
        mask = 2 * step * seen
    if layer.window:
        mask = 2 * step * seen
    again = round(layer_bytes_per_token(shape, layer) * seen)
    numbers = scores + layer.expanded_kv * seen + step * layer.activations
    if shape.kv_bits and layer.heads and not layer.window:
        numbers += layer.kv_elements * seen  # dequantised
    return shape.element_bytes * numbers + again + mask


def scoring_bytes(shape: Architecture, tokens: int) -> int:
    """What the draft's scoring needs, for the most heads of a layer that spans the prompt: two
    blocks, and what is found of each row, as it was and as it becomes."""
    spanning = [layer for layer in shape.layers if layer.window is None and layer.heads]
    if not spanning:
        return 0
    layer = max(spanning, key=lambda layer: layer.heads)
    keys = layer.head_dim + layer.head_dim // 2
    block = min(layer.heads * (keys + COPIES * OBSERVED), COLUMNS)
    return 4 * tokens * 2 * (max(block, keys + COPIES * layer.heads) + OBSERVED)


# --------------------------------------------------------------------------------------- the sum


@dataclass(frozen=True, slots=True)
class MemoryItem:
    label: str
    bytes: int
    explanation: str


@dataclass(frozen=True, slots=True)
class Fit:
    """A pair on a machine, reckoned at `tokens`. `longest` is how many tokens can be read, sparsely
    or in full, and `sparse` how many as long as nothing is read in full; 0 when it does not fit."""

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
    """Reckon a pair. Without `tokens` the sum is that of the longest prompt that fits, or of the
    shortest one that would count."""
    most = _context(target, draft)
    longest = _max_tokens(lambda n: peak_bytes(target, draft, n), machine.budget, most)
    sparse = longest
    if draft is not None:
        sparse = _max_tokens(lambda n: sparse_peak_bytes(target, draft, n), machine.budget, most)
    at = tokens or longest or MIN_TOKENS
    return Fit(machine, at, breakdown(target, draft, at), longest, sparse)


def _context(target: ModelSize, draft: ModelSize | None) -> int:
    """No more than the target was made for; a draft may be led past its context, since it is the
    question that finds the place."""
    return target.architecture.context or DEFAULT_CONTEXT


def peak_bytes(target: ModelSize, draft: ModelSize | None, tokens: int) -> int:
    """The most that is held at once when so many tokens are read sparsely first, and then in full
    while the draft still remembers them."""
    return sum(line.bytes for line in breakdown(target, draft, tokens))


def sparse_peak_bytes(
    target: ModelSize, draft: ModelSize, tokens: int, keep: float = DEFAULT_KEEP
) -> int:
    """The same when only the share `keep` is ever read by the target."""
    kept = max(int(tokens * keep), 1)
    scoring = max(
        step_bytes(draft.architecture, tokens, DRAFT_PREFILL_STEP),
        scoring_bytes(draft.architecture, tokens),
    )
    reading = cache_bytes(target.architecture, kept, windows=False) + step_bytes(
        target.architecture, kept
    )
    held = (
        target.weight_bytes
        + draft.weight_bytes
        + cache_bytes(draft.architecture, tokens, DRAFT_PREFILL_STEP)
    )
    return held + max(scoring, reading)


def breakdown(target: ModelSize, draft: ModelSize | None, tokens: int) -> tuple[MemoryItem, ...]:
    """The sum at so many tokens, part by part."""
    shape = target.architecture
    kept, step = cache_bytes(shape, tokens), step_bytes(shape, tokens)
    found = [
        MemoryItem("target, weights", target.weight_bytes, target.name),
        MemoryItem("target, cache", kept, _cache_why(shape, tokens)),
    ]
    moment = MemoryItem("one step", step, _step_why(shape, PREFILL_STEP))
    if draft is not None:
        found += [
            MemoryItem("draft, weights", draft.weight_bytes, draft.name),
            MemoryItem(
                "draft, cache",
                cache_bytes(draft.architecture, tokens, DRAFT_PREFILL_STEP),
                _cache_why(draft.architecture, tokens, DRAFT_PREFILL_STEP),
            ),
        ]
        # The draft reads before the target has a cache.
        reading = step_bytes(draft.architecture, tokens, DRAFT_PREFILL_STEP)
        scoring = scoring_bytes(draft.architecture, tokens)
        if max(reading, scoring) - kept > step:
            how = (
                "scoring"
                if scoring > reading
                else _step_why(draft.architecture, DRAFT_PREFILL_STEP)
            )
            why = f"of the draft, before the target reads: {how}"
            moment = MemoryItem("one step", max(reading, scoring) - kept, why)
    return (*found, moment)


def _cache_why(shape: Architecture, tokens: int, step: int = PREFILL_STEP) -> str:
    each = bytes_per_token(shape)
    fixed = cache_bytes(shape, tokens, step) - each * tokens
    why = f"{each:,} bytes a token, {tokens:,} tokens"
    return f"{why}, and {fixed / 1e6:,.0f} MB of windows and states" if fixed > 1e6 else why


def _step_why(shape: Architecture, step: int) -> str:
    slow = sorted(
        {x.head_dim for x in shape.layers if x.heads and x.head_dim not in FUSED_HEAD_DIMS}
    )
    why = f"{step:,} tokens at once"
    if any(layer.expanded_kv for layer in shape.layers):
        return f"{why}; latent attention unfolds all keys"
    if slow:
        widths = " and ".join(map(str, slow))
        return f"{why}; attention is not fused for heads of width {widths}"
    if shape.kv_bits:
        return f"{why}; attention is fused, on one layer's keys and values dequantised"
    return f"{why}; attention is fused"


def _max_tokens(needed: Callable[[int], int], room: int, most: int) -> int:
    """The most tokens, in grains of 1,024, whose need is within the room; 0 below LEAST."""
    low, high = 0, max(most // _GRAIN, 1)
    while low < high:
        middle = (low + high + 1) // 2
        if needed(middle * _GRAIN) <= room:
            low = middle
        else:
            high = middle - 1
    return low * _GRAIN if low * _GRAIN >= min(MIN_TOKENS, most) else 0
