"""Counts tokens with a model's tokenizer, without MLX."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from app.models.errors import ModelError
from app.sandbox.process import TextError, TextProcess

MAX_COUNTED = 4_000_000
"""Characters: the tokens of more are estimated from a sample."""
SAMPLES, SAMPLE = 128, 4096
"""Pieces of the sample, and characters of each."""
PIECE = 256 * 1024
"""Characters encoded at once: encoding needs hundreds of times their memory."""


class _CountCancelled(Exception):
    """The count is no longer needed."""


class TokenCounter:
    """Counts tokens for the model in `folder`, whose tokenizer is loaded with the first count.
    Thread-safe; counts run one after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._texts: TextProcess | None = None
        self._in_turn = threading.Lock()

    def estimate(
        self, texts: Sequence[str], cancelled: Callable[[], bool] = lambda: False
    ) -> int | None:
        """The number of tokens of all texts, estimated from a sample; None as for `count`."""
        sampled = sample(texts)
        tokens = self.count(sampled, cancelled)
        characters = sum(map(len, sampled))
        return tokens and tokens * sum(map(len, texts)) // characters

    def count(
        self, texts: Iterable[str], cancelled: Callable[[], bool] = lambda: False
    ) -> int | None:
        """The tokens of all texts; None when `cancelled` returns true, which is checked often.

        Special tokens in the text count as plain text, as in a prompt. Texts are split between
        lines, across which hardly any tokenizer has tokens. Raises ModelError.
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
    """Pieces from equal distances of the texts one after the other."""
    found: list[str] = []
    total, at = sum(map(len, texts)), 0
    for text in texts:
        while len(found) < SAMPLES and (start := len(found) * total // SAMPLES - at) < len(text):
            found.append(text[start : start + SAMPLE])
        at += len(text)
    return found


def pieces(text: str, size: int) -> Iterator[str]:
    """`text` in pieces of at most `size` characters, split after a line end if possible."""
    at = 0
    while len(text) - at > size:
        cut = text.rfind("\n", at, at + size) + 1
        cut = cut if cut > at else at + size
        yield text[at:cut]
        at = cut
    yield text[at:]
