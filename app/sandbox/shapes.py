"""Measures a model by its `config.json` alone. mlx-lm builds the model, and two forwards through it
are traced. MLX is lazy, so neither weights nor activations are computed or allocated.

This runs in the limited process of `worker.py`, because the configuration is not trusted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatch
from typing import Any

import mlx.core as mx
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten, tree_map_with_path
from mlx_lm.models import ssm
from mlx_lm.models.cache import CacheList, ChunkedKVCache, RotatingKVCache, make_prompt_cache
from mlx_lm.models.switch_layers import SwitchLinear
from mlx_lm.utils import _decode_tagged_floats, _get_classes

from app.util.model_config import (
    for_mlx_lm,
    sliding_layers,
    sliding_window,
    text_part,
    without_scaling,
)

Config = dict[str, Any]

FIRST, SECOND = 16, 8
"""Tokens of the two forwards. What a cache gains in the second forward grows with each token."""
_UNUSED = {
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps"), 1e-6),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_bias", "mamba_proj_bias"), False),
    "use_conv_bias": True,
    "max_position_embeddings": 1 << 17,
    "partial_rotary_factor": 1.0,
    "rope_theta": 10_000.0,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": (),
}
"""Values that mlx-lm requires but that hardly affect sizes, so a catalogue need not list them. A
whole config.json names the version of transformers, and must have them."""
_MISSING = re.compile(r"\w*\.__init__\(\) missing \d+ required \S+ arguments?: (.*)")
"""Python's message for a class of arguments, also one of the language model in it."""
_NAME = re.compile(r"'(\w+)'")
_INVALID = "its config.json lacks a value, or has one of a wrong type"


def measure(config: Config, bits: int | None = None) -> dict[str, Any] | None:
    """Fields of an `Architecture` (`app/models/architecture.py`); None if mlx-lm has no such
    architecture, and only `missing` if values are missing. If the configuration has no
    quantisation, weights have `bits` bits, or its dtype if `bits` is None. Raises what mlx-lm
    raises for a configuration that it cannot use."""
    config = for_mlx_lm(_decode_tagged_floats(config))
    inner = config.get("text_config")
    text: Config = {**config, **inner} if isinstance(inner, dict) else config
    full = config
    if not config.get("transformers_version"):
        full = {**_UNUSED, **config}
        if text is not config:
            full["text_config"] = {**_UNUSED, **config["text_config"]}
    try:
        model_class, arguments = _get_classes(full)
    except ValueError:
        return None
    try:
        model = build_model(model_class, arguments, full)
    except MissingValues as error:
        return {"missing": error.keys}
    _cast(model, text)
    trace = Trace(model)
    layers = trace.run()
    everything = sum(_parameters(module) for _, module in model.named_modules())
    _quantise(model, {**text, **config}, bits)
    return {
        "model_type": str(text.get("model_type") or config["model_type"]),
        "layers": layers,
        "hidden_size": trace.hidden,
        "vocab_size": trace.vocabulary,
        "other_params": everything - sum(layer.get("params", 0) for layer in layers),
        "element_bytes": trace.element_bytes,
        "has_sinks": trace.has_sinks,
        "divisible": hasattr(model, "shard"),
        "ignored_window": ignored_window(model, config),
        "weight_bytes": sum(array.nbytes for array in _arrays(model.parameters())),
    }


class MissingValues(ValueError):
    def __init__(self, keys: list[str]) -> None:
        super().__init__(f"its config.json lacks {', '.join(keys)}")
        self.keys = keys


def build_model(model_class: Callable[[Any], Any], arguments: Any, config: Config) -> Any:
    """The model of a configuration, by mlx-lm's class and that of its arguments. If the class does
    not know the scaling of its rotary embeddings, it is built without. Raises ValueError."""
    try:
        try:
            model = model_class(arguments.from_dict(config))
        except (ValueError, KeyError):
            if (plain := without_scaling(config)) is None:
                raise
            model = model_class(arguments.from_dict(plain))
        _check_windows(model, config)
    except TypeError as error:
        if missing := _MISSING.match(str(error)):
            raise MissingValues(_NAME.findall(missing[1])) from None
        raise ValueError(_INVALID) from error
    except (LookupError, AttributeError, AssertionError, ArithmeticError) as error:
        raise ValueError(_INVALID) from error
    return model


def _check_windows(model: Any, config: Config) -> None:
    """Raise ValueError if other layers have a sliding window than those of the configuration."""
    built, stated = _windowed_layers(model), sliding_layers(text_part(config))
    if any(built) and any(one != other for one, other in zip(built, stated, strict=False)):
        raise ValueError("its layer_types are in an order that mlx-lm cannot compute")


def ignored_window(model: Any, config: Config) -> int:
    """Tokens of the sliding window that the configuration has but mlx-lm's class does not; 0
    without, and if no text is longer."""
    text = text_part(config)
    window, longest = sliding_window(text) or 0, text.get("max_position_embeddings")
    if (type(longest) is int and longest <= window) or any(_windowed_layers(model)):
        return 0
    return window if any(sliding_layers(text)) else 0


def _windowed_layers(model: Any) -> list[bool]:
    return [
        any(isinstance(leaf, RotatingKVCache | ChunkedKVCache) for leaf in _leaves(each))
        for each in make_prompt_cache(model)
    ]


def _arrays(tree: Any) -> list[mx.array]:
    leaves: list[tuple[str, Any]] = tree_flatten(tree)  # type: ignore[assignment]
    return [array for _, array in leaves if isinstance(array, mx.array)]


def _parameters(module: Any) -> int:
    """Number of parameters of a module without its children."""
    own = {
        name: array
        for name, array in module.items()
        if isinstance(array, mx.array) and not name.startswith("_")
    }
    if "scales" in own:
        packed: int = own["weight"].size * 32 // module.bits
        return packed + (own["bias"].size if "bias" in own else 0)
    return sum(array.size for array in own.values())


def _scales(model: Any) -> list[mx.array]:
    return [module["scales"] for _, module in model.named_modules() if "scales" in module]


def _cast(model: Any, text: Config) -> None:
    """Cast weights to the dtype of the configuration, as loading does."""
    named = str(text.get("dtype") or text.get("torch_dtype") or "bfloat16")
    dtype = getattr(mx, named.removeprefix("torch."), mx.bfloat16)
    if packed := _scales(model):  # a model of packed modules has their dtype
        dtype = packed[0].dtype
    is_cast = getattr(model, "cast_predicate", lambda path: True)

    def cast(path: str, array: mx.array) -> mx.array:
        floating = mx.issubdtype(array.dtype, mx.floating)
        return array.astype(dtype) if floating and is_cast(path) else array

    model.update(tree_map_with_path(cast, model.parameters()))
    weights = dict(tree_flatten(model.parameters()))
    others = {path: array for path, array in weights.items() if "lm_head" not in path}
    if len(others) < len(weights) and text.get("tie_word_embeddings", True):
        # Some architectures drop their output head if the weights have none.
        with suppress(Exception):
            model.sanitize(others)


def _quantise(model: Any, config: Config, bits: int | None) -> None:
    """Quantise as `mlx_lm.utils.load_model` does. That function reads from the stored weights which
    modules are quantised; here they are those that mlx-lm's own conversion would quantise."""
    stored = config.get("quantization") or _packed(config.get("quantization_config"))
    if stored is None and bits is not None:
        stored = {"group_size": 64, "bits": bits}
    if stored is None or _scales(model):
        return
    own = getattr(model, "quant_predicate", None) or (lambda path, module: True)
    skipped = stored.get("skipped", ())
    own_terms = [name for name, terms in stored.items() if isinstance(terms, dict | bool)]

    def chosen(path: str, module: Any) -> Any:
        for pattern in own_terms:
            if fnmatch(path, pattern):
                return stored[pattern]
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % stored["group_size"]:
            return False
        return not any(fnmatch(path, f"*{name}*") for name in skipped) and own(path, module)

    mode = stored.get("mode", "affine")
    quantize(model, stored["group_size"], stored["bits"], mode=mode, class_predicate=chosen)


def _packed(stored: Config | None) -> Config | None:
    """Another program's quantisation in mlx-lm's terms; None if mlx-lm unpacks it."""
    if not stored or ("quant_method" not in stored and "bits" in stored):
        return stored
    kind = stored.get("format") or stored.get("quant_method")
    size, bits = stored.get("group_size", 128), stored.get("bits", 4)
    found = {
        "mxfp4": (32, 4, "mxfp4"),
        "mxfp4-pack-quantized": (32, 4, "mxfp4"),
        "mxfp8": (32, 8, "mxfp8"),
        "modelopt": (16, 4, "nvfp4"),
        "nvfp4-pack-quantized": (16, 4, "nvfp4"),
        "pack-quantized": (32, 4, "affine"),
        "awq": (size, bits, "affine"),
        "gptq": (size, bits, "affine"),
    }.get(str(kind))
    names = ("modules_to_not_convert", "ignore", "exclude_modules")
    skipped = [str(each) for name in names for each in stored.get(name) or ()]
    if found is None:
        return None
    size, bits, mode = found
    return {"group_size": size, "bits": bits, "mode": mode, "skipped": skipped}


# ---------------------------------------------------------------------------------------- trace


class Trace:
    """Observes two lazy forwards of a model."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._layers = {id(module): _ObservedLayer(module) for module in model.layers}
        self._running: list[_ObservedLayer] = []
        self._cache = make_prompt_cache(model)
        self._caches = {id(leaf): _Cache(leaf) for each in self._cache for leaf in _leaves(each)}
        self.hidden = self.vocabulary = 0
        self.has_sinks = False
        self.element_bytes = 2
        """Bytes per number in the cache."""

    def run(self) -> list[dict[str, Any]]:
        """For each `Layer`, its fields that differ from the defaults."""
        caches, layers = list(self._caches.values()), list(self._layers.values())
        with self._observed():
            logits = self._forward(FIRST)
        for cache in caches:
            cache.bytes_before = cache.bytes
        self._forward(SECOND)
        self.vocabulary = logits.shape[-1]
        elements = (array.dtype.size for cache in caches for array in cache.rows)
        self.element_bytes = max(elements, default=logits.dtype.size)
        # A cache that no layer was given belongs to the layer of the same number, or to the last.
        by_number = len(self._cache) == len(layers)
        for number, each in enumerate(self._cache):
            for leaf in _leaves(each):
                if id(leaf) in self._caches:
                    owner = layers[number if by_number else -1]
                    owner.caches.append(self._caches.pop(id(leaf)))
        found = [part for layer in layers for part in layer.sizes(self.element_bytes)]
        return [{name: size for name, size in part.items() if size} for part in found]

    def _forward(self, tokens: int) -> Any:
        return self._model(mx.zeros((1, tokens), mx.int32), cache=self._cache)

    @contextmanager
    def _observed(self) -> Iterator[None]:
        modules = [part for layer in self._layers.values() for part in layer.modules]
        calls: list[tuple[Any, str, Callable[..., Any]]] = [
            (mx.fast, "scaled_dot_product_attention", self._attend),
            (ssm, "ssm_attn", self._relate),
        ]
        for kind in {type(part) for part in modules if _has_matrix(part)}:
            calls.append((kind, "__call__", self._multiply))
        for kind in {type(layer.module) for layer in self._layers.values()}:
            calls.append((kind, "__call__", self._enter))
        with ExitStack() as stack:
            for owner, name, observer in calls:
                stack.enter_context(_observed_calls(owner, name, observer))
            yield

    def _enter(self, call: Callable[..., Any], module: Any, *args: Any, **more: Any) -> Any:
        layer = self._layers.get(id(module))
        if layer is None:
            return call(module, *args, **more)
        layer.calls += 1
        self.hidden = args[0].shape[-1] if args else self.hidden
        for leaf in (leaf for each in (*args, *more.values()) for leaf in _leaves(each)):
            if id(leaf) in self._caches:
                layer.caches.append(self._caches.pop(id(leaf)))
        self._running.append(layer)
        try:
            return call(module, *args, **more)
        finally:
            self._running.pop()

    def _multiply(self, call: Callable[..., Any], module: Any, *args: Any, **more: Any) -> Any:
        result = call(module, *args, **more)
        if self._running:
            layer = self._running[-1]
            layer.arrays |= {id(array): array for array in _arrays([args[:1], result])}
            if isinstance(module, SwitchLinear):
                indices = args[1] if len(args) > 1 else more["indices"]
                layer.experts[id(module)] = min(indices.size / FIRST / module.num_experts, 1.0)
        return result

    def _attend(self, call: Callable[..., Any], q: Any, k: Any, v: Any, **more: Any) -> Any:
        self.has_sinks = self.has_sinks or more.get("sinks") is not None
        if self._running:
            kept = (k.size + v.size) // k.shape[-2]
            mask = more.get("mask")
            numbers = isinstance(mask, mx.array) and mask.dtype != mx.bool_
            unfused = q.shape[-1] != v.shape[-1] or numbers
            self._running[-1].attended.append((q.shape[1], q.shape[-1], kept, unfused))
        return call(q, k, v, **more)

    def _relate(self, call: Callable[..., Any], x: Any, *args: Any, **more: Any) -> Any:
        if self._running:
            self._running[-1].ssm_heads = x.shape[2]
        return call(x, *args, **more)


def _has_matrix(module: Any) -> bool:
    arrays = [each for each in module.values() if isinstance(each, mx.array)]
    return not isinstance(module, Embedding) and any(array.ndim > 1 for array in arrays)


@contextmanager
def _observed_calls(owner: Any, name: str, observer: Callable[..., Any]) -> Iterator[None]:
    """Replace the function `name` of `owner`: `observer` is called with the original function and
    its arguments."""
    is_own, before = name in vars(owner), getattr(owner, name)

    def call(*args: Any, **more: Any) -> Any:
        return observer(before, *args, **more)

    setattr(owner, name, call)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


class _ObservedLayer:
    """One layer, and what was observed in it."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.modules = [part for _, part in module.named_modules()]
        self.calls = 0
        self.caches: list[_Cache] = []
        self.arrays: dict[int, mx.array] = {}
        """Inputs and outputs of its matrix products."""
        self.experts: dict[int, float] = {}
        """Share of experts that a token uses, by module."""
        self.attended: list[tuple[int, int, int, bool]] = []
        """For each attention: query heads, their width, elements of a token's keys and values, and
        whether MLX has no fused kernel for it."""
        self.ssm_heads = 0

    def sizes(self, element_bytes: int) -> list[dict[str, Any]]:
        """Fields of the layer, and of an extra layer without weights for each further window."""
        windows = dict.fromkeys(cache.window for cache in self.caches if cache.growth)
        parts: list[dict[str, Any]] = [
            {
                "window": window,
                "kv_elements": round(
                    sum(each.growth for each in self.caches if each.window == window)
                    / element_bytes
                ),
                **self._attention(),
            }
            for window in windows
        ]
        first = parts[0] if parts else self._attention()
        first |= {
            "state_bytes": sum(round(cache.fixed) for cache in self.caches),
            "ssm_heads": self.ssm_heads,
            "activations": sum(array.size for array in self.arrays.values()) // FIRST,
            **self._weights(),
        }
        return parts or [first]

    def _attention(self) -> dict[str, Any]:
        rows = [array for cache in self.caches for array in cache.rows]
        if self.attended:
            heads, width, kept, _ = max(self.attended, key=lambda each: each[0] * each[1])
            cached = sum(array.shape[1] * array.shape[-1] for array in rows)
            expanded = kept if rows and kept > cached else 0
            unfused = any(each[-1] for each in self.attended)
            found = {"heads": heads, "head_dim": width, "expanded_kv": expanded}
            return {**found, "unfused": unfused}
        if not rows:
            return {}
        # The architecture has its own attention, for example with capped scores.
        names = ("n_heads", "num_heads", "num_attention_heads", "n_head")
        counts = [getattr(part, name, 0) for part in self.modules for name in names]
        return {"heads": max(counts), "head_dim": rows[0].shape[-1], "unfused": True}

    def _weights(self) -> dict[str, Any]:
        """Parameters of the layer. A token uses only some of its experts."""
        sizes = [(_parameters(part), self.experts.get(id(part), 1.0)) for part in self.modules]
        return {
            "params": sum(size for size, _ in sizes),
            "macs": round(sum(size * share for size, share in sizes)) * max(self.calls, 1),
            "expert_share": min(self.experts.values(), default=1.0),
        }


# --------------------------------------------------------------------------------------- caches


class _Cache:
    """Measures one of mlx-lm's caches."""

    def __init__(self, leaf: Any) -> None:
        self._leaf = leaf
        self.window: int | None = getattr(leaf, "max_size", getattr(leaf, "chunk_size", None))
        self.bytes_before = 0.0
        """Bytes after the first forward."""

    @property
    def rows(self) -> list[mx.array]:
        """Keys and values, whose third axis is the tokens'."""
        found = (getattr(self._leaf, name, None) for name in ("keys", "values"))
        return [array for array in found if isinstance(array, mx.array) and array.ndim == 4]

    @property
    def bytes(self) -> float:
        """Bytes of the rows in use, without rows that were allocated in advance."""
        if rows := self.rows:
            return sum(array.nbytes / array.shape[2] for array in rows) * float(self._leaf.offset)
        return sum(array.nbytes for array in _arrays(self._leaf.state))

    @property
    def growth(self) -> float:
        """Bytes per token."""
        return (self.bytes - self.bytes_before) / SECOND

    @property
    def fixed(self) -> float:
        """Bytes that do not depend on the length."""
        return self.bytes_before - self.growth * FIRST


def _leaves(cache: Any) -> list[Any]:
    if isinstance(cache, CacheList):
        return [leaf for each in cache.caches for leaf in _leaves(each)]
    return [cache] if hasattr(cache, "state") else []
