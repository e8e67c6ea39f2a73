"""Compares the tokenizers of two models by their content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.models.check import read_json
from app.models.errors import ModelError


def same_tokenizer(a: Path, b: Path) -> bool:
    """Whether the models in folders `a` and `b` have the same kind, vocabulary, merges, and added
    and special tokens. ModelError when a tokenizer cannot be read."""
    return fingerprint(a) == fingerprint(b)


def fingerprint(folder: Path) -> str:
    """A digest of everything that determines what a token id means. Takes about a second, and
    nothing again while the files are the same. ModelError when the tokenizer cannot be read."""
    files = (folder / name for name in ("tokenizer.json", "tokenizer_config.json"))
    return _fingerprint(folder, *(file.exists() and file.stat().st_mtime_ns for file in files))


@lru_cache(maxsize=512)
def _fingerprint(folder: Path, *changed: int) -> str:
    content = read_json(folder / "tokenizer.json")
    try:
        model = content["model"]
        # Old files have no type; among them, only BPE has merges.
        kind = str(model.get("type") or ("BPE" if "merges" in model else "unknown"))
        vocabulary = sorted(_vocabulary(model["vocab"]).items(), key=repr)
        merges = [_merge(entry) for entry in model.get("merges") or ()]
        added = sorted(_added(folder, content.get("added_tokens") or ()).items())
        whole = json.dumps([kind, vocabulary, merges, added])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ModelError(
            f"'{folder / 'tokenizer.json'}' is not a tokenizer", "download the model again"
        ) from None
    return hashlib.sha256(whole.encode()).hexdigest()


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
