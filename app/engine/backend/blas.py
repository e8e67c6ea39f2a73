"""A fast BLAS for MLX on a Linux CPU.

MLX's Linux wheels include a reference BLAS. If OpenBLAS is loaded with global symbols before MLX,
MLX's matrix products use it: 6.5 -> 233 GFLOP/s in float32 (measured).
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import time
from functools import cache
from pathlib import Path

LIBRARY = "libopenblas.so.0"
PACKAGE = "libopenblas0-pthread"
"""The Debian and Ubuntu package that contains it."""
KERNELS = {
    "SKYLAKEX": {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"},
    "HASWELL": {"avx2", "fma"},
}
"""OpenBLAS kernels for x86-64, fastest first, with the CPU flags that they need."""


def load_openblas() -> str | None:
    """Load OpenBLAS if it is installed. Returns the path of the library in use, or None; always
    None on macOS, where MLX uses Apple's BLAS. Call it before the first import of MLX: later calls
    load nothing."""
    if sys.platform != "linux":
        return None
    if "mlx.core" not in sys.modules:
        _choose_kernels()
        try:
            ctypes.CDLL(LIBRARY, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            return None
    return _loaded_library()


def _choose_kernels(cpu_info: Path = Path("/proc/cpuinfo")) -> None:
    """Choose OpenBLAS's kernels. For CPUs newer than itself it would use those of 2004, which makes
    a prefill 3.2 times slower (measured). OPENBLAS_CORETYPE overrides the choice."""
    try:
        found = re.search("^flags.*", cpu_info.read_text(), re.MULTILINE)
    except OSError:
        return
    flags = set(found[0].split()) if found else set()
    for kernels, needed in KERNELS.items():
        if needed <= flags:
            os.environ.setdefault("OPENBLAS_CORETYPE", kernels)


def missing_package(on_cpu: bool) -> str | None:
    """The package to install for a fast CPU backend, or None if nothing is missing."""
    if sys.platform != "linux" or not on_cpu or load_openblas() is not None:
        return None
    return PACKAGE


def _loaded_library() -> str | None:
    """The path of the OpenBLAS mapped into this process. NumPy's private copy has another name."""
    try:
        maps = Path("/proc/self/maps").read_text(errors="replace")
    except OSError:
        return None
    paths = (slash + path for _, slash, path in (line.partition("/") for line in maps.split("\n")))
    return next((each for each in paths if Path(each).name.startswith("libopenblas")), None)


@cache
def matrix_rate(size: int = 1024) -> float:
    """Operations per second of a `size` x `size` float32 matrix product, best of 3."""
    import mlx.core as mx

    a, b = mx.random.normal((size, size)), mx.random.normal((size, size))
    mx.eval(a, b, a @ b)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        mx.eval(a @ b)
        seconds.append(time.perf_counter() - start)
    return 2 * size**3 / min(seconds)
