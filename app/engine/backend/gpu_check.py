"""Whether MLX computes rightly on this GPU, and as fast as this GPU can.

Builds of MLX differ. One that a broken compiler made multiplies wrongly, without an error (MLX's
issue 3586: Xcode 26.5 on M5). One without kernels for the neural accelerators took 3.8 times as
long (published, of a build of Homebrew's). The macOS calls were never run on a Mac.
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
"""The product is of (ROWS, WIDTH) and (WIDTH, WIDTH)."""
MAX_ERROR = 0.01
"""Largest error of a row, as a share of its norm. Rounding to bfloat16 makes 0.0017 (measured on a
CPU), a wrong row 1 or more."""
MIN_SPEEDUP = 2.0
"""How many times as fast bfloat16 is as float32 with neural accelerators, at least: float32
does not use them here. Published: 4; 1 to 1.3 without."""
NAX_SYSTEM = (26, 2)
"""The first macOS on which MLX uses neural accelerators."""
NAX_GENERATION, NAX_GENERATION_PHONE = 17, 18
"""The first generations of GPUs with neural accelerators: M5, and those whose architecture's name
ends in p (`is_nax_available` in MLX)."""
NAX_KERNEL = b"steel_gemm_fused_nax"


class Origin(StrEnum):
    """Where an installed MLX comes from."""

    WHEEL = "wheel from PyPI"
    HOMEBREW = "built by Homebrew"
    CONDA = "built by conda"
    SOURCE = "built from source"


@dataclass(frozen=True, slots=True)
class Build:
    """An installed MLX. `tag` is its wheel's platform, such as macosx_26_0_arm64, if known."""

    version: str
    origin: Origin
    tag: str = ""
    has_nax: bool | None = None
    """Whether it has kernels for neural accelerators; None if that is unknown."""


@dataclass(frozen=True, slots=True)
class Device:
    """What MLX computes on. `architecture` is as MLX reports it, on a Mac such as applegpu_g17s."""

    name: str
    architecture: str
    on_cpu: bool
    macos: tuple[int, ...] | None = None
    """The system's version, on a Mac."""

    @property
    def has_accelerators(self) -> bool:
        """Whether the chip has neural accelerators."""
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
    """A bfloat16 product: how far it is from the CPU's, as a share of the worst row's norm, and the
    seconds that it and the same product in float32 take."""

    error: float
    seconds: float
    float32_seconds: float

    @property
    def rate(self) -> float:
        """Operations a second."""
        return 2 * ROWS * WIDTH**2 / self.seconds

    @property
    def speedup(self) -> float:
        """How many times as fast bfloat16 is as float32."""
        return self.float32_seconds / self.seconds


class GpuProbe:
    """This machine's."""

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
        """None where MLX computes on the CPU: that is what it would be compared with. Raises what
        MLX raises."""
        return None if self.device().on_cpu else multiply()


def exact_float32() -> None:
    """Let MLX's float32 products be exact, and so not use neural accelerators. Before the process's
    first product."""
    os.environ["MLX_ENABLE_TF32"] = "0"


def multiply() -> Product:
    """The product on MLX's default device and, in NumPy, on the CPU."""
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
    """The largest distance between two rows, as a share of the expected one's norm."""
    distances = np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return float(distances.max())  # NaN if one is


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
    """What an installation's metadata tell. `find` is `metadata.distribution`; `libraries` are the
    files with its Metal kernels."""
    try:
        mlx = find("mlx")
    except metadata.PackageNotFoundError:
        return Build("unknown", Origin.SOURCE, has_nax=_has_nax(libraries))
    return Build(mlx.version, _origin(mlx, find), _tag(mlx, find), _has_nax(libraries))


BACKENDS = ("mlx-metal", "mlx-cpu", "mlx-cuda-13", "mlx-cuda-12")
"""Only releases are split in two wheels, of which one is for the device (MLX's `setup.py`)."""


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
    """The files with MLX's Metal kernels."""
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
