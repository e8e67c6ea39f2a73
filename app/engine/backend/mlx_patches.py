"""Patches of MLX's rotary embedding and attention.

`install()` replaces `mx.fast.rope` and `mx.fast.scaled_dot_product_attention` by wrappers that
behave like the originals unless one of the context managers below is active. All mlx-lm
architectures call these two functions, so there is no code per architecture, and models are not
modified. Two functions of mlx-lm are replaced as well: attention over quantised keys and values,
which dequantises them for long steps so that attention is fused, and the position-dependent scale
of queries in ministral3 and mistral4. `install()` also makes MLX's kernel folder private.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np
from mlx_lm.models import base, ministral3, mistral4
from numpy.typing import NDArray
from safetensors import safe_open

from app.engine.backend import block_sparse
from app.protocol.options import Blocks

T = TypeVar("T")
Observer = Callable[[mx.array, mx.array, float, "mx.array | str | None", "mx.array | None"], None]
"""Called with queries (1, Hq, Nq, D) after rotation, keys (1, Hk, Nk, D), scale, mask, sinks."""

_positions: ContextVar[mx.array | None] = ContextVar("specchat_positions", default=None)
_rotations: ContextVar[Callable[[], None] | None] = ContextVar("specchat_rotations", default=None)
_files: ContextVar[frozenset[str] | None] = ContextVar("specchat_files", default=None)
_observer: ContextVar[Observer | None] = ContextVar("specchat_observer", default=None)
_block: ContextVar[int | None] = ContextVar("specchat_block", default=None)
_should_exit: ContextVar[Callable[[], bool] | None] = ContextVar("specchat_exit", default=None)
_sparse: ContextVar[Blocks | None] = ContextVar("specchat_sparse", default=None)
_forced: ContextVar[frozenset[int]] = ContextVar("specchat_forced", default=frozenset())

MAX_VECTOR_QUERIES = 8
"""Up to this many queries, MLX uses vector kernels, and scores are small."""
DEQUANTISE_FROM = 128
"""Steps of at least this many tokens dequantise quantised keys and values."""


class PatchError(RuntimeError):
    """A model calls MLX in an unsupported way; the turn then reads densely."""


class _EarlyExit(BaseException):
    """Ends a forward. A BaseException, so that no model handles it."""


@contextmanager
def _set(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


@contextmanager
def early_exit(should_exit: Callable[[], bool]) -> Iterator[None]:
    """Within this context, a forward ends (and the context with it) at the first attention for
    which `should_exit()` is true. That attention is observed, but not computed."""
    with _set(_should_exit, should_exit), suppress(_EarlyExit):
        yield


def explicit_positions(positions: mx.array) -> AbstractContextManager[None]:
    """Within this context, rotary embeddings place the N tokens of a step at `positions`, int32
    (N,), instead of consecutively from the cache's offset."""
    return _set(_positions, positions)


def counted_rotations(on_rotation: Callable[[], None]) -> AbstractContextManager[None]:
    """Within this context, `on_rotation` is called at every call of MLX's rotary embeddings."""
    return _set(_rotations, on_rotation)


def observed_attention(observer: Observer) -> AbstractContextManager[None]:
    """Within this context, `observer` gets the inputs of every attention, in layer order."""
    return _set(_observer, observer)


def blocked_attention(rows: int | None) -> AbstractContextManager[None]:
    """Within this context, causal attention runs in blocks of `rows` queries, each over its visible
    keys only, in float32 with NumPy's softmax (None: unchanged).

    The result is the same up to rounding, but the masked half of the scores is not computed. It is
    faster on a CPU, where attention is not fused: NumPy's exponential is vectorised, that in MLX's
    Linux wheels is not.
    """
    return _set(_block, rows)


def sparse_attention(blocks: Blocks | None) -> AbstractContextManager[None]:
    """Within this context, plain causal attention is block-sparse, an approximation (None:
    unchanged). Attention with sinks, with an array mask, or over few keys is not affected."""
    return _set(_sparse, blocks)


def forced_attention(head_sizes: frozenset[int]) -> AbstractContextManager[None]:
    """Within this context, attention of many queries with these head sizes uses MLX's fused kernel
    even if MLX would not choose it (empty: unchanged). Raises ValueError on a device without that
    kernel."""
    return _set(_forced, head_sizes)


def loading_only(files: Iterable[Path]) -> AbstractContextManager[None]:
    """Within this context, `mx.load` returns no arrays for files other than these."""
    return _set(_files, frozenset(map(str, files)))


def _patched_load(load: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(load)
    def patched(file: Any, *args: Any, **kwargs: Any) -> Any:
        files = _files.get()
        if files is not None and file not in files:
            return {}
        try:
            return load(file, *args, **kwargs)
        except RuntimeError:
            if files is None:
                raise
            # MLX refuses the whole file for one tensor of 64 bits, which becomes float32 here.
            with safe_open(file, framework="mlx") as opened:
                names = list(opened.keys())
                if all(opened.get_slice(name).get_dtype() != "F64" for name in names):
                    raise
                return {name: opened.get_tensor(name) for name in names}

    return patched


def _compile_privately() -> None:
    """Use a private folder for compiled kernels. MLX's CPU backend compiles them into the folder
    for temporary files and loads any file of that name, which another user could have put there."""
    shared = Path(tempfile.gettempdir())  # Python caches it, so only MLX and children are affected
    if not _is_private(Path(os.environ.get("TMPDIR") or shared)):
        folder = shared / f"specchat-{os.getuid()}"
        with suppress(OSError):
            folder.mkdir(mode=0o700)
        os.environ["TMPDIR"] = str(folder) if _is_private(folder) else tempfile.mkdtemp()


def _is_private(folder: Path) -> bool:
    """Whether only this user can enter the folder."""
    with suppress(OSError):
        found = folder.lstat()
        is_private = found.st_uid == os.getuid() and stat.S_ISDIR(found.st_mode)
        return is_private and not found.st_mode & 0o077
    return False


def install() -> None:
    """Install the wrappers. Idempotent."""
    _compile_privately()
    if not hasattr(mx.fast.rope, "__wrapped__"):
        attention = mx.fast.scaled_dot_product_attention
        quantised_attention = base.quantized_scaled_dot_product_attention
        mx.fast.rope = _patched_rope(mx.fast.rope)
        mx.load = _patched_load(mx.load)
        mx.fast.scaled_dot_product_attention = _patched_attention(attention)
        base.quantized_scaled_dot_product_attention = _patched_quantised_attention(
            quantised_attention
        )
        scale = _patched_query_scale(ministral3._get_llama_4_attn_scale)
        ministral3._get_llama_4_attn_scale = mistral4._get_llama_4_attn_scale = scale


def _patched_rope(rope: Callable[..., mx.array]) -> Callable[..., mx.array]:
    @wraps(rope)
    def patched(a: mx.array, *args: Any, offset: int | mx.array, **kwargs: Any) -> mx.array:
        if (on_rotation := _rotations.get()) is not None:
            on_rotation()
        positions = _positions.get()
        if positions is None:
            return rope(a, *args, offset=offset, **kwargs)
        if a.shape[0] != 1 or a.shape[-2] != positions.size:
            raise PatchError(
                f"rotary input of shape {a.shape} does not hold the {positions.size} tokens fed"
            )
        # MLX takes one offset per batch row, so make the tokens the batch.
        return rope(a.swapaxes(0, -2), *args, offset=positions, **kwargs).swapaxes(0, -2)

    return patched


def _forcible(attention: Callable[..., mx.array]) -> Callable[..., mx.array]:
    """Wrap attention to pass `force_fused` as set by `forced_attention`."""

    def forced(q: mx.array, k: mx.array, v: mx.array, **kwargs: Any) -> mx.array:
        is_long = MAX_VECTOR_QUERIES < q.shape[2] <= k.shape[2]
        if is_long and q.shape[3] in _forced.get() and q.shape[3] == v.shape[3]:
            kwargs["force_fused"] = True
        return attention(q, k, v, **kwargs)

    return forced


def _patched_query_scale(query_scale: Callable[..., mx.array]) -> Callable[..., mx.array]:
    @wraps(query_scale)
    def patched(size: int, offset: int | mx.array, *args: Any) -> mx.array:
        """The scale of `size` queries, (size, 1)."""
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
    """Whether a mask is bool (queries, keys), the same for all heads."""
    return isinstance(mask, mx.array) and mask.dtype == mx.bool_ and mask.ndim == 2


def _numpy_attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float,
    visible: NDArray[np.bool_] | None = None,
) -> mx.array:
    """Attention of queries (1, Hq, n, D) to keys (1, Hk, m, D) where `visible` (n, m) is True. By
    default causal, with the queries as the last positions of the keys."""
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
    mx.eval(mixed)  # otherwise the weights of all blocks would be alive at once
    return mixed.reshape(1, q.shape[1], queries, v.shape[3])
