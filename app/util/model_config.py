"""What a model's `config.json` says, in the keys that mlx-lm's classes read.

transformers 5 keeps all about rotary position embeddings (RoPE) in `rope_parameters`: for the
whole model, or for each layer type (`{"full_attention": {...}, "sliding_attention": {...}}`). Most
classes of mlx-lm read older keys instead, and silently take a default where those are missing.
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]
Parameters = dict[str, Any]
"""Those of one layer: `rope_theta`, `rope_type`, and what its type needs."""

_NEEDED = {
    **dict.fromkeys(("default", "mrope", "dynamic", "proportional"), ()),
    "linear": ("factor",),
    "llama3": ("rope_theta", "factor", "low_freq_factor", "high_freq_factor"),
    **dict.fromkeys(("yarn", "deepseek_yarn", "telechat3-yarn"), ("rope_theta", "factor")),
    **dict.fromkeys(("longrope", "su"), ("rope_theta", "long_factor")),
}
"""The parameters that each `rope_type` needs."""
_BASE_KEYS = ("rope_theta", "rotary_emb_base")
_LOCAL_BASE_KEYS = ("rope_local_base_freq", "swa_rope_theta", "rope_local_theta")
_SHARE_KEYS = ("partial_rotary_factor", "rotary_pct")
_NEEDS_SCALING = frozenset({"deepseek_v2", "minicpm3"})
"""Architectures whose classes cannot be built without `rope_scaling`."""
_OTHER_NAMES = {
    "num_experts": "num_local_experts",
    "num_experts_per_tok": "num_experts_per_token",
    "num_attention_groups": "num_key_value_heads",
    "n_group": "num_expert_group",
    "norm_topk_prob": "moe_renormalize",
    "max_position_embeddings": "model_max_length",
    "n_ctx": "n_positions",
    "block_dim": "hidden_size",
}
"""Keys of mlx-lm's classes, with those by which transformers 5 saves the same."""


def text_part(config: Config) -> Config:
    """The part of a configuration that describes the language model."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) and inner else config


def rope_type(parameters: Parameters) -> str:
    return str(parameters.get("rope_type") or parameters.get("type") or "default")


def has_rope_parameters(text: Config) -> bool:
    given = text.get("rope_parameters")
    return isinstance(given, dict) and bool(given)


def layer_parameters(text: Config, layer: int) -> Parameters:
    """The parameters of a layer, by the newer key or the older ones."""
    types = text.get("layer_types")
    is_listed = isinstance(types, list) and layer < len(types)
    return _parameters(text, str(types[layer]) if isinstance(types, list) and is_listed else None)


def rotary_problem(config: Config) -> str:
    """What about the rotary embeddings of a configuration cannot be computed; a clause, empty if
    all can."""
    text = text_part(config)
    for each in (_parameters(text), *(_parameters(text, name) for name in _nested(text))):
        kind = rope_type(each)
        if kind not in _NEEDED:
            return f"of the type {kind[:60]!r}, which specchat cannot compute"
        for key in (*_NEEDED[kind], *({"rope_theta", "factor"} & each.keys())):
            value = each.get(key)
            if value is None:
                return f"of the type {kind!r} with no {key}"
            if not all(map(_is_positive, value if isinstance(value, list) else [value])):
                return f"of the type {kind!r} with an invalid {key}"
    return ""


def short_factors_below(config: Config) -> int:
    """Length in tokens of texts for which LongRoPE has factors of its own; 0 without them."""
    parameters = _parameters(text_part(config))
    is_other = parameters.get("short_factor") != parameters.get("long_factor")
    original = parameters.get("original_max_position_embeddings")
    return int(original or 0) if is_other and rope_type(parameters) in ("longrope", "su") else 0


def for_mlx_lm(config: Config) -> Config:
    """A configuration in which what transformers 5 says also has the keys of mlx-lm's classes."""
    inner = config.get("text_config")
    if isinstance(inner, dict):
        config = config | {"text_config": inner | _older_keys(inner)}
    return config | _older_keys(config)


def rotated_numbers(text: Config, parameters: Parameters) -> int | None:
    """How many numbers of a head are rotated; None if the configuration does not say it."""
    if type(width := text.get("qk_rope_head_dim")) is int:
        return width
    share, head_dim = parameters.get("partial_rotary_factor"), _head_dim(text)
    if share is None or head_dim is None or rope_type(parameters) == "proportional":
        return None
    rotated = int(head_dim * share)
    return rotated + rotated % 2


def _head_dim(text: Config) -> int | None:
    given, size, heads = (
        text.get(key) for key in ("head_dim", "hidden_size", "num_attention_heads")
    )
    if type(given) is int:
        return given
    return size // heads if type(size) is int and type(heads) is int and heads > 0 else None


def _nested(text: Config) -> dict[str, Parameters]:
    """Parameters by layer type; empty if all layers have the same."""
    given = text.get("rope_parameters")
    if not isinstance(given, dict):
        return {}
    return {name: each for name, each in given.items() if isinstance(each, dict)}


def _parameters(text: Config, layer_type: str | None = None) -> Parameters:
    """The parameters of layers of a type, by default those with full attention."""
    nested = _nested(text)
    if nested:
        found = nested.get(layer_type or "full_attention") or next(iter(nested.values()))
    else:
        given = (text.get(key) for key in ("rope_parameters", "rope_scaling"))
        found = {}
        for each in given:
            found = found | each if isinstance(each, dict) else found
    found = {key: value for key, value in found.items() if value is not None}
    for key in ("rope_theta", "partial_rotary_factor"):
        if type(text.get(key)) in (int, float):
            found.setdefault(key, text[key])
    # Phi 3 has this next to the parameters, and it counts more than theirs.
    original = None if nested else text.get("original_max_position_embeddings")
    original = original or found.get("original_max_position_embeddings")
    longest = text.get("max_position_embeddings")
    if original or longest:
        found["original_max_position_embeddings"] = original or longest
    if "yarn" in rope_type(found) and original and longest:
        found.setdefault("factor", longest / original)
    return found


def _older_keys(text: Config) -> Config:
    if not has_rope_parameters(text):
        return {}
    parameters, nested = _parameters(text), _nested(text)
    local = nested.get("sliding_attention", parameters)
    keys = {key: text[other] for key, other in _OTHER_NAMES.items() if _lacks(text, key, other)}
    if (head_dim := _head_dim(text)) is not None:
        keys["head_dim"] = head_dim
    if "rope_theta" in parameters:
        keys |= dict.fromkeys(_BASE_KEYS, parameters["rope_theta"])
    if "rope_theta" in local:
        keys |= dict.fromkeys(_LOCAL_BASE_KEYS, local["rope_theta"])
    if "partial_rotary_factor" in parameters:
        keys |= dict.fromkeys(_SHARE_KEYS, parameters["partial_rotary_factor"])
    kind = rope_type(parameters)
    scaling = {key: value for key, value in parameters.items() if key != "rope_theta"}
    scaling |= {"type": kind, "rope_type": kind}
    if kind != "default":
        keys["rope_scaling"] = scaling
    elif text.get("model_type") in _NEEDS_SCALING:
        keys["rope_scaling"] = scaling | {"factor": 1.0}
    else:
        keys["rope_scaling"] = None
    if head_dim is not None and "rotary_dim" not in text:
        keys["rotary_dim"] = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
    if isinstance(text.get("attn_config"), dict):  # DBRX
        keys["attn_config"] = text["attn_config"] | {"rope_theta": parameters.get("rope_theta")}
    return keys


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and value > 0


def _lacks(text: Config, key: str, other: str) -> bool:
    return text.get(key) is None and text.get(other) is not None
