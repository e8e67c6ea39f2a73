"""Measures the sparse probe's errors due to rounding; prints the table in
`app/engine/model/findings.py`.

Imitates a GPU's rounding on a CPU: products of several rows are rounded differently from those of a
single row. In TF32, which an M5 and NVIDIA GPUs use for float32 unless `MLX_ENABLE_TF32=0`, inputs
have 10 bits of mantissa. In bfloat16 and float16, each result is off by up to one unit in the last
place, because the order of a sum decides how it is rounded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model

from app.engine.backend import mlx_patches
from app.engine.model import findings
from tests.tiny import ORACLE, build

DTYPES = {"float32": mx.float32, "TF32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
UNITS = {mx.bfloat16: 2**-8, mx.float16: 2**-11}
"""One unit in the last place, for numbers slightly above 1."""
PRODUCTS = {"matmul": 0, "gather_mm": 0, "addmm": 1, "quantized_matmul": 0, "gather_qmm": 0}
"""MLX's matrix products, with the index of the argument that has the rows."""
SEEDS = 4
NO_ROPE = ("nemotron_h",)
WRONG = {"gpt2": 512}
"""Architectures that the probe must reject, and their context."""


def tf32(a: mx.array) -> mx.array:
    """Round float32 to 10 bits of mantissa."""
    return ((a.view(mx.uint32) + 0x1000) & 0xFFFFE000).view(mx.float32)


def _product(
    function: Callable[..., mx.array], dtype: mx.Dtype, first: int
) -> Callable[..., mx.array]:
    def multiply(*args: Any, **kwargs: Any) -> mx.array:
        several = args[first].size > args[first].shape[-1]
        full = [_widened(each) for each in args]  # a CPU lacks some of them in other types
        if several and dtype == mx.float32:
            pair = slice(first, first + 2)
            full[pair] = [tf32(x) if x.dtype == mx.float32 else x for x in full[pair]]
        result = function(*full, **kwargs)
        if several and dtype != mx.float32:
            result = result * (1 + UNITS[dtype] * mx.random.uniform(-1, 1, result.shape))
        return result.astype(dtype)

    return multiply


def _widened(value: Any) -> Any:
    is_float = isinstance(value, mx.array) and mx.issubdtype(value.dtype, mx.floating)
    return value.astype(mx.float32) if is_float else value


@contextmanager
def as_on_a_gpu(dtype: mx.Dtype) -> Iterator[None]:
    """Context manager: products are rounded this way."""
    multiply, attention = mx.array.__matmul__, mx.fast.scaled_dot_product_attention
    before = {name: getattr(mx, name) for name in PRODUCTS}

    def attend(q: mx.array, k: mx.array, v: mx.array, **kwargs: Any) -> mx.array:
        if q.dtype == mx.float32 and q.shape[2] > 1:
            q, k, v = tf32(q), tf32(k), tf32(v)
        return attention(q, k, v, **kwargs)

    mx.array.__matmul__ = _product(multiply, dtype, 0)  # type: ignore[method-assign]
    mx.fast.scaled_dot_product_attention = attend
    for name, first in PRODUCTS.items():
        setattr(mx, name, _product(before[name], dtype, first))
    try:
        yield
    finally:
        mx.array.__matmul__ = multiply  # type: ignore[method-assign]
        mx.fast.scaled_dot_product_attention = attention
        for name, function in before.items():
            setattr(mx, name, function)


def errors(model: Any, precision: str, context: int = 4096) -> tuple[float, float]:
    """The probe's error with gaps and without."""
    gapped = findings.sparse_positions(model, context)
    plain = np.arange(len(gapped), dtype=np.int32)
    with as_on_a_gpu(DTYPES[precision]) if precision != "float32" else nullcontext():
        found = [findings.probe_error(model, each, model) for each in (gapped, plain)]
    return found[0], found[1]


@contextmanager
def positions_lost() -> Iterator[None]:
    """Context manager: rotary embeddings ignore explicit positions, as if a model did not use MLX's
    function."""
    explicit = mlx_patches.explicit_positions
    mlx_patches.explicit_positions = lambda positions: nullcontext()
    try:
        yield
    finally:
        mlx_patches.explicit_positions = explicit


def main(folders: list[str]) -> None:
    """A line for each precision: the largest errors of correct models with gaps and without, and
    the smallest error of wrong ones."""
    mlx_patches.install()
    print(f"{'':10}{'with gaps':>12}{'without':>12}{'wrong':>12}{'tolerance':>12}")
    for precision, dtype in DTYPES.items():
        right, wrong = list[tuple[float, float]](), list[float]()
        for name, seed in product((*ORACLE, *WRONG), range(SEEDS)):
            model = build(name, seed, dtype)
            if name in WRONG:
                wrong.append(errors(model, precision, WRONG[name])[0])
                continue
            right.append(errors(model, precision))
            if name not in NO_ROPE:
                with positions_lost():
                    wrong.append(errors(model, precision)[0])
        for folder in folders:
            model, _ = load_model(Path(folder))
            model.set_dtype(dtype)
            right.append(errors(model, precision))
        gapped, plain = np.array(right).max(axis=0)
        tolerance = findings.TOLERANCES[precision]
        print(f"{precision:10}{gapped:12.1e}{plain:12.1e}{min(wrong):12.1e}{tolerance:12}")


if __name__ == "__main__":
    main(sys.argv[1:])
