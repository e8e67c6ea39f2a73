"""The built-in text encoder: maps pieces of text to vectors that are close if the meaning is.

A BERT (arXiv 1810.04805) with three layers; a piece's vector is the mean over its tokens (arXiv
1908.10084). `assets/encoder` contains the weights and the training recipe.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

from app.util.assets import assets_path

PIECE, STRIDE = 48, 32
"""Tokens of a piece, and from one piece to the next; pieces overlap at both ends."""
UNKNOWN = "[UNK]"
BATCH, QUESTIONS = 64, 4
"""Pieces per batch, and questions per batch, which may be longer."""
ENCODER_BYTES = 120 << 20
"""Maximum bytes of its weights and one batch."""
ENCODER_OPERATIONS = 7.4e6
"""`TextEncoder.operations_per_token`, to be known before the encoder is loaded."""
PART, PARTS = 1 << 14, 8
"""Minimum characters tokenised in one call, and parts per batch. Reading the result of a part holds
the GIL for about a millisecond."""
_BORDER = re.compile(r"[ \n\t\u3002\u4e00-\u9fff]")
"""A text can be split before these characters without changing its tokens."""
_EPS = 1e-6

Weights = dict[str, mx.array]
OnPieces = Callable[[int, int], None]
"""Called with (pieces encoded, total). Raises to cancel."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of the network, as in `config.json`."""

    layers: int
    heads: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Pieces:
    """A text's pieces: `vectors` float32 (n, width) of length 1, and `borders` (n + 1,): the
    character at which the part that each represents starts, then the end of the last one."""

    vectors: NDArray[np.float32]
    borders: NDArray[np.int64]


class TextEncoder:
    """The encoder in `folder`: `config.json`, `tokenizer.json` and `model.safetensors`, whose
    weights have 8 bits if there are `.scales` for them."""

    def __init__(self, folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._shape = Shape(**config)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        vocabulary = self._tokenizer.get_vocab()
        self._start, self._end, self._padding = (
            vocabulary[name] for name in ("[CLS]", "[SEP]", "[PAD]")
        )
        self._weights = _unpacked(folder / "model.safetensors")
        self._known: dict[str, Pieces] = {}
        """Pieces of the last prompt's texts: most turns ask about the same ones."""

    @property
    def operations_per_token(self) -> float:
        """Operations per token of a text: two per matrix element. Includes the overlap of pieces
        and their two special tokens."""
        layers = (w.size for name, w in self._weights.items() if name[0].isdigit() and w.ndim == 2)
        return 2 * sum(layers) * (PIECE + 2) / STRIDE

    def encode_questions(self, texts: Sequence[str], on_pieces: OnPieces) -> NDArray[np.float32]:
        """Vectors (n, width) of one or more questions; long ones are cut at the start. `on_pieces`
        gets 0: no other text is encoded yet."""
        longest = self._shape.max_tokens - 2
        vectors = []
        for at in range(0, len(texts), QUESTIONS):
            on_pieces(0, 1)
            parts = map(self._tokenise, texts[at : at + QUESTIONS])
            ids = [[token for _, encoded in each for token in encoded.ids] for each in parts]
            vectors.append(self._encode([each[-longest:] for each in ids]))
        return np.concatenate(vectors)

    def encode(self, texts: Sequence[str], on_pieces: OnPieces) -> NDArray[np.float32]:
        """Vectors (n, width) of texts; long ones are cut at the end."""
        longest = self._shape.max_tokens - 2
        ids = [each.ids[:longest] for each in self._tokenizer.encode_batch(texts, False)]
        order = sorted(range(len(ids)), key=lambda index: len(ids[index]))
        vectors = []
        for at in range(0, len(order), BATCH):
            vectors.append(self._encode([ids[index] for index in order[at : at + BATCH]]))
            on_pieces(min(at + BATCH, len(order)), len(order))
        return np.asarray(np.concatenate(vectors)[np.argsort(order)])

    def known_share(self, text: str) -> float:
        """Share of a text's words that are a single token: about 1 in English, 0 in unknown
        scripts."""
        known: list[bool] = []
        for _, encoded in self._tokenise(text):
            parts = Counter(encoded.word_ids)
            known += [
                parts[word] == 1 and token != UNKNOWN
                for word, token in zip(encoded.word_ids, encoded.tokens, strict=True)
                if token == UNKNOWN or (token.isalpha() and not token.startswith("##"))
            ]
        return sum(known) / max(len(known), 1)

    def encode_texts(
        self, texts: Sequence[str], on_pieces: OnPieces, remember: bool = True
    ) -> list[Pieces]:
        """Encode texts in pieces. Texts of the last call with `remember` are not encoded again."""
        cut = {text: self._cut(text) for text in texts if text not in self._known}
        total, done = sum(len(pieces) for pieces, _ in cut.values()), 0
        found = {text: self._known[text] for text in texts if text in self._known}
        for text, (pieces, borders) in cut.items():
            vectors = []
            for at in range(0, len(pieces), BATCH):
                vectors.append(self._encode(pieces[at : at + BATCH]))
                done += len(vectors[-1])
                on_pieces(done, total)
            found[text] = Pieces(np.concatenate(vectors), borders)
        if remember:
            self._known = found
        return [found[text] for text in texts]

    def _cut(self, text: str) -> tuple[list[list[int]], NDArray[np.int64]]:
        """Token ids of a text's pieces (at least one), and their `Pieces.borders`."""
        ids: list[int] = []
        at: list[int] = []
        for first, encoded in self._tokenise(text):
            ids += encoded.ids
            at += [first + start for start, _ in encoded.offsets]
        margin = (PIECE - STRIDE) // 2
        starts = range(0, max(len(ids), 1), STRIDE)
        pieces = [ids[max(start - margin, 0) : start + STRIDE + margin] for start in starts]
        inner = [at[start] for start in starts[1:]]
        return pieces, np.array([0, *inner, len(text)], np.int64)

    def _tokenise(self, text: str) -> Iterator[tuple[int, Encoding]]:
        """Yield (first character, tokens) of a text, part by part. The tokens are those of the
        whole text. `encode_batch` on parts releases the GIL, so that the screen can draw."""
        borders = [0]
        while found := _BORDER.search(text, borders[-1] + PART):
            borders.append(found.start())
        for at in range(0, len(borders), PARTS):
            starts, ends = borders[at : at + PARTS], borders[at + 1 : at + PARTS + 1]
            parts = [text[a:b] for a, b in zip_longest(starts, ends)]
            found_parts = self._tokenizer.encode_batch(parts, add_special_tokens=False)
            yield from zip(starts, found_parts, strict=True)

    def _encode(self, pieces: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        longest = max(map(len, pieces)) + 2
        ids = np.full((len(pieces), longest), self._padding, np.int32)
        for row, piece in zip(ids, pieces, strict=True):
            row[: len(piece) + 2] = [self._start, *piece, self._end]
        vectors = encode(self._weights, self._shape, mx.array(ids), mx.array(ids != self._padding))
        return np.array(vectors)


def encode(weights: Weights, shape: Shape, ids: mx.array, mask: mx.array) -> mx.array:
    """Vectors (n, width) of length 1 for token ids (n, length); `mask` is False for padding."""
    rows, length = ids.shape
    real = mask.astype(mx.float32)
    hidden = weights["tokens"][ids] + weights["positions"][:length]
    hidden = _norm(weights, "norm", hidden)
    bias = mx.where(mask, 0.0, -1e9)[:, None, None, :]
    width = hidden.shape[-1] // shape.heads

    def heads(name: str, hidden: mx.array) -> mx.array:
        return _linear(weights, name, hidden).reshape(rows, length, -1, width).swapaxes(1, 2)

    for layer in range(shape.layers):
        q, k, v = (heads(f"{layer}.{name}", hidden) for name in ("query", "key", "value"))
        shares = mx.softmax(q @ k.swapaxes(2, 3) * width**-0.5 + bias, axis=-1)
        mixed = (shares @ v).swapaxes(1, 2).reshape(rows, length, -1)
        attended = hidden + _linear(weights, f"{layer}.output", mixed)
        hidden = _norm(weights, f"{layer}.norm_1", attended)
        inner = mx.maximum(_linear(weights, f"{layer}.up", hidden), 0)
        hidden = _norm(
            weights, f"{layer}.norm_2", hidden + _linear(weights, f"{layer}.down", inner)
        )
    vectors = (hidden * real[:, :, None]).sum(axis=1)
    return vectors / mx.linalg.norm(vectors, axis=1, keepdims=True)


def _linear(weights: Weights, name: str, hidden: mx.array) -> mx.array:
    return hidden @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _norm(weights: Weights, name: str, hidden: mx.array) -> mx.array:
    return mx.fast.layer_norm(hidden, weights[f"{name}.weight"], weights[f"{name}.bias"], _EPS)


def _unpacked(file: Path) -> Weights:
    """Load the weights of a file as float32."""
    stored = mx.load(str(file))
    assert isinstance(stored, dict)
    found = {}
    for name, value in stored.items():
        if f"{name}.scales" in stored:
            scales, biases = stored[f"{name}.scales"], stored[f"{name}.biases"]
            value = mx.dequantize(value, scales, biases, bits=8)
        if not name.endswith((".scales", ".biases")):
            found[name] = value.astype(mx.float32)
    mx.eval(found)
    return found


@cache
def built_in_encoder() -> TextEncoder:
    return TextEncoder(assets_path() / "encoder")
