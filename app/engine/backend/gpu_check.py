"""Checks that MLX computes correctly on this GPU. Compiled with a broken compiler, it multiplies
wrongly without any error (MLX issue 3586: Xcode 26.5 on M5).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]
ROWS, WIDTH = 1024, 4096
"""Shapes of the test product: (ROWS, WIDTH) and (WIDTH, WIDTH)."""
MAX_ERROR = 0.01
"""Maximum error of a row relative to its norm. Rounding to bfloat16 gives 0.0017 (measured on a
CPU), a wrong row 1 or more."""


@dataclass(frozen=True, slots=True)
class Product:
    """A measured bfloat16 product: `error` of the worst row compared with the CPU, relative to the
    row's norm, and the `seconds` that it took."""

    error: float
    seconds: float

    @property
    def rate(self) -> float:
        """Operations per second."""
        return 2 * ROWS * WIDTH**2 / self.seconds


def multiply() -> Product:
    """Run the test product on MLX's default device and, with NumPy, on the CPU. Raises what MLX
    raises."""
    random = np.random.default_rng(0)
    left, right = (
        mx.array(random.standard_normal((rows, WIDTH), np.float32)).astype(mx.bfloat16)
        for rows in (ROWS, WIDTH)
    )
    found = np.array((left @ right).astype(mx.float32))
    expected = np.array(left.astype(mx.float32)) @ np.array(right.astype(mx.float32))
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        mx.eval(left @ right)
        seconds.append(time.perf_counter() - start)
    return Product(row_error(found, expected), min(seconds))


def row_error(found: Matrix, expected: Matrix) -> float:
    """Maximum distance between rows (n, width), relative to the expected row's norm."""
    distances = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return float(distances.max())  # NaN if any is NaN
