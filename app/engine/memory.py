"""What is free, and what a plan will cost. Bytes throughout."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import mlx.core as mx
import psutil
from mlx.utils import tree_flatten
from mlx_lm.models.cache import RotatingKVCache

from app.engine.backend import Backend
from app.engine.caches import Cache, WindowedCache
from app.engine.memory_probes import available, ceiling
from app.engine.mlx_patches import DEQUANTISE_FROM
from app.engine.score_blocks import scoring_bytes
from app.protocol.memory import MemoryStats, format_bytes

BUFFER_CACHE_SHARE = 1 / 16
"""Of the ceiling, what may lie idle in MLX's buffer cache between two steps."""
SMALLEST_STEP, LARGEST_STEP = 32, 2048
"""Tokens fed at once."""
BUDGET_SHARE = 0.9
"""Of the ceiling, what a plan may take: what is foretold may be off by some percent, and the ladder
parks the draft from there on."""


class NotEnoughMemory(RuntimeError):
    """`what` (the beginning of a sentence) needs so many bytes, and so many are free. `advice` says
    what would fit, and `excess` by how many tokens the prompt is too long to be read in full."""

    def __init__(self, what: str, needed: float, free: float, advice: str = "") -> None:
        there = format_bytes(max(free, 0))
        super().__init__(f"{what} needs about {format_bytes(needed)}, and {there} is free")
        self.advice = advice
        self.excess = 0


def memory_stats() -> MemoryStats:
    """The machine's and MLX's memory now."""
    system = psutil.virtual_memory()
    return MemoryStats(
        total=system.total,
        available=available(),
        process=psutil.Process().memory_info().rss,
        active=mx.get_active_memory(),
        cached=mx.get_cache_memory(),
        peak=mx.get_peak_memory(),
        ceiling=ceiling(),
    )


def set_limits() -> None:
    """Tell MLX the ceiling, where that is less than it has set itself. Never `set_wired_limit`: it
    is the best-attributed trigger of the IOGPU kernel panic (mlx issue 3186)."""
    most = ceiling()
    for set_limit, limit in (
        (mx.set_memory_limit, most),
        (mx.set_cache_limit, int(most * BUFFER_CACHE_SHARE)),
    ):
        if (before := set_limit(limit)) < limit:
            set_limit(before)


def free() -> float:
    """How many more bytes a plan may take."""
    return free_within(BUDGET_SHARE)


def free_within(share: float) -> float:
    """How many more bytes there are within this share of the ceiling."""
    return min(available() + mx.get_cache_memory(), ceiling() * share - mx.get_active_memory())


def trim_buffer_cache() -> None:
    """Give buffers that MLX holds for reuse back to the system, once they are many.

    Doing it after every step would make the next step fetch the same memory again, page by page.
    """
    if mx.get_cache_memory() > ceiling() * BUFFER_CACHE_SHARE:
        mx.clear_cache()


@dataclass(frozen=True, slots=True)
class CacheSize:
    """What a model's cache takes: `growing` bytes for every token; for the last ones of them
    `windowed` bytes besides, up to `window` bytes: windows and what is slow to leave them. The
    `largest` layer takes so many for a token: there is another of it for a moment when its buffer
    grows."""

    bytes_per_token: float
    max_window_bytes: float
    window_bytes_per_token: float = 0.0
    largest_layer_bytes: float = 0.0

    @classmethod
    def of(cls, cache: Cache) -> CacheSize:
        """Read off a model's own cache in use. Rows are counted, since buffers are longer than what
        they hold."""
        flat = [part for c in cache for part in getattr(c, "caches", (c,))]
        windowed = [c for c in flat if isinstance(c, RotatingKVCache)]
        growing = [_row_bytes(c) for c in flat if c not in windowed]
        return cls(
            bytes_per_token=sum(growing),
            max_window_bytes=sum(
                _row_bytes(c) * (c.max_size + WindowedCache.slack) for c in windowed
            ),
            window_bytes_per_token=sum(_row_bytes(c) for c in windowed),
            largest_layer_bytes=max(growing, default=0.0),
        )

    def bytes(self, tokens: int, keep_evicted: bool = False) -> float:
        """For a prompt of that many tokens. With `retained`, nothing falls out of a window."""
        windowed = self.window_bytes_per_token * tokens
        return self.bytes_per_token * tokens + (
            windowed if keep_evicted else min(windowed, self.max_window_bytes)
        )


@dataclass(frozen=True, slots=True)
class Transient:
    """What one step of reading takes for a moment, beside weights and caches: the scores of one
    layer, `copies` times, of at most `rows` of the step's tokens at once, and what is alive of all
    of them, `active` numbers for each. A number has `element` bytes."""

    heads: int
    activations_per_token: int
    element_size: int
    score_copies: int
    """0 where attention is fused: then scores are never written down."""
    rows: int = LARGEST_STEP
    on_cpu: bool = False
    head_dim: int = 0
    """Of a head."""
    dequantised_per_token: int = 0
    """Where keys and values are quantised: how many numbers of a token one layer keeps. Larger
    steps dequantise them; in smaller ones scores, masked ones and probabilities are written."""

    @classmethod
    def of(
        cls, config: dict[str, Any], element: int, quantised: bool, sinks: bool, backend: Backend
    ) -> Transient:
        """From a configuration (the text part). Latent attention and the like are taken for plain
        attention of the same number of heads."""
        hidden = _whole(config, "hidden_size", "n_embd", "d_model")
        heads = _whole(config, "num_attention_heads", "n_head", "n_heads")
        width = _whole(config, "head_dim") or hidden // max(heads, 1)
        inner = _whole(config, "intermediate_size", "moe_intermediate_size") or 4 * hidden
        active = 4 * hidden + 3 * inner + 3 * heads * width
        if quantised:
            keys = _whole(config, "num_key_value_heads") or heads
            plain = cls.of(config, element, False, sinks, backend)
            return replace(plain, dequantised_per_token=2 * keys * width)
        make = partial(cls, heads, active, on_cpu=backend.on_cpu, head_dim=width)
        if (
            backend.query_block
        ):  # for MLX, NumPy, and back; block-sparse: twice the rows, far fewer keys
            return make(4, 3, LARGEST_STEP if sinks else backend.query_block)
        if width in backend.fused_head_sizes:
            return make(element, 0)
        # A sink is one column more: scores are copied to make room for it, and back.
        return make(element, 3 if sinks else 1)

    def bytes(self, step: int, context: int) -> float:
        """For a step of so many tokens, which see `seen` tokens with themselves."""
        scores = self.score_copies * self.heads * min(step, self.rows) * context
        if self.dequantised_per_token:
            unpacked = step >= DEQUANTISE_FROM
            scores = (
                scores + self.dequantised_per_token * context
                if unpacked
                else 3 * self.heads * step * context
            )
        return float(self.element_size * (scores + self.activations_per_token * step))

    def scoring(self, tokens: int) -> float:
        """For the draft's scores of so many tokens."""
        return float(scoring_bytes(tokens, self.heads, self.head_dim))

    def largest_step(self, available: float, context: int) -> int:
        """The largest step, a power of two, that fits into `room`; the smallest one if none."""
        sizes = [1 << n for n in range(SMALLEST_STEP.bit_length() - 1, LARGEST_STEP.bit_length())]
        fitting = [size for size in sizes if self.bytes(size, context) <= available]
        return max(fitting, default=SMALLEST_STEP)


NO_TRANSIENT = Transient(0, 0, 0, 0)
"""Of a model without a configuration: nothing is foretold."""


def attention_cost_ratio(config: dict[str, Any], parameters: int) -> float:
    """From a configuration (the text part): what attending to one token takes, as a share of what a
    token takes in the weights. Every layer is taken for one of full attention."""
    layers = _whole(config, "num_hidden_layers", "n_layer", "n_layers")
    heads = _whole(config, "num_attention_heads", "n_head", "n_heads")
    hidden = _whole(config, "hidden_size", "n_embd", "d_model")
    width = _whole(config, "head_dim") or hidden // max(heads, 1)
    return 2 * layers * heads * width / max(parameters, 1)


def _whole(config: dict[str, Any], *names: str) -> int:
    value = next((config[name] for name in names if config.get(name)), 0)
    return value if isinstance(value, int) else 0


def _row_bytes(cache: Any) -> float:
    stored = (getattr(cache, "keys", None), getattr(cache, "values", None))
    leaves: list[tuple[str, Any]] = tree_flatten(stored)  # type: ignore[assignment]
    return sum(a.nbytes / a.shape[-2] for _, a in leaves if isinstance(a, mx.array))


def check_fits(what: str, needed: float) -> None:
    """Raise NotEnoughMemory unless `needed` more bytes are to be had."""
    if needed > (there := free()):
        raise NotEnoughMemory(what, needed, there)


OOM_MESSAGES = (
    "out of memory",  # CUDA, and Python's own C code
    "outofmemory",  # Metal's kIOGPUCommandBufferCallbackErrorOutOfMemory: never translated
    "out_of_memory",  # names of CUDA's codes
    "insufficient memory",  # Metal, when a command buffer fails
    "unable to allocate",  # [malloc], on every device; NumPy
    "cannot allocate memory",  # the system: ENOMEM
    "maximum allowed buffer size",  # [metal::malloc]
    "[metal::malloc] resource limit",  # too many buffers
    "bad_alloc",  # C++, when an error comes from another thread
    "allocation_failed",  # cuDNN 9
    "alloc_failed",  # cuDNN 8, cuFFT
    "cublasltcreate(&storage.handle) failed with code: 3",  # CUBLAS_STATUS_ALLOC_FAILED
)
"""What MLX 0.32 and what it stands on say when memory has run out, in lower case."""


def is_oom(error: BaseException) -> bool:
    """Whether this, or what it was raised from, is MLX, the system or Python saying that memory ran
    out. To carry on by reading more would only need more."""
    text = str(error).lower()
    if isinstance(error, MemoryError) or any(wording in text for wording in OOM_MESSAGES):
        return True
    return error.__cause__ is not None and is_oom(error.__cause__)


def describe_error(error: Exception) -> str:
    """What an error says, as a clause of one line."""
    if is_oom(error):
        return "memory ran out"
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__


def reraise_oom(error: BaseException) -> None:
    """Raise `error` again when it says that memory ran out: then nothing else is to blame."""
    if is_oom(error):
        raise error
