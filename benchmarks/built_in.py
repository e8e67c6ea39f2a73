"""The cost of scoring with the built-in scorer.

Each run scores a prompt of repeated licence text: *words*, with random input embeddings of the
shape and random token ids; *meaning*, for which the encoder reads the document; and *later*, both
for another question, when the document is already encoded.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from app.protocol.options import DEFAULT_TUNING
from app.util.assets import assets_path
from benchmarks.harness import Bench, Column, Goal, Options, Progress, Result, Row, Run, columns
from benchmarks.shapes import configs_of
from benchmarks.token_turn import QUESTION_TOKENS

CHARACTERS = 4
"""Characters per token of English text."""
QUESTION = "How many days do I have to fix a violation?"
LARGE_TARGET = 8_000_000_000
MAX_SHARE = 0.01
"""Maximum share of that target's prefill, in operations (two per parameter and token)."""


def measure(options: Options, progress: Progress) -> Iterator[Row]:
    """Raises UserError for an unknown shape."""
    config = configs_of(options.shape)["target"]
    model = _embeddings(config["vocab_size"], config["hidden_size"])
    licence = (assets_path() / "demo" / "gpl-3.0.txt").read_text(encoding="utf-8")
    for length in options.lengths:
        wanted = CHARACTERS * length
        text = (licence * math.ceil(wanted / len(licence)))[:wanted]
        runs = progress.repeat(
            f"{length:,} tokens", partial(_run, model, config["vocab_size"], text), warm_up=False
        )
        yield Row({"length": length}, runs)


def _embeddings(vocabulary: int, width: int) -> Any:
    """A stand-in for a model that has only input embeddings."""
    import mlx.core as mx
    from mlx.nn.layers.embedding import Embedding

    table = Embedding(vocabulary, width)
    table.set_dtype(mx.bfloat16)
    mx.eval(table.weight)
    return SimpleNamespace(named_modules=lambda: [("embed_tokens", table)])


def _run(model: Any, vocabulary: int, text: str) -> Run:
    """Seconds, and memory in addition to the target's."""
    import mlx.core as mx

    from app.engine.model.embeddings import EmbeddingSpace
    from app.engine.model.text_encoder import TextEncoder
    from app.engine.scorers.built_in import embedding_scores

    space, length = EmbeddingSpace.of(model), len(text) // CHARACTERS
    ids = np.random.default_rng(0).integers(3, vocabulary, length).astype(np.int32)
    question = ids[length - QUESTION_TOKENS :]
    pinned = np.arange(length) >= length - QUESTION_TOKENS
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    encoder = TextEncoder(assets_path() / "encoders" / "english")

    def meaning() -> None:
        encoder.encode_questions([QUESTION], lambda done, total: None)
        encoder.encode_texts([text], lambda done, pieces: None)

    chunk = DEFAULT_TUNING.chunk
    words = _seconds(lambda: embedding_scores(model, space, ids, pinned, question, chunk))
    first, later = _seconds(meaning), _seconds(meaning)
    return {
        "words": words,
        "meaning": first,
        "later": words + later,
        "megabytes": (mx.get_peak_memory() - before) / 1e6,
        "operations": encoder.operations_per_token,
    }


def _seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def about(result: Result) -> str:
    longest = result.rows[-1]
    return (
        f"The built-in scorer, beside a target with the embeddings of the"
        f" {result.options['shapes'][0]} pair's: seconds to find *words* and *meaning* for a"
        " document's first question, and for *later* ones about the same document; and the most"
        f" memory it takes beside the target's. Its encoder takes"
        f" {longest.median('operations') / 1e6:.1f} million operations a token."
    )


def goals(result: Result) -> Iterator[Goal]:
    share = result.rows[-1].median("operations") / (2 * LARGE_TARGET)
    goal = f"at most {MAX_SHARE:.0%} of an 8B target's prefill, by operations"
    yield Goal(goal, f"{share:.3%}", share <= MAX_SHARE)


BENCH = Bench(
    "built-in",
    "what it takes the built-in scorer to choose",
    "The built-in scorer",
    measure,
    about,
    columns(
        Column("tokens", "length", ","),
        Column("words, s", "words"),
        Column("meaning, s", "meaning", spread=True),
        Column("later, s", "later"),
        Column("memory, MB", "megabytes", ".0f"),
    ),
    goals,
    report_args="--runs 3",
    quick_args="--length 1k --shape small --runs 1",
    flags={"shape": "qwen3-8b+0.6b", "length": "4k,32k,128k", "runs": "5"},
)
