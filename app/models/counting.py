"""How many tokens a text is for a model: with its tokenizer alone, and without MLX."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from app.models.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PIECE = 256 * 1024
"""Characters that are encoded together: what is encoded takes a hundred times its own memory."""


class TokenCounter:
    """For the model in `folder`; read with the first count. May be used from any thread, and
    counts one text after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tokenizer: Tokenizer | None = None
        self._in_turn = threading.Lock()

    def count(
        self, texts: Iterable[str], cancelled: Callable[[], bool] = lambda: False
    ) -> int | None:
        """Of all texts together; None when it was `cancelled`, which is asked at every piece.

        What looks like a special token counts as the text it is, as in a prompt. Texts are cut
        between lines, where hardly any tokenizer has a token that goes on. Raises ModelError.
        """
        with self._in_turn:
            if self._tokenizer is None:
                self._tokenizer = _tokenizer(self._folder)
            total = 0
            for text in texts:
                for piece in pieces(text, PIECE):
                    if cancelled():
                        return None
                    valid = piece.encode(errors="replace").decode()
                    # Plain `encode` holds the GIL, and `_fast` leaves out the offsets.
                    encoded = self._tokenizer.encode_batch_fast([valid], add_special_tokens=False)
                    total += len(encoded[0])
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


def _tokenizer(folder: Path) -> Tokenizer:
    from tokenizers import Tokenizer  # here: the screen is drawn before it is needed

    try:
        tokenizer: Tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # it raises plain Exception, of a missing file too
        raise ModelError(
            f"'{folder / 'tokenizer.json'}' cannot be read ({error})", "download the model again"
        ) from None
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
