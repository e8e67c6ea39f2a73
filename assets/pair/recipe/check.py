"""Counts how many answers a checkpoint gets right, and how often the MTP head's token is accepted.

An answer is right if each token is the likeliest after the right ones: greedy decoding writes it. A
token of the MTP head is accepted if it is the one that the model itself would write.
Example: `python check.py hybrid --tokenizer T --checkpoint C --length 512 2048 --rows 16`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch
from corpus import LICENCES, training_texts
from data import Document, Prompt, Row, Writer, ask
from hybrid import Hybrid, build
from model import Model, saved_weights
from tokenizers import Tokenizer
from torch import Tensor

from benchmarks.quality import tasks
from benchmarks.quality.documents import compose
from benchmarks.quality.tasks import Maker
from benchmarks.quality.words import Keys

KINDS: dict[str, tuple[Maker, ...]] = {
    "look-ups": (tasks.needle, tasks.fact, tasks.multi_key, tasks.json_value, tasks.code_value),
    "chains": (tasks.track,),
    "quotations": (),
}
TURNS = 4


def documents_of(kind: str, length: int, rng: Random, prompt: Prompt, writer: Writer) -> Row:
    """A document and `TURNS` questions of one kind; tokens of answers have weight 1."""
    keys, asked = Keys(rng), []
    if kind == "quotations":
        text = rng.choice((writer.written, writer.cut))(length)
        document = Document.encode(prompt.tokenizer, text, length)
        while len(asked) < TURNS:
            if quote := ask(document, rng):
                asked.append((quote.question, quote.answer))
        text = document.text
    else:
        maker = rng.choice(KINDS[kind])
        made = [maker(rng, keys) for _ in range(TURNS)]
        units = [unit for task in made for unit in task.units]
        count = lambda piece: len(prompt.encode(piece))  # noqa: E731
        text = compose(made[0].filler, units, length, count, rng, keys).text
        asked = [(task.question, task.answer) for task in made]
    row = Row()
    row.add([*prompt.user, *prompt.header("notes.txt"), *prompt.encode(text), *prompt.footer])
    for turn, (question, answer) in enumerate(asked):
        row.add([*prompt.newline, *prompt.user] if turn else [])
        row.add([*prompt.encode(question), *prompt.reply])
        row.add([*prompt.encode(answer), *prompt.end], weight=1.0)
    return row


def runs(weights: Sequence[float]) -> list[tuple[int, int]]:
    """The ranges of answers."""
    edges = [0.0, *weights, 0.0]
    starts = [i for i in range(len(weights)) if edges[i + 1] and not edges[i]]
    ends = [i + 1 for i in range(len(weights)) if edges[i + 1] and not edges[i + 2]]
    return list(zip(starts, ends, strict=True))


@torch.no_grad()
def judged(model: Model | Hybrid, row: Row) -> tuple[list[bool], int, int]:
    """Which answers are right; tokens of the MTP head that are accepted, and their number."""
    ids, positions = torch.tensor([row.ids]), torch.tensor([row.positions])
    hidden = model.hidden(ids, positions)
    said: Tensor = model.logits(hidden)[0].argmax(-1)
    answers = runs(row.weights)
    right = [bool((said[a - 1 : b - 1] == ids[0, a:b]).all()) for a, b in answers]
    if isinstance(model, Model):
        return right, 0, 0
    later = model.hidden_after_next(hidden[:, :-1], ids[:, 1:], positions[:, :-1])
    drafted = model.logits(later)[0].argmax(-1)
    agreed = [drafted[a - 1 : b - 2] == said[a : b - 1] for a, b in answers]
    return right, sum(int(a.sum()) for a in agreed), sum(len(a) for a in agreed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=("target", "draft", "hybrid"))
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--licences", type=Path, default=LICENCES)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--length", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--seed", type=int, default=977_000)
    parser.add_argument("--threads", type=int, default=1)
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    model = build(a.model)
    model.load_state_dict(saved_weights(a.checkpoint))
    prompt = Prompt(Tokenizer.from_file(str(a.tokenizer / "tokenizer.json")))
    texts = training_texts(a.licences)
    for length in a.length:
        for kind in KINDS:
            rng = Random(a.seed + length)
            writer = Writer(texts, rng)
            results = [
                judged(model, documents_of(kind, length, rng, prompt, writer))
                for _ in range(a.rows)
            ]
            right = [answer for answers, _, _ in results for answer in answers]
            accepted, drafted = (sum(r[i] for r in results) for i in (1, 2))
            mtp = f", MTP accepted {accepted / drafted:.0%}" if drafted else ""
            print(f"{length:5d}  {kind:10s}  {sum(right)} of {len(right)}{mtp}", flush=True)


if __name__ == "__main__":
    main()
