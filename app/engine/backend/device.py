"""What differs between devices, as plain values.

A model gets a backend when it is loaded. Nothing else asks for the device, so tests run on a CPU
what a GPU would run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from app.estimate.memory import FORCED_HEAD_DIMS, FUSED_HEAD_DIMS


@dataclass(frozen=True, slots=True)
class Backend:
    on_cpu: bool
    query_block: int | None
    """Queries per block of attention, which NumPy then computes. None: MLX computes a whole step's
    attention at once."""
    min_step: int
    """Fewest tokens fed at once, however long they take. Only a lack of memory makes it fewer."""
    first_step: int
    """Tokens of the first step, and of the step that memory is freed for."""
    grow_below: float
    """Seconds of a step: after a shorter one the next has twice as many tokens."""
    shrink_above: float
    """Seconds of a step: after a longer one the next has half as many tokens. More than twice
    `grow_below`, so that sizes do not alternate."""
    fused_head_sizes: frozenset[int]
    """Head sizes for which attention over many queries never writes its scores to memory."""
    forced_head_sizes: frozenset[int]
    """Head sizes for which that kernel is used only where it is asked for."""
    attention_slowdown: float = 1.0
    """How many times as long an operation of attention takes as one of a matrix of weights."""

    @property
    def uses_tf32(self) -> bool:
        """Whether float32 matrices may be multiplied with 10 bits of mantissa, as an M5 and
        NVIDIA's GPUs do unless the environment forbids it."""
        return not self.on_cpu and os.environ.get("MLX_ENABLE_TF32", "1") != "0"


CPU = Backend(
    on_cpu=True,
    query_block=64,
    min_step=32,
    first_step=256,
    grow_below=1 / 6,
    shrink_above=0.75,
    fused_head_sizes=frozenset(),
    forced_head_sizes=frozenset(),
    attention_slowdown=4.0,
)
"""64 queries: 0.83 of the time of a whole step of 512 (measured). Attention's operations: 3 to 5
times (SmolLM2 up to 5,122 tokens). Its steps aim at half a second."""
GPU = Backend(
    on_cpu=False,
    query_block=None,
    # A step reads all weights once, of a mixture all experts: small steps leave the GPU waiting.
    # mlx-lm and other programs read 2,048 tokens at once; 512 cost mixtures and small models
    # 6 to 16 % of their speed (published by Rapid-MLX).
    min_step=512,
    first_step=512,
    # macOS ends commands that keep the GPU from the screen for long.
    grow_below=2.0,
    shrink_above=5.0,
    fused_head_sizes=FUSED_HEAD_DIMS,
    forced_head_sizes=FORCED_HEAD_DIMS,
)
CUDA = replace(GPU, forced_head_sizes=frozenset())
"""Without MLX's kernels for wide heads."""
