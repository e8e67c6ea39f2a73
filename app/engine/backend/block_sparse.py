"""Block-sparse causal attention: each block of queries attends to few blocks of keys.

Follows FlashPrefill (arXiv 2603.06199), which PFlash (2603.02631) uses for the draft in speculative
prefill. Queries attend to the first keys (sinks), a recent window, and those blocks in between
whose mean keys score highest. Scores of attended keys are exact, so with all blocks selected this
is plain causal attention.
"""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from app.protocol.options import Blocks

Attention = Callable[..., mx.array]
"""Causal attention of queries (1, Hq, n, D), which are the last positions of keys (1, Hk, m, D)."""
MEAN_BATCH = 64
"""Number of blocks that are converted to float32 at a time."""


def attend(
    q: mx.array, k: mx.array, v: mx.array, scale: float, attention_fn: Attention, blocks: Blocks
) -> mx.array:
    """Block-sparse attention of queries (1, Hq, N, D), the last positions of keys (1, Hk, M, D) and
    values (1, Hk, M, Dv). Calls `attention_fn` for one block of queries at a time. Returns
    (1, Hq, N, Dv).

    Blocks start at multiples of their size, counted from the first key, so that the result hardly
    depends on where a step starts.
    """
    before, total, size = k.shape[2] - q.shape[2], k.shape[2], blocks.size
    key_blocks, value_blocks = _in_blocks(k, size), _in_blocks(v, size)
    means = _means(key_blocks)
    parts, start = [], before
    while start < total:
        end = min(start // size * size + size, total)
        queries = q[:, :, start - before : end - before]
        recent = start // size - blocks.recent
        if recent - blocks.sinks > blocks.top:  # something can be skipped
            between = means[:, blocks.sinks : recent]
            top = _top_key_blocks(queries, between, blocks.top) + blocks.sinks
            first, last = slice(blocks.sinks * size), slice(recent * size, end)
            keys = _gather_kv(k, first, key_blocks, top, last)
            values = _gather_kv(v, first, value_blocks, top, last)
        else:
            keys, values = k[:, :, :end], v[:, :, :end]
        parts.append(attention_fn(queries, keys, values, scale=scale))
        start = end
    return mx.concatenate(parts, axis=2)


def _in_blocks(a: mx.array, size: int) -> mx.array:
    """Reshape (1, H, M, D) to blocks (H, B, size, D), without the remainder."""
    whole = a.shape[2] // size
    return a[0, :, : whole * size].reshape(a.shape[1], whole, size, a.shape[3])


def _means(blocks: mx.array) -> mx.array:
    """Mean keys float32 (H, B, D) of blocks (H, B, size, D). In half precision, a component common
    to all keys would hide their differences."""
    starts = range(0, max(blocks.shape[1], 1), MEAN_BATCH)
    parts = [blocks[:, at : at + MEAN_BATCH].astype(mx.float32).mean(axis=2) for at in starts]
    return mx.concatenate(parts, axis=1)


def _top_key_blocks(q: mx.array, means: mx.array, count: int) -> mx.array:
    """Indices int (Hk, count) of the blocks whose mean keys float32 (Hk, B, D) score highest with
    queries (1, Hq, n, D), for each group of heads that shares keys."""
    heads = means.shape[0]
    queries = q.reshape(heads, -1, q.shape[2], q.shape[3]).astype(mx.float32).mean(axis=2)
    scores = (queries @ means.swapaxes(-1, -2)).max(axis=1)
    return mx.argpartition(-scores, count - 1, axis=-1)[:, :count]


def _gather_kv(a: mx.array, first: slice, blocks: mx.array, top: mx.array, last: slice) -> mx.array:
    """Concatenate the first tokens of `a` (1, H, M, D), its top blocks out of (H, B, size, D), and
    its last tokens."""
    heads, width = a.shape[1], a.shape[3]
    gathered = blocks[mx.arange(heads)[:, None], top].reshape(1, heads, -1, width)
    return mx.concatenate([a[:, :, first], gathered, a[:, :, last]], axis=2)
