"""What models and prompts take in memory: the constants and formulas that estimates from a
`config.json` and the engine's own share. Plain numbers; sizes in bytes."""

from __future__ import annotations

from collections.abc import Callable

SMALLEST_STEP, LARGEST_STEP = 32, 2048
"""Tokens of a prefill step."""
BUDGET_SHARE = 0.9
"""Of the device's ceiling, what a plan may use: estimates may be off by some percent, MLX's buffer
cache may hold a sixteenth, and from here on memory pressure unloads the draft."""
FUSED_HEAD_DIMS = frozenset({64, 72, 80, 96, 128})
"""Head dimensions for which MLX's attention on Metal never materialises its scores
(`mlx/backend/metal/scaled_dot_product_attention.cpp`, MLX 0.32.4)."""
FORCED_HEAD_DIMS = frozenset({192, 256})
"""Head dimensions for which it has such a kernel, but uses it only with `force_fused`: materialised
scores are faster (35B-A3B at 32K tokens: 1,006 tokens a second against 871, MLX issue 3658). The
exception are steps of LONG_STEPS on an M5."""
LONG_STEPS = {256: 1024}
"""By head dimension, the fewest queries for which MLX on an M5 has a fused kernel that is faster
(under a causal mask, 1.18 to 1.55 times at 2,048)."""
MAX_SCORE_BYTES = 4 << 30
"""Largest array of one layer's scores on a GPU. Metal refused 8.6 GB at once (MLX pull request
3293), and macOS ends commands that take long."""
KV_GROUP_SIZES = (64, 32)
"""Elements that share a scale where keys and values are quantised: the first that divides one."""
MAX_QUERY_ROWS = 128
"""Of a long question, its last tokens are observed."""
FLOATS_PER_TOKEN = 512
"""Floats for each prompt token that a block of scores takes, while another block is computed."""
SCORE_COPIES = 3
"""Of a block's scores while they become probabilities and are pooled (measured)."""


def step_elements(
    heads: int, rows: int, context: int, copies: int, step: int, activations: int, expanded: int = 0
) -> float:
    """Elements alive in one layer during a prefill step: `copies` of the scores of `rows` queries
    with `context` keys, `activations` for each of the step's tokens, and `expanded` ones for each
    key where keys and values are unpacked first."""
    return copies * heads * rows * context + expanded * context + activations * step


def unfused_copies(sinks: bool) -> int:
    """How often scores exist at once. A sink is one more column: scores are copied to make room
    for it, and back."""
    return 3 if sinks else 1


def block_shape(kv_heads: int, group: int, rows: int, head_dim: int) -> tuple[int, int]:
    """How many key heads, and how many of the observed rows, make a block: at least one of each.
    `group` query heads share a key head."""
    heads = FLOATS_PER_TOKEN // (_key_floats(head_dim) + SCORE_COPIES * group * rows)
    if heads:
        return min(heads, kv_heads), rows
    free = FLOATS_PER_TOKEN - _key_floats(head_dim)
    return 1, min(max(free // (SCORE_COPIES * group), 1), rows)


def scoring_bytes(tokens: int, heads: int, head_dim: int) -> int:
    """What scoring takes at most, with `heads` query heads: two blocks, and the result of each row
    before and after pooling."""
    layer = heads * (_key_floats(head_dim) + SCORE_COPIES * MAX_QUERY_ROWS)
    block = max(min(layer, FLOATS_PER_TOKEN), _key_floats(head_dim) + SCORE_COPIES * heads)
    return 4 * tokens * 2 * (block + MAX_QUERY_ROWS)


def _key_floats(head_dim: int) -> int:
    """Of a key head: in float32, and padded in the model's dtype."""
    return head_dim + head_dim // 2


def largest_that_fits(needed: Callable[[int], float], available: float, limit: int) -> int:
    """The largest n up to `limit` for which `needed(n)`, which grows, is available; or 0."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if needed(middle) <= available:
            low = middle
        else:
            high = middle - 1
    return low
