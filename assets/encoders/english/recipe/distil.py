"""Distils the encoder from its teacher."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
from corpus import write_corpus
from numpy.typing import NDArray
from teacher import Teacher
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from app.engine.model.encoder_network import Shape, Weights, encode

OUT = Path(__file__).resolve().parents[1]
VOCABULARY, WIDTH, INNER = 24_576, 256, 1024
SHAPE = Shape(layers=3, heads=8, max_tokens=128, eps=1e-6, activation="relu")
POSITIONS = "embeddings.position_embeddings.weight"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
SHARD, BATCH, RATE, WARMUP = 20_000, 128, 1e-3, 300
TEMPERATURE = 0.05
COSINE_WEIGHT = 4.0


def run(folder: Path, minutes: float) -> None:
    """Write the encoder to assets/encoders/english. `folder` keeps what takes long."""
    lines = write_corpus(folder).read_text(encoding="utf-8").splitlines()
    tokenizer = train_tokenizer(folder)
    teacher = Teacher(folder / "teacher")
    shards = list(teach(teacher, lines, folder / "vectors"))
    axes = main_axes(shards)
    weights = initial(teacher, tokenizer, axes)
    export(train(weights, tokenizer, lines, shards, axes, folder / "checkpoint.npz", minutes))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(OUT / "tokenizer.json"))


def train_tokenizer(folder: Path) -> Tokenizer:
    """WordPiece over the texts, in lower case."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=VOCABULARY, special_tokens=list(SPECIAL), limit_alphabet=400
    )
    tokenizer.train([str(folder / "corpus.txt")], trainer)
    return tokenizer


def teach(teacher: Teacher, lines: list[str], folder: Path) -> Iterator[Path]:
    """The teacher's vectors of all lines, in files of SHARD each: an hour and a half."""
    folder.mkdir(exist_ok=True)
    for start in range(0, len(lines), SHARD):
        file = folder / f"{start:07}.npy"
        if not file.exists():
            part = folder / "part.npy"
            np.save(part, teacher.encode(lines[start : start + SHARD]).astype(np.float16))
            os.replace(part, file)
        yield file


def main_axes(shards: list[Path]) -> NDArray[np.float32]:
    """The WIDTH main directions (384, WIDTH) of the teacher's vectors, of some of them."""
    vectors = np.concatenate([_unit(np.load(file)) for file in shards[:4]])
    _, directions = np.linalg.eigh(vectors.T @ vectors)
    return np.asarray(directions[:, ::-1][:, :WIDTH], np.float32)


def initial(teacher: Teacher, tokenizer: Tokenizer, axes: NDArray[np.float32]) -> Weights:
    """Random layers; a token starts as what the teacher says of it alone."""
    rng = np.random.default_rng(0)

    def normal(*size: int, scale: float) -> mx.array:
        return mx.array(rng.normal(0, scale, size).astype(np.float32))

    names = [tokenizer.id_to_token(i).removeprefix("##") for i in range(VOCABULARY)]
    alone = teacher.encode(names)
    tokens = (alone - alone[100:].mean(axis=0)) @ axes
    weights = {
        "embeddings.word_embeddings.weight": mx.array(
            (tokens / tokens.std() * 0.05).astype(np.float32)
        ),
        POSITIONS: normal(SHAPE.max_tokens, WIDTH, scale=0.005),
    }
    layers = [f"encoder.layer.{layer}" for layer in range(SHAPE.layers)]
    norms = [f"{at}.{name}.LayerNorm" for at in layers for name in ("attention.output", "output")]
    for name in ("embeddings.LayerNorm", *norms):
        weights |= {f"{name}.weight": mx.ones(WIDTH), f"{name}.bias": mx.zeros(WIDTH)}
    inside = ("self.query", "self.key", "self.value", "output.dense")
    sizes = {f"attention.{name}": (WIDTH, WIDTH) for name in inside}
    sizes |= {"intermediate.dense": (INNER, WIDTH), "output.dense": (WIDTH, INNER)}
    for at in layers:
        for name, size in sizes.items():
            scale = 0.02 if name.endswith("output.dense") else 0.04
            weights[f"{at}.{name}.weight"] = normal(*size, scale=scale)
            weights[f"{at}.{name}.bias"] = mx.zeros(size[0])
    return weights


def loss(weights: Weights, ids: mx.array, mask: mx.array, taught: mx.array) -> mx.array:
    """How far the vectors are from the teacher's, and how differently each is near the others."""
    found = encode(weights, SHAPE, ids, mask)
    itself = 1e4 * mx.eye(len(ids))
    near = taught @ taught.T / TEMPERATURE - itself
    ours = found @ found.T / TEMPERATURE - itself
    log_near = near - mx.logsumexp(near, axis=1, keepdims=True)
    log_ours = ours - mx.logsumexp(ours, axis=1, keepdims=True)
    divergence = (mx.exp(log_near) * (log_near - log_ours)).sum(axis=1).mean()
    return COSINE_WEIGHT * (1 - (found * taught).sum(axis=1)).mean() + divergence


def train(
    weights: Weights,
    tokenizer: Tokenizer,
    lines: list[str],
    shards: list[Path],
    axes: NDArray[np.float32],
    checkpoint: Path,
    minutes: float,
) -> Weights:
    step = 0
    if checkpoint.exists():
        stored = np.load(checkpoint)
        weights, step = {name: mx.array(stored[name]) for name in weights}, int(stored["step"])
    optimizer = optim.AdamW(RATE, betas=[0.9, 0.98], weight_decay=0.01)
    gradients = mx.value_and_grad(loss)
    started_at, first = time.time(), step
    for ids, taught in batches(tokenizer, lines, shards, axes, step):
        passed = (time.time() - started_at) / (60 * minutes)
        if passed > 1:
            break
        rate = RATE * min(1, (step - first + 1) / WARMUP) * max(0.02, 1 - passed)
        optimizer.learning_rate = mx.array(rate)
        value, change = gradients(weights, mx.array(ids), mx.array(ids > 0), mx.array(taught))
        change, _ = optim.clip_grad_norm(change, 1.0)
        weights = optimizer.apply_gradients(change, weights)
        mx.eval(weights, optimizer.state)
        step += 1
        if step % 50 == 0:
            print(f"{step:,} steps, {passed:.0%}: loss {value.item():.3f}", flush=True)
            part = checkpoint.with_suffix(".part.npz")
            arrays = {name: np.array(value) for name, value in weights.items()}
            np.savez(part, step=step, **arrays)
            os.replace(part, checkpoint)
    return weights


def batches(
    tokenizer: Tokenizer,
    lines: list[str],
    shards: list[Path],
    axes: NDArray[np.float32],
    seed: int,
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.float32]]]:
    """Ids (BATCH, length) of texts of about one length, and what the teacher says (BATCH, WIDTH).
    Without an end."""
    rng = np.random.default_rng(seed)
    start, end = (tokenizer.token_to_id(name) for name in ("[CLS]", "[SEP]"))
    while True:
        for file in rng.permutation(np.array(shards)):
            first, taught = int(file.stem), _unit(np.load(file) @ axes)
            texts = tokenizer.encode_batch(lines[first : first + len(taught)])
            rows = [[start, *each.ids[: SHAPE.max_tokens - 2], end] for each in texts]
            order = np.argsort([len(row) + rng.integers(6) for row in rows])
            groups = [order[i : i + BATCH] for i in range(0, len(order) - BATCH + 1, BATCH)]
            for group in rng.permutation(np.array(groups)):
                ids = np.zeros((BATCH, max(len(rows[i]) for i in group)), np.int32)
                for row, index in zip(ids, group, strict=True):
                    row[: len(rows[index])] = rows[index]
                yield ids, taught[group]


def export(weights: Weights) -> None:
    """Matrices in 8 bits, everything else in 16."""
    stored: Weights = {}
    for name, value in weights.items():
        if value.ndim == 2 and name != POSITIONS:
            packed, scales, biases = mx.quantize(value, group_size=64, bits=8)
            stored[name], base = packed, name.removesuffix(".weight")
            stored[f"{base}.scales"] = scales.astype(mx.float16)
            stored[f"{base}.biases"] = biases.astype(mx.float16)
        else:
            stored[name] = value.astype(mx.float16)
    mx.save_safetensors(str(OUT / "model.safetensors"), stored)
    config = {
        "model_type": "bert",
        "hidden_size": WIDTH,
        "num_hidden_layers": SHAPE.layers,
        "num_attention_heads": SHAPE.heads,
        "intermediate_size": INNER,
        "hidden_act": SHAPE.activation,
        "layer_norm_eps": SHAPE.eps,
        "max_position_embeddings": SHAPE.max_tokens,
        "vocab_size": VOCABULARY,
        "pad_token_id": 0,
        "quantization": {"group_size": 64, "bits": 8},
    }
    (OUT / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def _unit(vectors: NDArray[np.floating]) -> NDArray[np.float32]:
    found = vectors.astype(np.float32)
    return np.asarray(found / np.linalg.norm(found, axis=1, keepdims=True))
