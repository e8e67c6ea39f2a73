"""Accuracy of the predicted time to the first token, and whether auto mode chooses the faster mode.

Uses random conversations on random models of two shapes; in one, the draft costs half as much as
the target. Every turn runs in auto mode, then a few times in both modes on the same history. As for
a user, the pair is timed once after loading, and its costs are then fitted to the turns in auto
mode only.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from app.estimate.work import DENSE_WITHIN_SECONDS, MIN_SAVING, scoring_work, sparse_pays
from app.protocol.commands import Ask
from app.protocol.cost_model import AttentionWork, Costs, ReadPlan
from app.protocol.events import Event, Finished, ModelInfo, Planned
from app.protocol.options import Mode, Sampling
from app.protocol.prompt import Message, Role, Segment, SegmentKind
from app.protocol.stats import Reading, Statistics
from app.util import formatting
from benchmarks.harness import Bench, Column, Goal, Options, Progress, Result, Row, Run, columns
from benchmarks.shapes import random_pair, shapes, weights
from benchmarks.token_turn import finished, model_pair, run_turn, tokenizer

if TYPE_CHECKING:
    from app.engine.turn.turn import Measured

SHAPES = ("quick", "close")
MIN_TOKENS, MAX_TOKENS = 500, 16_000
"""Tokens of a first document, log-uniformly distributed."""
MAX_LATER_TOKENS = 4_000
KEEPS = 0.05, 0.5
QUESTION = "Where is it?"
"""A question for which the guard allows sparse reading."""
JUDGED_AFTER = 3
"""Predictions are judged after this many turns."""
MAX_SECONDS = 0.5
"""Modes are not measured again after this long."""
MAX_REGRET = 1 / (1 - MIN_SAVING)
"""Maximum time in auto mode relative to the faster mode: auto requires `MIN_SAVING` to skip."""
ALL_PAIRS = "all"


def measure(options: Options, progress: Progress) -> Iterator[Row]:
    """A row for each pair; each turn is a run."""
    every: list[Run] = []
    for index, shape in enumerate(SHAPES):
        share = options.turns // len(SHAPES) + (index < options.turns % len(SHAPES))
        bench = _Conversations(shape, options.runs)
        runs = []
        for run in bench.turns(max(share, 1)):
            runs.append(run)
            progress.show(f"{shape}, turn {len(runs)} of {share}")
        every += runs
        yield Row({"pair": shape, "crossing": crossing(bench.costs, 0.2)}, runs)
    yield Row({"pair": ALL_PAIRS, "crossing": None}, every)


def crossing(costs: Costs, keep: float) -> int | None:
    """Minimum number of new tokens for which sparse prefill pays; None if it never does."""
    for exponent in range(4, 72):
        tokens = int(2 ** (exponent / 4) * 16)
        selected = AttentionWork(math.ceil(keep * tokens))
        sparse = costs.seconds(ReadPlan(tokens, selected, scoring_work(tokens, 0)))
        full = costs.seconds(ReadPlan(tokens, AttentionWork(tokens)))
        if sparse is not None and full is not None and sparse_pays(sparse, full):
            return tokens
    return None


def judged(
    known: int,
    reading: Reading,
    predicted: float | None,
    predicted_other: float | None,
    auto: float,
    sparse: float,
    full: float,
) -> Run:
    """Figures of one turn from its times to the first token in seconds: `predicted` for the mode
    that auto chose and `predicted_other`, measured in `auto`, and the medians of `sparse` and
    `full`. `known`: number of earlier turns."""
    chosen, other = (sparse, full) if reading is Reading.SPARSE else (full, sparse)
    regret = chosen / min(sparse, full)
    run = {
        "known": known,
        "sparse_chosen": float(reading is Reading.SPARSE),
        "predicted": predicted,
        "predicted_other": predicted_other,
        "auto": auto,
        "sparse": sparse,
        "full": full,
        "regret": regret,
        "near": float(regret <= MAX_REGRET or chosen <= DENSE_WITHIN_SECONDS),
        "error": None,
        "error_other": None,
    }
    if known >= JUDGED_AFTER and predicted is not None:
        run["error"] = abs(predicted - auto) / auto
    if known >= JUDGED_AFTER and predicted_other is not None:
        run["error_other"] = abs(predicted_other - other) / other
    return run


class _Conversations:
    """Random conversations with one pair."""

    def __init__(self, shape: str, runs: int) -> None:
        from app.engine.cache.prefill import StepSize
        from app.engine.cache.sizes import CacheSize, attention_cost_ratio
        from app.engine.model.loader import LoadedModel
        from app.engine.turn.costs import PairCosts

        configs = shapes()[shape]
        models = []
        for model, config in zip(random_pair(shape), configs.values(), strict=True):
            info = ModelInfo("random", "llama", 0, 0, 0)
            loaded = LoadedModel(model, tokenizer(), info, CacheSize(0, 0), StepSize())
            parameters = sum(array.size for array in weights(model))
            loaded.attention_cost_ratio = attention_cost_ratio(config, parameters)
            models.append(loaded)
        self._chat = _TokenChat()
        self._pair = model_pair(models)
        self._costs = PairCosts(self._pair, None)
        self._runs = max(runs, 1)
        self._vocabulary = configs["target"]["vocab_size"]
        self._rng = np.random.default_rng(1)
        self._known = 0

    @property
    def costs(self) -> Costs:
        return self._costs.costs

    def turns(self, count: int) -> Iterator[Run]:
        self._calibrate()
        while count:
            for run in self._conversation(int(self._rng.integers(1, 4))):
                if count and run is not None:
                    count -= 1
                    yield run

    def _calibrate(self) -> None:
        """Time the pair as the engine does on request."""
        from app.engine.turn.calibration import calibrate

        for timings in calibrate(self._pair, lambda: False):
            self._costs.add(timings)

    def _conversation(self, turns: int) -> Iterator[Run | None]:
        """Yield a run for each turn; None if it could only be read in one mode."""
        from app.engine.memory.conversation_cache import ConversationCache

        cache = ConversationCache(self._pair)
        self._chat.clear()
        for turn in range(turns):
            document = 0
            if not turn:
                document = self._random_length(MIN_TOKENS, MAX_TOKENS)
            elif self._rng.random() < 0.4:
                document = self._random_length(MIN_TOKENS, MAX_LATER_TOKENS)
            question = int(self._rng.integers(8, 64))
            self._chat.add(self._random_ids(document), self._random_ids(question))
            yield self._turn(cache)

    def _turn(self, cache: Any) -> Run | None:
        low, high = (math.log(keep) for keep in KEEPS)
        keep = math.exp(self._rng.uniform(low, high))
        before = _fork(self._pair, cache)
        measured, planned, stats, written = self._run(cache, Mode.AUTO, keep)
        self._costs.add(measured.timings)
        self._known += 1
        seconds: dict[Reading, list[float]] = {Reading.SPARSE: [], Reading.DENSE: []}
        started = time.perf_counter()
        for repetition in range(self._runs):
            if repetition and time.perf_counter() - started > 2 * MAX_SECONDS:
                break
            for mode in (Mode.SPARSE, Mode.FULL):
                _, _, repeated, _ = self._run(_fork(self._pair, before), mode, keep)
                seconds[repeated.reading].append(repeated.ttft)
        self._chat.add_answer(written)
        if not seconds[Reading.SPARSE]:
            return None
        medians = (statistics.median(seconds[each]) for each in (Reading.SPARSE, Reading.DENSE))
        predicted = planned.ttft, planned.ttft_alternative
        run = judged(self._known - 1, stats.reading, *predicted, stats.ttft, *medians)
        return {"prompt": stats.prompt_tokens, "keep": keep} | run

    def _run(
        self, cache: Any, mode: Mode, keep: float
    ) -> tuple[Measured, Planned, Statistics, NDArray[np.int32]]:
        events: list[Event] = []
        messages = (Message(Role.USER, QUESTION),)
        ask = Ask(messages, mode, keep, Sampling(max_tokens=1), conversation="bench")
        measured = run_turn(
            self._pair, ask, cache, events, costs=self.costs, prompt=self._chat.prompt()
        )
        planned = next(event for event in events if isinstance(event, Planned))
        (written,) = (event.generated_ids for event in events if isinstance(event, Finished))
        return measured, planned, finished(events), np.array(written, np.int32)

    def _random_ids(self, tokens: int) -> NDArray[np.int32]:
        return self._rng.integers(3, self._vocabulary, tokens).astype(np.int32)

    def _random_length(self, shortest: int, longest: int) -> int:
        return int(math.exp(self._rng.uniform(math.log(shortest), math.log(longest))))


class _TokenChat:
    """A conversation that consists of token ids."""

    def clear(self) -> None:
        self._parts: list[tuple[SegmentKind, NDArray[np.int32]]] = []

    def add(self, document: NDArray[np.int32], question: NDArray[np.int32]) -> None:
        """Add a question, with a document before it unless that is empty."""
        asked = SegmentKind.QUESTION
        self._parts = [
            (SegmentKind.HISTORY if kind is asked else kind, ids) for kind, ids in self._parts
        ]
        self._parts += [(SegmentKind.DOCUMENT, document)] if len(document) else []
        self._parts.append((asked, question))

    def add_answer(self, ids: NDArray[np.int32]) -> None:
        self._parts.append((SegmentKind.HISTORY, ids))

    def prompt(self) -> Any:
        from app.engine.model.prompt import Prompt

        segments, offsets, start = [], {}, 0
        for number, (kind, ids) in enumerate(self._parts):
            is_document = kind is SegmentKind.DOCUMENT
            document = number if is_document else None
            segments.append(Segment(kind, start, start + len(ids), 0, document))
            if is_document:
                offsets[0, number] = np.arange(len(ids) + 1, dtype=np.int64)
            start += len(ids)
        return Prompt(np.concatenate([ids for _, ids in self._parts]), tuple(segments), offsets)


def _fork(pair: Any, cache: Any) -> Any:
    """Copy the caches of a conversation."""
    from app.engine.memory.conversation_cache import ConversationCache

    twin = ConversationCache(pair)
    twin.target, twin.draft = cache.target.fork(), cache.draft.fork()
    return twin


def _p90(values: Sequence[float]) -> float:
    return float(np.quantile(values, 0.9))


def about(result: Result) -> str:
    return (
        f"Random conversations on random models, documents of {MIN_TOKENS:,} to {MAX_TOKENS:,}"
        f" tokens, keep {KEEPS[0]:.0%} to {KEEPS[1]:.0%}; the draft of one pair costs half of its"
        " target."
        " Every turn runs in auto mode, then in both modes on the same history. *Error*: of the"
        f" predicted time to the first token, after {JUDGED_AFTER} turns, for the mode that auto"
        " chose and for the *other*; *p90* is exceeded by a tenth of them. *Sparse*: turns that"
        f" auto ran sparse. *Within*: turns in which auto took at most {MAX_REGRET:g} times the"
        f" faster mode, or at most {formatting.seconds(DENSE_WITHIN_SECONDS)}. Sparse *pays from*"
        " this many new tokens on at keep 0.2."
    )


def goals(result: Result) -> Iterator[Goal]:
    (every,) = (row for row in result.rows if row["pair"] == ALL_PAIRS)
    if every.values("error"):
        error = every.median("error")
        goal = "median error of the predicted time to the first token under 15 %"
        yield Goal(goal, f"{error:.1%}", error < 0.15)
    near = statistics.mean(every.values("near"))
    goal = "auto at most 1.25 times the faster mode, or a second, in 95 % of the turns"
    yield Goal(goal, f"{near:.0%} of {len(every.runs)}", near >= 0.95)


BENCH = Bench(
    "planner",
    "accuracy of the predicted time to the first word, and what auto mode chooses",
    "Predictions",
    measure,
    about,
    columns(
        Column("pair", "pair"),
        Column("turns", "known", "g", statistic=len),
        Column("error", "error", ".1%"),
        Column("p90", "error", ".1%", statistic=_p90),
        Column("other", "error_other", ".1%"),
        Column("p90", "error_other", ".1%", statistic=_p90),
        Column("sparse", "sparse_chosen", ".0%", statistic=statistics.mean),
        Column("within", "near", ".0%", statistic=statistics.mean),
        Column("auto / faster mode", "regret", spread=True),
        Column("sparse pays from", "crossing", ","),
    ),
    goals,
    report_args="--runs 3",
    quick_args="--turns 8 --runs 1",
    flags={"turns": "100", "runs": "5"},
)
