"""The places where we reach into MLX: rotary positions, and attention.

`install()` replaces `mx.fast.rope` and `mx.fast.scaled_dot_product_attention` by wrappers that do
exactly what the originals do until one of the context managers below is active. Every mlx-lm
architecture calls these two functions, so no per-architecture code is needed, and the model object
is never touched. mlx-lm's attention over quantised keys and values is replaced, too: for a step of
many tokens it dequantises them, so that it is fused, and no scores are written down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models import base
from numpy.typing import NDArray

from app.engine import block_sparse
from app.protocol.options import Blocks

Observer = Callable[[mx.array, mx.array, float, "mx.array | str | None", "mx.array | None"], None]
"""Called with queries (1, Hq, Nq, D) after rotation, keys (1, Hk, Nk, D), scale, mask, sinks."""

_positions: ContextVar[mx.array | None] = ContextVar("specchat_positions", default=None)
_observer: ContextVar[Observer | None] = ContextVar("specchat_observer", default=None)
_block: ContextVar[int | None] = ContextVar("specchat_block", default=None)
_should_exit: ContextVar[Callable[[], bool] | None] = ContextVar("specchat_enough", default=None)
_sparse: ContextVar[Blocks | None] = ContextVar("specchat_sparse", default=None)


DEQUANTISE_FROM = 128
"""Tokens in a step, from which on quantised keys and values are dequantised for it."""


class PatchError(RuntimeError):
    """A model calls MLX in a way the seams cannot serve; the turn reads densely instead."""


class _EarlyExit(BaseException):
    """Ends a forward. No error: nothing that a model handles."""


@contextmanager
def early_exit(should_exit: Callable[[], bool]) -> Iterator[None]:
    """Inside, a model's forward ends, and the block with it, at the first attention at which
    `enough()` holds: that attention is observed, and neither it nor what follows is computed."""
    token = _should_exit.set(should_exit)
    try:
        yield
    except _EarlyExit:
        pass
    finally:
        _should_exit.reset(token)


@contextmanager
def explicit_positions(positions: mx.array) -> Iterator[None]:
    """Inside, rotary embeddings put the N tokens of a step at `positions` (int32, shape (N,))
    instead of at a run that starts at the cache's offset."""
    token = _positions.set(positions)
    try:
        yield
    finally:
        _positions.reset(token)


@contextmanager
def observed_attention(observer: Observer) -> Iterator[None]:
    """Inside, `observer` sees the inputs of every attention, in layer order, before it runs."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


@contextmanager
def blocked_attention(rows: int | None) -> Iterator[None]:
    """Inside, causal attention runs in blocks of `rows` queries, each against the keys it can see,
    and in float32 with numpy's softmax. None changes nothing.

    The same result up to rounding, without the half of a step's scores that the mask would throw
    away. It pays where attention is not fused, as on a CPU: numpy's exponential is vectorised,
    that of MLX's Linux wheels is not.
    """
    token = _block.set(rows)
    try:
        yield
    finally:
        _block.reset(token)


@contextmanager
def sparse_attention(blocks: Blocks | None) -> Iterator[None]:
    """Inside, plain causal attention is block-sparse: an approximation. None changes nothing.

    Attention with sinks, or under a mask that is an array, stays what it is, as does that over too
    few keys for any to be left out.
    """
    token = _sparse.set(blocks)
    try:
        yield
    finally:
        _sparse.reset(token)


def install() -> None:
    """Put both wrappers in place. Safe to call again."""
    if not hasattr(mx.fast.rope, "__wrapped__"):
        mx.fast.rope = _patched_rope(mx.fast.rope)
        mx.fast.scaled_dot_product_attention = _patched_attention(
            mx.fast.scaled_dot_product_attention
        )
        base.quantized_scaled_dot_product_attention = _patched_quantised_attention(
            base.quantized_scaled_dot_product_attention
        )


def _patched_rope(rope: Callable[..., mx.array]) -> Callable[..., mx.array]:
    @wraps(rope)
    def positioned(a: mx.array, *args: Any, offset: int | mx.array, **kwargs: Any) -> mx.array:
        positions = _positions.get()
        if positions is None:
            return rope(a, *args, offset=offset, **kwargs)
        if a.shape[0] != 1 or a.shape[-2] != positions.size:
            raise PatchError(
                f"rotary input of shape {a.shape} does not hold the {positions.size} tokens fed"
            )
        # MLX takes one offset per batch row, so the tokens become the batch for a moment.
        return rope(a.swapaxes(0, -2), *args, offset=positions, **kwargs).swapaxes(0, -2)

    return positioned


def _patched_attention(attention: Callable[..., mx.array]) -> Callable[..., mx.array]:
    @wraps(attention)
    def observing(
        q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: Any = None, **kwargs: Any
    ) -> mx.array:
        observer = _observer.get()
        if observer is not None:
            observer(q, k, scale, mask, kwargs.get("sinks"))
        enough = _should_exit.get()
        if enough is not None and enough():
            raise _EarlyExit
        block, queries, before = _block.get(), q.shape[2], k.shape[2] - q.shape[2]
        alone = q.dtype == mx.float32 and kwargs.get("sinks") is None
        seen = np.array(mask) if block is not None and alone and _is_bool_mask(mask) else None
        causal = isinstance(mask, str) and mask == "causal"
        blocks = _sparse.get()
        plain = causal and kwargs.get("sinks") is None and q.shape[0] == 1
        if blocks is not None and plain and k.shape[2] > blocks.keys + blocks.size:
            one = (
                _numpy_attention if alone and block else partial(attention, mask="causal", **kwargs)
            )
            return block_sparse.attend(q, k, v, scale, one, blocks)
        if block is None or queries == 1 or (seen is None and (not causal or queries <= block)):
            return attention(q, k, v, scale=scale, mask=mask, **kwargs)
        one = _numpy_attention if alone else partial(attention, mask="causal", **kwargs)
        parts = []
        for start in range(0, queries, block):
            end = min(start + block, queries)
            last = before + end
            if seen is not None:
                rows = seen[start:end]
                last = int(np.flatnonzero(rows.any(axis=0))[-1]) + 1
                one = partial(_numpy_attention, seen=rows[:, :last])
            parts.append(one(q[:, :, start:end], k[:, :, :last], v[:, :, :last], scale=scale))
        return mx.concatenate(parts, axis=2)

    return observing


def _patched_quantised_attention(attention: Callable[..., mx.array]) -> Callable[..., mx.array]:
    @wraps(attention)
    def unpacking(
        queries: mx.array,
        q_keys: tuple[mx.array, ...],
        q_values: tuple[mx.array, ...],
        scale: float,
        mask: Any,
        group_size: int = 64,
        bits: int = 8,
    ) -> mx.array:
        if queries.shape[2] < DEQUANTISE_FROM:
            return attention(queries, q_keys, q_values, scale, mask, group_size, bits)
        keys, values = (
            mx.dequantize(packed, scales, biases, group_size, bits)
            for packed, scales, biases in (q_keys, q_values)
        )
        return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)

    return unpacking


def _is_bool_mask(mask: Any) -> bool:
    """Whether a mask says for each query and key whether it is seen, for all heads alike."""
    return isinstance(mask, mx.array) and mask.dtype == mx.bool_ and mask.ndim == 2


def _numpy_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float,
    seen: NDArray[np.bool_] | None = None,
) -> mx.array:
    """Attention of queries (1, Hq, n, D) to those keys (1, Hk, m, D) that `seen` (n, m) says.
    Without it they stand at the end of the keys, and see those before them."""
    queries, keys = q.shape[2], k.shape[2]
    grouped = (q * scale).reshape(1, k.shape[1], -1, queries, q.shape[3])
    weights = np.array(grouped @ k[:, :, None].swapaxes(-1, -2))
    if seen is None:
        weights[..., keys - queries :] += np.triu(np.full((queries, queries), -np.inf, "f4"), 1)
    else:
        weights += np.where(seen, np.float32(0), np.float32(-np.inf))
    weights -= weights.max(axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    total = mx.array(weights.sum(axis=-1, keepdims=True))
    mixed = (mx.array(weights) @ v[:, :, None]) / total
    mx.eval(mixed)  # or the weights of all blocks of a step would wait for it together
    return mixed.reshape(1, q.shape[1], queries, v.shape[3])
