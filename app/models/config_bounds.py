"""Are a config.json's numbers those of a model? A loader builds what they say, layer after layer,
before it looks at any weights, and cannot be stopped while it does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from app.models.errors import ModelError

_MOST_LAYERS = 2000
_MOST_COUNTED = 4096
"""Experts, heads and whatever else a model has a number of."""
_LONGEST_LIST = 20_000
_LARGEST = 1 << 31
_LAYERS = frozenset(("num_hidden_layers", "n_layers", "n_layer", "num_layers"))
"""What a model can't have none of."""

# Each architecture has its own name for the same count, so names are told by how they are made.
_PER_LAYER = re.compile(r"layer|block|pattern|depth|loop")
_COUNT = re.compile(r"(^|_)(n|num)_|_num$|(layers|experts|loops|blocks|depth|pattern)$")
_SIZE = re.compile(r"embd|position|ctx|inner|vocab|token|size|dim")
_FREE = re.compile(r"max_|rope|theta|token")
_NAMING_MODULES = frozenset({"quantization", "quantization_config"})


def check_config_numbers(config: dict[str, Any]) -> None:
    """ModelError when a number in `config`, or the length of a list, is not one of a model,
    wherever in it that is."""
    for key, value in _entries(config):
        if key in _LAYERS and value is not None and (type(value) is not int or value <= 0):
            said = f"{value:,} layers" if type(value) is int else "layers that are no number"
            raise _absurd(said)
        most = _most(key, value)
        if most is None:
            continue
        if isinstance(value, int) and abs(value) > most:
            said = f"{value:,} layers" if key in _LAYERS else f"a {key[:60]} of {value:.0e}"
            raise _absurd(said)
        if isinstance(value, list | str) and len(value) > most:
            raise _absurd(f"a {key[:60]} with {len(value):,} entries")


def _entries(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys and values of all objects in it."""
    waiting: list[Any] = [config]
    while waiting:
        for key, value in waiting.pop().items():
            yield key, value
            within = value if isinstance(value, list) else [value]
            if key not in _NAMING_MODULES:
                waiting += [each for each in within if isinstance(each, dict)]


def _most(key: str, value: Any) -> int | None:
    """How large a value of this name may be, or how long."""
    per_layer = _PER_LAYER.search(key) is not None
    if isinstance(value, list):
        return _MOST_LAYERS if per_layer else _LONGEST_LIST
    if isinstance(value, str):
        return _MOST_LAYERS if per_layer else None
    if _COUNT.search(key) and not _SIZE.search(key):
        return _MOST_LAYERS if per_layer else _MOST_COUNTED
    return None if _FREE.search(key) else _LARGEST


def _absurd(said: str) -> ModelError:
    return ModelError(f"The model's config.json names {said}", "download the model again")
