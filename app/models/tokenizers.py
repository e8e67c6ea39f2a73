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


def same_tokenizer(a: Path, b: Path) -> str | None:
    """None when the models in folders `a` and `b` have the same tokenizer, else a sentence about
    the first difference in kind, vocabulary, merges, or added and special tokens. ModelError when a
    tokenizer cannot be read.
    """
    first, second = _read(a), _read(b)
    names = f"'{a.name}' and '{b.name}'"
    if first.kind != second.kind:
        return f"The tokenizers of {names} differ: {first.kind} and {second.kind}."
    if first.vocabulary != second.vocabulary:
        what = _vocabulary_difference(first.vocabulary, second.vocabulary)
        return f"The vocabularies of {names} differ: {what}."
    if first.merges != second.merges:
        what = _merge_difference(first.merges, second.merges)
        return f"The merges of {names} differ: {what}."
    if first.added != second.added:
        return f"The special tokens of {names} differ: {_added_difference(first, second)}."
    return None


def fingerprint(folder: Path) -> str:
    """Equal for two models exactly when `same_tokenizer` is None, so that many models can be
    compared after reading each once. ModelError when the tokenizer cannot be read."""
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


def _vocabulary_difference(a: dict[str, int], b: dict[str, int]) -> str:
    if len(a) != len(b):
        return f"one has {len(a):,} tokens and the other {len(b):,}"
    different = [token for token, index in a.items() if b.get(token) != index]
    token = min(different, key=lambda token: a[token])
    other = f"id {b[token]} in the other" if token in b else "missing in the other"
    return (
        f"{len(different):,} of {len(a):,} tokens, such as {token!r}, which is id {a[token]} in one"
        f" and {other}"
    )


def _merge_difference(a: list[tuple[str, ...]], b: list[tuple[str, ...]]) -> str:
    if len(a) != len(b):
        return f"one has {len(a):,} merges and the other {len(b):,}"
    at = next(index for index, (left, right) in enumerate(zip(a, b, strict=True)) if left != right)
    return f"from merge {at + 1:,} on"


def _added_difference(first: _Tokenizer, second: _Tokenizer) -> str:
    index = min(dict(first.added.items() ^ second.added.items()))
    names = (repr(each.added[index]) if index in each.added else "none" for each in (first, second))
    return f"token {index} is {' in one and '.join(names)} in the other"
