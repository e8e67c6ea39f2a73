"""Two functions of MLX, patched: rotary positions, and attention.

`install()` replaces `mx.fast.rope` and `mx.fast.scaled_dot_product_attention` by wrappers that do
exactly what the originals do until one of the context managers below is active. Every mlx-lm
architecture calls these two functions, so no per-architecture code is needed, and the model object
is never touched. mlx-lm's attention over quantised keys and values is replaced, too: for a step of
many tokens it dequantises them, so that attention is fused and no scores are written to memory.
So is the function that scales queries by their positions in ministral3 and mistral4.
Where MLX compiles kernels is made private to this user.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np
from mlx_lm.models import base, ministral3, mistral4
from numpy.typing import NDArray

from app.engine.backend import block_sparse
from app.protocol.options import Blocks

T = TypeVar("T")
Observer = Callable[[mx.array, mx.array, float, "mx.array | str | None", "mx.array | None"], None]
"""Called with queries (1, Hq, Nq, D) after rotation, keys (1, Hk, Nk, D), scale, mask, sinks."""

_positions: ContextVar[mx.array | None] = ContextVar("specchat_positions", default=None)
_observer: ContextVar[Observer | None] = ContextVar("specchat_observer", default=None)
_block: ContextVar[int | None] = ContextVar("specchat_block", default=None)
_should_exit: ContextVar[Callable[[], bool] | None] = ContextVar("specchat_exit", default=None)
_sparse: ContextVar[Blocks | None] = ContextVar("specchat_sparse", default=None)
_forced: ContextVar[frozenset[int]] = ContextVar("specchat_forced", default=frozenset())

MAX_VECTOR_QUERIES = 8
"""Queries up to which MLX has kernels of another kind, and scores are small."""
DEQUANTISE_FROM = 128
"""Tokens in a step from which on quantised keys and values are dequantised for it."""


class PatchError(RuntimeError):
    """A model calls MLX in a way that the patches do not support; the turn reads densely."""


class _EarlyExit(BaseException):
    """Ends a forward pass. Not an Exception: no model may handle it."""


@contextmanager
def _set(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def early_exit(should_exit: Callable[[], bool]) -> Iterator[None]:
    """Inside, a model's forward pass, and the block with it, ends at the first attention at which
    `should_exit()` holds: that attention is observed, but neither it nor what follows is
    computed."""
    with _set(_should_exit, should_exit), suppress(_EarlyExit):
        yield


def explicit_positions(positions: mx.array) -> AbstractContextManager[None]:
    """Inside, rotary embeddings put the N tokens of a step at `positions` (int32, shape (N,))
    instead of at a run that starts at the cache's offset."""
    return _set(_positions, positions)


def observed_attention(observer: Observer) -> AbstractContextManager[None]:
    """Inside, `observer` gets the inputs of every attention, in layer order, before it runs."""
    return _set(_observer, observer)


def blocked_attention(rows: int | None) -> AbstractContextManager[None]:
    """Inside, causal attention runs in blocks of `rows` queries, each against the keys that it can
    see, and in float32 with NumPy's softmax. None changes nothing.

    The same result up to rounding, without the half of a step's scores that the mask would discard.
    It pays where attention is not fused, as on a CPU: NumPy's exponential is vectorised, that of
    MLX's Linux wheels is not.
    """
    return _set(_block, rows)


def sparse_attention(blocks: Blocks | None) -> AbstractContextManager[None]:
    """Inside, plain causal attention is block-sparse: an approximation. None changes nothing.

    Attention with sinks, under a mask that is an array, or over too few keys to skip any is not
    changed.
    """
    return _set(_sparse, blocks)


def forced_attention(head_sizes: frozenset[int]) -> AbstractContextManager[None]:
    """Inside, attention of many queries with heads of these sizes uses MLX's fused kernel, which
    never writes its scores to memory, also where MLX would prefer to. A device without that kernel
    raises ValueError. An empty set changes nothing."""
    return _set(_forced, head_sizes)


def _compile_privately() -> None:
    """MLX's CPU backend compiles kernels into the folder for temporary files, and loads what is
    there by that name already. Where others can write to it, use a folder of this user's in it."""
    shared = Path(tempfile.gettempdir())  # which Python remembers: only MLX and children move
    if not _is_own(Path(os.environ.get("TMPDIR") or shared)):
        folder = shared / f"specchat-{os.getuid()}"
        with suppress(OSError):
            folder.mkdir(mode=0o700)
        os.environ["TMPDIR"] = str(folder) if _is_own(folder) else tempfile.mkdtemp()


def _is_own(folder: Path) -> bool:
    """Whether it is a folder that only this user can enter."""
    with suppress(OSError):
        found = folder.lstat()
        own = found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode)
        return own and not found.st_mode & 0o077
    return False


def install() -> None:
    """Put the wrappers in place. Safe to call again."""
    _compile_privately()
    if not hasattr(mx.fast.rope, "__wrapped__"):
        attention = mx.fast.scaled_dot_product_attention
        quantised_attention = base.quantized_scaled_dot_product_attention
        mx.fast.rope = _patched_rope(mx.fast.rope)
        mx.fast.scaled_dot_product_attention = _patched_attention(attention)
        base.quantized_scaled_dot_product_attention = _patched_quantised_attention(
            quantised_attention
        )
        scale = _patched_query_scale(ministral3._get_llama_4_attn_scale)
        ministral3._get_llama_4_attn_scale = mistral4._get_llama_4_attn_scale = scale


def _patched_rope(rope: Callable[..., mx.array]) -> Callable[..., mx.array]:
    @wraps(rope)
    def patched(a: mx.array, *args: Any, offset: int | mx.array, **kwargs: Any) -> mx.array:
        positions = _positions.get()
        if positions is None:
            return rope(a, *args, offset=offset, **kwargs)
        if a.shape[0] != 1 or a.shape[-2] != positions.size:
            raise PatchError(
                f"rotary input of shape {a.shape} does not hold the {positions.size} tokens fed"
            )
        # MLX takes one offset per batch row, so the tokens become the batch for a moment.
        return rope(a.swapaxes(0, -2), *args, offset=positions, **kwargs).swapaxes(0, -2)

    return patched


def _forcible(attention: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """The same, but fused where that is forced and there is a kernel for these shapes."""

    def forced(q: mx.array, k: mx.array, v: mx.array, **kwargs: Any) -> mx.array:
        many = MAX_VECTOR_QUERIES < q.shape[2] <= k.shape[2]
        if many and q.shape[3] in _forced.get() and q.shape[3] == v.shape[3]:
            kwargs["force_fused"] = True
        return attention(q, k, v, **kwargs)

    return forced


def _patched_query_scale(query_scale: Callable[..., mx.array]) -> Callable[..., mx.array]:
    @wraps(query_scale)
    def patched(size: int, offset: int | mx.array, *args: Any) -> mx.array:
        """The factors of `size` queries, (size, 1)."""
        positions = _positions.get()
        if positions is None:
            return query_scale(size, offset, *args)
        if size != positions.size:
            raise PatchError(f"{size} queries are scaled, {positions.size} tokens were fed")
        return query_scale(1, positions, *args).reshape(size, 1)  # one offset per batch row

    return patched


def _patched_attention(mlx_attention: Callable[..., mx.array]) -> Callable[..., mx.array]:
    attention = _forcible(mlx_attention)

    @wraps(mlx_attention)
    def patched(
        q: mx.array, k: mx.array, v: mx.array, *, scale: float, mask: Any = None, **kwargs: Any
    ) -> mx.array:
        sinks = kwargs.get("sinks")
        if (observer := _observer.get()) is not None:
            observer(q, k, scale, mask, sinks)
        if (should_exit := _should_exit.get()) is not None and should_exit():
            raise _EarlyExit
        block, queries, before = _block.get(), q.shape[2], k.shape[2] - q.shape[2]
        in_numpy = q.dtype == mx.float32 and sinks is None
        causal = isinstance(mask, str) and mask == "causal"
        causal_attention = partial(attention, mask="causal", **kwargs)
        blocks = _sparse.get()
        plain = causal and sinks is None and q.shape[0] == 1
        if blocks is not None and plain and k.shape[2] > blocks.keys + blocks.size:
            attention_fn = _numpy_attention if in_numpy and block else causal_attention
            return block_sparse.attend(q, k, v, scale, attention_fn, blocks)
        visible = np.array(mask) if block and in_numpy and _is_bool_mask(mask) else None
        if not block or queries == 1 or (visible is None and (not causal or queries <= block)):
            return attention(q, k, v, scale=scale, mask=mask, **kwargs)
        attention_fn = _numpy_attention if in_numpy else causal_attention
        parts = []
        for start in range(0, queries, block):
            end = min(start + block, queries)
            last = before + end
            if visible is not None:
                rows = visible[start:end]
                last = int(np.flatnonzero(rows.any(axis=0))[-1]) + 1
                attention_fn = partial(_numpy_attention, visible=rows[:, :last])
            part = attention_fn(q[:, :, start:end], k[:, :, :last], v[:, :, :last], scale=scale)
            parts.append(part)
        return mx.concatenate(parts, axis=2)

    return patched


def _patched_quantised_attention(attention: Callable[..., mx.array]) -> Callable[..., mx.array]:
    @wraps(attention)
    def patched(
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

    return patched


def _is_bool_mask(mask: Any) -> bool:
    """Whether a mask says for each query and key whether it is visible, the same for all heads."""
    return isinstance(mask, mx.array) and mask.dtype == mx.bool_ and mask.ndim == 2


def _numpy_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float,
    visible: NDArray[np.bool_] | None = None,
) -> mx.array:
    """Attention of queries (1, Hq, n, D) to the keys (1, Hk, m, D) that are `visible` (n, m).
    Without it, causal attention of queries at the end of the keys."""
    queries, keys = q.shape[2], k.shape[2]
    grouped = (q * scale).reshape(1, k.shape[1], -1, queries, q.shape[3])
    weights = np.array(grouped @ k[:, :, None].swapaxes(-1, -2))
    if visible is None:
        weights[..., keys - queries :] += np.triu(np.full((queries, queries), -np.inf, "f4"), 1)
    else:
        weights += np.where(visible, np.float32(0), np.float32(-np.inf))
    weights -= weights.max(axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    total = mx.array(weights.sum(axis=-1, keepdims=True))
    mixed = (mx.array(weights) @ v[:, :, None]) / total
    mx.eval(mixed)  # or the weights of all blocks of a step would wait for it together
    return mixed.reshape(1, q.shape[1], queries, v.shape[3])
