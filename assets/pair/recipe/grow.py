"""Grows a trained sapling into the target's shape: more heads in every layer and one more layer.

New parameters output zero at first, so that the grown model answers as the sapling did, except for
heads that are initialised for what induction heads cannot do:

- layer 1: two of the heads that find what followed the same words before, attending
  only to the last hundred tokens, and subtracting part of the result: it was already generated;
- layers 2 and 3: where a list of words is being written, the mean of all tokens; elsewhere they
  attend to the first token, which contributes nothing. In the mean, frequent words dominate.

Their projections of a layer's input are fitted to rows of training data by ridge regression.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from random import Random

import torch
from corpus import LICENCES, training_texts
from data import Mix, Prompt, Rows
from model import SHAPES, SLOW, Model, at_offset, saved_weights
from tokenizers import Tokenizer
from torch import Tensor

from benchmarks.quality import tasks
from benchmarks.quality.documents import compose
from benchmarks.quality.words import Keys

FOUND = (0, 1)  # the heads of layer 1 whose results are subtracted
TAKEN_BACK = 0.3
LATELY = 30.0  # the distance, in tokens, they attend to most
FREQUENT = 60.0  # means over many tokens are small
LIST_TOKENS, LISTS = 700, 40


def fitted(x: Tensor, output: Tensor, ridge: float = 1e-3) -> Tensor:
    """The matrix (C, hidden) that best maps `x` (N, hidden) to `output` (N, C)."""
    gram = x.T @ x + ridge * len(x) * torch.eye(x.shape[1])
    return torch.linalg.solve(gram, x.T @ output).T


@torch.no_grad()
def read_by(model: Model, ids: Tensor) -> list[Tensor]:
    """The input of every layer's attention for ids (B, T), each of shape (B * T, hidden)."""
    read: list[Tensor] = []
    hooks = [
        layer.input_layernorm.register_forward_hook(
            lambda _module, _input, out: read.append(out.flatten(0, 1))
        )
        for layer in model.model.layers
    ]
    model.hidden(ids, torch.arange(ids.shape[1])[None].expand(ids.shape))
    for hook in hooks:
        hook.remove()
    return read


@torch.no_grad()
def enlarge(small: Model, big: Model) -> None:
    """Copies `small` into `big`; new parameters output zero."""
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


class Lists:
    """Rows about the most common words of a list: `ids` (B, T), where the `words` of the list are,
    and where one is `written` next, both bool (B * T,)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        prompt = Prompt(tokenizer)
        ids, words, written = [], [], []
        for seed in range(LISTS):
            rng = Random(seed)
            keys = Keys(rng)
            task = tasks.common_words(rng, keys)
            text = compose(task.filler, (), 480, lambda t: len(prompt.encode(t)), rng, keys).text
            before = [*prompt.user, *prompt.header("notes.txt")]
            listed, said = prompt.encode(text), prompt.encode(task.answer)
            question = [*prompt.footer, *prompt.encode(task.question), *prompt.reply]
            row = [*before, *listed, *question, *said]
            first = len(row) - len(said)
            marks = {said[2], tokenizer.token_to_id(",")}  # `The words:`, then commas
            row += [0] * (LIST_TOKENS - len(row))
            ids.append(row[:LIST_TOKENS])
            places = range(LIST_TOKENS)
            words += [len(before) <= at < len(before) + len(listed) for at in places]
            written += [first + 2 <= at < first + len(said) and row[at] in marks for at in places]
        self.ids = torch.tensor(ids)
        self.words, self.written = torch.tensor(words), torch.tensor(written)


class Heads:
    """Sets up the two last heads of layers 1, 2 and 3."""

    def __init__(self, model: Model, rows: Tensor, lists: Lists) -> None:
        self.model, self.lists = model, lists
        self.size = model.shape.head_dim
        self.read, self.read_lists = read_by(model, rows), read_by(model, lists.ids)
        self.first = (torch.arange(rows.shape[1]) == 0).repeat(len(rows))
        self.first_lists = (torch.arange(LIST_TOKENS) == 0).repeat(LISTS)

    def new(self, extra: int) -> slice:
        head = self.model.shape.num_attention_heads - 2 + extra
        return slice(head * self.size, (head + 1) * self.size)

    @torch.no_grad()
    def subtract_finds(self) -> None:
        attention = self.model.model.layers[1].self_attn
        constant = fitted(self.read[1], torch.ones(len(self.read[1]), 1))[0]
        query, key = at_offset(self.model.shape, LATELY, range(6, 11))
        for extra, found in enumerate(FOUND):
            new, old = self.new(extra), slice(found * self.size, (found + 1) * self.size)
            attention.v_proj.weight[new] = attention.v_proj.weight[old]
            for projection, place in ((attention.q_proj, query), (attention.k_proj, key)):
                strength = 4 * projection.weight[old].norm() / self.size**0.5
                projection.weight[new] = projection.weight[old]
                projection.weight[new] += strength * place[:, None] * constant
            attention.o_proj.weight[:, new] = -TAKEN_BACK * attention.o_proj.weight[:, old]

    @torch.no_grad()
    def average(self) -> None:
        hidden = self.model.shape.hidden_size
        parts = torch.linalg.qr(torch.randn(hidden, hidden))[0].split(self.size, dim=1)
        for part, (layer, extra) in zip(parts, ((2, 0), (2, 1), (3, 0)), strict=True):
            self._average(layer, self.new(extra), part)

    def _average(self, layer: int, new: slice, part: Tensor) -> None:
        """A head that outputs the `part` (hidden, head_dim) of the words' embeddings."""
        attention = self.model.model.layers[layer].self_attn
        lists, ids = self.lists, self.lists.ids.flatten()
        x = torch.cat((self.read_lists[layer], self.read[layer]))
        first = torch.cat((self.first_lists, self.first)).float()[:, None]
        written = torch.cat((lists.written, torch.zeros(len(self.first)))).float()[:, None]
        constant = fitted(x, torch.ones(len(x), 1))[0]
        begin = fitted(x * (1 + 30 * first), first * 31)[0]
        writes = fitted(x * (1 + 5 * written), written * 6)[0]
        embedding = self.model.model.embed_tokens.weight
        words = self.read_lists[layer][lists.words]
        centre = embedding[ids[lists.words].unique()].mean(0)
        value = part.T @ fitted(words, embedding[ids[lists.words]] - centre)
        value -= torch.outer((words @ value.T).mean(0), constant)
        value -= torch.outer(value @ self.read_lists[layer][0], begin)
        slow = torch.arange(SLOW, self.size // 2)  # entries that positions hardly turn
        attention.q_proj.weight[new] = attention.k_proj.weight[new] = 0
        attention.q_proj.weight[new.start + slow[-1]] = constant - 1.6 * writes
        attention.q_proj.weight[new.start + slow[-2]] = 0.3 * constant
        attention.k_proj.weight[new.start + slow[-1]] = 20 * begin
        attention.k_proj.weight[new.start + slow[-3]] = constant
        for norm in (attention.q_norm, attention.k_norm):
            norm.weight[slow[-1]] = 2.5
        attention.v_proj.weight[new] = 10 * value
        attention.o_proj.weight[:, new] = FREQUENT / 10 * part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--licences", type=Path, default=LICENCES)
    parser.add_argument(
        "--start", type=Path, required=True, help="a sapling's checkpoint or folder"
    )
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint to write")
    parser.add_argument("--seed", type=int, default=5)
    a = parser.parse_args()
    torch.manual_seed(a.seed)
    small, big = Model(SHAPES["sapling"]), Model(SHAPES["target"])
    small.load_state_dict(saved_weights(a.start))
    enlarge(small, big)
    tokenizer = Tokenizer.from_file(str(a.tokenizer / "tokenizer.json"))
    rows = Rows(tokenizer, training_texts(a.licences), Mix(512, gapped=0), a.seed)
    heads = Heads(big, torch.from_numpy(next(rows.batches(40))[0]), Lists(tokenizer))
    heads.subtract_finds()
    heads.average()
    torch.save({"model": big.state_dict()}, a.out)


if __name__ == "__main__":
    main()
