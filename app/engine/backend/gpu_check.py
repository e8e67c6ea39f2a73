"""Checks that MLX computes correctly on this GPU, and as fast as the GPU allows.

Builds of MLX differ. Compiled with a broken compiler, it multiplies wrongly without any error (MLX
issue 3586: Xcode 26.5 on M5). Built without kernels for the neural accelerators, it was 3.8 times
slower (published, for Homebrew's build). The macOS calls were never run on a Mac.
"""

from __future__ import annotations

import mmap
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]
ROWS, WIDTH = 1024, 4096
"""Shapes of the test product: (ROWS, WIDTH) and (WIDTH, WIDTH)."""
MAX_ERROR = 0.01
"""Maximum error of a row relative to its norm. Rounding to bfloat16 gives 0.0017 (measured on a
CPU), a wrong row 1 or more."""
MIN_SPEEDUP = 2.0
"""Minimum speedup of bfloat16 over float32 with neural accelerators, which float32 does not use
here. Published: 4 with accelerators, 1 to 1.3 without."""
NAX_SYSTEM = (26, 2)
"""The first macOS on which MLX uses neural accelerators."""
NAX_GENERATION, NAX_GENERATION_PHONE = 17, 18
"""First GPU generations with neural accelerators: M5, and architectures whose name ends in p
(`is_nax_available` in MLX)."""
NAX_KERNEL = b"steel_gemm_fused_nax"


class Origin(StrEnum):
    """The source of an installed MLX."""

    WHEEL = "wheel from PyPI"
    HOMEBREW = "built by Homebrew"
    CONDA = "built by conda"
    SOURCE = "built from source"


@dataclass(frozen=True, slots=True)
class Build:
    """An installed MLX. `tag`: platform of its wheel, such as macosx_26_0_arm64, if known."""

    version: str
    origin: Origin
    tag: str = ""
    has_nax: bool | None = None
    """Whether it has kernels for neural accelerators; None if unknown."""


@dataclass(frozen=True, slots=True)
class Device:
    """MLX's device. `architecture`: as reported by MLX, on a Mac for example applegpu_g17s."""

    name: str
    architecture: str
    on_cpu: bool
    macos: tuple[int, ...] | None = None
    """The version of macOS; None on other systems."""

    @property
    def has_accelerators(self) -> bool:
        found = re.match(r"applegpu_g(\d+)(\w*)", self.architecture)
        if found is None:
            return False
        first = NAX_GENERATION_PHONE if found[2].endswith("p") else NAX_GENERATION
        return int(found[1]) >= first

    @property
    def can_use_accelerators(self) -> bool:
        return self.has_accelerators and self.macos is not None and self.macos >= NAX_SYSTEM


@dataclass(frozen=True, slots=True)
class Product:
    """A measured bfloat16 product: `error` of the worst row compared with the CPU, relative to the
    row's norm; `seconds` of it and of the same product in float32."""

    error: float
    seconds: float
    float32_seconds: float

    @property
    def rate(self) -> float:
        """Operations per second."""
        return 2 * ROWS * WIDTH**2 / self.seconds

    @property
    def speedup(self) -> float:
        """Speed of bfloat16 relative to float32."""
        return self.float32_seconds / self.seconds


class GpuProbe:
    """Reports this machine's device and MLX, and runs the test product."""

    def device(self) -> Device:
        info = mx.device_info()
        on_cpu = mx.default_device().type == mx.DeviceType.cpu
        name, architecture = (
            str(info.get(key, "unknown")) for key in ("device_name", "architecture")
        )
        macos = platform.mac_ver()[0] if sys.platform == "darwin" else ""
        version = tuple(map(int, re.findall(r"\d+", macos))) or None
        return Device(name, architecture, on_cpu, version)

    def build(self) -> Build:
        return installed_build(metadata.distribution, metal_libraries())

    def multiply(self) -> Product | None:
        """Run the test product; None if MLX computes on the CPU, so that there is nothing to
        compare. Raises what MLX raises."""
        return None if self.device().on_cpu else multiply()


def exact_float32() -> None:
    """Make MLX's float32 products exact, without neural accelerators. Call it before the first
    product of the process."""
    os.environ["MLX_ENABLE_TF32"] = "0"


def multiply() -> Product:
    """Run the test product on MLX's default device and, with NumPy, on the CPU."""
    random = np.random.default_rng(0)
    left, right = (
        mx.array(random.standard_normal((rows, WIDTH), np.float32)).astype(mx.bfloat16)
        for rows in (ROWS, WIDTH)
    )
    exact_left, exact_right = left.astype(mx.float32), right.astype(mx.float32)
    found = np.array((left @ right).astype(mx.float32))
    expected = np.array(exact_left) @ np.array(exact_right)
    error = row_error(found, expected)
    return Product(error, _best(lambda: left @ right), _best(lambda: exact_left @ exact_right))


def row_error(found: Matrix, expected: Matrix) -> float:
    """Maximum distance between rows (n, width), relative to the expected row's norm."""
    distances = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return float(distances.max())  # NaN if any is NaN


def _best(make: Callable[[], mx.array]) -> float:
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        mx.eval(make())
        seconds.append(time.perf_counter() - start)
    return min(seconds)


# --------------------------------------------------------------------------- where MLX comes from


def installed_build(
    find: Callable[[str], metadata.Distribution], libraries: tuple[Path, ...] = ()
) -> Build:
    """The build according to the package metadata. `find` is `metadata.distribution`; `libraries`
    are the files with MLX's Metal kernels."""
    try:
        mlx = find("mlx")
    except metadata.PackageNotFoundError:
        return Build("unknown", Origin.SOURCE, has_nax=_has_nax(libraries))
    return Build(mlx.version, _origin(mlx, find), _tag(mlx, find), _has_nax(libraries))


BACKENDS = ("mlx-metal", "mlx-cpu", "mlx-cuda-13", "mlx-cuda-12")
"""Wheels with the device's backend; only releases are split this way (MLX's `setup.py`)."""


def _backend(find: Callable[[str], metadata.Distribution]) -> metadata.Distribution | None:
    for name in BACKENDS:
        try:
            return find(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def _origin(mlx: metadata.Distribution, find: Callable[[str], metadata.Distribution]) -> Origin:
    if (mlx.read_text("INSTALLER") or "").strip() == "conda":
        return Origin.CONDA
    place = str(mlx.locate_file("")).lower()
    if _backend(find) is None:
        return Origin.HOMEBREW if "homebrew" in place or "cellar" in place else Origin.SOURCE
    is_release = mlx.read_text("direct_url.json") is None and not re.search(r"\+|dev", mlx.version)
    return Origin.WHEEL if is_release else Origin.SOURCE


def _tag(mlx: metadata.Distribution, find: Callable[[str], metadata.Distribution]) -> str:
    found = re.search(r"^Tag: .*-(\S+)$", (_backend(find) or mlx).read_text("WHEEL") or "", re.M)
    return found[1] if found else ""


def metal_libraries() -> tuple[Path, ...]:
    folder = Path(mx.__file__).parent
    near = [*folder.glob("*.metallib"), *folder.glob("lib/*.metallib")]
    return tuple(near)


def _has_nax(libraries: tuple[Path, ...]) -> bool | None:
    found = None
    for library in libraries:
        if not library.stat().st_size:
            continue
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as m:
            found = bool(found) or m.find(NAX_KERNEL) >= 0
    return found
