"""Checks that a tokenizer.json is safe to load. Long texts are tokenised in a limited process
(`app/sandbox`), but loaders build tables of its tokens, encode a few names, and decode answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from app.models.errors import ModelError

_MAX_STEPS = 100
_MAX_GROWTH = 1000
"""The factor by which a text may grow."""
_MAX_TOKEN = 10_000
_MAX_IDS = 1 << 24
_NESTED = ("normalizers", "pretokenizers", "decoders", "processors")


def check_tokenizer(content: dict[str, Any]) -> None:
    """ModelError when a token or a step of a tokenizer.json is implausible. Whether it is a
    tokenizer at all is checked where it is loaded."""
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    added = [each for each in content.get("added_tokens") or () if isinstance(each, dict)]
    _check_tokens(_texts(vocabulary), vocabulary.values() if isinstance(vocabulary, dict) else ())
    _check_tokens((each.get("content") for each in added), (each.get("id") for each in added))
    for name in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
        steps = list(_steps(content.get(name)))
        if len(steps) > _MAX_STEPS:
            raise _refused(f"more than {_MAX_STEPS} steps in its {name}")
        if math.prod(_growth(step) for step in steps) > _MAX_GROWTH:
            raise _refused(f"a {name} that makes texts more than {_MAX_GROWTH:,} times longer")
        if name == "decoder" and any(_has_pattern(step) for step in steps):
            raise _refused("a regular expression in its decoder")


def _texts(vocabulary: Any) -> Iterator[Any]:
    """The tokens. Unigram models list pairs of token and score."""
    for each in vocabulary if isinstance(vocabulary, dict | list) else ():
        yield each[0] if isinstance(each, list) and each else each


def _check_tokens(texts: Iterable[Any], ids: Iterable[Any]) -> None:
    if any(isinstance(text, str) and len(text) > _MAX_TOKEN for text in texts):
        raise _refused(f"a token of more than {_MAX_TOKEN:,} characters")
    if any(isinstance(id, int | float) and not 0 <= id < _MAX_IDS for id in ids):
        raise _refused(f"a token id that is not between 0 and {_MAX_IDS - 1:,}")


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    waiting, seen = [part], 0
    while waiting and seen <= _MAX_STEPS:
        step = waiting.pop()
        if not isinstance(step, dict):
            continue
        seen += 1
        yield step
        for key in _NESTED:
            nested = step.get(key)
            waiting += nested if isinstance(nested, list) else []


def _growth(step: dict[str, Any]) -> float:
    """The factor by which a step may lengthen a text. Unicode normalisation is bounded."""
    made = step.get("content")
    length = len(made) if isinstance(made, str) else 0
    match step.get("type"):
        case "Replace":
            pattern = step.get("pattern")
            found = pattern.get("String") if isinstance(pattern, dict) else None
            # A regular expression may match an empty string before every character.
            return max(1.0, length / len(found)) if found else 1.0 + length
        case "Prepend":
            prepended = step.get("prepend")
            return 1.0 + (len(prepended) if isinstance(prepended, str) else 0)
        case "ByteLevel" if (
            "trim_offsets" not in step
        ):  # a normaliser that maps bytes to characters
            return 4.0
    return 1.0


def _has_pattern(step: dict[str, Any]) -> bool:
    pattern = step.get("pattern")
    return isinstance(pattern, dict) and "Regex" in pattern


def _refused(what: str) -> ModelError:
    return ModelError(f"The model's tokenizer.json has {what}", "choose another model")
