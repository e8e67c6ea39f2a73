"""Bytes used by a model's cache and by its prefill steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import ArraysCache, RotatingKVCache

from app.engine.backend.device import Backend
from app.engine.backend.mlx_patches import DEQUANTISE_FROM
from app.engine.cache.caches import Cache, WindowedCache
from app.estimate.memory import (
    LARGEST_STEP,
    MAX_SCORE_BYTES,
    SMALLEST_STEP,
    scoring_bytes,
    step_elements,
    unfused_copies,
)


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The size of a model's cache. Sliding windows use `window_bytes_per_token` up to
    `max_window_bytes` (including their slack). `largest_layer_bytes` per token exist twice while
    that layer's buffer grows. Recurrent layers use `state_bytes` at any length, and each
    checkpoint as many again."""

    bytes_per_token: float
    max_window_bytes: float
    window_bytes_per_token: float = 0.0
    largest_layer_bytes: float = 0.0
    state_bytes: float = 0.0

    @classmethod
    def of(cls, cache: Cache) -> CacheSize:
        """Measure a cache in use, per entry: buffers are longer than their contents."""
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
            state_bytes=sum(c.nbytes for c in flat if isinstance(c, ArraysCache)),
        )

    def bytes(self, tokens: int, retain_all: bool = False) -> float:
        """Bytes of a cache with this many tokens and no checkpoints. With `retain_all`, windows
        evict nothing."""
        windows = self.window_bytes_per_token * tokens
        if not retain_all:
            windows = min(windows, self.max_window_bytes)
        return self.bytes_per_token * tokens + windows + self.state_bytes


@dataclass(frozen=True, slots=True)
class Transient:
    """Memory that a prefill step needs in addition to weights and caches: `score_copies` arrays of
    one layer's attention scores, for at most `rows` queries at once, and activations."""

    heads: int
    activations_per_token: int
    element_size: int
    score_copies: int
    """0 if attention is fused: scores are never materialised."""
    rows: int = LARGEST_STEP
    on_cpu: bool = False
    head_dim: int = 0
    dequantised_per_token: int = 0
    """With a quantised cache: elements of one layer's keys and values per token. Large steps
    dequantise them; small ones materialise scores, masked scores and probabilities."""
    forcible: bool = False
    """Whether attention can be forced to be fused: slower, but scores are never materialised."""
    packed_attention: bool = True
    """Whether attention reads packed values; otherwise small steps dequantise, too."""

    @classmethod
    def of(
        cls, config: dict[str, Any], element: int, quantised: bool, sinks: bool, backend: Backend
    ) -> Transient:
        """From a model's text configuration. Other kinds of attention, such as latent attention,
        count as plain attention with the same number of heads."""
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
            # Copies for MLX, NumPy, and back. Block-sparse: twice the rows, far fewer keys.
            return make(4, 3, LARGEST_STEP if sinks else backend.query_block)
        if _whole(config, "kv_lora_rank") and _whole(config, "qk_rope_head_dim"):
            # Latent attention passes the rotated part's scores as a mask, plain and masked.
            return make(element, 3)
        widths = {width, _whole(config, "global_head_dim") or width}
        unfused = widths - backend.fused_head_sizes
        forcible = bool(unfused) and unfused <= backend.forced_head_sizes
        forcible = forcible and _whole(config, "v_head_dim") in (0, width)
        forcible = forcible and not config.get("attn_logit_softcapping")  # no kernel supports it
        return make(element, unfused_copies(sinks) if unfused else 0, forcible=forcible)

    def bytes(self, step: int, context: int, forced: bool = False) -> float:
        """Bytes for a step of `step` tokens, with `context` tokens in the cache after it. `forced`:
        use fused attention if it is `forcible`."""
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
        """Bytes for scoring a prompt of `tokens` with this draft."""
        return float(scoring_bytes(tokens, self.heads, self.head_dim))

    def largest_step(self, available: float, context: int, forced: bool = False) -> int:
        """The largest step (a power of two, in tokens) that fits; `SMALLEST_STEP` if none does."""
        sizes = [1 << n for n in range(SMALLEST_STEP.bit_length() - 1, LARGEST_STEP.bit_length())]
        fitting = [
            size
            for size in sizes
            if self.bytes(size, context, forced) <= available
            and (self.on_cpu or self._score_bytes(size, context, forced) <= MAX_SCORE_BYTES)
        ]
        return max(fitting, default=SMALLEST_STEP)

    def _score_bytes(self, step: int, context: int, forced: bool) -> int:
        """Bytes of one layer's attention scores as a single array."""
        if not self.score_copies or (forced and self.forcible):
            return 0
        return self.element_size * self.heads * step * context


NO_TRANSIENT = Transient(0, 0, 0, 0)
"""For a model without a configuration: zero bytes."""


def attention_cost_ratio(config: dict[str, Any], parameters: int) -> float:
    """Operations to attend to one cached token, as a fraction of a token's operations in the
    weights. `config` is the text configuration; every layer counts as full attention."""
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
