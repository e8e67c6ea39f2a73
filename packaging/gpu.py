"""Prints what MLX computes on, and fails if that is no GPU, or one that computes wrong results.

.venv/bin/python packaging/gpu.py
"""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import metadata

import mlx.core as mx
import numpy as np

MAX_ERROR = 1e-2
"""Relative. A broken driver returns zeros, or nothing like a product."""


def main() -> int:
    if sys.platform == "darwin":
        names = ["machdep.cpu.brand_string", "hw.memsize", "hw.ncpu"]
        print(subprocess.run(["sysctl", *names], capture_output=True, text=True).stdout, end="")
    print(platform.platform(), "· MLX", metadata.version("mlx"))
    for name, value in sorted(mx.device_info().items()):
        print(f"{name}: {value}")
    print(f"default device: {mx.default_device()}")
    if mx.default_device().type != mx.DeviceType.gpu:
        print("failed: MLX's default device is no GPU")
        return 1
    left, right = np.random.default_rng(0).random((2, 256, 256), np.float32)
    product, expected = np.array(mx.array(left) @ mx.array(right)), left @ right
    error = float(np.linalg.norm(product - expected) / np.linalg.norm(expected))
    print(f"error of a product: {error:.1e}")
    if not error < MAX_ERROR:
        print("failed: the GPU computes wrong results")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
