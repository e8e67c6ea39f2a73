"""The sizes of a model that determine memory and speed. mlx-lm's own classes measure them from the
config.json, without weights (`app/sandbox/shapes.py`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from app.estimate.memory import MTP_MODELS
from app.models.check import check_config_numbers, check_rotary, is_encoder
from app.models.errors import ModelError
from app.paths import cache_path
from app.protocol.options import ENCODERS
from app.sandbox.process import TextError, TextProcess, TextRefused
from app.util.atomic_files import make_folder, write_durably
from app.util.formatting import one_line
from app.util.regular_files import read_text

Config = dict[str, Any]

MAX_KEPT = 256
"""Maximum number of models whose measured sizes are stored in the cache folder."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Sizes of one layer, in elements unless stated otherwise."""

    kv_elements: int = 0
    """Keys and values of one token in the cache."""
    window: int | None = None
    """Tokens in the cache of a sliding window; None for full attention."""
    heads: int = 0
    head_dim: int = 0
    """Number of query heads (0 without attention), and their width."""
    unfused: bool = False
    """Whether MLX has no fused attention for the layer, because keys and values differ in width or
    the mask consists of numbers."""
    state_bytes: int = 0
    """Recurrent state, independent of the length."""
    expanded_kv: int = 0
    """Elements per token that latent attention expands during prefill."""
    ssm_heads: int = 0
    """Heads of a Mamba layer, each with a matrix of tokens by tokens per chunk."""
    macs: int = 0
    params: int = 0
    """Multiplications per token, and parameters in memory. They differ if there are experts."""
    activations: int = 0
    """Elements in memory for each token of a prefill step."""
    expert_share: float = 1.0
    """Fraction of experts that a token uses."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Sizes of a whole model. `context` is in tokens, 0 if the configuration has none.
    `element_bytes` are the bytes per number in the cache. `has_sinks`: attention with sinks."""

    model_type: str
    layers: tuple[Layer, ...]
    hidden_size: int
    vocab_size: int
    other_params: int
    """Parameters outside the layers: embeddings, output head."""
    weight_bytes: int = 0
    """Bytes of all weights, quantised as the configuration specifies."""
    context: int = 0
    element_bytes: int = 2
    has_sinks: bool = False
    divisible: bool = False
    """Whether mlx-lm can divide the model between machines."""
    kv_bits: int | None = None
    """Bits per number in a quantised KV cache."""
    ignored_window: int = 0
    """Tokens of a sliding window that mlx-lm does not apply; 0 without."""
    has_mtp: bool = False
    """Whether the configuration has a multi-token prediction head. Its weights are not in the other
    fields, because many conversions leave them out."""

    @property
    def mtp_layer(self) -> Layer | None:
        """The decoder layer of the MTP head, if there is one: as the others with attention."""
        return next((layer for layer in self.layers if layer.heads), None) if self.has_mtp else None

    @property
    def mtp_bytes(self) -> int:
        """Estimated bytes of the MTP head's weights: its layer, and a projection."""
        if (layer := self.mtp_layer) is None:
            return 0
        params = layer.params + 2 * self.hidden_size**2
        return params * self.weight_bytes // self.parameters

    @property
    def is_encoder(self) -> bool:
        return self.model_type in ENCODERS

    @property
    def parameters(self) -> int:
        return sum(layer.params for layer in self.layers) + self.other_params

    @property
    def is_plausible(self) -> bool:
        """Whether all sizes are possible for a model. Larger ones could not be computed with."""
        parts: tuple[Architecture | Layer, ...] = (self, *self.layers)
        sizes = (size for each in parts for size in _numbers(each))
        return all(0 <= size <= _MAX_SIZE for size in sizes) and 0 < self.parameters <= _MAX_SIZE

    @property
    def active_parameters(self) -> int:
        """Parameters used per prompt token, without the vocabulary, because prefill computes logits
        for the last token only."""
        return sum(layer.macs for layer in self.layers)


_MAX_SIZE = 1 << 56
"""Maximum number in a configuration: a thousand times the parameters of the largest model."""


def _numbers(part: Architecture | Layer) -> Iterator[float]:
    values = (getattr(part, field.name) for field in fields(part))
    return (value for value in values if isinstance(value, int | float))


def parse_architecture(config: Config, bits: int | None = None) -> Architecture:
    """Measure a config.json. The first time, this starts a process for a second or two, and stores
    the result in the cache folder. If the configuration has no quantisation, weights have `bits`
    bits. Raises ModelError if mlx-lm does not have the architecture, or if numbers are missing or
    implausible."""
    check_config_numbers(config)
    check_rotary(config)
    if config.get("model_file"):
        raise ModelError(
            "This model brings its own Python code, which specchat does not run",
            "choose another model",
        )
    if is_encoder(config):
        return _encoder(config)
    key = digest(config, bits)
    found = _shipped().get(key) or _kept(key)
    if found is None:
        found = measure(config, bits)
        _keep(key, found)
    return _unpack(found, config)


def digest(config: Config, bits: int | None = None) -> str:
    """A digest that identifies a configuration."""
    try:
        text = json.dumps(config, sort_keys=True, default=str)
    except RecursionError:
        raise ModelError(
            "The configuration of this model is nested too deeply", "choose another model"
        ) from None
    return hashlib.sha256(f"{bits} {text}".encode()).hexdigest()[:32]


def measure(config: Config, bits: int | None = None) -> Config:
    """Measure a configuration in a limited process. Each kind of layer is listed once. Raises
    ModelError."""
    kind = str(config.get("model_type", ""))[:60]
    process = TextProcess()
    try:
        found = process.measure(config, bits)
    except TextRefused as error:
        raise ModelError(
            f"mlx-lm cannot use the configuration of this {kind} model"
            f" ({one_line(error).removeprefix('ValueError: ')})",
            "download the model again, or choose another one",
        ) from None
    except TextError as error:
        raise ModelError(
            f"The configuration of this {kind} model could not be measured: {error}",
            "choose another model",
        ) from None
    finally:
        process.close()
    if found is None:
        raise ModelError(
            f"mlx-lm does not have the architecture {kind!r}",
            "choose a model from `specchat models search`",
        )
    if missing := found.get("missing"):
        raise ModelError(
            f"The configuration of this {kind} model lacks {', '.join(missing)}",
            "download the model again, or choose another one",
        )
    kinds = list({json.dumps(layer): layer for layer in found["layers"]}.values())
    return {**found, "kinds": kinds, "layers": [kinds.index(layer) for layer in found["layers"]]}


def _unpack(packed: Config, config: Config) -> Architecture:
    values = dict(packed)
    kinds = [Layer(**kind) for kind in values.pop("kinds")]
    inner = config.get("text_config")
    text = {**config, **inner} if isinstance(inner, dict) else config
    names = ("max_position_embeddings", "max_seq_len", "seq_length", "n_positions")
    context = next((text[name] for name in names if isinstance(text.get(name), int)), 0)
    layers = tuple(kinds[number] for number in values.pop("layers"))
    has_mtp = config.get("model_type") in MTP_MODELS and bool(text.get("mtp_num_hidden_layers"))
    built = Architecture(**values, layers=layers, context=context, has_mtp=has_mtp)
    if not built.is_plausible:
        raise ModelError(
            f"The configuration of this {built.model_type} model has impossible numbers",
            "download the model again, or choose another one",
        )
    return built


_ENCODED_TIMES = 1.7
"""How often a token is encoded: pieces of a text overlap, and each has special tokens and perhaps a
prefix."""


def _encoder(config: Config) -> Architecture:
    """The sizes of a text encoder: matrices are float32 in memory, tokens have 16 bits. A batch, of
    about 3,400 tokens in float32, counts as a step of 2,048 in 16 bits."""
    try:
        width, inner, count = (
            int(config[name]) for name in ("hidden_size", "intermediate_size", "num_hidden_layers")
        )
        table = int(config["vocab_size"]) * width
        positions = int(config["max_position_embeddings"]) * width
        heads = int(config["num_attention_heads"])
    except (KeyError, TypeError, ValueError):
        raise ModelError(
            f"The configuration of this {config['model_type']} model lacks a size",
            "download the model again, or choose another one",
        ) from None
    gated = config["model_type"] == "modernbert"
    params = 4 * width * width + (3 if gated else 2) * width * inner
    layer = Layer(
        macs=round(_ENCODED_TIMES * params),
        params=params,
        activations=round(3.4 * (8 * width + 3 * inner + 150 * heads)),
    )
    other = table + (0 if gated else positions)
    built = Architecture(
        config["model_type"],
        (layer,) * count,
        width,
        int(config["vocab_size"]),
        other,
        weight_bytes=2 * table + 4 * (count * params + other - table),
    )
    if not built.is_plausible:
        raise ModelError(
            f"The configuration of this {built.model_type} model has impossible numbers",
            "download the model again, or choose another one",
        )
    return built


# --------------------------------------------------------------------------------------- stored


@cache
def _shipped() -> dict[str, Config]:
    """Measured sizes of the catalogue's models (`packaging/shapes.py`), by digest."""
    path = files("app.models") / "shapes.json"
    found: dict[str, Config] = json.loads(path.read_text("utf-8"))
    return found


@cache
def _measured_by() -> str:
    """A version for stored results: other versions of mlx-lm, or of this code, may measure
    differently."""
    code = (files("app.sandbox") / "shapes.py").read_bytes()
    code += (files("app.util") / "model_config.py").read_bytes()
    return f"{version('mlx-lm')}-{hashlib.sha256(code).hexdigest()[:8]}"


def _file(key: str) -> Path:
    return cache_path() / "shapes" / f"{key}-{_measured_by()}.json"


def _kept(key: str) -> Config | None:
    with suppress(OSError, ValueError, TypeError, LookupError, AttributeError):
        found: Config = json.loads(read_text(_file(key)))
        _unpack(found, {})
        return found
    return None


def _keep(key: str, found: Config) -> None:
    path = _file(key)
    with suppress(OSError):
        make_folder(path.parent)
        write_durably(path, json.dumps(found).encode())
        kept = sorted(path.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for old in kept[:-MAX_KEPT]:
            old.unlink(missing_ok=True)
