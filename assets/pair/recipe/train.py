"""Trains one of the models for one phase; phases follow each other with --start.

Example: `python train.py target --tokenizer T --out OUT --length 256 --million 5 --seed 1`.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from corpus import LICENCES, training_texts
from data import Mix, Rows
from hybrid import Hybrid, build
from model import SHAPES, Model, prime, saved_weights
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

Batch = tuple[Tensor, ...]
SAVE_EVERY = 150.0


class Stream(IterableDataset[Batch]):
    """Batches of one mix of lengths, made in worker processes; rows shrink as lengths grow."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments

    def __iter__(self) -> Iterator[Batch]:
        a = self.arguments
        worker = get_worker_info()
        rng = random.Random(a.seed + 1000 * (worker.id if worker else 0))
        tokenizer = Tokenizer.from_file(str(a.tokenizer / "tokenizer.json"))
        texts = training_texts(a.licences)
        sources = []
        for length in a.length:
            mix = Mix(length, a.real, a.gapped, a.reach, tuple(a.document), a.focus, a.tasks)
            rows = max(1, a.tokens // length)
            sources.append(Rows(tokenizer, texts, mix, rng.randrange(1 << 30)).batches(rows))
        while True:
            yield tuple(torch.from_numpy(part) for part in next(rng.choice(sources)))


def optimisers(model: Model | Hybrid, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices, Adam for embeddings and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    muon = torch.optim.Muon(
        matrices, lr=rate, momentum=0.95, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"
    )
    return [muon, torch.optim.Adam(rest, lr=rate, betas=(0.9, 0.95))]


def score(
    model: Model | Hybrid, hidden: Tensor, ids: Tensor, weights: Tensor, alternatives: Tensor
) -> tuple[Tensor, Tensor]:
    """The weighted loss, and the share of answer tokens that are predicted correctly."""
    weighted = weights > 0
    logits = model.logits(hidden[weighted]).float()
    weight = weights[weighted]
    targets = torch.cat((ids[..., None], alternatives), 2)[weighted]
    scores = logits.gather(1, targets.clamp(min=0)).masked_fill(targets < 0, float("-inf"))
    losses = logits.logsumexp(1) - scores.logsumexp(1)
    answers = weight >= 1
    exact = (logits.argmax(1, keepdim=True) == targets).any(1)[answers].float().mean()
    return (losses * weight).sum() / weight.sum(), exact


def loss_of(model: Model | Hybrid, batch: Batch, mtp: float = 0.0) -> tuple[Tensor, list[Tensor]]:
    """The loss, with `mtp` times that of the MTP head, and the share of answer tokens that the
    model, and its head, predict correctly."""
    ids, positions, *loss = batch
    with torch.autocast(ids.device.type, torch.bfloat16):
        hidden = model.hidden(ids[:, :-1], positions[:, :-1])
        total, exact = score(model, hidden, ids[:, 1:], *(part[:, 1:] for part in loss))
        if not mtp or isinstance(model, Model):
            return total, [exact]
        later = model.hidden_after_next(hidden[:, :-1], ids[:, 1:-1], positions[:, :-2])
        missed, after_next = score(model, later, ids[:, 2:], *(part[:, 2:] for part in loss))
    return total + mtp * missed, [exact, after_next]


def reply_token(folder: Path) -> int:
    """The last token of the assistant role."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return int(tokenizer.encode("assistant").ids[-1])


def save(model: Model | Hybrid, optimizers: list[torch.optim.Optimizer], path: Path) -> None:
    """Writes the checkpoint to a temporary file and renames it."""
    temporary = path.with_suffix(".part")
    state = {"model": model.state_dict(), "optimizers": [o.state_dict() for o in optimizers]}
    torch.save(state, temporary)
    os.replace(temporary, path)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=(*SHAPES, "hybrid"))
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--licences", type=Path, default=LICENCES)
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint to write")
    parser.add_argument(
        "--start", type=Path, help="the checkpoint, or exported folder, to continue from"
    )
    parser.add_argument("--length", type=int, nargs="+", default=[256])
    parser.add_argument("--tokens", type=int, default=8192, help="tokens in a batch")
    parser.add_argument("--million", type=float, default=5, help="tokens to train on, millions")
    parser.add_argument("--seconds", type=float, help="train for this time, not on --million")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--last-rate", type=float, default=1.0, help="the last rate / --rate")
    parser.add_argument("--mtp", type=float, default=0.3, help="the weight of the MTP head's loss")
    parser.add_argument("--warm-up", type=int, default=50)
    parser.add_argument("--real", type=float, default=0.5)
    parser.add_argument("--gapped", type=float, default=0.5)
    parser.add_argument("--reach", type=int, default=32768)
    parser.add_argument("--document", type=float, nargs=2, default=(0.35, 0.7))
    parser.add_argument("--focus", type=float, default=0.0)
    parser.add_argument("--tasks", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="processes that make batches")
    return parser.parse_args()


def main() -> None:
    """Trains on the given number of tokens, or for a time; prints a line every 20 steps."""
    a = parse()
    torch.manual_seed(a.seed)
    torch.set_num_threads(a.threads)
    model = build(a.model)
    if not a.start and isinstance(model, Model):
        prime(model, reply_token(a.tokenizer))
    model.to(a.device)
    torch._dynamo.config.recompile_limit = 64
    layers = (*model.model.layers, *(model.mtp.layers if isinstance(model, Hybrid) else ()))
    for layer in layers if a.device == "cpu" else ():
        layer.forward = torch.compile(layer.forward, dynamic=False)
    optimizers = optimisers(model, a.rate)
    if a.start and a.start.is_dir():
        model.load_state_dict(saved_weights(a.start))
    elif a.start:
        state = torch.load(a.start, map_location=a.device)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state.get("optimizers", ()), strict=False):
            optimizer.load_state_dict(saved)
    started = saved_at = time.monotonic()
    seen = 0
    loader = DataLoader(Stream(a), batch_size=None, num_workers=a.workers, prefetch_factor=4)
    for step, batch in enumerate(loader):
        batch = tuple(part.to(a.device) for part in batch)
        now = time.monotonic()
        done = (now - started) / a.seconds if a.seconds else seen / (1e6 * a.million)
        done = min(1.0, done)
        rate = a.rate * min(1.0, (step + 1) / a.warm_up)
        rate *= a.last_rate + (1 - a.last_rate) * (1 + math.cos(math.pi * done)) / 2
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
        loss, exact = loss_of(model, batch, a.mtp)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seen += batch[0].numel()
        if step % 20 == 0:
            print(
                f"{now - started:6.0f} s  step {step:5d}  {seen / 1e6:6.2f} M  "
                f"length {batch[0].shape[1] - 1:5d}  loss {loss.item():.4f}  exact "
                + " ".join(f"{share:.4f}" for share in exact),
                flush=True,
            )
        if now - saved_at > SAVE_EVERY or done >= 1:
            save(model, optimizers, a.out)
            saved_at = now
        if done >= 1:
            break


if __name__ == "__main__":
    main()
