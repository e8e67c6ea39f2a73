"""Text encoders: they map pieces of text to vectors that are close if the meaning is.

`assets/encoders` contains the built-in ones with their training recipes. Any checkpoint in the
layout of Hugging Face and Sentence Transformers (arXiv 1908.10084) with a supported network can
replace them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from app.engine.model.encoder_network import TOKEN_TABLES, encode, load_weights, parse_shape
from app.engine.model.encoder_tokenizer import EncoderTokenizer
from app.protocol.events import ModelInfo
from app.sandbox.process import TextProcess
from app.util.assets import assets_path
from app.util.regular_files import read_file

PIECE, STRIDE = 48, 32
"""Tokens of a piece, and from one piece to the next; pieces overlap at both ends."""
MAX_QUESTION = 512
"""Maximum tokens of a question, if the network can read as many."""
BATCH, QUESTIONS = 64, 4
"""Pieces per batch, and questions per batch, which may be longer. Of longer passages, a batch has
as many as take the same memory."""
TIMED = 16
"""Pieces of which the encoder's speed is measured."""
REMEMBERED = 1 << 14
"""Vectors of passages that an encoder remembers, for all chats: about 500,000 tokens of text."""
ENCODER_BYTES = 180 << 20
"""Maximum bytes of a built-in encoder's weights and one batch."""
ENCODER_OPERATIONS = 7.4e6
"""`TextEncoder.operations_per_token` of the English encoder, to be known before it is loaded. Those
of the multilingual one are three times as many."""
ENGLISH_FROM = 0.75
"""Minimum share of an English text's words that the English encoder knows."""
SAMPLES, SAMPLE = 32, 4000
"""Texts whose language is examined, and characters of each."""
_WORD = re.compile(r"[\u3400-\u9fff]|[^\W\d_\u3400-\u9fff]+")
"""A word; in Chinese a character."""

OnPieces = Callable[[int, int], None]
"""Called with (pieces encoded, total). Raises to cancel."""


@dataclass(frozen=True, slots=True)
class Pieces:
    """A text's pieces: `vectors` float32 (n, width) of length 1, and `borders` (n + 1,): the
    character at which the part that each represents starts, then the end of the last one."""

    vectors: NDArray[np.float32]
    borders: NDArray[np.int64]


class TextEncoder:
    """The encoder in `folder`: `config.json`, `tokenizer.json`, `model*.safetensors` and
    `1_Pooling/config.json`. `name` is that of its repository; some families of models need a prefix
    before questions and passages that their files do not state. `texts` runs its tokenizer, unless
    it is specchat's own. Raises ValueError, KeyError or TextError for files that are not an
    encoder's."""

    def __init__(self, folder: Path, name: str = "", texts: TextProcess | None = None) -> None:
        config = _read(folder / "config.json")
        pooling = _read(folder / "1_Pooling" / "config.json")
        self._shape = parse_shape(config, mean=not pooling["pooling_mode_cls_token"])
        self._tokenizer = EncoderTokenizer(folder / "tokenizer.json", texts)
        self._weights = load_weights(folder, config)
        table = next(self._weights[name] for name in TOKEN_TABLES if name in self._weights)
        if self._tokenizer.size > len(table):
            raise ValueError(f"its tokenizer has more tokens than its weights ({len(table):,})")
        self._query_prefix, passage = _prefixes(folder, name or folder.name)
        self._query_ids, self._passage_ids = (
            self._tokenizer.encode([prefix.rstrip()])[0].ids.tolist()
            for prefix in (self._query_prefix, passage)
        )
        self.info = ModelInfo(
            name=name or folder.name,
            architecture=config["model_type"],
            parameters=sum(each.size for each in self._weights.values()),
            weight_bytes=sum(each.nbytes for each in self._weights.values()),
            context_length=self._shape.max_tokens,
        )
        self.fingerprint = ""
        """Identifies its files, if it was loaded as a draft."""
        matrices = self._matrices
        self._widths = len(matrices[0][0]), max(map(len, matrices))
        self._known: dict[str, Pieces] = {}
        """Pieces of the last prompt's texts, so that they need not be tokenised again."""
        self._vectors: dict[bytes, NDArray[np.float32]] = {}
        """By the digest of a passage's token ids, most recently used last."""
        if not np.isfinite(self._encode([[]], self._query_ids)).all():
            raise ValueError("its weights are damaged: some are not numbers")

    @property
    def is_multilingual(self) -> bool:
        return self._tokenizer.is_multilingual

    @property
    def operations_per_token(self) -> float:
        """Operations per token of a text: two per matrix element. Includes the overlap of pieces
        and what is added to each: special tokens, prefix."""
        return 2 * sum(m.size for m in self._matrices) * (PIECE + self._added) / STRIDE

    @cached_property
    def seconds_per_token(self) -> float:
        """Seconds to encode a token of a text, without tokenising. Measured on a few pieces, twice;
        the faster time counts, because the first warms up."""

        def once() -> float:
            started_at = time.perf_counter()
            self._encode([[0] * PIECE] * TIMED, self._passage_ids)
            return time.perf_counter() - started_at

        return min(once(), once()) / (TIMED * STRIDE)

    @property
    def batch_bytes(self) -> int:
        """Bytes for a batch in addition to the weights: a layer's activations, in float32."""
        batches = (BATCH, PIECE + self._added), (QUESTIONS, self._longest)
        return max(rows * self._row_bytes(length) for rows, length in batches)

    def _row_bytes(self, length: int) -> int:
        """Bytes of a layer's activations for a row of `length` tokens."""
        width, inner = self._widths
        return 4 * length * (8 * width + 3 * inner + 3 * self._shape.heads * length)

    @property
    def _matrices(self) -> list[mx.array]:
        named = self._weights.items()
        return [each for name, each in named if each.ndim == 2 and "embeddings." not in name]

    @property
    def _added(self) -> int:
        return len(self._tokenizer.start) + len(self._passage_ids) + len(self._tokenizer.end)

    @property
    def _longest(self) -> int:
        return min(self._shape.max_tokens, MAX_QUESTION)

    def encode_questions(self, texts: Sequence[str], on_pieces: OnPieces) -> NDArray[np.float32]:
        """Vectors (n, width) of one or more questions; long ones are cut at the start. `on_pieces`
        gets 0: no other text is encoded yet."""
        longest = self._longest - len(self._tokenizer.start) - len(self._tokenizer.end)
        vectors = []
        for at in range(0, len(texts), QUESTIONS):
            on_pieces(0, 1)
            rows = []
            for text in texts[at : at + QUESTIONS]:
                ids = self._ids(self._query_prefix + text)
                if len(ids) > longest:
                    ids = self._query_ids + ids[len(ids) + len(self._query_ids) - longest :]
                rows.append(ids)
            vectors.append(self._encode(rows))
        return np.concatenate(vectors)

    def encode(self, texts: Sequence[str], on_pieces: OnPieces) -> NDArray[np.float32]:
        """Vectors (n, width) of passages; long ones are cut at the end."""
        longest = self._longest - self._added
        ids = [each.ids[:longest].tolist() for each in self._tokenizer.encode(texts)]
        return self._encode_passages(ids, on_pieces)

    def known_share(self, text: str) -> float:
        """Share of a text's words that the encoder knows: about 1 in its languages, 0 in unknown
        scripts. A word is known if it is a single token; if the vocabulary is multilingual, a word
        of several tokens is, too."""
        known: list[NDArray[np.bool_]] = []
        unknown = -1 if self._tokenizer.unknown is None else self._tokenizer.unknown
        words = np.array([match.span() for match in _WORD.finditer(text)], np.int64).reshape(-1, 2)
        for tokens in self._tokenizer.tokenise(text):
            if not len(tokens.ids):
                continue
            starts, ends = tokens.bounds[:, 0], np.maximum.accumulate(tokens.bounds[:, 1])
            inside = words[(words[:, 0] >= starts[0]) & (words[:, 1] <= ends[-1])]
            first = np.searchsorted(ends, inside[:, 0], side="right")
            after = np.searchsorted(starts, inside[:, 1], side="left")
            bad = np.append(0, np.cumsum(tokens.ids == unknown))
            count = after - first
            single = count > 0 if self._tokenizer.is_multilingual else count == 1
            known.append(single & (bad[after] == bad[first]))
        found = np.concatenate(known) if known else np.zeros(0)
        return float(found.mean()) if len(found) else 0.0

    def encode_texts(
        self, texts: Sequence[str], on_pieces: OnPieces, remember: bool = True
    ) -> list[Pieces]:
        """Encode texts in pieces. Pieces that were encoded with `remember` are not encoded again
        soon."""
        cut = {text: self._cut(text) for text in texts if text not in self._known}
        rows = [row for pieces, _ in cut.values() for row in pieces]
        vectors, at = self._encode_passages(rows, on_pieces, remember), 0
        found = {text: self._known[text] for text in texts if text in self._known}
        for text, (pieces, borders) in cut.items():
            found[text] = Pieces(vectors[at : at + len(pieces)], borders)
            at += len(pieces)
        if remember:
            self._known = found
        return [found[text] for text in texts]

    def _encode_passages(
        self, rows: Sequence[list[int]], on_pieces: OnPieces, remember: bool = True
    ) -> NDArray[np.float32]:
        """Vectors (n, width) of the token ids of passages, in batches of similar lengths."""
        keys = [blake2b(np.array(row, np.int32).tobytes(), digest_size=16).digest() for row in rows]
        known = {key: self._vectors[key] for key in keys if key in self._vectors}
        new = [index for index, key in enumerate(keys) if key not in known]
        new.sort(key=lambda index: len(rows[index]))
        done = 0
        while done < len(new):
            batch = self._next_batch([rows[index] for index in new[done : done + BATCH]])
            own = [keys[index] for index in new[done : done + len(batch)]]
            vectors = dict(zip(own, self._encode(batch, self._passage_ids), strict=True))
            known |= vectors
            if remember:
                self._remember(vectors)
            done += len(batch)
            on_pieces(done, len(new))
        if remember:
            self._remember(known)
        return np.stack([known[key] for key in keys]) if rows else np.zeros((0, 0), np.float32)

    def _next_batch(self, rows: list[list[int]]) -> list[list[int]]:
        """As many of the first of these rows, ascending in length, as `batch_bytes` allows."""
        count, limit = 1, self.batch_bytes
        while count < len(rows):
            length = len(rows[count]) + self._added
            if (count + 1) * self._row_bytes(length) > limit:
                break
            count += 1
        return rows[:count]

    def _remember(self, vectors: dict[bytes, NDArray[np.float32]]) -> None:
        for key, vector in vectors.items():
            self._vectors.pop(key, None)
            self._vectors[key] = vector
        for key in [*islice(self._vectors, max(len(self._vectors) - REMEMBERED, 0))]:
            del self._vectors[key]

    def _cut(self, text: str) -> tuple[list[list[int]], NDArray[np.int64]]:
        """Token ids of a text's pieces (at least one), and their `Pieces.borders`."""
        ids: list[int] = []
        at: list[int] = []
        for tokens in self._tokenizer.tokenise(text):
            ids += tokens.ids.tolist()
            at += tokens.bounds[:, 0].tolist()
        margin = (PIECE - STRIDE) // 2
        starts = range(0, max(len(ids), 1), STRIDE)
        pieces = [ids[max(start - margin, 0) : start + STRIDE + margin] for start in starts]
        inner = [at[start] for start in starts[1:]]
        return pieces, np.array([0, *inner, len(text)], np.int64)

    def _ids(self, text: str) -> list[int]:
        return [token for tokens in self._tokenizer.tokenise(text) for token in tokens.ids.tolist()]

    def _encode(
        self, pieces: Sequence[Sequence[int]], prefix: Sequence[int] = ()
    ) -> NDArray[np.float32]:
        start, end = self._tokenizer.start, self._tokenizer.end
        rows = [[*start, *prefix, *piece, *end] for piece in pieces]
        lengths = np.array([len(row) for row in rows])
        ids = np.zeros((len(rows), lengths.max()), np.int32)
        for filled, row in zip(ids, rows, strict=True):
            filled[: len(row)] = row
        mask = np.arange(ids.shape[1]) < lengths[:, None]
        return np.array(encode(self._weights, self._shape, mx.array(ids), mx.array(mask)))


def _read(file: Path) -> Any:
    return json.loads(read_file(file))


_E5 = re.compile(r"(^|[-_])e5([-_]|$)", re.IGNORECASE)
_BGE = re.compile(r"^bge-(small|base|large)-en", re.IGNORECASE)


def _prefixes(folder: Path, name: str) -> tuple[str, str]:
    """What is written before a question and before a passage: as the files state it, or else as the
    model cards of the E5 and BGE families do."""
    stated = folder / "config_sentence_transformers.json"
    prompts = (_read(stated).get("prompts") if stated.is_file() else None) or {}
    query = prompts.get("query") or ""
    passage = prompts.get("passage") or prompts.get("document") or ""
    if query or passage:
        return query, passage
    if folder.parent.name == "snapshots":  # in the hub's cache
        name = folder.parent.parent.name.rpartition("--")[2]
    if _E5.search(name) and "instruct" not in name.lower():
        return "query: ", "passage: "
    if _BGE.search(name):
        return "Represent this sentence for searching relevant passages: ", ""
    return "", ""


BUILT_IN = "english", "multilingual"
_loaded: dict[str, TextEncoder] = {}
"""The built-in encoders that are loaded."""


def english_encoder() -> TextEncoder:
    return _built_in("english")


def multilingual_encoder() -> TextEncoder:
    return _built_in("multilingual")


def _built_in(name: str) -> TextEncoder:
    if name not in _loaded:
        _loaded[name] = TextEncoder(assets_path() / "encoders" / name)
    return _loaded[name]


def drop_built_in_encoders() -> None:
    """Free the memory of the built-in encoders. They are loaded again when they are needed."""
    _loaded.clear()


def encoding_bytes(encoder: TextEncoder | None) -> int:
    """Bytes that encoding needs beyond what is in use. None: by a built-in encoder, which
    may have to be loaded."""
    if encoder is not None:
        return encoder.batch_bytes
    loaded = [each.batch_bytes for each in _loaded.values()]
    return max(loaded) if len(loaded) == len(BUILT_IN) else ENCODER_BYTES


def is_english(question: str, texts: Sequence[str]) -> bool:
    """Whether a question and the texts that it is about are in English, judged by samples."""
    samples = [text[:SAMPLE] for text in texts[:: max(len(texts) // SAMPLES, 1)]]
    known = english_encoder().known_share
    return all(known(each) >= ENGLISH_FROM for each in (question, *samples))


def built_in_encoder(question: str, texts: Sequence[str]) -> TextEncoder:
    """The encoder for a question about these texts. In English the English encoder finds more, at a
    third of the cost (`docs/quality.md`)."""
    return english_encoder() if is_english(question, texts) else multilingual_encoder()
