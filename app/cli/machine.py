"""The machine that measurements ran on, in one line."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

import psutil

from app.engine.backend import blas


def machine() -> str:
    """Processor, cores, memory, system, MLX's version and device, and the BLAS in use."""
    library = blas.load_openblas()  # before mlx, or it has no effect
    import mlx.core as mx

    device = mx.device_info().get("device_name", platform.machine())
    memory = psutil.virtual_memory().total / 2**30
    parts = [
        f"{device}, {os.cpu_count()} cores, {memory:.0f} GiB",
        f"{platform.system()}, Python {platform.python_version()}",
        f"mlx {version('mlx')} on {mx.default_device().type.name}, mlx-lm {version('mlx-lm')}",
    ]
    if mx.default_device().type == mx.DeviceType.cpu:
        parts.append(f"BLAS {os.path.basename(library) if library else 'of mlx'}")
    return "; ".join(parts)
