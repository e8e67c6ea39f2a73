"""Compares tokenizers by content, and counts tokens. Does not use MLX."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.models.check import read_json
from app.models.errors import ModelError
from app.sandbox.process import TextError, TextProcess


def same_tokenizer(a: Path, b: Path) -> bool:
    """Whether the tokenizers of the models in folders `a` and `b` have the same kind, vocabulary,
    merges, added tokens and special tokens. Raises ModelError if a tokenizer cannot be read."""
    return fingerprint(a) == fingerprint(b)


def fingerprint(folder: Path) -> str:
    """Digest of everything that determines the meaning of token ids. Takes about a second; the
    result is cached while the files stay the same. Raises ModelError if the tokenizer cannot be
    read."""
    files = (folder / name for name in ("tokenizer.json", "tokenizer_config.json"))
    return _fingerprint(folder, *(file.exists() and file.stat().st_mtime_ns for file in files))


@lru_cache(maxsize=512)
def _fingerprint(folder: Path, *changed: int) -> str:
    content = read_json(folder / "tokenizer.json")
    try:
        model = content["model"]
        # Old files have no type. Among them, only BPE has merges.
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
    """Token ids by token. Unigram models list pairs of token and score in the order of ids."""
    if isinstance(vocabulary, dict):
        return vocabulary
    return {token: index for index, (token, _score) in enumerate(vocabulary)}


def _merge(entry: Any) -> tuple[str, ...]:
    """The parts of a merge, which is "a b" in older files and ["a", "b"] in newer ones."""
    return tuple(entry.split(" ")) if isinstance(entry, str) else tuple(entry)


def _added(folder: Path, entries: Iterable[dict[str, Any]]) -> dict[int, str]:
    """Added and special tokens by id. Some models list some of them only in
    tokenizer_config.json."""
    added = {int(entry["id"]): str(entry["content"]) for entry in entries}
    config = folder / "tokenizer_config.json"
    if config.is_file():
        for index, entry in (read_json(config).get("added_tokens_decoder") or {}).items():
            added.setdefault(int(index), str(entry["content"]))
    return added


# ------------------------------------------------------------------------------ counting


MAX_COUNTED = 4_000_000
"""Maximum characters whose tokens are counted. For longer texts they are estimated from a
sample."""
SAMPLES, SAMPLE = 128, 4096
"""Number of pieces of the sample, and characters of each."""
PIECE = 256 * 1024
"""Characters encoded at once. Encoding needs hundreds of times their memory."""


class _CountCancelled(Exception):
    """The count is no longer needed."""


class TokenCounter:
    """Counts tokens for the model in `folder`, whose tokenizer is loaded by the first count.
    Thread-safe; counts run one at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._texts: TextProcess | None = None
        self._in_turn = threading.Lock()

    def estimate(
        self, texts: Sequence[str], cancelled: Callable[[], bool] = lambda: False
    ) -> int | None:
        """Estimate the tokens of all texts from a sample; None if cancelled, as in `count`."""
        sampled = sample(texts)
        tokens = self.count(sampled, cancelled)
        characters = sum(map(len, sampled))
        return tokens and tokens * sum(map(len, texts)) // characters

    def count(
        self, texts: Iterable[str], cancelled: Callable[[], bool] = lambda: False
    ) -> int | None:
        """Count the tokens of all texts; None if `cancelled`, which is called often, returns true.

        Special tokens count as plain text, as in a prompt. Texts are split between lines, because
        hardly any tokenizer has tokens that span lines. Raises ModelError.
        """

        def check() -> None:
            if cancelled():
                raise _CountCancelled

        with self._in_turn:
            try:
                if self._texts is None:
                    self._texts = TextProcess()
                    self._texts.open(self._folder)
                total = 0
                for text in texts:
                    for piece in pieces(text, PIECE):
                        check()
                        total += self._texts.count(piece, check)
            except _CountCancelled:
                return None
            except TextError as error:
                raise ModelError(
                    f"'{self._folder / 'tokenizer.json'}' cannot be used"
                    f" ({' '.join(str(error).split())[:200]})",
                    "download the model again",
                ) from error
            return total


def sample(texts: Sequence[str]) -> list[str]:
    """Pieces at equal distances in the concatenated texts."""
    found: list[str] = []
    total, at = sum(map(len, texts)), 0
    for text in texts:
        while len(found) < SAMPLES and (start := len(found) * total // SAMPLES - at) < len(text):
            found.append(text[start : start + SAMPLE])
        at += len(text)
    return found


def pieces(text: str, size: int) -> Iterator[str]:
    """Split `text` into pieces of at most `size` characters, after a line end if possible."""
    at = 0
    while len(text) - at > size:
        cut = text.rfind("\n", at, at + size) + 1
        cut = cut if cut > at else at + size
        yield text[at:cut]
        at = cut
    yield text[at:]
