"""How much memory is free, and what a model's cache and prefill steps take. Bytes throughout."""

from __future__ import annotations

import re
from collections.abc import Iterable
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
from app.protocol.memory import MemoryStats, format_bytes
from app.protocol.memory_model import (
    BUDGET_SHARE,
    LARGEST_STEP,
    MAX_SCORE_BYTES,
    SMALLEST_STEP,
    scoring_bytes,
    step_elements,
    unfused_copies,
)

BUFFER_CACHE_SHARE = 1 / 16
"""Of the ceiling, what MLX\'s buffer cache may hold between two steps."""


class NotEnoughMemory(RuntimeError):
    """`what` (the beginning of a sentence) needs more bytes than are free. `advice` says what would
    fit, and `excess_tokens` by how many tokens the prompt is too long for a full prefill."""

    def __init__(self, what: str, needed: float, free: float, advice: str = "") -> None:
        available = format_bytes(max(free, 0))
        super().__init__(f"{what} needs about {format_bytes(needed)}, and {available} is free")
        self.advice = advice
        self.excess_tokens = 0


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
    """Lower MLX's own limits to the ceiling. Never `set_wired_limit`: it is the best-attributed
    trigger of the IOGPU kernel panic (mlx issue 3186)."""
    most = ceiling()
    for set_limit, limit in (
        (mx.set_memory_limit, most),
        (mx.set_cache_limit, int(most * BUFFER_CACHE_SHARE)),
    ):
        if (before := set_limit(limit)) < limit:
            set_limit(before)


def free() -> float:
    """How many more bytes a plan may use."""
    return free_within(BUDGET_SHARE)


def free_within(share: float) -> float:
    """How many more bytes are available below this share of the ceiling."""
    available_bytes, most, active = sample()
    return min(available_bytes, most * share - active)


def sample() -> list[float]:
    """What is available to this process, the ceiling, and what MLX has taken."""
    return [available() + mx.get_cache_memory(), ceiling(), mx.get_active_memory()]


def trim_buffer_cache() -> None:
    """Return MLX's unused buffers to the system once they are many.

    After every step it would make the next step allocate the same memory again, page by page.
    """
    if mx.get_cache_memory() > ceiling() * BUFFER_CACHE_SHARE:
        mx.clear_cache()


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The size of a model's cache. Sliding windows take `window_bytes_per_token` up to
    `max_window_bytes`, the slack included that they evict late. `largest_layer_bytes`, per token,
    exist twice while that layer's buffer grows."""

    bytes_per_token: float
    max_window_bytes: float
    window_bytes_per_token: float = 0.0
    largest_layer_bytes: float = 0.0

    @classmethod
    def of(cls, cache: Cache) -> CacheSize:
        """Measured on a cache in use, per entry: buffers are longer than their contents."""
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

    def bytes(self, tokens: int, retain_all: bool = False) -> float:
        """After `tokens`. With `retain_all`, windows evict nothing."""
        windows = self.window_bytes_per_token * tokens
        if not retain_all:
            windows = min(windows, self.max_window_bytes)
        return self.bytes_per_token * tokens + windows


@dataclass(frozen=True, slots=True)
class Transient:
    """What a prefill step needs on top of weights and caches: `score_copies` of one layer's scores,
    of at most `rows` tokens at once, and the activations of the step's tokens."""

    heads: int
    activations_per_token: int
    element_size: int
    score_copies: int
    """0 where attention is fused: scores are never materialised."""
    rows: int = LARGEST_STEP
    on_cpu: bool = False
    head_dim: int = 0
    dequantised_per_token: int = 0
    """Where keys and values are quantised: a layer's elements for one token. Large steps dequantise
    them; small ones materialise scores, masked scores and probabilities."""
    forcible: bool = False
    """Whether attention can be forced to be fused: slower, but scores are never materialised."""
    packed_attention: bool = True
    """False where attention cannot take packed numbers: then small steps dequantise, too."""

    @classmethod
    def of(
        cls, config: dict[str, Any], element: int, quantised: bool, sinks: bool, backend: Backend
    ) -> Transient:
        """From a configuration (the text part). Latent attention and the like count as plain
        attention with the same number of heads."""
        hidden = _whole(config, "hidden_size", "n_embd", "d_model")
        heads = _whole(config, "num_attention_heads", "n_head", "n_heads")
        latent = _whole(config, "qk_nope_head_dim") + _whole(config, "qk_rope_head_dim")
        width = latent or _whole(config, "head_dim") or hidden // max(heads, 1)
        inner = _whole(config, "intermediate_size", "moe_intermediate_size") or 4 * hidden
        active = 4 * hidden + 3 * inner + 3 * heads * width
        if quantised:
            keys = _whole(config, "num_key_value_heads") or heads
            plain = cls.of(config, element, False, sinks, backend)
            return replace(plain, dequantised_per_token=2 * keys * width)
        make = partial(cls, heads, active, on_cpu=backend.on_cpu, head_dim=width)
        if backend.query_block:
            # For MLX, NumPy, and back. Block-sparse attention: twice the rows, far fewer keys.
            return make(4, 3, LARGEST_STEP if sinks else backend.query_block)
        if _whole(config, "kv_lora_rank") and _whole(config, "qk_rope_head_dim"):
            # Latent attention: the rotated part's scores are a mask of numbers, plain and masked.
            return make(element, 3)
        widths = {width, _whole(config, "global_head_dim") or width}
        unfused = widths - backend.fused_head_sizes
        forcible = bool(unfused) and unfused <= backend.forced_head_sizes
        forcible = forcible and _whole(config, "v_head_dim") in (0, width)
        forcible = forcible and not config.get("attn_logit_softcapping")  # which no kernel has
        return make(element, unfused_copies(sinks) if unfused else 0, forcible=forcible)

    def bytes(self, step: int, context: int, forced: bool = False) -> float:
        """For a step of `step` tokens, with `context` tokens in the cache after it; `forced`: with
        fused attention where it is `forcible`."""
        rows, copies, expanded = min(step, self.rows), self.score_copies, 0
        if forced and self.forcible:
            copies = 0
        if self.dequantised_per_token and (step >= DEQUANTISE_FROM or not self.packed_attention):
            expanded = self.dequantised_per_token
        elif self.dequantised_per_token:
            rows, copies = step, 3
        active = self.activations_per_token
        elements = step_elements(self.heads, rows, context, copies, step, active, expanded)
        return float(self.element_size * elements)

    def scoring(self, tokens: int) -> float:
        """For scoring a prompt of `tokens` with this draft."""
        return float(scoring_bytes(tokens, self.heads, self.head_dim))

    def largest_step(self, available: float, context: int, forced: bool = False) -> int:
        """The largest power of two whose step fits; the smallest step if none does."""
        sizes = [1 << n for n in range(SMALLEST_STEP.bit_length() - 1, LARGEST_STEP.bit_length())]
        fitting = [
            size
            for size in sizes
            if self.bytes(size, context, forced) <= available
            and (self.on_cpu or self._score_bytes(size, context, forced) <= MAX_SCORE_BYTES)
        ]
        return max(fitting, default=SMALLEST_STEP)

    def _score_bytes(self, step: int, context: int, forced: bool) -> int:
        """Bytes of one layer's scores, as one array."""
        if not self.score_copies or (forced and self.forcible):
            return 0
        return self.element_size * self.heads * step * context


NO_TRANSIENT = Transient(0, 0, 0, 0)
"""Of a model without a configuration: nothing is estimated."""


def attention_cost_ratio(config: dict[str, Any], parameters: int) -> float:
    """Operations of attending to one token, as a share of those of a token in the weights. From a
    configuration (the text part); every layer counts as full attention."""
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
    """Raise NotEnoughMemory unless `needed` more bytes are free."""
    if needed > (available_bytes := free()):
        raise NotEnoughMemory(what, needed, available_bytes)


MAX_CAUSES = 16
"""Of an error that are looked at: one may be its own cause."""
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
"""What MLX 0.32 and the libraries below it say when memory runs out, in lower case."""
GPU_LOST_MESSAGES = (
    # Metal's codes are never translated; older systems only have the words.
    "callbackerrorsubmissionsignored",  # every later command of this process fails
    "excessive gpu errors",
    "callbackerrorimpactinginteractivity",  # a command kept the screen waiting
    "impacting interactivity",
    "callbackerrortimeout",
    "caused gpu timeout",
    "callbackerrorhang",
    "caused gpu hang",
    "callbackerrorinnocentvictim",  # another command's error ended this one, too
    "victim of gpu error",
    "illegal memory access",  # CUDA: these errors stay until the process ends
    "unspecified launch failure",
    "misaligned address",
)
"""What MLX says when the system has stopped this process's work on the GPU, in lower case. Only a
new process can rely on the GPU again."""


def is_oom(error: BaseException) -> bool:
    """Whether this error, or its cause, is MLX, the system or Python running out of memory. A
    fallback that reads more would only need more."""
    causes = _with_causes(error)
    return _any_says(causes, OOM_MESSAGES) or any(isinstance(e, MemoryError) for e in causes)


def is_gpu_lost(error: BaseException) -> bool:
    """Whether this error, or its cause, is the system stopping this process's work on the GPU. What
    runs there next fails as well, or causes the next error."""
    return _any_says(_with_causes(error), GPU_LOST_MESSAGES)


def gpu_lost_reason(error: BaseException) -> str:
    """The system's words for it, without what MLX puts around them."""
    texts = map(_text, _with_causes(error))
    text = next((each for each in texts if _says(each, GPU_LOST_MESSAGES)), "")
    what = " ".join(text.rpartition("execution failed: ")[2].split())
    return re.sub(r" \(\w+: ?\w+\)", "", what)[:100].rstrip(".")


def _with_causes(error: BaseException) -> list[BaseException]:
    found = [error]
    while len(found) < MAX_CAUSES and (cause := found[-1].__cause__) is not None:
        found.append(cause)
    return found


def _any_says(errors: Iterable[BaseException], wordings: tuple[str, ...]) -> bool:
    return any(_says(_text(error), wordings) for error in errors)


def _says(text: str, wordings: Iterable[str]) -> bool:
    return any(wording in text.lower() for wording in wordings)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a model's own code may raise anything
        return ""


def describe_error(error: BaseException) -> str:
    """An error's message as a clause of one line."""
    if is_oom(error):
        return "memory ran out"
    if is_gpu_lost(error):
        return "the system stopped its work on the GPU"
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__


def reraise_device_failure(error: BaseException) -> None:
    """Raise `error` again if memory ran out or the GPU is lost: then nothing else is to blame."""
    if is_oom(error) or is_gpu_lost(error):
        raise error


def reraise_gpu_lost(error: BaseException) -> None:
    """Raise `error` again if the GPU is lost: then there is no other way to go on."""
    if is_gpu_lost(error):
        raise error
