"""Grows a trained sapling into the target's shape: more heads in every layer and one more layer.

What is new writes nothing at first, so that the grown model answers as the sapling did, but for
heads that are set up for what no induction head can give:

- layer 0: every token looks at its equals before it, and at one token of the document's frame; how
  much of its attention stays with the equals says how often it has occurred;
- layer 1: two of the heads that find what followed the same words before, looking at the last
  hundred tokens only, and taking back a part of what they find: it was said already.

What they read from a layer's input is fitted to rows of the training data by ridge regression.
`--start` with a checkpoint of the target's own shape sets these heads up anew.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from corpus import LICENCES, training_texts
from data import Mix, Rows
from model import SHAPES, SLOW, Model, at_offset
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

FRAME = "ocument"  # a token of `<document`, and of nothing else but the document's end
SINKS = (0.7, 5.0)  # roughly how many occurrences weigh as much as the frame
COUNTED = 3.0  # how far from the origin all occurrences and no frame would put a token
FOUND = (0, 1)  # the heads of layer 1 whose finds are taken back
TAKEN_BACK = 0.3


def slow_dims(head_dim: int) -> Tensor:
    """Entries of a head that turn too slowly to tell positions apart."""
    half = head_dim // 2
    return torch.cat((torch.arange(SLOW, half), torch.arange(half + SLOW, head_dim)))


def residuals(
    model: Model, ids: Tensor, positions: Tensor
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """What every layer gets, what its attention reads of it, and what the last norm gives, each of
    shape (B * T, hidden)."""
    got: list[Tensor] = []
    read: list[Tensor] = []

    def note(_module: object, given: tuple[Tensor], out: Tensor) -> None:
        got.append(given[0].detach().flatten(0, 1))
        read.append(out.detach().flatten(0, 1))

    hooks = [
        layer.input_layernorm.register_forward_hook(note)  # type: ignore[arg-type]
        for layer in model.model.layers
    ]
    last = model.hidden(ids, positions).flatten(0, 1)
    for hook in hooks:
        hook.remove()
    return got, read, last


def fitted(x: Tensor, wanted: Tensor, ridge: float = 1e-3) -> Tensor:
    """The matrix that best makes `wanted` (N, C) of `x` (N, hidden), of shape (C, hidden)."""
    gram = x.T @ x + ridge * len(x) * torch.eye(x.shape[1])
    return torch.linalg.solve(gram, x.T @ wanted).T


@torch.no_grad()
def enlarge(small: Model, big: Model) -> None:
    """Copies `small` into `big`; what is new writes nothing."""
    source = dict(small.named_parameters())
    for name, parameter in big.named_parameters():
        old = source.get(name)
        if old is None:
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.zero_()
        elif "o_proj" in name:
            parameter.zero_()
            parameter[:, : old.shape[1]] = old
        else:
            parameter[tuple(slice(size) for size in old.shape)] = old


class Heads:
    """Sets up the two last heads of layers 0 and 1."""

    @torch.no_grad()
    def __init__(self, model: Model, ids: Tensor, positions: Tensor, tokenizer: Tokenizer) -> None:
        self.model, self.shape = model, model.shape
        self.ids, self.tokenizer = ids, tokenizer
        self.got, self.read, self.last = residuals(model, ids, positions)
        self.slow = slow_dims(self.shape.head_dim)

    def rows(self, extra: int) -> slice:
        head = self.shape.num_attention_heads - 2 + extra
        return slice(head * self.shape.head_dim, (head + 1) * self.shape.head_dim)

    @torch.no_grad()
    def count(self) -> None:
        attention, slow = self.model.model.layers[0].self_attn, self.slow
        x, flat = self.read[0], self.ids.flatten()
        constant = fitted(x, torch.ones(len(x), 1))[0]
        embedding = self.model.model.embed_tokens.weight
        used = flat.unique()
        is_frame = self._set_apart(self.tokenizer.token_to_id(FRAME))
        centred = embedding[used] - embedding[used].mean(0)
        spread, directions = torch.linalg.eigh(centred.T @ centred / len(used))
        turned = torch.linalg.qr(torch.randn(len(spread), len(spread)))[0]
        codes = (embedding - embedding[used].mean(0)) @ directions / spread.sqrt() @ turned
        width = len(slow) - 1
        code = fitted(x, codes[flat, :width])
        quiet = torch.linalg.eigh(self.got[1].T @ self.got[1])[1][:, :2]
        best = 8 * float(attention.q_norm.weight.mean() * attention.k_norm.weight.mean())
        for extra, sink in enumerate(SINKS):
            rows = self.rows(extra)
            share = 0.5**0.5 + float(torch.tensor(sink).log()) / best
            tilt = width**0.5 * share / (1 - share**2) ** 0.5
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
                projection.weight[rows] = 0
            attention.q_proj.weight[rows.start + slow[:-1]] = code
            attention.k_proj.weight[rows.start + slow[:-1]] = code
            attention.q_proj.weight[rows.start + slow[-1]] = constant * tilt
            attention.k_proj.weight[rows.start + slow[-1]] = is_frame * 3 * width**0.5
            attention.v_proj.weight[rows.start] = 4 * (constant - is_frame)
            attention.o_proj.weight[:, rows] *= 0
            attention.o_proj.weight[:, rows.start] = COUNTED / 4 * quiet[:, extra]

    def _set_apart(self, token: int) -> Tensor:
        """Gives a token's embedding what hardly any other has, and returns what tells it then, 1
        for it and about 0 for the others, from the first layer's normalised input."""
        embedding = self.model.model.embed_tokens.weight
        norm = self.model.model.layers[0].input_layernorm
        # The same vector says how likely the token comes next, which must not change much.
        seen = embedding / embedding.norm(dim=1, keepdim=True)
        spread = seen.T @ seen / len(seen) + self.last.T @ self.last / self.last.square().sum()
        rare = torch.linalg.eigh(spread)[1][:, 0]
        if embedding[token] @ rare < embedding[token].norm() / 2:
            embedding[token] += 3 * embedding[token].norm() * rare
        reads = rare / norm.weight
        told = norm(embedding) @ reads
        return reads / told[token]

    @torch.no_grad()
    def take_back(self) -> None:
        attention, d = self.model.model.layers[1].self_attn, self.shape.head_dim
        constant = fitted(self.read[1], torch.ones(len(self.read[1]), 1))[0]
        query, key = at_offset(self.shape, 30.0, range(6, 11))
        for extra, found in enumerate(FOUND):
            rows, source = self.rows(extra), slice(found * d, (found + 1) * d)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj):
                projection.weight[rows] = projection.weight[source]
            size = attention.q_proj.weight[source].norm() / d**0.5
            attention.q_proj.weight[rows] += 4 * size * query[:, None] * constant
            size = attention.k_proj.weight[source].norm() / d**0.5
            attention.k_proj.weight[rows] += 4 * size * key[:, None] * constant
            attention.o_proj.weight[:, rows] = -TAKEN_BACK * attention.o_proj.weight[:, source]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--licences", type=Path, default=LICENCES)
    parser.add_argument("--start", type=Path, required=True, help="a folder, or a checkpoint")
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint to write")
    parser.add_argument("--seed", type=int, default=5)
    a = parser.parse_args()
    torch.manual_seed(a.seed)
    big = Model(SHAPES["target"])
    if a.start.is_dir():
        small = Model(SHAPES["sapling"])
        small.load_state_dict(load_file(a.start / "model.safetensors"))
        enlarge(small, big)
    else:
        big.load_state_dict(torch.load(a.start)["model"])
    tokenizer = Tokenizer.from_file(str(a.tokenizer / "tokenizer.json"))
    seed = random.Random(a.seed).randrange(99)
    rows = Rows(tokenizer, training_texts(a.licences), Mix(512, gapped=0), seed)
    ids, positions, _ = (torch.from_numpy(x) for x in next(rows.batches(96)))
    heads = Heads(big, ids, positions, tokenizer)
    heads.count()
    heads.take_back()
    torch.save({"model": big.state_dict()}, a.out)


if __name__ == "__main__":
    main()
