"""Measures a model by its `config.json` alone. mlx-lm builds the model and two forwards through it
are traced; MLX is lazy, so neither weights nor activations are ever computed or allocated.

It runs in the limited process of `worker.py`: the configuration is not trusted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import MISSING, fields
from fnmatch import fnmatch
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import mlx.core as mx
from mlx.nn.layers.embedding import Embedding
from mlx.nn.layers.quantized import quantize
from mlx.utils import tree_flatten, tree_map_with_path

Config = dict[str, Any]

FIRST, SECOND = 16, 8
"""Tokens of the two forwards: what a cache has more of after the second grows with each token."""
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
"""What mlx-lm requires, but no size depends on, or hardly: a catalogue need not list it."""


def skip_transformers() -> None:
    """Import mlx-lm's models without what its package imports first: transformers, for two
    seconds."""
    found = find_spec("mlx_lm")
    assert found is not None
    for name, values in (
        ("mlx_lm", {"__path__": found.submodule_search_locations}),
        ("mlx_lm.tokenizer_utils", {"TokenizerWrapper": None, "load": None}),
        ("huggingface_hub", {"snapshot_download": None}),
    ):
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(values)


def measure(config: Config, bits: int | None = None) -> dict[str, Any] | None:
    """The fields of an `Architecture` (`app/models/architecture.py`); None where mlx-lm has no such
    architecture, `missing` alone where values are. Weights have `bits` where the configuration does
    not say how they are quantised, or, with None, its dtype. Raises whatever mlx-lm does with a
    configuration that it cannot use."""
    from mlx_lm.models.cache import make_prompt_cache
    from mlx_lm.utils import _get_classes

    inner = config.get("text_config")
    text: Config = {**config, **inner} if isinstance(inner, dict) else config
    full = {**_UNUSED, **config}
    if text is not config:
        full["text_config"] = {**_UNUSED, **config["text_config"]}
    try:
        model_class, arguments = _get_classes(full)
    except ValueError:
        return None
    required = (f.name for f in fields(arguments) if f.default is f.default_factory is MISSING)
    if missing := [name for name in required if name not in {*full, "text_config"}]:
        return {"missing": missing}
    model = model_class(arguments.from_dict(full))
    _cast(model, text)
    trace = Trace(model, make_prompt_cache(model))
    layers = trace.run()
    everything = sum(_parameters(module) for _, module in model.named_modules())
    _quantise(model, {**text, **config}, bits)
    return {
        "model_type": str(text.get("model_type") or config["model_type"]),
        "layers": layers,
        "hidden_size": trace.hidden,
        "vocab_size": trace.vocabulary,
        "other_params": everything - sum(layer["params"] for layer in layers),
        "element_bytes": trace.element_bytes,
        "has_sinks": trace.has_sinks,
        "divisible": hasattr(model, "shard"),
        "weight_bytes": sum(array.nbytes for array in _arrays(model.parameters())),
    }


def _arrays(tree: Any) -> list[mx.array]:
    leaves: list[tuple[str, Any]] = tree_flatten(tree)  # type: ignore[assignment]
    return [array for _, array in leaves if isinstance(array, mx.array)]


def _parameters(module: Any) -> int:
    """Of a module without its children."""
    own = {
        name: array
        for name, array in module.items()
        if isinstance(array, mx.array) and not name.startswith("_")
    }
    if "scales" in own:
        packed: int = own["weight"].size * 32 // module.bits
        return packed + (own["bias"].size if "bias" in own else 0)
    return sum(array.size for array in own.values())


def _cast(model: Any, text: Config) -> None:
    """To the dtype of the configuration, and as it is once weights are loaded."""
    named = str(text.get("dtype") or text.get("torch_dtype") or "bfloat16")
    dtype = getattr(mx, named.removeprefix("torch."), mx.bfloat16)
    is_cast = getattr(model, "cast_predicate", lambda path: True)

    def cast(path: str, array: mx.array) -> mx.array:
        floating = mx.issubdtype(array.dtype, mx.floating)
        return array.astype(dtype) if floating and is_cast(path) else array

    model.update(tree_map_with_path(cast, model.parameters()))
    weights = dict(tree_flatten(model.parameters()))
    others = {path: array for path, array in weights.items() if "lm_head" not in path}
    if len(others) < len(weights) and text.get("tie_word_embeddings", True):
        # Some architectures drop their output head once they see weights without one.
        with suppress(Exception):
            model.sanitize(others)


# --------------------------------------------------------------------------------- quantisation


def _quantise(model: Any, config: Config, bits: int | None) -> None:
    """As `mlx_lm.utils.load_model` does, which looks at the stored weights for what is quantised:
    whatever mlx-lm's own conversion would have."""
    stored = config.get("quantization") or _converted(config.get("quantization_config"))
    packed = any("scales" in module for _, module in model.named_modules())
    if packed or (stored is None and bits is None):
        return
    stored = stored or {"group_size": 64, "bits": bits}
    group_size = stored["group_size"]
    own = getattr(model, "quant_predicate", None) or (lambda path, module: True)
    skipped = stored.get("modules_to_not_convert") or ()
    own_terms = [name for name, terms in stored.items() if isinstance(terms, dict | bool)]

    def chosen(path: str, module: Any) -> bool | dict[str, Any]:
        for pattern in own_terms:
            if fnmatch(path, pattern):
                found: bool | dict[str, Any] = stored[pattern]
                return found
        if not hasattr(module, "to_quantized") or module.weight.shape[-1] % group_size:
            return False
        if any(fnmatch(path, f"*{pattern}*") for pattern in skipped):
            return False
        return own(path, module)

    mode = stored.get("mode", "affine")
    quantize(model, group_size, stored["bits"], mode=mode, class_predicate=chosen)


def _converted(stored: Config | None) -> Config | None:
    """mlx-lm's own terms for other programs' quantisations that it leaves packed."""
    if not stored:
        return None
    method = stored.get("quant_method")
    if method is None and "group_size" in stored:
        return stored
    found: Config | None = None
    if method == "mxfp4" or stored.get("format") == "mxfp4-pack-quantized":
        found = {"group_size": 32, "bits": 4, "mode": "mxfp4"}
    elif method == "mxfp8":
        found = {"group_size": 32, "bits": 8, "mode": "mxfp8"}
    elif method == "modelopt" or stored.get("format") == "nvfp4-pack-quantized":
        found = {"group_size": 16, "bits": 4, "mode": "nvfp4"}
    elif method in ("awq", "gptq"):
        found = {"group_size": stored.get("group_size", 128), "bits": stored.get("bits", 4)}
    elif stored.get("format") == "pack-quantized":
        found = {"group_size": 32, "bits": 4}
    names = ("modules_to_not_convert", "ignore", "exclude_modules")
    lists = (stored[name] for name in names if isinstance(stored.get(name), list))
    skipped: list[str] = next(lists, [])
    return found and {**found, "modules_to_not_convert": skipped}


# ---------------------------------------------------------------------------------------- trace


class Trace:
    """Runs a model's forwards lazily, and observes what its layers do."""

    def __init__(self, model: Any, cache: Sequence[Any]) -> None:
        self._model, self._cache = model, cache
        self._layers = list(model.layers)
        self._seen = [_Seen() for _ in self._layers]
        self._running: list[_Seen] = []
        self._caches = [leaf for each in cache for leaf in _leaves(each)]
        self.hidden = self.vocabulary = 0
        self.has_sinks = False
        self.element_bytes = 2

    def run(self) -> list[dict[str, Any]]:
        """The fields of each `Layer`."""
        with self._observed():
            logits = self._model(mx.zeros((1, FIRST), mx.int32), cache=self._cache)
        self.vocabulary = logits.shape[-1]
        before = [_sizes(each) for each in self._caches]
        self._model(mx.zeros((1, SECOND), mx.int32), cache=self._cache)
        after = [_sizes(each) for each in self._caches]
        owners = self._owners()
        element = {a.dtype.size for c in self._caches for a in _rows(c)}
        self.element_bytes = max(element, default=logits.dtype.size)
        found = []
        for index, (layer, seen) in enumerate(zip(self._layers, self._seen, strict=True)):
            growth, window, state = 0.0, 0, 0
            own = [at for at, owner in enumerate(owners) if owner == index]
            for at in own:
                each = (after[at] - before[at]) / SECOND
                growth += each
                state += round(before[at] - each * FIRST)
                if each:
                    window = _window(self._caches[at]) or window
            rows = [array for at in own for array in _rows(self._caches[at])]
            found.append(
                {
                    "kv_elements": round(growth / self.element_bytes),
                    "window": window or None,
                    "state_bytes": state,
                    **seen.attention(layer, rows),
                    **seen.weights(layer),
                    "ssm_heads": seen.ssm_heads,
                    "activations": sum(seen.arrays.values()) // FIRST,
                }
            )
        return found

    def _owners(self) -> list[int]:
        """The layer that each cache belongs to: the first that was given it."""
        owners = []
        for each in self._caches:
            given = (i for i, seen in enumerate(self._seen) if id(each) in seen.caches)
            owners.append(next(given, -1))
        if -1 in owners and len(self._cache) == len(self._layers):
            return [i for i, each in enumerate(self._cache) for _ in _leaves(each)]
        # A model may hand them to parts that are no layers: then they are the last one's.
        return [owner if owner >= 0 else len(self._layers) - 1 for owner in owners]

    # ------------------------------------------------------------------------------ observers

    @contextmanager
    def _observed(self) -> Iterator[None]:
        from mlx_lm.models import ssm
        from mlx_lm.models.switch_layers import SwitchLinear

        numbers = {id(layer): index for index, layer in enumerate(self._layers)}
        leaves = {
            type(module)
            for layer in self._layers
            for _, module in layer.named_modules()
            if not isinstance(module, Embedding)
            and any(isinstance(a, mx.array) and a.ndim > 1 for a in module.values())
        }

        def layer_call(call: Callable[..., Any], module: Any, *args: Any, **more: Any) -> Any:
            if id(module) not in numbers:
                return call(module, *args, **more)
            seen = self._seen[numbers[id(module)]]
            seen.calls += 1
            self.hidden = args[0].shape[-1] if args else self.hidden
            seen.caches |= {id(leaf) for each in (*args, *more.values()) for leaf in _leaves(each)}
            self._running.append(seen)
            try:
                return call(module, *args, **more)
            finally:
                self._running.pop()

        def leaf_call(call: Callable[..., Any], module: Any, *args: Any, **more: Any) -> Any:
            result = call(module, *args, **more)
            if self._running:
                seen = self._running[-1]
                seen.matrices(args[:1], result)
                if isinstance(module, SwitchLinear):
                    indices = args[1] if len(args) > 1 else more["indices"]
                    chosen = indices.size / FIRST
                    seen.experts[id(module)] = min(chosen / module.num_experts, 1.0)
            return result

        def attend(call: Callable[..., Any], q: Any, k: Any, v: Any, **more: Any) -> Any:
            self.has_sinks = self.has_sinks or more.get("sinks") is not None
            if self._running:
                seen = self._running[-1]
                expanded = (k.size + v.size) // k.shape[-2]
                seen.attended.append((q.shape[1], q.shape[-1], expanded))
            return call(q, k, v, **more)

        def relate(call: Callable[..., Any], x: Any, *args: Any, **more: Any) -> Any:
            if self._running:
                self._running[-1].ssm_heads = x.shape[2]
            return call(x, *args, **more)

        with ExitStack() as stack:
            for kind in leaves:
                stack.enter_context(_replaced(kind, "__call__", leaf_call))
            for kind in {type(layer) for layer in self._layers}:
                stack.enter_context(_replaced(kind, "__call__", layer_call))
            stack.enter_context(_replaced(mx.fast, "scaled_dot_product_attention", attend))
            stack.enter_context(_replaced(ssm, "ssm_attn", relate))
            yield


@contextmanager
def _replaced(owner: Any, name: str, observer: Callable[..., Any]) -> Iterator[None]:
    """`observer` gets the function and what it was called with."""
    own = name in vars(owner)
    before = getattr(owner, name)

    def call(*args: Any, **more: Any) -> Any:
        return observer(before, *args, **more)

    setattr(owner, name, call)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


class _Seen:
    """What was seen of one layer."""

    def __init__(self) -> None:
        self.calls = 0
        self.caches: set[int] = set()
        self.arrays: dict[int, int] = {}
        """Elements of what its matrices were multiplied with, and of the products."""
        self._alive: list[Any] = []
        self.experts: dict[int, float] = {}
        """The share of its experts that a token uses."""
        self.attended: list[tuple[int, int, int]] = []
        """Query heads, their width, elements of a token's keys and values."""
        self.ssm_heads = 0

    def matrices(self, *groups: Any) -> None:
        for array in _arrays(list(groups)):
            self.arrays[id(array)] = array.size
            self._alive.append(array)  # so that no other gets its id

    def attention(self, layer: Any, rows: list[mx.array]) -> dict[str, int]:
        cached = sum(array.shape[1] * array.shape[-1] for array in rows if array.ndim == 4)
        if self.attended:
            heads, width, kept = max(self.attended, key=lambda each: each[0] * each[1])
            expanded = kept if rows and kept > cached else 0
            return {"heads": heads, "head_dim": width, "expanded_kv": expanded}
        if not rows:
            return {"heads": 0, "head_dim": 0, "expanded_kv": 0}
        # Attention of its own, as with capped scores.
        names = ("n_heads", "num_heads", "num_attention_heads", "n_head")
        heads = max(
            (
                value
                for _, module in layer.named_modules()
                for name in names
                if isinstance(value := getattr(module, name, None), int)
            ),
            default=rows[0].shape[1],
        )
        return {"heads": heads, "head_dim": rows[0].shape[-1], "expanded_kv": 0}

    def weights(self, layer: Any) -> dict[str, Any]:
        """A token uses all of a layer's weights, but only some of its experts."""
        total = used = 0.0
        for _, module in layer.named_modules():
            size = _parameters(module)
            total += size
            used += size * self.experts.get(id(module), 1.0)
        share = min(self.experts.values(), default=1.0)
        macs = round(used) * max(self.calls, 1)
        return {"params": round(total), "macs": macs, "expert_share": share}


# --------------------------------------------------------------------------------------- caches


def _leaves(cache: Any) -> list[Any]:
    from mlx_lm.models.cache import CacheList

    if isinstance(cache, CacheList):
        return [leaf for each in cache.caches for leaf in _leaves(each)]
    return [cache] if hasattr(cache, "state") and not isinstance(cache, mx.array) else []


def _rows(cache: Any) -> list[mx.array]:
    """Keys and values, whose third axis is that of the tokens."""
    found = (getattr(cache, name, None) for name in ("keys", "values"))
    return [array for array in found if isinstance(array, mx.array) and array.ndim == 4]


def _sizes(cache: Any) -> float:
    """Bytes of a cache. Of rows that were allocated in advance, only those in use count."""
    rows = _rows(cache)
    if rows:
        return sum(array.nbytes / array.shape[2] for array in rows) * float(cache.offset)
    return sum(array.nbytes for array in _arrays(cache.state))


def _window(cache: Any) -> int:
    return int(getattr(cache, "max_size", 0) or getattr(cache, "chunk_size", 0) or 0)
