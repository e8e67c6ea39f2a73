"""The overhead of a sparse turn over the two prefills that it consists of.

Each run on random llama-like models measures: in mlx-lm, a prefill of the whole prompt with the
draft, and of the selected number of tokens with the target; our sparse turn, from token ids to the
first token; a dense prefill with the target in mlx-lm, and our dense turn. Ratios: speedup (our
dense turn over our sparse one), engine (mlx-lm over our dense turn), and overhead (both prefills in
mlx-lm over our sparse turn). An overhead ratio above 1 means that the turn costs less than its
parts in mlx-lm.

Then the other parts of a turn: building the prompt, in real turns of the embedded pair about the
GPL, each with another first line, because documents of the previous prompt are not encoded again;
and selecting again, as after moving the slider, with random importance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from app.chat.engine_session import EngineSession
from app.chat.model_pairs import resolve_pair
from app.chat.sample import sample
from app.models.embedded import target_path
from app.protocol.commands import Ask
from app.protocol.options import DEFAULT_TUNING, Mode, Sampling
from app.protocol.prompt import Document, Message, Role
from app.protocol.stats import Phase
from app.util.tables import TextTable
from benchmarks.harness import Bench, Goal, Options, Progress, Result, Row, Run
from benchmarks.shapes import SMALL, random_pair, shapes
from benchmarks.token_turn import document_prompt, finished, loaded, plain, turn
from benchmarks.ttft import TWO_COMPARISONS

STEP, KEEP = 512, 0.2
DENSE_UP_TO = 4096
"""Maximum tokens of a dense prefill. Longer ones take minutes on a CPU; `ttft` measures them."""
SELECTION_TOKENS = 131_072
QUESTION = "What does it say about the Corresponding Source?"
TURN, PROMPT, SELECTION = "turn", "prompt", "selection"
"""Kinds of rows."""


def measure(options: Options, progress: Progress) -> Iterator[Row]:
    target, draft = random_pair(SMALL)
    models = [loaded(target, {}, STEP), loaded(draft, {}, STEP)]
    vocabulary = shapes()[SMALL]["target"]["vocab_size"]
    for length in options.lengths:
        ids = np.random.default_rng(0).integers(3, vocabulary, length).astype(np.int32)
        measured = progress.repeat(f"{length:,} tokens", partial(_turn, models, ids))
        labels = {"part": TURN, "tokens": length, "selected": measured[0][0]}
        yield Row(labels, [run for _, run in measured])
    yield from prompts(options.lengths, progress)
    runs = progress.repeat("selection", _selection())
    yield Row({"part": SELECTION, "tokens": SELECTION_TOKENS}, runs)


def _turn(models: list, ids: NDArray[np.int32]) -> tuple[int, Run]:  # type: ignore[type-arg]
    """(number of selected tokens, seconds by name)."""
    target, draft = models
    sparse = turn(models, ids, KEEP)
    dense = mlx_lm = None
    plain_draft = plain(draft.model, ids, STEP)
    plain_target = plain(target.model, ids[: sparse.read_tokens], STEP)
    if len(ids) <= DENSE_UP_TO:
        mlx_lm = plain(target.model, ids, STEP)
        dense = turn(models, ids, 1.0, Mode.FULL).ttft
    run = {
        "plain_draft": plain_draft,
        "plain_target": plain_target,
        "plain_dense": mlx_lm,
        "dense": dense,
        "sparse": sparse.ttft,
        **{str(part.phase): part.seconds for part in sparse.phases},
        "speedup": dense and dense / sparse.ttft,
        "engine": mlx_lm and dense and mlx_lm / dense,
        "ratio": (plain_draft + plain_target) / sparse.ttft,
    }
    return sparse.read_tokens, run


def prompts(lengths: tuple[int, ...], progress: Progress) -> Iterator[Row]:
    """Measure building a prompt of about each length."""
    text = sample().text
    tokenizer = Tokenizer.from_file(str(target_path() / "tokenizer.json"))
    tokens = len(tokenizer.encode(text, add_special_tokens=False))
    with EngineSession() as session:
        session.load(resolve_pair())
        for length in lengths:
            part = (text * (length // tokens + 1))[: len(text) * length // tokens]
            one = partial(_prompt, session, part, count(1))
            measured = progress.repeat(f"a prompt of {length:,} tokens", one)
            labels = {"part": PROMPT, "tokens": measured[0][0]}
            yield Row(labels, [run for _, run in measured])


def _prompt(session: EngineSession, text: str, turns: count[int]) -> tuple[int, Run]:
    """(tokens of the prompt, seconds by name)."""
    index = next(turns)
    document = Document("text.txt", f"Copy {index}\n{text}")
    message = Message(Role.USER, QUESTION, (document,))
    ask = Ask((message,), Mode.SPARSE, KEEP, Sampling(max_tokens=1))
    stats = finished(list(session.run(ask)))
    building = sum(part.seconds for part in stats.phases if part.phase is Phase.TOKENISE)
    run = {"building": building, "ttft": stats.ttft, "share": building / stats.ttft}
    return stats.prompt_tokens, run


def _selection() -> Callable[[], Run]:
    """A function that measures the seconds from a move of the slider to the selection."""
    from app.engine.memory.conversation_cache import ScoredPrompt
    from app.engine.scorers.attention import AttentionScorer

    prompt = document_prompt(np.zeros(SELECTION_TOKENS, np.int32))
    importance = np.random.default_rng(0).random(SELECTION_TOKENS, np.float32)
    scored = ScoredPrompt(
        1, prompt, AttentionScorer(), importance, DEFAULT_TUNING, np.zeros(0, bool)
    )

    def select() -> Run:
        started = time.perf_counter()
        scored.select(KEEP)
        return {"seconds": time.perf_counter() - started}

    return select


# --------------------------------------------------------------------------------- the report

SECONDS = (
    ("mlx-lm: draft prefills everything", "plain_draft"),
    ("mlx-lm: target prefills the selected tokens", "plain_target"),
    ("mlx-lm: target prefills everything", "plain_dense"),
    ("specchat: dense turn", "dense"),
    ("specchat: sparse turn", "sparse"),
)
PHASES = ("score", "lookahead", "select", "prefill", "decode")
RATIOS = (
    ("speedup (dense / sparse turn)", "speedup"),
    ("engine (mlx-lm / dense turn)", "engine"),
    ("overhead (both prefills in mlx-lm / sparse turn)", "ratio"),
)
MIN_OVERHEAD_RATIO = 1.05


def _rows(result: Result, part: str) -> list[Row]:
    return [row for row in result.rows if row["part"] == part]


def _building(row: Row) -> str:
    return f"building a prompt of {row['tokens']:,} tokens, embedded pair"


def table(result: Result, in_report: bool) -> TextTable:
    """A line for each figure."""
    lines = []
    phases = [(f"sparse turn: {phase}", phase) for phase in PHASES]
    for row in _rows(result, TURN):
        lines.append([f"**{row['tokens']:,} tokens, {row['selected']:,} selected**", ""])
        seconds = [(name, figure, ".3f") for name, figure in (*SECONDS, *phases)]
        for name, figure, form in (*seconds, *((*ratio, ".2f") for ratio in RATIOS)):
            if row.values(figure):
                lines.append([name, row.spread(figure).text(form)])
    for row in _rows(result, PROMPT):
        lines.append([_building(row), f"{row.median('building'):.3f}"])
    for row in _rows(result, SELECTION):
        lines.append([_selecting(row), f"{row.median('seconds'):.4f}"])
    return TextTable(["", "seconds"], lines)


def _selecting(row: Row) -> str:
    return f"selecting from {row['tokens']:,} tokens"


def summary_table(result: Result) -> str:
    """A column for each length."""
    rows = _rows(result, TURN)
    head = [f"medians of {len(rows[0].runs)}", *(f"{row['tokens']:,} tokens" for row in rows)]
    lines = [
        [name, *(f"{row.median(figure):.2f} s" if row.values(figure) else NONE for row in rows)]
        for name, figure in SECONDS
    ]
    lines += [
        [name, *(row.spread(figure).text() if row.values(figure) else NONE for row in rows)]
        for name, figure in RATIOS
    ]
    return TextTable(head, lines).markdown()


NONE = "not measured"


def about(result: Result) -> str:
    return (
        f"Seconds at keep {KEEP:g}, in steps of {STEP} tokens. {TWO_COMPARISONS} The *overhead*"
        " ratio has both in it: above 1, a turn costs less than its two prefills do in mlx-lm."
    )


def goals(result: Result) -> Iterator[Goal]:
    for row in _rows(result, TURN):
        (name, figure), minimum = RATIOS[-1], MIN_OVERHEAD_RATIO
        ratio = row.spread(figure)
        goal = f"{name}, {row['tokens']:,} tokens: at least {minimum:g}"
        yield Goal(goal, ratio.text(), ratio.median >= minimum)
    for row in _rows(result, PROMPT):
        share = row.median("share")
        measured = f"{share:.1%} of {row.median('ttft'):.2f} s"
        yield Goal(f"{_building(row)}: under 5 % of TTFT", measured, share < 0.05)
    for row in _rows(result, SELECTION):
        seconds = row.median("seconds")
        measured = f"{1000 * seconds:.1f} ms"
        yield Goal(f"{_selecting(row)}: under 10 ms", measured, seconds < 0.01)


BENCH = Bench(
    "overhead",
    "the overhead of sparse prefill over the two prefills",
    "What a sparse turn costs",
    measure,
    about,
    table,
    goals,
    report_args="--length 4k,16k --runs 3",
    quick_args="--length 512 --runs 1",
    flags={"length": "4k", "runs": "5"},
)
