"""A target's tokens, as its tokenizer counts them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from app.errors import UserError


class Tokens(Protocol):
    """What is known of the target's tokens: how many a text has, and each one's characters."""

    def count(self, text: str) -> int: ...

    def offsets(self, text: str) -> Sequence[tuple[int, int]]: ...


class FolderTokens:
    """The tokens of a model in a folder."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError when its tokenizer cannot be read."""
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # whatever the tokenizers' own reader raises
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"The tokenizer in '{folder}' cannot be read ({reason})",
                "download the model again",
            ) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def offsets(self, text: str) -> Sequence[tuple[int, int]]:
        found: list[tuple[int, int]] = self._tokenizer.encode(
            text, add_special_tokens=False
        ).offsets
        return found
