"""Properties of devices, as plain values.

A model gets a backend when it is loaded. No other code asks for the device, so tests can run a
GPU's code on a CPU.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from app.estimate.memory import FORCED_HEAD_DIMS, FUSED_HEAD_DIMS


@dataclass(frozen=True, slots=True)
class Backend:
    on_cpu: bool
    query_block: int | None
    """Queries per block of attention, which NumPy computes. None: MLX computes a step's attention
    as a whole."""
    min_step: int
    """Minimum prefill step in tokens, regardless of speed. Only a lack of memory lowers it."""
    first_step: int
    """Tokens of the first prefill step, and of the step that memory is freed for."""
    grow_below: float
    """The step is doubled after one that took fewer seconds."""
    shrink_above: float
    """The step is halved after one that took more seconds. More than twice `grow_below`, so that
    sizes do not alternate."""
    fused_head_sizes: frozenset[int]
    """Head sizes for which prefill attention is fused: scores are never written to memory."""
    forced_head_sizes: frozenset[int]
    """Head sizes for which it is fused only if forced."""
    attention_slowdown: float = 1.0
    """Seconds per operation of attention, relative to a product with a weight matrix."""

    @property
    def uses_tf32(self) -> bool:
        """Whether float32 matrices may be multiplied in TF32 (10 bits of mantissa), the default on
        an M5 and on NVIDIA GPUs."""
        return not self.on_cpu and os.environ.get("MLX_ENABLE_TF32", "1") != "0"


CPU = Backend(
    on_cpu=True,
    query_block=64,
    # Each step reads all weights, so short steps are slow. Long ones can be cancelled in between.
    min_step=128,
    first_step=256,
    grow_below=1 / 6,
    shrink_above=0.75,
    fused_head_sizes=frozenset(),
    forced_head_sizes=frozenset(),
    attention_slowdown=4.0,
)
"""`query_block`: blocks of 64 take 0.83 of the time of a whole step of 512. `attention_slowdown`: 3
to 5 (both measured, SmolLM2 with up to 5,122 tokens). Steps aim at half a second, but are not
shorter than `min_step`."""
GPU = Backend(
    on_cpu=False,
    query_block=None,
    # A step reads all weights once (all experts of a mixture), so small steps are inefficient.
    # mlx-lm and others feed 2,048 tokens at once; with 512, mixtures and small models are 6 to 16 %
    # slower (published by Rapid-MLX).
    min_step=512,
    first_step=512,
    # macOS aborts GPU commands that block the screen for long.
    grow_below=2.0,
    shrink_above=5.0,
    fused_head_sizes=FUSED_HEAD_DIMS,
    forced_head_sizes=FORCED_HEAD_DIMS,
)
CUDA = replace(GPU, forced_head_sizes=frozenset())
"""MLX has no forced kernels for wide heads on CUDA."""
