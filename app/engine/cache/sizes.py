"""What a model's cache and its prefill steps take, in bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten
from mlx_lm.models.cache import RotatingKVCache

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
