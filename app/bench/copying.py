"""`specchat bench copying`: what verifying several tokens at a time makes of an answer's speed.

Two parts. *Steps*: on models with random weights, what a step of n tokens costs beside one of a
single token, after a prompt of some length; that is all the gate needs to know of a machine, and
the gain at any acceptance follows. *Answers*: a real model writes the same answer with and without
proposals, in turns, about a text that it has read, and it is checked that they are the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from app.bench.harness import Bench, Column, Goal, Options, Progress, Result, Row, Run, columns
from app.bench.shapes import random_pair, shapes
from app.chat.sample import QUESTION, sample
from app.models.embedded import EMBEDDED
from app.protocol.prompt import Document, Message, Role
from app.util.assets import assets_path
from app.util.charts import line_chart

if TYPE_CHECKING:
    from app.engine.loader import ModelPair
    from app.engine.prompt import Prompt

STEP = 512
SIZES = (1, 2, 4, 8, 16)
REPEATS = 12
"""Steps of one size, of which the median counts."""
SHARES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)
CHARACTERS = 6000
SLOWEST, QUOTING = 0.98, 2.5
Answer = Callable[[bool], tuple[float, list[int], int, int]]


def tasks(target: str) -> dict[str, tuple[Document, str]]:
    """What a model is asked, by kind. The embedded one only quotes."""
    licence = Document("gpl-3.0.txt", sample().text[:CHARACTERS])
    if target == EMBEDDED:
        return {"quoting": (sample(), QUESTION)}
    code = (assets_path() / "guard" / "train.py").read_text(encoding="utf-8")[:CHARACTERS]
    return {
        "quoting": (licence, "Repeat the first two paragraphs of the text word by word."),
        "editing code": (
            Document("train.py", code),
            "Repeat the first function with a docstring added, and change nothing else.",
        ),
        "summarising": (licence, "Summarise the text in a few sentences."),
        "free text": (licence, "Forget the text. Tell me a story about a lighthouse."),
    }


def measure(options: Options, progress: Progress) -> Iterator[Row]:
    """Raises UserError for an unknown shape or model."""
    for shape in options.shapes:
        target, _ = random_pair(shape)
        vocabulary = shapes()[shape]["target"]["vocab_size"]
        for length in options.lengths:
            runs = progress.repeat(
                f"{shape}, {length:,} tokens", partial(_steps, target, vocabulary, length)
            )
            yield Row({"model": shape, "length": length, "what": "steps"}, runs)
    from app.chat.model_pairs import resolve_pair
    from app.engine.loader import load_pair

    name = options.target or EMBEDDED
    pair = load_pair(resolve_pair(name), STEP)
    for what, (document, question) in tasks(name).items():
        prompt = pair.prompts.build((Message(Role.USER, question, (document,)),))
        answer = _answer(pair, prompt, options.tokens)
        runs = progress.repeat(f"{pair.target.info.name}, {what}", partial(_both, answer, count()))
        labels = {"model": pair.target.info.name, "length": len(prompt.ids), "what": what}
        yield Row(labels, runs)


def _steps(model: Any, vocabulary: int, length: int) -> Run:
    """Of each of SIZES, in plain steps; then the gain that the gate expects at each of SHARES."""
    import mlx.core as mx

    from app.engine.prefill import StepSize, forward, make_positioned_cache, prefill
    from app.engine.speculation import expected

    ids = np.random.default_rng(0).integers(3, vocabulary, length).astype(np.int32)
    cache = make_positioned_cache(model)
    prefill(model, cache, ids, None, StepSize(STEP), lambda done: None)
    seconds: dict[int, list[float]] = {size: [] for size in SIZES}
    for _ in range(REPEATS + 1):
        for size in SIZES:
            started = time.perf_counter()
            mx.eval(mx.argmax(forward(model, cache, ids[:size]), axis=-1))
            seconds[size].append(time.perf_counter() - started)
            for layer in cache:
                layer.trim(size)
    medians = {size: float(np.median(times[1:])) for size, times in seconds.items()}
    costs = {size: medians[size] / medians[1] for size in SIZES}
    best = {
        share: max((1 + expected(share, size - 1)) / costs[size] for size in SIZES)
        for share in SHARES
    }
    return {f"cost_{size}": costs[size] for size in SIZES[1:]} | {
        f"gain_{share:g}": gain for share, gain in best.items()
    }


def _answer(pair: ModelPair, prompt: Prompt, tokens: int) -> Answer:
    """Writes an answer, with proposals or without: tokens a second, the tokens, how many of them
    were proposed, and how many of those were right."""
    from app.engine.copy_index import CopyIndex
    from app.engine.draft_proposals import DraftProposals
    from app.engine.prefill import make_positioned_cache, make_stock_cache
    from app.engine.prefix_cache import PrefixCache
    from app.engine.token_stream import TokenStream

    target, draft = pair.target, pair.draft
    read = PrefixCache(lambda: make_positioned_cache(target.model))
    everything = np.arange(len(prompt.ids), dtype=np.int32)
    read.prefill_at(target.model, prompt.ids, everything[:-1], target.step, lambda done: None)
    by_draft = None
    if draft is not None and prompt.for_draft is None:
        by_draft = PrefixCache(lambda: make_stock_cache(draft.model))
        by_draft.prefill_at(draft.model, prompt.ids, everything, draft.step, lambda done: None)

    def answer(speculate: bool) -> tuple[float, list[int], int, int]:
        index = CopyIndex(prompt.ids) if speculate else None
        proposals = None
        if speculate and draft is not None and by_draft is not None:
            proposals = DraftProposals(draft.model, by_draft.fork(), prompt.ids, target.vocab_size)
        stream = TokenStream(target.model, read.fork().cache, target.gate, index, draft=proposals)
        ids, times = [], []
        written = stream.tokens(int(prompt.ids[-1]), tokens)
        for each in written:
            times.append(time.perf_counter())
            ids.append(each)
            if each in target.tokenizer.eos_token_ids:
                break
        written.close()
        rate = (len(ids) - 1) / (times[-1] - times[0])
        return rate, ids, stream.proposed, stream.accepted

    return answer


def _both(answer: Answer, turns: Iterator[int]) -> Run:
    """The order changes from run to run."""
    order = (False, True) if next(turns) % 2 else (True, False)
    found = {how: answer(how) for how in order}
    (plain, same, _, _), (fast, ids, proposed, accepted) = found[False], found[True]
    return {
        "plain": plain,
        "fast": fast,
        "faster": fast / plain,
        "tokens": len(ids),
        "proposed": proposed,
        "accepted": accepted / proposed if proposed else None,
        "same": float(ids == same),
    }


def about(result: Result) -> str:
    return (
        "*Steps*: what a step of 2 to 16 tokens costs, in steps of one token, on random weights;"
        " and how many times faster answers can then be by the share of proposed tokens that are"
        " right. *Answers*: tokens a second one at a time, and with copies, and what a draft with"
        " the target's tokenizer would write, verified several at a time; how much of what was"
        " proposed was right."
    )


def goals(result: Result) -> Iterator[Goal]:
    for row in result.rows:
        if row["what"] == "steps":
            continue
        faster, least = row.spread("faster"), QUOTING if row["what"] == "quoting" else SLOWEST
        goal = f"{row['model']}, {row['what']}: at least {least:g} times as fast"
        yield Goal(goal, faster.text(), faster.median >= least)
        share = row.median("same")
        yield Goal(f"{row['model']}, {row['what']}: the same answer", f"{share:.0%}", share == 1)


def charts(result: Result) -> dict[str, str]:
    steps = [row for row in result.rows if row["what"] == "steps"]
    labels = [f"{share:.0%}" for share in SHARES]
    series = {
        f"{row['model']}, {row['length']:,}": [
            (index, row.median(f"gain_{share:g}")) for index, share in enumerate(SHARES)
        ]
        for row in steps
    }
    title = "Answers faster, by the share of proposals that are right"
    return {"copying.svg": line_chart(title, labels, series, "", "right")}


BENCH = Bench(
    "copying",
    "Answers that are verified several tokens at a time",
    measure,
    about,
    columns(
        Column("model", "model"),
        Column("prompt", "length", ","),
        Column("", "what"),
        *(Column(f"step of {size}", f"cost_{size}") for size in SIZES[1:]),
        Column("gain at 50 %", "gain_0.5"),
        Column("at 90 %", "gain_0.9"),
        Column("plain, tokens/s", "plain", ".1f"),
        Column("several at once", "fast", ".1f"),
        Column("faster", "faster", spread=True),
        Column("right", "accepted", ".0%"),
    ),
    goals,
    charts,
    report_args="--runs 3",
    quick_args="--shape quick --length 256 --tokens 8 --runs 1",
)
