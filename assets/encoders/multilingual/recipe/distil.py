"""Distils the encoder: four of the teacher's layers, and the tokens that its languages need."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
import torch
from numpy.typing import NDArray
from teacher import KINDS, POSITIONS, SHARD, WORDS, Teacher, encode, padded, teach
from torch.nn import functional

OUT = Path(__file__).resolve().parents[1]
LAYERS = (0, 4, 8, 11)
"""The teacher's layers with which the encoder's start."""
TOKENS = 40_000
"""Size of the vocabulary: the most frequent tokens of the corpus, and all single characters in
it."""
BATCH, RATE, WARMUP = 128, 4e-4, 200
TEMPERATURE = 0.1
TOPICS = 200
"""Groups of similar texts. Half of the batches are texts of one group, which are hard to tell from
each other, as the passages of one document are."""
POSITIONS_KEPT = 160

Tensors = dict[str, torch.Tensor]


def run(folder: Path, teacher_folder: Path, lines: Sequence[str], minutes: float) -> None:
    """Write the encoder to assets/encoders/multilingual. `folder` keeps what takes long."""
    teacher = Teacher(teacher_folder)
    shards = teach(teacher, lines, folder / "vectors")
    vectors = np.concatenate([np.load(file) for file in shards])
    rows = teacher.ids(lines)
    kept = vocabulary(teacher, rows)
    new_ids = np.full(len(teacher.weights[WORDS]), 3, np.int64)
    new_ids[kept] = np.arange(len(kept))
    pruned = [new_ids[row] for row in rows]
    weights = train(initial(teacher, kept), pruned, vectors, folder / "checkpoint.pt", minutes)
    export(weights, teacher, kept)


def vocabulary(teacher: Teacher, rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """The teacher's token ids that stay, ascending."""
    counts = Counter[int](index for row in rows for index in row)
    pieces = json.loads(teacher.tokenizer.to_str())["model"]["vocab"]
    always = [
        index
        for index, (piece, _) in enumerate(pieces)
        if index < 4 or (len(piece.removeprefix("▁")) <= 1 and counts[index])
    ]
    frequent = [index for index, _ in counts.most_common(TOKENS)]
    return np.array(sorted([*dict.fromkeys([*always, *frequent])][:TOKENS]), np.int64)


def initial(teacher: Teacher, kept: NDArray[np.int64]) -> Tensors:
    weights = {
        name: value.clone()
        for name, value in teacher.weights.items()
        if name.startswith("embeddings.") and value.is_floating_point()
    }
    weights[WORDS] = weights[WORDS][torch.tensor(kept)].clone()
    weights[POSITIONS] = weights[POSITIONS][:POSITIONS_KEPT].clone()
    for layer, source in enumerate(LAYERS):
        start = f"encoder.layer.{source}."
        for name, value in teacher.weights.items():
            if name.startswith(start):
                weights[f"encoder.layer.{layer}.{name.removeprefix(start)}"] = value.clone()
    return weights


def loss(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """How far vectors are from the teacher's, and how differently each is close to the others."""
    itself = 1e4 * torch.eye(len(ours))
    near, found = (each @ each.T / TEMPERATURE - itself for each in (theirs, ours))
    divergence = functional.kl_div(
        found.log_softmax(1), near.log_softmax(1), log_target=True, reduction="batchmean"
    )
    return 4 * (1 - (ours * theirs).sum(1)).mean() + divergence


def train(
    weights: Tensors,
    rows: Sequence[NDArray[np.int64]],
    vectors: NDArray[np.float16],
    checkpoint: Path,
    minutes: float,
) -> Tensors:
    """Train for `minutes` of processor time in all, of which the last lower the learning rate to
    nearly 0. The direction that all of the teacher's vectors share says nothing, so the encoder
    learns them without it."""
    theirs = torch.tensor(vectors, dtype=torch.float32)
    theirs = functional.normalize(theirs - theirs.mean(0))
    for value in weights.values():
        value.requires_grad_()
    optimizer = torch.optim.AdamW(
        weights.values(), RATE, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    step, used = 0, 0.0
    if checkpoint.exists():
        stored = torch.load(checkpoint)
        step, used = stored["step"], stored["used"]
        optimizer.load_state_dict(stored["optimizer"])
        with torch.no_grad():
            for name, value in weights.items():
                value.copy_(stored["weights"][name])
    started = time.process_time() - used
    losses = []
    for ids, mask, chosen in batches(rows, theirs, step):
        passed = (time.process_time() - started) / (60 * minutes)
        if passed > 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / WARMUP) * max(0.01, 1 - passed)
        with torch.autocast("cpu", torch.bfloat16):
            ours = encode(weights, len(LAYERS), ids, mask)
        value = loss(ours, theirs[chosen])
        optimizer.zero_grad(set_to_none=True)
        value.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        step += 1
        losses.append(value.item())
        if step % 100 == 0:
            print(f"{step:,} steps, {passed:.1%}: loss {np.mean(losses[-100:]):.3f}", flush=True)
        if step % 200 == 0:
            part = checkpoint.with_suffix(".part")
            torch.save(
                {
                    "step": step,
                    "used": time.process_time() - started,
                    "weights": {name: value.detach() for name, value in weights.items()},
                    "optimizer": optimizer.state_dict(),
                },
                part,
            )
            os.replace(part, checkpoint)
    return {name: value.detach() for name, value in weights.items()}


def batches(
    rows: Sequence[NDArray[np.int64]], vectors: torch.Tensor, seed: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor, NDArray[np.int64]]]:
    """Ids and mask (BATCH, length) of texts of about one length, and which they are, without an
    end."""
    rng = np.random.default_rng(seed)
    lengths = np.array([len(row) for row in rows])
    topics = _topics(vectors)
    while True:
        shuffled = rng.permutation(len(rows))
        groups = []
        for topic in (np.zeros_like(topics), topics):
            order = shuffled[
                np.lexsort((lengths[shuffled] + rng.integers(6, size=len(rows)), topic[shuffled]))
            ]
            groups += [order[at : at + BATCH] for at in range(0, len(rows) - BATCH + 1, BATCH)]
        for index in rng.permutation(len(groups))[: len(groups) // 2]:
            chosen = groups[index]
            yield *padded([rows[i].tolist() for i in chosen]), chosen


def _topics(vectors: torch.Tensor) -> NDArray[np.int64]:
    """The group of each vector: the nearest of TOPICS vectors, which are means (k-means)."""
    generator = torch.Generator().manual_seed(0)
    centres = vectors[torch.randperm(len(vectors), generator=generator)[:TOPICS]]
    for _ in range(8):
        nearest = torch.cat([(part @ centres.T).argmax(1) for part in vectors.split(SHARD)])
        sums = torch.zeros_like(centres).index_add_(0, nearest, vectors)
        centres = functional.normalize(sums)
    return nearest.numpy()


def export(weights: Mapping[str, torch.Tensor], teacher: Teacher, kept: NDArray[np.int64]) -> None:
    """Write matrices in 8 bits, everything else in 16."""
    stored = dict[str, mx.array]()
    for name, tensor in weights.items():
        base, value = name.removesuffix(".weight"), mx.array(tensor.numpy())
        if value.ndim == 2 and name not in (POSITIONS, KINDS):
            packed, scales, biases = mx.quantize(value, group_size=64, bits=8)
            stored[name] = packed
            stored[f"{base}.scales"] = scales.astype(mx.float16)
            stored[f"{base}.biases"] = biases.astype(mx.float16)
        else:
            stored[name] = value.astype(mx.float16)
    mx.save_safetensors(str(OUT / "model.safetensors"), stored)
    tokenizer = json.loads(teacher.tokenizer.to_str())
    model = tokenizer["model"]
    model["vocab"] = [model["vocab"][index] for index in kept.tolist()]
    (OUT / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), "utf-8")
    config = teacher.config | {
        "num_hidden_layers": len(LAYERS),
        "vocab_size": len(kept),
        "max_position_embeddings": POSITIONS_KEPT,
        "quantization": {"group_size": 64, "bits": 8},
    }
    (OUT / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
