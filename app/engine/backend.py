"""What differs between devices, as plain values.

A model gets a backend when it is loaded. Nothing else asks for the device, so tests run on a CPU
what a GPU would run.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.protocol.memory_model import FUSED_HEAD_DIMS


@dataclass(frozen=True, slots=True)
class Backend:
    on_cpu: bool
    query_block: int | None
    """Queries per block of attention, which NumPy then computes. None: MLX computes a whole step's
    attention at once."""
    min_step: int
    """Fewest tokens fed at once, however long they take. Only a lack of memory makes it fewer."""
    fused_head_sizes: frozenset[int]
    """Head sizes for which attention over many queries never writes its scores to memory."""
    attention_slowdown: float = 1.0
    """How many times as long an operation of attention takes as one of a matrix of weights."""


CPU = Backend(
    on_cpu=True,
    query_block=64,
    min_step=32,
    fused_head_sizes=frozenset(),
    attention_slowdown=4.0,
)
"""64 queries: 0.83 of the time of a whole step of 512 (measured). Attention's operations: 3 to 5
times (SmolLM2 up to 5,122 tokens)."""
GPU = Backend(
    on_cpu=False,
    query_block=None,
    # A step reads all weights once: 32 tokens take nearly as long as 128.
    min_step=128,
    fused_head_sizes=FUSED_HEAD_DIMS,
)
