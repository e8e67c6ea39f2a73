"""What memory and speed depend on in a model, measured from its config.json by mlx-lm's own classes
(`app/sandbox/shapes.py`), without its weights."""

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

from app.models.check import check_config_numbers
from app.models.errors import ModelError
from app.paths import cache_path
from app.sandbox.process import TextError, TextProcess, TextRefused
from app.util.atomic_files import make_folder, write_durably
from app.util.regular_files import read_text

Config = dict[str, Any]

MAX_KEPT = 256
"""Models whose measured sizes are kept in the cache folder."""


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
    unfused: bool = False
    """Whether MLX has no fused attention for it: where keys and values have two widths, or the mask
    is of numbers."""
    state_bytes: int = 0
    """Recurrent state, independent of the length."""
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
    other_params: int
    """Parameters outside the layers: embeddings, output head."""
    weight_bytes: int = 0
    """Bytes of all weights, quantised as the configuration says."""
    context: int = 0
    element_bytes: int = 2
    has_sinks: bool = False
    divisible: bool = False
    """Whether mlx-lm can divide it between machines."""
    kv_bits: int | None = None
    """Bits of a number in a quantised KV cache."""

    @property
    def parameters(self) -> int:
        return sum(layer.params for layer in self.layers) + self.other_params

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


def parse_architecture(config: Config, bits: int | None = None) -> Architecture:
    """Measure a config.json. The first time, a process is started for a second or two; what it
    finds is kept in the cache folder. Weights have `bits` where the configuration does not say how
    they are quantised. ModelError when mlx-lm does not have the architecture, and when numbers are
    missing or implausible."""
    check_config_numbers(config)
    if config.get("model_file"):
        raise ModelError(
            "This model needs Python code of its own, which specchat does not run",
            "choose another model",
        )
    key = digest(config, bits)
    found = _shipped().get(key) or _kept(key)
    if found is None:
        found = measure(config, bits)
        _keep(key, found)
    return _unpack(found, config)


def digest(config: Config, bits: int | None = None) -> str:
    """Tells one configuration from others."""
    try:
        text = json.dumps(config, sort_keys=True, default=str)
    except RecursionError:
        raise ModelError(
            "The configuration of this model is nested too deeply", "choose another model"
        ) from None
    return hashlib.sha256(f"{bits} {text}".encode()).hexdigest()[:32]


def measure(config: Config, bits: int | None = None) -> Config:
    """What a process finds out, with each kind of layer once. ModelError."""
    kind = str(config.get("model_type", ""))[:60]
    process = TextProcess()
    try:
        found = process.measure(config, bits)
    except TextRefused as error:
        raise ModelError(
            f"mlx-lm cannot use the configuration of this {kind} model"
            f" ({' '.join(str(error).split())[:200].rstrip('.')})",
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
    built = Architecture(**values, layers=layers, context=context)
    if not built.is_plausible:
        raise ModelError(
            f"The configuration of this {built.model_type} model has impossible numbers",
            "download the model again, or choose another one",
        )
    return built


# ----------------------------------------------------------------------------------------- kept


@cache
def _shipped() -> dict[str, Config]:
    """What was measured of the catalogue's models (`packaging/shapes.py`), by digest."""
    path = files("app.models") / "shapes.json"
    found: dict[str, Config] = json.loads(path.read_text("utf-8"))
    return found


@cache
def _measured_by() -> str:
    """Another version of mlx-lm, or of our own code, may measure differently."""
    code = (files("app.sandbox") / "shapes.py").read_bytes()
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
