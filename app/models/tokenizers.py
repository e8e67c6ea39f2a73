"""Compares the tokenizers of two models by their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.models.check import read_json
from app.models.errors import ModelError


@dataclass(frozen=True, slots=True)
class _Tokenizer:
    """Everything that determines what a token id means."""

    kind: str
    vocabulary: dict[str, int]
    merges: list[tuple[str, ...]]
    added: dict[int, str]


def same_tokenizer(a: Path, b: Path) -> bool:
    """Whether the models in folders `a` and `b` have the same kind, vocabulary, merges, and added
    and special tokens. ModelError when a tokenizer cannot be read."""
    return _read(a) == _read(b)


def fingerprint(folder: Path) -> str:
    """Equal for two models exactly when `same_tokenizer`, so that many models can be compared
    after reading each once. ModelError when the tokenizer cannot be read."""
    tokenizer = _read(folder)
    vocabulary = sorted(tokenizer.vocabulary.items(), key=repr)
    added = sorted(tokenizer.added.items(), key=repr)
    content = json.dumps([tokenizer.kind, vocabulary, tokenizer.merges, added])
    return hashlib.sha256(content.encode()).hexdigest()


def _read(folder: Path) -> _Tokenizer:
    content = read_json(folder / "tokenizer.json")
    try:
        model = content["model"]
        return _Tokenizer(
            # Old files have no type; among them, only BPE has merges.
            kind=str(model.get("type") or ("BPE" if "merges" in model else "unknown")),
            vocabulary=_vocabulary(model["vocab"]),
            merges=[_merge(entry) for entry in model.get("merges") or ()],
            added=_added(folder, content.get("added_tokens") or ()),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ModelError(
            f"'{folder / 'tokenizer.json'}' is not a tokenizer", "download the model again"
        ) from None


def _vocabulary(vocabulary: Any) -> dict[str, int]:
    """Unigram models list pairs of token and score in the order of their ids."""
    if isinstance(vocabulary, dict):
        return vocabulary
    return {token: index for index, (token, _score) in enumerate(vocabulary)}


def _merge(entry: Any) -> tuple[str, ...]:
    """A merge is "a b" in older files and ["a", "b"] in newer ones."""
    return tuple(entry.split(" ")) if isinstance(entry, str) else tuple(entry)


def _added(folder: Path, entries: Iterable[dict[str, Any]]) -> dict[int, str]:
    """Added and special tokens by id. In some models, some are only in tokenizer_config.json."""
    added = {int(entry["id"]): str(entry["content"]) for entry in entries}
    config = folder / "tokenizer_config.json"
    if config.is_file():
        for index, entry in (read_json(config).get("added_tokens_decoder") or {}).items():
            added.setdefault(int(index), str(entry["content"]))
    return added
