"""What a model's `config.json` says, in the keys that mlx-lm's classes read.

transformers names the kind of each layer in `layer_types`. Some classes of mlx-lm compute it from a
`sliding_window_pattern` instead, and others have no sliding windows at all.

transformers 5 keeps all about rotary position embeddings (RoPE) in `rope_parameters`: for the
whole model, or for each layer type (`{"full_attention": {...}, "sliding_attention": {...}}`). Most
classes of mlx-lm read older keys instead, and silently take a default where those are missing.
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]
Parameters = dict[str, Any]
"""Those of one layer: `rope_theta`, `rope_type`, and what its type needs."""

_ORIGINAL = "original_max_position_embeddings"
_SCALED = "rope_theta", "factor", _ORIGINAL
_NEEDED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("default", "mrope", "dynamic", "proportional"), ()),
    "linear": ("factor",),
    "llama3": (*_SCALED, "low_freq_factor", "high_freq_factor"),
    **dict.fromkeys(("yarn", "deepseek_yarn", "telechat3-yarn"), _SCALED),
    **dict.fromkeys(("longrope", "su"), ("rope_theta", "long_factor", _ORIGINAL)),
}
"""The parameters that each `rope_type` needs."""
_BASE_KEYS = ("rope_theta", "rotary_emb_base")
_LOCAL_BASE_KEYS = ("rope_local_base_freq", "swa_rope_theta", "rope_local_theta")
_ALL_BASE_KEYS = (*_BASE_KEYS, *_LOCAL_BASE_KEYS)
_LIMITS = {
    **dict.fromkeys((*_ALL_BASE_KEYS, _ORIGINAL), (1, 1e18)),
    **dict.fromkeys(("factor", "low_freq_factor", "high_freq_factor", "long_factor"), (1e-6, 1e18)),
    **dict.fromkeys(("attention_factor", "long_mscale", "alpha"), (1e-6, 1e18)),
    **dict.fromkeys(("beta_fast", "beta_slow", "mscale", "mscale_all_dim"), (-1e-6, 1e18)),
    "partial_rotary_factor": (0, 1 + 1e-6),
}
"""Between these are the values of parameters that can be computed with."""
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
_GRANITE = {"linear_attention": "mamba", "full_attention": "attention"}
"""The names that transformers 5 gives to the layers of granitemoehybrid, and those of mlx-lm."""
_LIMITED = frozenset({"sliding_attention", "chunked_attention"})
_SLIDING = frozenset({"mistral", "mixtral", "starcoder2", "phi3", "phimoe", "gemma2"})
"""Architectures that have a `sliding_window` in some or all layers, even without `layer_types`."""


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
        for key in _NEEDED[kind]:
            if key not in each:
                return f"of the type {kind!r} with no {key}"
        factors = each.get("long_factor")
        # Bases may be those of each layer.
        lists = {"long_factor": factors} | {key: text.get(key) for key in _ALL_BASE_KEYS}
        numbers = [(key, value) for key, value in each.items() if key != "long_factor"]
        for key, value in lists.items():
            numbers += [(key, number) for number in (_list(lists, key) or [value])]
        for key, number in numbers:
            is_used = key != _ORIGINAL or key in _NEEDED[kind]
            if is_used and not _is_valid(key, number):
                return f"of the type {kind!r} with an invalid {key}"
        dims = rotated_numbers(text, each) or _head_dim(text)
        if isinstance(factors, list) and dims and len(factors) != dims // 2:
            wrong = f"{len(factors)} numbers in long_factor instead of {dims // 2}"
            return f"of the type {kind!r} with {wrong}"
    return ""


def sliding_window(text: Config) -> int | None:
    """Number of tokens that layers with a sliding window see, or of a chunk; 0 without, and None if
    the configuration does not say it."""
    if text.get("use_sliding_window") is False:
        return 0
    size = text.get("attention_chunk_size") or text.get("sliding_window", -1) or 0
    return size if type(size) is int and size >= 0 else None


def sliding_layers(text: Config) -> list[bool]:
    """Whether each layer has a sliding window, or chunks; empty if the configuration does not say
    it."""
    window, types = sliding_window(text), _list(text, "layer_types")
    if types or window == 0:
        return [window != 0 and str(kind) in _LIMITED for kind in types]
    if rotated := _list(text, "no_rope_layers"):  # Llama 4
        return [bool(each) for each in rotated]
    count, first = text.get("num_hidden_layers"), text.get("max_window_layers") or 0
    has_windows = text.get("use_sliding_window") or str(text.get("model_type")) in _SLIDING
    return [number >= first for number in range(count or 0)] if window and has_windows else []


def short_factors_below(config: Config) -> int:
    """Length in tokens of texts for which LongRoPE has factors of its own; 0 without them."""
    parameters = _parameters(text_part(config))
    is_other = parameters.get("short_factor") != parameters.get("long_factor")
    original = parameters.get(_ORIGINAL)
    return int(original or 0) if is_other and rope_type(parameters) in ("longrope", "su") else 0


def for_mlx_lm(config: Config) -> Config:
    """A configuration in which what transformers 5 says also has the keys of mlx-lm's classes."""
    if not isinstance(config.get("text_config", {}), dict):
        config = config | {"text_config": {}}
    if (inner := text_part(config)) is not config:
        inner = {"model_type": f"{config.get('model_type')}_text"} | inner
        config = config | {"text_config": inner | _older_keys(inner) | _pattern_keys(inner)}
    return config | _older_keys(config) | _pattern_keys(config)


def without_scaling(config: Config) -> Config | None:
    """The configuration without `rope_scaling`; None if it has none."""
    parts: Config = {"rope_scaling": None}
    if (text := text_part(config)) is not config:
        parts["text_config"] = text | {"rope_scaling": None}
    return config | parts if config.get("rope_scaling") or text.get("rope_scaling") else None


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
    original = None if nested else text.get(_ORIGINAL)
    original = original or found.get(_ORIGINAL)
    longest = text.get("max_position_embeddings")
    if original or longest:
        found[_ORIGINAL] = original or longest
    is_valid = all(each and _is_valid(_ORIGINAL, each) for each in (original, longest))
    if "yarn" in rope_type(found) and is_valid:
        found.setdefault("factor", longest / original)  # type: ignore[operator]
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
    elif str(text.get("model_type")) in _NEEDS_SCALING:
        keys["rope_scaling"] = scaling | {"factor": 1.0}
    else:
        keys["rope_scaling"] = None
    if head_dim is not None and "rotary_dim" not in text:
        keys["rotary_dim"] = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
    if isinstance(text.get("attn_config"), dict):  # DBRX
        keys["attn_config"] = text["attn_config"] | {"rope_theta": parameters.get("rope_theta")}
    return keys


def _pattern_keys(text: Config) -> Config:
    """What `layer_types` says, in the keys of classes that do not read it, or other names."""
    types, pattern = _list(text, "layer_types"), text.get("sliding_window_pattern")
    full = [kind == "full_attention" for kind in types]
    if types and text.get("model_type") == "granitemoehybrid":
        return {"layer_types": [_GRANITE.get(str(kind), kind) for kind in types]}
    if text.get("model_type") == "exaone4":
        if not full and type(pattern) is int:
            full = [number + 1 == pattern for number in range(pattern)]
        keys = "".join("G" if each else "L" for each in full) or pattern
        return {"sliding_window_pattern": None if sliding_window(text) == 0 else keys}
    period = full.index(True) + 1 if True in full else 0
    if not period or any(each != (number % period == 0) for number, each in enumerate(full, 1)):
        return {}
    return dict.fromkeys(("sliding_window_pattern", "full_attention_interval"), period)


def _list(text: Config, key: str) -> list[Any]:
    found = text.get(key)
    return found if isinstance(found, list) else []


def _is_valid(key: str, value: Any) -> bool:
    if key not in _LIMITS or value is None:
        return True
    above, below = _LIMITS[key]
    return type(value) in (int, float) and above < value < below


def _lacks(text: Config, key: str, other: str) -> bool:
    return text.get(key) is None and text.get(other) is not None
