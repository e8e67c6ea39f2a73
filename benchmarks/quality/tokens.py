"""Counts tokens with a target's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from app.errors import UserError
from app.sandbox.process import TextError, TextPiece, TextProcess


class Tokens(Protocol):
    """Counts the tokens of a text and finds the character range of each."""

    def count(self, text: str) -> int: ...

    def offsets(self, text: str) -> Sequence[tuple[int, int]]: ...


class FolderTokens:
    """Tokens by the tokenizer in a model's folder, which runs in the sandbox."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError if the tokenizer cannot be read."""
        self._texts = TextProcess()
        self._texts.open(folder)
        try:
            self._texts.finish()
        except TextError as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"The tokenizer in '{folder}' cannot be read ({reason})",
                "download the model again",
            ) from None

    def count(self, text: str) -> int:
        return self._texts.count(text)

    def offsets(self, text: str) -> Sequence[tuple[int, int]]:
        ((_, offsets),), _ = self._texts.encode([TextPiece(text, offsets=True)])
        flat = np.frombuffer(offsets, np.int64).reshape(-1, 2)
        return [(start, end) for start, end in flat.tolist()]
