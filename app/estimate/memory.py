"""Constants and formulas for the memory of models and prompts, used by the engine and by estimates
from a `config.json`. Sizes are in bytes."""

from __future__ import annotations

from collections.abc import Callable

SMALLEST_STEP, LARGEST_STEP = 32, 2048
"""Limits of a prefill step, in tokens."""
BUDGET_SHARE = 0.9
"""Share of the memory ceiling that a plan may use. Estimates may be some percent off, MLX's buffer
cache may hold a sixteenth, and above this share memory pressure unloads the draft."""
FUSED_HEAD_DIMS = frozenset({64, 72, 80, 96, 128})
"""Head dimensions for which MLX's attention on Metal is fused and never materialises its scores
(`mlx/backend/metal/scaled_dot_product_attention.cpp`, MLX 0.32.4)."""
FORCED_HEAD_DIMS = frozenset({192, 256})
"""Head dimensions for which it is fused only with `force_fused`, because materialised scores are
faster (35B-A3B at 32K tokens: 1,006 tokens/s instead of 871, MLX issue 3658), except in steps of
`LONG_STEPS` on an M5."""
LONG_STEPS = {256: 1024}
"""By head dimension: minimum queries for which MLX's fused kernel is faster on an M5 (1.18 to 1.55
times at 2,048, causal mask)."""
MAX_SCORE_BYTES = 4 << 30
"""Maximum size of one layer's scores on a GPU. Metal refused an array of 8.6 GB (MLX pull request
3293), and macOS aborts long commands."""
MIN_CHECKPOINTS = 4
"""Checkpoints of a cache with recurrent layers, each with their states: before and after the first
documents, and before and after the last question."""
MTP_MODELS = frozenset({"qwen3_5", "qwen3_5_moe", "qwen3_next"})
"""Architectures (`model_type`) whose multi-token prediction head is loaded, if the weights have
one (`app/engine/model/mtp.py`)."""
MTP_WINDOW, MTP_ROWS = 512, 768
"""Number of last tokens to which the head attends, and maximum number in its cache."""
KV_GROUP_SIZES = (64, 32)
"""Group sizes for quantised keys and values; the first that divides the head dimension is used."""
MAX_QUERY_ROWS = 128
"""Scoring observes at most this many last tokens of a question."""
FLOATS_PER_TOKEN = 512
"""Floats per prompt token of a block of scores; two blocks are in memory at once."""
SCORE_COPIES = 3
"""Copies of a block's scores during softmax and pooling (measured)."""


def step_elements(
    heads: int, rows: int, context: int, copies: int, step: int, activations: int, expanded: int = 0
) -> float:
    """Array elements alive in one layer during a prefill step: `copies` of the scores of `rows`
    queries and `context` keys, `activations` per token of the step, and `expanded` per key if keys
    and values are dequantised."""
    return copies * heads * rows * context + expanded * context + activations * step


def unfused_copies(sinks: bool) -> int:
    """Copies of the scores in unfused attention. A sink is an extra column, for which scores are
    copied and copied back."""
    return 3 if sinks else 1


def block_shape(kv_heads: int, group: int, rows: int, head_dim: int) -> tuple[int, int]:
    """(key heads, observed rows) per block of scores, at least one each. `group` query heads share
    a key head."""
    heads = FLOATS_PER_TOKEN // (_key_floats(head_dim) + SCORE_COPIES * group * rows)
    if heads:
        return min(heads, kv_heads), rows
    free = FLOATS_PER_TOKEN - _key_floats(head_dim)
    return 1, min(max(free // (SCORE_COPIES * group), 1), rows)


def scoring_bytes(tokens: int, heads: int, head_dim: int) -> int:
    """Maximum bytes for scoring with `heads` query heads: two blocks, and the result per row before
    and after pooling."""
    layer = heads * (_key_floats(head_dim) + SCORE_COPIES * MAX_QUERY_ROWS)
    block = max(min(layer, FLOATS_PER_TOKEN), _key_floats(head_dim) + SCORE_COPIES * heads)
    return 4 * tokens * 2 * (block + MAX_QUERY_ROWS)


def _key_floats(head_dim: int) -> int:
    """Floats per token of a key head: in float32, plus padded in the model's dtype."""
    return head_dim + head_dim // 2


def largest_that_fits(needed: Callable[[int], float], available: float, limit: int) -> int:
    """The largest n <= `limit` with `needed(n) <= available`, or 0. `needed` must be increasing."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if needed(middle) <= available:
            low = middle
        else:
            high = middle - 1
    return low
