"""Parses a config.json into layers: the sizes of their KV cache, parameters and activations, in
numbers of elements.

The caches are those that mlx-lm's models make (`mlx_lm/models/*.py`, `make_cache`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from app.models.config_bounds import check_config_numbers
from app.models.errors import ModelError

Config = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer, in elements."""

    kv_elements: int = 0
    """Keys and values of one token in the cache."""
    window: int | None = None
    """Tokens in the cache of a sliding window; None for full attention."""
    heads: int = 0
    head_dim: int = 0
    """Query heads (0 without attention), and their width."""
    conv_elements: int = 0
    state_elements: int = 0
    """Recurrent state in float32. Both states are independent of the length."""
    expanded_kv: int = 0
    """What latent attention expands per token during prefill."""
    ssm_heads: int = 0
    """Heads of a Mamba layer, each with a matrix of tokens by tokens per chunk."""
    macs: int = 0
    params: int = 0
    """Multiplications per token, and parameters in memory. They differ where there are experts."""
    activations: int = 0
    """Elements alive for each token of a prefill step."""
    expert_share: float = 1.0
    """The fraction of experts that one token uses."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A whole model. `context` in tokens, 0 if the configuration has none; `element_bytes`: bytes
    of a number in the cache; `has_sinks`: attention with sinks."""

    model_type: str
    layers: tuple[Layer, ...]
    hidden_size: int
    vocab_size: int
    tied_embeddings: bool
    context: int
    element_bytes: int = 2
    has_sinks: bool = False
    kv_bits: int | None = None
    """Bits of a number in a quantised KV cache."""
    other_params: int = 0
    """Parameters outside the layers and the vocabulary."""

    @property
    def parameters(self) -> int:
        """All parameters except norms and biases, which are under a thousandth."""
        vocabulary = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return sum(layer.params for layer in self.layers) + vocabulary + self.other_params

    @property
    def is_plausible(self) -> bool:
        """Whether every size can be that of a model. Others would be too large to compute with."""
        parts: tuple[Architecture | Layer, ...] = (self, *self.layers)
        sizes = (size for each in parts for size in _numbers(each))
        return all(0 <= size <= _MAX_SIZE for size in sizes) and 0 < self.parameters <= _MAX_SIZE

    @property
    def active_parameters(self) -> int:
        """Parameters used for one prompt token, without the vocabulary: prefill computes only the
        logits of the last token."""
        return sum(layer.macs for layer in self.layers)


_MAX_SIZE = 1 << 56
"""The largest number that a configuration may have: a thousand times the parameters of the largest
model."""


def _numbers(part: Architecture | Layer) -> Iterator[float]:
    values = (getattr(part, field.name) for field in fields(part))
    return (value for value in values if isinstance(value, int | float))


def parse_architecture(config: Config) -> Architecture:
    """Parse a config.json. ModelError when the architecture is unknown, or when numbers are missing
    or implausible."""
    check_config_numbers(config)
    outer = str(config.get("model_type", ""))
    text = (
        {**config, **config["text_config"]}
        if isinstance(config.get("text_config"), dict)
        else config
    )
    kind = str(text.get("model_type") or outer)
    if (build := _BUILDERS.get(kind) or _BUILDERS.get(outer)) is None:
        raise ModelError(
            f"The memory of the architecture {outer!r} cannot be estimated",
            "load it to find out, or choose a model from `specchat models search`",
        )
    try:
        built = build(kind, text)
    except (LookupError, TypeError, ValueError, ArithmeticError) as error:
        what = f" ({error.args[0]!r})" if isinstance(error, KeyError) else ""
        raise ModelError(
            f"The configuration of this {kind} model lacks numbers{what}",
            "download the model again, or choose another one",
        ) from None
    if not built.is_plausible:
        raise ModelError(
            f"The configuration of this {kind} model has impossible numbers",
            "download the model again, or choose another one",
        )
    return built


def _first(config: Config, *keys: str, default: Any = 0) -> Any:
    return next((config[key] for key in keys if config.get(key) is not None), default)


def _architecture(kind: str, c: Config, layers: list[Layer], **more: Any) -> Architecture:
    named = str(_first(c, "dtype", "torch_dtype", default="bfloat16"))
    return Architecture(
        model_type=kind,
        layers=tuple(layers),
        hidden_size=int(c["hidden_size"]),
        vocab_size=int(c["vocab_size"]),
        tied_embeddings=kind == "gemma2"
        or bool(c.get("tie_word_embeddings", kind.startswith("gemma"))),
        context=int(_first(c, "max_position_embeddings", "max_seq_len", "seq_length")),
        element_bytes=4 if named == "float32" else 2,
        **more,
    )


# ------------------------------------------------------------------------------------------ MLPs


@dataclass(frozen=True, slots=True)
class _MlpShape:
    """The second half of a layer: a dense MLP or experts, with fields as in Layer."""

    macs: int
    params: int
    activations: int
    expert_share: float = 1.0


_NO_MLP = _MlpShape(0, 0, 0)


def _layer(mlp: _MlpShape, weights: int = 0, activations: int = 0, **caches: Any) -> Layer:
    """A layer of `mlp` and of other matrices with `weights` elements."""
    return Layer(
        macs=weights + mlp.macs,
        params=weights + mlp.params,
        activations=activations + mlp.activations,
        expert_share=mlp.expert_share,
        **caches,
    )


def _dense_mlp(c: Config, width: int | None = None, matrices: int = 3) -> _MlpShape:
    width = int(c["intermediate_size"]) if width is None else width
    weights = matrices * int(c["hidden_size"]) * width
    return _MlpShape(weights, weights, matrices * width)


def _moe_mlp(c: Config, matrices: int = 3) -> _MlpShape:
    """Routed and shared experts, the router, and the projections around experts in a smaller space
    (Nemotron 3 Super)."""
    hidden = int(c["hidden_size"])
    space = int(c.get("moe_latent_size") or hidden)
    count = int(_first(c, "num_experts", "num_local_experts", "n_routed_experts"))
    chosen = int(_first(c, "num_experts_per_tok", "experts_per_token"))
    width = int(_first(c, "moe_intermediate_size", "intermediate_size"))
    expert = matrices * space * width
    shared = int(c.get("shared_expert_intermediate_size") or 0)
    gate = hidden if shared else 0
    if c.get("n_shared_experts"):
        one = int(c.get("moe_shared_expert_intermediate_size") or width * c["n_shared_experts"])
        shared = one
    always = matrices * hidden * shared + gate + hidden * count
    always += 2 * hidden * space if space != hidden else 0
    active = chosen * (2 * space + matrices * width) + matrices * shared
    return _MlpShape(
        chosen * expert + always, count * expert + always, active, min(chosen / count, 1.0)
    )


def _mlps(kind: str, c: Config, layers: int) -> list[_MlpShape]:
    """The MLP of each layer."""
    count = int(_first(c, "num_experts", "num_local_experts", "n_routed_experts"))
    if not count:
        return [_dense_mlp(c)] * layers
    plain_first = int(c.get("first_k_dense_replace") or 0)
    stride = int(_first(c, "decoder_sparse_step", "moe_layer_freq", default=1))
    only = set(c.get("mlp_only_layers") or ())
    sparse, mlps = _moe_mlp(c), []
    for index in range(layers):
        if kind.startswith(("deepseek", "kimi", "glm4_moe")):
            has_experts = index >= plain_first and index % stride == 0
        else:
            has_experts = index not in only and (index + 1) % stride == 0
        mlps.append(sparse if has_experts else _dense_mlp(c))
    return mlps


# ------------------------------------------------------------------------------------- attention


def _attention(
    c: Config,
    mlp: _MlpShape,
    window: int | None = None,
    width: int | None = None,
    gated: bool = False,
) -> Layer:
    """Grouped-query attention, including MHA and MQA."""
    hidden, heads = int(c["hidden_size"]), int(c["num_attention_heads"])
    groups = int(c.get("num_key_value_heads") or heads)
    width = width or int(c.get("head_dim") or hidden // heads)
    queries = heads * width * (2 if gated else 1)
    projections = hidden * (queries + 2 * groups * width) + heads * width * hidden
    activations = 3 * hidden + 2 * queries + 2 * groups * width
    kv = {"kv_elements": 2 * groups * width, "window": window, "heads": heads, "head_dim": width}
    return _layer(mlp, projections, activations, **kv)


def _attention_only(kind: str, c: Config) -> Architecture:
    """Every layer has full attention, or a window where `layer_types` says so."""
    count = int(c["num_hidden_layers"])
    if kind in _IGNORE_HEAD_DIM:
        c = {**c, "head_dim": None}
    types = c.get("layer_types") if kind in _WITH_LAYER_TYPES else None
    windows = [
        int(c["sliding_window"]) if types and types[i] == "sliding_attention" else None
        for i in range(count)
    ]
    mlps = _mlps(kind, c, count)
    return _architecture(kind, c, [_attention(c, mlps[i], windows[i]) for i in range(count)])


_WITH_LAYER_TYPES = frozenset({"llama", "mistral", "ministral3", "olmo3"})
"""Architectures whose windows mlx-lm supports."""
_IGNORE_HEAD_DIM = frozenset({"qwen2", "qwen2_moe", "phi3"})
"""Architectures whose heads divide the hidden size, whatever `head_dim` says."""


def _gpt_oss(kind: str, c: Config) -> Architecture:
    count = int(c["num_hidden_layers"])
    types = c.get("layer_types") or ["sliding_attention", "full_attention"] * (count // 2)
    window, mlp = int(c.get("sliding_window") or 128), _moe_mlp(c)
    biases = int(c["num_local_experts"]) * (2 * int(c["intermediate_size"]) + int(c["hidden_size"]))
    mlp = replace(mlp, params=mlp.params + biases)
    layers = [
        _attention(c, mlp, window if types[i] == "sliding_attention" else None, c.get("head_dim"))
        for i in range(count)
    ]
    return _architecture(kind, c, layers, has_sinks=True)


def _gemma3(kind: str, c: Config) -> Architecture:
    """With the defaults of mlx-lm, because the larger models' configurations are incomplete."""
    c = {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        **{key: value for key, value in c.items() if value is not None},
    }
    every, window, mlp = int(c["sliding_window_pattern"]), int(c["sliding_window"]), _dense_mlp(c)
    layers = [
        _attention(c, mlp, None if (i + 1) % every == 0 else window)
        for i in range(int(c["num_hidden_layers"]))
    ]
    return _architecture(kind, c, layers)


def _gemma_shared_kv(kind: str, c: Config) -> Architecture:
    """Gemma 3n and 4: the last layers use the KV cache of an earlier one."""
    count, shared = int(c["num_hidden_layers"]), int(c.get("num_kv_shared_layers") or 0)
    every = int(c.get("sliding_window_pattern") or 5)
    types = c.get("layer_types") or [
        "full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(count)
    ]
    layers = []
    for i in range(count):
        full, own = types[i] == "full_attention", i < count - shared
        one = dict(c)
        if full and c.get("attention_k_eq_v") and c.get("num_global_key_value_heads"):
            one["num_key_value_heads"] = c["num_global_key_value_heads"]
        width = int(c.get("global_head_dim") or c["head_dim"]) if full else int(c["head_dim"])
        doubled = not own and kind != "gemma3n_text" and c.get("use_double_wide_mlp", True)
        mlp = _dense_mlp(c, int(c["intermediate_size"]) * (2 if doubled else 1))
        if c.get("enable_moe_block"):
            experts = _moe_mlp({**c, "num_experts_per_tok": c["top_k_experts"]})
            mlp = replace(
                experts,
                macs=mlp.macs + experts.macs,
                params=mlp.params + experts.params,
                activations=mlp.activations + experts.activations,
            )
        layer = _attention(one, mlp, None if full else int(c["sliding_window"]), width)
        if not own:
            keys = layer.kv_elements * int(c["hidden_size"])
            layer = replace(
                layer, kv_elements=0, macs=layer.macs - keys, params=layer.params - keys
            )
        layers.append(layer)
    # Every layer has a small embedding of each token, with a gate and a projection.
    small, hidden = int(c.get("hidden_size_per_layer_input") or 0), int(c["hidden_size"])
    each = int(c.get("vocab_size_per_layer_input") or 0)
    return _architecture(kind, c, layers, other_params=count * small * (each + 3 * hidden))


def _latent_attention(kind: str, c: Config) -> Architecture:
    """Multi-head latent attention (DeepSeek-V3): one latent and one rotated key for all heads are
    cached, and expanded during prefill. DeepSeek-V3.2 also caches an indexer's keys."""
    hidden, heads = int(c["hidden_size"]), int(c["num_attention_heads"])
    latent, rope = int(c["kv_lora_rank"]), int(c["qk_rope_head_dim"])
    nope, value = int(c["qk_nope_head_dim"]), int(c["v_head_dim"])
    queries = heads * (nope + rope)
    rank = int(c.get("q_lora_rank") or 0)
    projections = rank * (hidden + queries) if rank else hidden * queries
    projections += hidden * (latent + rope + heads * value) + heads * latent * (nope + value)
    index = 0
    if index_heads := int(c.get("index_n_heads") or 0):
        index = int(c["index_head_dim"])
        projections += rank * index_heads * index + hidden * index + hidden * index_heads
    layers = [
        _layer(
            mlp,
            projections,
            activations=3 * hidden + 2 * queries,
            # mlx-lm caches the index keys with empty values of the same width.
            kv_elements=latent + rope + 2 * index,
            heads=heads,
            head_dim=nope + rope,
            expanded_kv=heads * (nope + value),
        )
        for mlp in _mlps(kind, c, int(c["num_hidden_layers"]))
    ]
    return _architecture(kind, c, layers)


# ------------------------------------------------------------------------------- recurrent layers


def _gated_delta(c: Config, mlp: _MlpShape) -> Layer:
    """Gated delta net: a state of key by value per value head, and a convolution state."""
    hidden = int(c["hidden_size"])
    key = int(c["linear_num_key_heads"]) * int(c["linear_key_head_dim"])
    value = int(c["linear_num_value_heads"]) * int(c["linear_value_head_dim"])
    heads = int(c["linear_num_value_heads"])
    conv, kernel = 2 * key + value, int(c["linear_conv_kernel_dim"])
    projections = hidden * (conv + value + 2 * heads) + value * hidden + conv * kernel
    state = heads * int(c["linear_key_head_dim"]) * int(c["linear_value_head_dim"])
    activations = 3 * hidden + 4 * conv + 2 * value
    return _layer(
        mlp, projections, activations, conv_elements=(kernel - 1) * conv, state_elements=state
    )


def _delta_hybrid(kind: str, c: Config) -> Architecture:
    """Qwen3-Next and Qwen3.5: every fourth layer has attention, with a gate on its output."""
    count, every = int(c["num_hidden_layers"]), int(c.get("full_attention_interval") or 4)
    mlps = _mlps(kind, c, count)
    layers = [
        _attention(c, mlps[i], gated=True) if (i + 1) % every == 0 else _gated_delta(c, mlps[i])
        for i in range(count)
    ]
    return _architecture(kind, c, layers)


def _mamba(c: Config) -> Layer:
    hidden, groups = int(c["hidden_size"]), int(c["n_groups"])
    inner = int(c["mamba_num_heads"]) * int(c["mamba_head_dim"])
    conv, kernel = inner + 2 * groups * int(c["ssm_state_size"]), int(c["conv_kernel"])
    projections = hidden * (inner + conv + int(c["mamba_num_heads"])) + inner * hidden
    return _layer(
        _NO_MLP,
        projections + conv * kernel,
        activations=3 * hidden + 4 * conv + 3 * inner,
        conv_elements=(kernel - 1) * conv,
        state_elements=inner * int(c["ssm_state_size"]),
        ssm_heads=int(c["mamba_num_heads"]),
    )


_BLOCKS = {
    **dict.fromkeys(("full_attention", "attention"), "*"),
    **dict.fromkeys(("linear_attention", "mamba", "conv"), "M"),
    "moe": "E",
    "mlp": "-",
}


def _nemotron(kind: str, c: Config) -> Architecture:
    """Nemotron-H: each block is Mamba 2, attention, an MLP or experts. Its MLPs have two matrices
    instead of three."""
    pattern = c.get("hybrid_override_pattern") or [
        _BLOCKS[name] for name in _first(c, "layers_block_type", "layer_types", default=())
    ]
    blocks: dict[str, Callable[[], Layer]] = {
        "M": lambda: _mamba(c),
        "*": lambda: _attention(c, _NO_MLP),
        "-": lambda: _layer(_dense_mlp(c, matrices=2)),
        "E": lambda: _layer(_moe_mlp(c, matrices=2)),
    }
    layers = [blocks[block]() for block in pattern]
    if not layers:
        raise KeyError("hybrid_override_pattern")
    return _architecture(kind, c, layers)


_BUILDERS: dict[str, Callable[[str, Config], Architecture]] = {
    **dict.fromkeys(
        ("llama", "mistral", "mixtral", "ministral3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
        _attention_only,
    ),
    **dict.fromkeys(("phi3", "glm4", "glm4_moe", "gemma2", "olmo2", "seed_oss"), _attention_only),
    "gpt_oss": _gpt_oss,
    **dict.fromkeys(("gemma3", "gemma3_text"), _gemma3),
    **dict.fromkeys(("gemma3n_text", "gemma4_text", "gemma4"), _gemma_shared_kv),
    **dict.fromkeys(("deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe_lite"), _latent_attention),
    **dict.fromkeys(
        ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"), _delta_hybrid
    ),
    "nemotron_h": _nemotron,
}
