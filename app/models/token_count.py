"""How many tokens a text is for a model: with its tokenizer alone, and without MLX."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from app.models.errors import ModelError
from app.sandbox.process import TextError, TextProcess

PIECE = 256 * 1024
"""Characters that are encoded together: what is encoded takes hundreds of times its own memory."""


class _Cancelled(Exception):
    """Nobody waits for the count any more."""


class TokenCounter:
    """For the model in `folder`; read with the first count. May be used from any thread, and
    counts one text after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._texts: TextProcess | None = None
        self._in_turn = threading.Lock()

    def count(
        self, texts: Iterable[str], cancelled: Callable[[], bool] = lambda: False
    ) -> int | None:
        """Of all texts together; None when it was `cancelled`, which is asked all the time.

        What looks like a special token counts as the text it is, as in a prompt. Texts are cut
        between lines, where hardly any tokenizer has a token that goes on. Raises ModelError.
        """

        def check() -> None:
            if cancelled():
                raise _Cancelled

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
            except _Cancelled:
                return None
            except TextError as error:
                raise ModelError(
                    f"'{self._folder / 'tokenizer.json'}' cannot be used"
                    f" ({' '.join(str(error).split())[:200]})",
                    "download the model again",
                ) from error
            return total


def pieces(text: str, size: int) -> Iterator[str]:
    """`text` in parts of at most `size` characters, cut behind a line end where there is one."""
    at = 0
    while len(text) - at > size:
        cut = text.rfind("\n", at, at + size) + 1
        cut = cut if cut > at else at + size
        yield text[at:cut]
        at = cut
    yield text[at:]
