"""How a draft's attention is scored in blocks, and what that takes, in plain numbers."""

from __future__ import annotations

MAX_QUERY_ROWS = 128
"""Of a long question, its last tokens are observed."""
FLOATS_PER_TOKEN = 512
"""Numbers for each prompt token that a block takes; another block is computed meanwhile."""
SCORE_COPIES = 3
"""Of a block's scores while they become probabilities and are pooled (measured)."""


def block_shape(kv_heads: int, group: int, rows: int, width: int) -> tuple[int, int]:
    """How many heads of keys, and how many of the observed rows, make a block: at least one of
    each. `group` query heads share a head of keys, which is `width` wide."""
    heads = FLOATS_PER_TOKEN // (_key_floats(width) + SCORE_COPIES * group * rows)
    if heads:
        return min(heads, kv_heads), rows
    return 1, min(max((FLOATS_PER_TOKEN - _key_floats(width)) // (SCORE_COPIES * group), 1), rows)


def scoring_bytes(tokens: int, heads: int, width: int) -> int:
    """What scoring takes at most, for so many query heads: two blocks, and what is found of each
    row, as it was and as it becomes."""
    layer = heads * (_key_floats(width) + SCORE_COPIES * MAX_QUERY_ROWS)
    block = max(min(layer, FLOATS_PER_TOKEN), _key_floats(width) + SCORE_COPIES * heads)
    return 4 * tokens * 2 * (block + MAX_QUERY_ROWS)


def _key_floats(width: int) -> int:
    """Of a head: in float32, and padded in what the model runs in."""
    return width + width // 2
