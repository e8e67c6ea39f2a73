"""Checks that the numbers in a config.json are plausible. A loader builds all layers from them
before it reads any weights, and cannot be interrupted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from app.models.errors import ModelError

_MAX_LAYERS = 2000
_MAX_COUNT = 4096
"""For experts, heads and other counts."""
_MAX_LIST = 20_000
_MAX_NUMBER = 1 << 31
_MAX_FREE = 1 << 62
_LAYERS = frozenset(("num_hidden_layers", "n_layers", "n_layer", "num_layers"))
"""Counts that must be above 0."""

# Architectures name the same count differently, so keys are matched by patterns.
_PER_LAYER = re.compile(r"layer|block|pattern|depth|loop")
_COUNT = re.compile(r"(^|_)(n|num)_|_num$|(layers|experts|loops|blocks|depth|pattern)$")
_SIZE = re.compile(r"embd|position|ctx|inner|vocab|token|size|dim")
_FREE = re.compile(r"max_|rope|theta|token")
_NAMING_MODULES = frozenset({"quantization", "quantization_config"})


def check_config_numbers(config: dict[str, Any]) -> None:
    """ModelError when a number in `config`, or the length of a list, is implausible, at any
    depth."""
    for key, value in _entries(config):
        if key in _LAYERS and value is not None and (type(value) is not int or value <= 0):
            what = f"{value:,} layers" if type(value) is int else "an invalid number of layers"
            raise _implausible(what)
        limit = _limit(key, value)
        if limit is None:
            continue
        if isinstance(value, int) and abs(value) > limit:
            # A number with more digits than this is not even written.
            shown = f"{value:,}" if abs(value) < _MAX_FREE else "too many"
            raise _implausible(f"{shown} layers" if key in _LAYERS else f"a {key[:60]} of {shown}")
        if isinstance(value, list | str) and len(value) > limit:
            raise _implausible(f"a {key[:60]} with {len(value):,} entries")


def _entries(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys and values of all nested objects."""
    waiting: list[Any] = [config]
    while waiting:
        for key, value in waiting.pop().items():
            yield key, value
            nested = value if isinstance(value, list) else [value]
            if key not in _NAMING_MODULES:
                waiting += [each for each in nested if isinstance(each, dict)]


def _limit(key: str, value: Any) -> int | None:
    """The largest value, or the greatest length, for this key."""
    per_layer = _PER_LAYER.search(key) is not None
    if isinstance(value, list):
        return _MAX_LAYERS if per_layer else _MAX_LIST
    if isinstance(value, str):
        return _MAX_LAYERS if per_layer else None
    if _COUNT.search(key) and not _SIZE.search(key):
        return _MAX_LAYERS if per_layer else _MAX_COUNT
    return _MAX_FREE if _FREE.search(key) else _MAX_NUMBER


def _implausible(what: str) -> ModelError:
    return ModelError(f"The model's config.json has {what}", "download the model again")
