"""How a draft's attention is scored in blocks, and the memory for it, in plain numbers."""

from __future__ import annotations

MAX_QUERY_ROWS = 128
"""Of a long question, only its last tokens are observed."""
FLOATS_PER_TOKEN = 512
"""Of one block, for each prompt token; a second block is in memory at the same time."""
SCORE_COPIES = 3
"""Copies of a block's scores during softmax and pooling (measured)."""


def block_shape(kv_heads: int, group: int, rows: int, width: int) -> tuple[int, int]:
    """How many key heads, and how many of the observed rows, make a block: at least one of each.
    `group` query heads share one key head, which is `width` wide."""
    heads = FLOATS_PER_TOKEN // (_key_floats(width) + SCORE_COPIES * group * rows)
    if heads:
        return min(heads, kv_heads), rows
    return 1, min(max((FLOATS_PER_TOKEN - _key_floats(width)) // (SCORE_COPIES * group), 1), rows)


def scoring_bytes(tokens: int, heads: int, width: int) -> int:
    """The most bytes that scoring with this many query heads takes: two blocks, and the scores of
    each row before and after an update."""
    layer = heads * (_key_floats(width) + SCORE_COPIES * MAX_QUERY_ROWS)
    block = max(min(layer, FLOATS_PER_TOKEN), _key_floats(width) + SCORE_COPIES * heads)
    return 4 * tokens * 2 * (block + MAX_QUERY_ROWS)


def _key_floats(width: int) -> int:
    """Of one head: in float32, and a padded copy in the model's dtype."""
    return width + width // 2
