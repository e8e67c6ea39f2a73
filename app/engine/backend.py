"""What a device wants done in its own way, as plain values.

A model is given a backend when it is loaded. Nothing else asks for the device, so that tests run on
a CPU what a GPU would.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backend:
    on_cpu: bool
    query_block: int | None
    """Queries per block of attention, which NumPy computes then. None: MLX attends to a whole step
    at once."""
    min_step: int
    """Tokens fed at once at least, however slow that is. Only memory makes it fewer."""
    fused_head_sizes: frozenset[int]
    """Widths of heads for which attention over many queries never writes its scores down."""


CPU = Backend(on_cpu=True, query_block=64, min_step=32, fused_head_sizes=frozenset())
"""64 queries: 0.83 of the time of a whole step of 512 (measured)."""
GPU = Backend(
    on_cpu=False,
    query_block=None,
    # A step reads all weights once: 32 tokens take nearly as long as 128 do.
    min_step=128,
    # MLX 0.32.2, mlx/backend/metal/scaled_dot_product_attention.cpp: `has_fused_kernel` also has
    # 192 and 256, but `use_fallback` computes those unfused, as faster.
    fused_head_sizes=frozenset({64, 72, 80, 96, 128}),
)
