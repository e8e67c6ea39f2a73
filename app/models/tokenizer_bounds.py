"""Is a tokenizer.json one that may be loaded here? What it does to long texts happens in a process
that is limited (`app/sandbox`), but a loader makes tables of its tokens, reads a few names with it,
and turns an answer's tokens into text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from app.models.errors import ModelError

_MOST_STEPS = 100
_MOST_GROWTH = 1000
"""How many times longer a text may become."""
_LONGEST_TOKEN = 10_000
_MOST_IDS = 1 << 24
_NESTED = ("normalizers", "pretokenizers", "decoders", "processors")


def check_tokenizer(content: dict[str, Any]) -> None:
    """ModelError, in one sentence, when a token or a step of a tokenizer.json is none of a model's.
    That it is a tokenizer at all is said where it is loaded."""
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    added = [each for each in content.get("added_tokens") or () if isinstance(each, dict)]
    _check_tokens(_texts(vocabulary), vocabulary.values() if isinstance(vocabulary, dict) else ())
    _check_tokens((each.get("content") for each in added), (each.get("id") for each in added))
    for name in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
        steps = list(_steps(content.get(name)))
        if len(steps) > _MOST_STEPS:
            raise _refused(f"more than {_MOST_STEPS} steps in its {name}")
        if math.prod(_growth(step) for step in steps) > _MOST_GROWTH:
            raise _refused(f"a {name} that makes texts more than {_MOST_GROWTH:,} times longer")
        if name == "decoder" and any(_has_pattern(step) for step in steps):
            raise _refused("a regular expression in its decoder")


def _texts(vocabulary: Any) -> Iterator[Any]:
    """Unigram models list pairs of token and score."""
    for each in vocabulary if isinstance(vocabulary, dict | list) else ():
        yield each[0] if isinstance(each, list) and each else each


def _check_tokens(texts: Iterable[Any], ids: Iterable[Any]) -> None:
    if any(isinstance(text, str) and len(text) > _LONGEST_TOKEN for text in texts):
        raise _refused(f"a token of more than {_LONGEST_TOKEN:,} characters")
    if any(isinstance(id, int | float) and not 0 <= id < _MOST_IDS for id in ids):
        raise _refused(f"a token whose number is not between 0 and {_MOST_IDS - 1:,}")


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    waiting, seen = [part], 0
    while waiting and seen <= _MOST_STEPS:
        step = waiting.pop()
        if not isinstance(step, dict):
            continue
        seen += 1
        yield step
        for key in _NESTED:
            within = step.get(key)
            waiting += within if isinstance(within, list) else []


def _growth(step: dict[str, Any]) -> float:
    """How many times longer it may make a text, at most. Unicode's own forms come to an end."""
    made = step.get("content")
    length = len(made) if isinstance(made, str) else 0
    match step.get("type"):
        case "Replace":
            pattern = step.get("pattern")
            found = pattern.get("String") if isinstance(pattern, dict) else None
            # A regular expression may match nothing at all, before every character.
            return max(1.0, length / len(found)) if found else 1.0 + length
        case "Prepend":
            prepended = step.get("prepend")
            return 1.0 + (len(prepended) if isinstance(prepended, str) else 0)
        case "ByteLevel" if "trim_offsets" not in step:  # as a normaliser: characters for bytes
            return 4.0
    return 1.0


def _has_pattern(step: dict[str, Any]) -> bool:
    pattern = step.get("pattern")
    return isinstance(pattern, dict) and "Regex" in pattern


def _refused(what: str) -> ModelError:
    return ModelError(f"The model's tokenizer.json has {what}", "choose another model")
