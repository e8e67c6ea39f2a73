"""Measures an exported pair on held-out text: exact quotes, and what the draft finds.

Example: `python evaluate.py PAIR_FOLDER --lengths 1000 4000 8000 --questions 20`.
Dense: the target reads everything. Fifth: it reads a random fifth of the chunks and the answer's
own. Chosen: it reads the fifth that the draft's attention from the question chose. Found: the share
of answers with all their chunks in that fifth.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from corpus import LICENCES, held_out_texts
from data import CHUNK, Document, Prompt, Quote, Writer, ask
from model import Attention, Model, Shape, rotate
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

MOST = 100
POOL = 13
DEMO = "Corresponding Source"


@dataclass
class Case:
    """One question about one document: the prompt's ids, the document's place in it, the answer."""

    before: list[int]
    document: Document
    after: list[int]
    quote: Quote
    answer: list[int]

    def prompt(self, kept: np.ndarray) -> tuple[Tensor, Tensor]:
        """Ids and positions (1, N) of the prompt with only these document tokens."""
        start, size = len(self.before), len(self.document.ids)
        ids = [*self.before, *self.document.ids[kept].tolist(), *self.after]
        middle = (start + np.flatnonzero(kept)).tolist()
        last = range(start + size, start + size + len(self.after))
        return torch.tensor([ids]), torch.tensor([[*range(start), *middle, *last]])


def load(folder: Path) -> Model:
    """An exported model."""
    config = json.loads((folder / "config.json").read_text())
    model = Model(Shape(**{k: config[k] for k in Shape.__dataclass_fields__}))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.eval()


class Keys:
    """Post-rotary keys and values of one layer, for decoding."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        self.k: Tensor | None = None
        self.v: Tensor | None = None


def read(
    model: Model, caches: list[Keys], ids: Tensor, positions: Tensor, weigh: int = 0
) -> tuple[Tensor, Tensor]:
    """Reads ids after what the caches hold.

    Returns the last hidden states (1, T, hidden) and the attention weights (weigh, keys) of
    the last `weigh` queries, the highest over layers and heads.
    """
    half = model.shape.head_dim // 2
    angles = positions[:, None, :, None].float() * model.shape.rope_theta ** -(
        torch.arange(half) / half
    )
    cos, sin = angles.cos(), angles.sin()
    x = model.model.embed_tokens(ids)
    highest = torch.zeros(0)
    for layer, cache in zip(model.model.layers, caches, strict=True):
        a, h = layer.self_attn, layer.input_layernorm(x)
        q, k, v = (
            p(h).view(1, ids.shape[1], -1, model.shape.head_dim).transpose(1, 2)
            for p in (a.q_proj, a.k_proj, a.v_proj)
        )
        q, k = rotate(a.q_norm(q), cos, sin), rotate(a.k_norm(k), cos, sin)
        first = cache.k is None
        if not first:
            k, v = torch.cat((cache.k, k), 2), torch.cat((cache.v, v), 2)
        cache.k, cache.v = k, v
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        if not first and q.shape[2] > 1:
            raise ValueError("after the first read, one token at a time")
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=first)
        if weigh:
            late = q[:, :, -weigh:]
            scores = late @ k.transpose(2, 3) * model.shape.head_dim**-0.5
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(
                k.shape[2] - scores.shape[2] + 1
            )
            weights = scores.masked_fill(mask, -torch.inf).softmax(-1)[0].amax(0)
            highest = torch.maximum(highest, weights) if highest.numel() else weights
        x = x + a.o_proj(out.transpose(1, 2).reshape(1, ids.shape[1], -1))
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return model.model.norm(x), highest


@torch.inference_mode()
def continued(model: Model, ids: Tensor, positions: Tensor, stop: int) -> list[int]:
    """The greedy answer's ids, the stop left out."""
    caches = [Keys(layer.self_attn) for layer in model.model.layers]
    hidden, _ = read(model, caches, ids, positions)
    answer: list[int] = []
    place = int(positions[0, -1])
    while len(answer) < MOST:
        token = int(model.logits(hidden[:, -1]).argmax())
        if token == stop:
            break
        answer.append(token)
        hidden, _ = read(
            model, caches, torch.tensor([[token]]), torch.tensor([[place + len(answer)]])
        )
    return answer


@torch.inference_mode()
def chosen(draft: Model, case: Case, keep: float) -> np.ndarray:
    """The tokens kept by the draft's attention from the question (DESIGN, 3)."""
    everything = np.ones(len(case.document.ids), dtype=bool)
    ids, positions = case.prompt(everything)
    caches = [Keys(layer.self_attn) for layer in draft.model.layers]
    _, weights = read(draft, caches, ids, positions, weigh=len(case.after))
    start, size = len(case.before), len(case.document.ids)
    kernel = torch.ones(1, 1, POOL)
    pooled = torch.nn.functional.conv1d(weights[:, None], kernel, padding=POOL // 2)
    pooled = pooled / torch.nn.functional.conv1d(
        torch.ones_like(weights[:1, None]), kernel, padding=POOL // 2
    )
    scores = pooled[:, 0].mean(0)[start : start + size]
    chunks = -(-size // CHUNK)
    means = torch.nn.functional.pad(scores, (0, chunks * CHUNK - size)).view(chunks, CHUNK).mean(1)
    keep_chunks = np.zeros(chunks, dtype=bool)
    keep_chunks[means.topk(int(np.ceil(keep * chunks))).indices.numpy()] = True
    return np.repeat(keep_chunks, CHUNK)[:size]


def random_fifth(case: Case, rng: random.Random, keep: float) -> np.ndarray:
    """A random share of the chunks, and the answer's own."""
    size = len(case.document.ids)
    chunks = -(-size // CHUNK)
    mask = np.array([rng.random() < keep for _ in range(chunks)])
    first, last = case.quote.span
    mask[first // CHUNK : (last - 1) // CHUNK + 1] = True
    return np.repeat(mask, CHUNK)[:size]


def case_of(prompt: Prompt, document: Document, quote: Quote) -> Case:
    """The prompt of the first turn of a chat without a system message."""
    before = [*prompt.user, *prompt.header("document.txt")]
    after = [*prompt.footer, *prompt.encode(quote.question), *prompt.reply]
    return Case(before, document, after, quote, prompt.encode(quote.answer))


def cases(
    tokenizer: Tokenizer, texts: dict[str, list[str]], kind: str, tokens: int, count: int
) -> list[Case]:
    """Questions about fresh documents of this kind and length."""
    rng = random.Random(f"{kind} {tokens}")
    writer, prompt = Writer(texts, rng), Prompt(tokenizer)
    made: list[Case] = []
    while len(made) < count:
        text = writer.written(tokens) if kind == "random" else writer.cut(tokens, kind)
        document = Document.encode(tokenizer, text, tokens)
        quote = next((q for _ in range(200) if (q := ask(document, rng))), None)
        if quote:
            made.append(case_of(prompt, document, quote))
    return made


def demo(tokenizer: Tokenizer, text: str) -> Case:
    """The acceptance question about the whole GPL-3."""
    prompt = Prompt(tokenizer)
    document = Document.encode(tokenizer, text, 1 << 20)
    start = text.index(f'"{DEMO}" for a work')
    stop = text.index("activities.", start) + len("activities.")
    quote = Quote(
        "What does it say of ", f'"{DEMO}"', "?", text[start:stop], document.tokens_of(start, stop)
    )
    return case_of(prompt, document, quote)


def main() -> None:
    """Prints a table of exact quotes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pair", type=Path)
    parser.add_argument("--licences", type=Path, default=LICENCES)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1000, 4000, 8000])
    parser.add_argument("--kinds", nargs="+", default=["licences", "docstrings", "code", "random"])
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--keep", type=float, default=0.2)
    parser.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    tokenizer = Tokenizer.from_file(str(a.pair / "target" / "tokenizer.json"))
    target, draft = load(a.pair / "target"), load(a.pair / "draft")
    stop = tokenizer.token_to_id("<|im_end|>")
    texts = held_out_texts(a.licences)
    rng = random.Random(7)

    def exact(case: Case, kept: np.ndarray) -> bool:
        return continued(target, *case.prompt(kept), stop) == case.answer

    print("| text | tokens | dense | fifth | chosen | found |")
    print("|---|---:|---:|---:|---:|---:|")
    for tokens in a.lengths:
        for kind in a.kinds:
            results = []
            for case in cases(tokenizer, texts, kind, tokens, a.questions):
                mask = chosen(draft, case, a.keep)
                results.append((
                    exact(case, np.ones(len(mask), dtype=bool)),
                    exact(case, random_fifth(case, rng, a.keep)),
                    exact(case, mask),
                    bool(mask[slice(*case.quote.span)].all()),
                ))  # fmt: skip
            shares = " | ".join(f"{share:.2f}" for share in np.mean(results, axis=0))
            print(f"| {kind} | {tokens} | {shares} |", flush=True)
    case = demo(tokenizer, texts["licences"][0])
    mask = chosen(draft, case, a.keep)
    everything = np.ones(len(mask), dtype=bool)
    for name, kept in (
        ("dense", everything),
        ("fifth", random_fifth(case, rng, a.keep)),
        ("chosen", mask),
    ):
        ids = continued(target, *case.prompt(kept), stop)
        print(f"\ndemo, {name}, exact {ids == case.answer}: {tokenizer.decode(ids)!r}")
    print(f"demo, found: {bool(mask[slice(*case.quote.span)].all())}")


if __name__ == "__main__":
    main()
