"""Reads a model's `generation_config.json`: the sampling that its makers recommend."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from app.protocol.options import GREEDY, ModelSampling
from app.util.regular_files import read_file

FILE_NAME = "generation_config.json"
MAX_BYTES = 1 << 20
BOUNDS: dict[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0.01, 1),
    "top_k": (0, 1_000_000),
    "min_p": (0, 1),
    "repetition_penalty": (0.5, 2),
}
"""Fields that are used, with their minimum and maximum values."""
_WHOLE = frozenset({"top_k"})
_SPACED = frozenset({"repetition_penalty"})


def read_generation_config(folder: Path) -> ModelSampling:
    """Read the file in a model's folder. Greedy if the file is missing or cannot be read."""
    try:
        content = json.loads(read_file(folder / FILE_NAME, MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return GREEDY
    return parse_generation_config(content if isinstance(content, dict) else {})


def parse_generation_config(config: Mapping[str, Any]) -> ModelSampling:
    """Parse the file's content. Greedy if `do_sample` is false, or if it sets no sampling values.
    Values outside their bounds are ignored and named in `ignored`."""
    given = {name: config[name] for name in BOUNDS if config.get(name) is not None}
    if given.get("top_k") == -1:  # like 0: all tokens
        del given["top_k"]
    for name in _WHOLE & given.keys():
        if isinstance(value := given[name], float) and value.is_integer():
            given[name] = int(value)
    values = {name: value for name, value in given.items() if _is_valid(name, value)}
    ignored = tuple(name for name in given if name not in values)
    penalty = values.pop("repetition_penalty", GREEDY.repetition_penalty)
    samples = config.get("do_sample", bool(values))
    if samples is not True:
        return ModelSampling(repetition_penalty=penalty, ignored=ignored)
    values = {"temperature": 1.0} | values
    return ModelSampling(**values, repetition_penalty=penalty, ignored=ignored)


def describe_sampling(sampling: ModelSampling) -> str:
    """`temperature 0.6, top-p 0.95, top-k 20`, or `greedy`."""
    parts = [] if sampling.temperature else ["greedy"]
    parts += [
        f"{name.replace('_', ' ' if name in _SPACED else '-')} {value:,.7g}"
        for name in BOUNDS
        if (value := getattr(sampling, name)) != getattr(GREEDY, name)
    ]
    return ", ".join(parts)


def _is_valid(name: str, value: object) -> bool:
    number = isinstance(value, int if name in _WHOLE else int | float)
    low, high = BOUNDS[name]
    return number and not isinstance(value, bool) and low <= value <= high  # type: ignore[operator]
