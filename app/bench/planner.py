"""`specchat bench planner`: how well the first word is foretold, and whether auto takes the faster
way of reading.

Random conversations on random models of two shapes, one with a draft that costs half of its target.
Every turn is asked in auto mode and then in both modes, in turns and on the same history, until it
was read so a few times. As for a user, the pair is timed once after loading, and then the clock
learns from the turns in auto mode alone.
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from app.bench.shapes import random_pair, shapes
from app.engine import blas
from app.protocol.commands import Ask
from app.protocol.cost_model import (
    DENSE_WITHIN_SECONDS,
    MIN_SAVING,
    AttentionWork,
    Costs,
    ReadPlan,
    format_seconds,
    scoring_work,
    sparse_pays,
)
from app.protocol.events import Event, Finished, ModelInfo, Planned
from app.protocol.options import Mode, Sampling
from app.protocol.prompt import Message, Role, Segment, SegmentKind
from app.protocol.stats import Reading, Statistics

SHAPES = ("quick", "close")
SHORTEST, LONGEST = 500, 16_000
"""Tokens of a first document, drawn so that each doubling is as likely as any other."""
LONGEST_LATER = 4_000
KEEPS = 0.05, 0.5
QUESTION = "Where is it?"
"""What the guard sees: that something is looked for."""
LEARNT = 3
"""Turns after which the clock is judged."""
ENOUGH = 0.5
"""Seconds after which one way of reading is not measured once more."""
NEAR = 1 / (1 - MIN_SAVING)
"""Auto may take so many times the better way, since it skips nothing for less."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One turn. Seconds until the first word: as foretold for the way that auto took and for the
    other, as it took, and the medians of both ways. `known` are the turns before it."""

    shape: str
    known: int
    later: bool
    prompt: int
    keep: float
    reading: str
    foretold: float | None
    foretold_other: float | None
    took: float
    sparse: float
    full: float

    @property
    def chosen(self) -> float:
        return self.sparse if self.reading == Reading.SPARSE else self.full

    @property
    def other(self) -> float:
        return self.full if self.reading == Reading.SPARSE else self.sparse

    @property
    def regret(self) -> float:
        return self.chosen / min(self.sparse, self.full)

    @property
    def near(self) -> bool:
        """Whether auto took the better way, or lost no more than it may."""
        return self.regret <= NEAR or self.chosen <= DENSE_WITHIN_SECONDS

    @property
    def error(self) -> float | None:
        return None if self.foretold is None else abs(self.foretold - self.took) / self.took

    @property
    def error_of_other(self) -> float | None:
        if self.foretold_other is None:
            return None
        return abs(self.foretold_other - self.other) / self.other


def planner(turns: int, runs: int, as_json: bool, out: TextIO) -> int:
    """Measure so many turns, each way up to `runs` times; returns the exit status."""
    blas.load_openblas()
    from app.engine import mlx_patches

    mlx_patches.install()
    measured: list[Asked] = []
    crossings: dict[str, int | None] = {}
    for index, shape in enumerate(SHAPES):
        share = turns // len(SHAPES) + (index < turns % len(SHAPES))
        bench = _Bench(shape, runs)
        measured += bench.turns(max(share, 1))
        crossings[shape] = crossing(bench.costs, 0.2)
    from app.bench.machine import machine

    report = _json if as_json else _table
    out.write(report(measured, crossings, machine()))
    return 0


def crossing(costs: Costs, keep: float) -> int | None:
    """From how many new tokens on sparse reading pays; None if it never does."""
    for exponent in range(4, 72):
        tokens = int(2 ** (exponent / 4) * 16)
        sparse = costs.seconds(
            ReadPlan(tokens, AttentionWork(math.ceil(keep * tokens)), scoring_work(tokens, 0))
        )
        full = costs.seconds(ReadPlan(tokens, AttentionWork(tokens)))
        if sparse is not None and full is not None and sparse_pays(sparse, full):
            return tokens
    return None


class _Bench:
    """Conversations with one pair."""

    def __init__(self, shape: str, runs: int) -> None:
        from app.bench.token_turn import tokenizer
        from app.engine.cost_store import CostStore
        from app.engine.loader import LoadedModel, ModelPair
        from app.engine.memory import CacheSize, attention_cost_ratio
        from app.engine.prefill import StepSize

        configs = shapes()[shape]
        models = []
        for model, config in zip(random_pair(shape), configs.values(), strict=True):
            info = ModelInfo("random", "llama", 0, 0, 0)
            loaded = LoadedModel(model, tokenizer(), info, CacheSize(0, 0), StepSize())
            loaded.attention_cost_ratio = attention_cost_ratio(config, _parameters(model))
            models.append(loaded)
        self._prompts = _Given()
        self._pair = ModelPair(models[0], models[1], None, self._prompts)
        self._stopwatch = CostStore(self._pair, None)
        self._shape, self._runs = shape, max(runs, 1)
        self._vocabulary = configs["target"]["vocab_size"]
        self._chance = np.random.default_rng(1)
        self._known = 0

    @property
    def costs(self) -> Costs:
        return self._stopwatch.costs

    def turns(self, count: int) -> Iterator[Asked]:
        self._calibrate()
        while count:
            for asked in self._conversation(int(self._chance.integers(1, 4))):
                if count and asked is not None:
                    count -= 1
                    yield asked

    def _calibrate(self) -> None:
        """As the engine does while it has nothing else to do."""
        from app.engine.calibration import Calibration

        calibration = Calibration(self._pair, self.costs, lambda: False)
        while not calibration.finished:
            self._stopwatch.add(calibration.step())

    def _conversation(self, turns: int) -> Iterator[Asked | None]:
        """None for a turn that can only be read in one way."""
        from app.engine.conversation_cache import ConversationCache

        remembered = ConversationCache(self._pair)
        self._prompts.begin()
        for turn in range(turns):
            document = 0
            if not turn:
                document = self._length(SHORTEST, LONGEST)
            elif self._chance.random() < 0.4:
                document = self._length(SHORTEST, LONGEST_LATER)
            question = int(self._chance.integers(8, 64))
            self._prompts.add(self._drawn(document), self._drawn(question))
            asked = self._asked(remembered, bool(turn))
            yield asked

    def _asked(self, remembered: Any, later: bool) -> Asked | None:
        low, high = (math.log(keep) for keep in KEEPS)
        keep = math.exp(self._chance.uniform(low, high))
        before = _forked(self._pair, remembered)
        turn, planned, figures = self._run(remembered, Mode.AUTO, keep)
        self._stopwatch.add(turn.clocked)
        self._known += 1
        took: dict[Reading, list[float]] = {Reading.SPARSE: [], Reading.DENSE: []}
        begun = time.perf_counter()
        for run in range(self._runs):
            if run and time.perf_counter() - begun > 2 * ENOUGH:
                break
            for mode in (Mode.SPARSE, Mode.FULL):
                _, _, again = self._run(_forked(self._pair, before), mode, keep)
                took[again.reading].append(again.ttft)
        self._prompts.answered(turn.ids)
        if not took[Reading.SPARSE]:
            return None
        return Asked(
            self._shape,
            self._known - 1,
            later,
            figures.prompt_tokens,
            keep,
            str(figures.reading),
            planned.ttft,
            planned.ttft_alternative,
            figures.ttft,
            statistics.median(took[Reading.SPARSE]),
            statistics.median(took[Reading.DENSE]),
        )

    def _run(self, remembered: Any, mode: Mode, keep: float) -> tuple[Any, Planned, Statistics]:
        from app.engine.progress import TurnClock
        from app.engine.turn import Turn

        events: list[Event] = []
        asked = (Message(Role.USER, QUESTION),)
        ask = Ask(1, asked, mode, keep, Sampling(max_tokens=1), conversation="bench")
        progress = TurnClock(ask.turn, events.append, lambda: False)
        turn = Turn(self._pair, ask, remembered, progress, costs=self.costs)
        turn.run()
        finished = events[-1]
        planned = next(event for event in events if isinstance(event, Planned))
        if not isinstance(finished, Finished) or finished.statistics is None:
            raise RuntimeError("the turn did not finish")
        if finished.statistics.fallback:
            raise RuntimeError(finished.statistics.fallback)
        return turn, planned, finished.statistics

    def _drawn(self, tokens: int) -> NDArray[np.int32]:
        return self._chance.integers(3, self._vocabulary, tokens).astype(np.int32)

    def _length(self, least: int, most: int) -> int:
        return int(math.exp(self._chance.uniform(math.log(least), math.log(most))))


class _Given:
    """Stands in for a prompt builder: a conversation of given ids."""

    def begin(self) -> None:
        self._parts: list[tuple[SegmentKind, NDArray[np.int32]]] = []

    def add(self, document: NDArray[np.int32], question: NDArray[np.int32]) -> None:
        """A question, with a document before it unless that is empty."""
        asked = SegmentKind.QUESTION
        self._parts = [
            (SegmentKind.HISTORY if kind is asked else kind, ids) for kind, ids in self._parts
        ]
        self._parts += [(SegmentKind.DOCUMENT, document)] if len(document) else []
        self._parts.append((asked, question))

    def answered(self, ids: NDArray[np.int32]) -> None:
        self._parts.append((SegmentKind.HISTORY, ids))

    def build(self, messages: tuple[Message, ...], check: object = None) -> Any:
        from app.engine.prompt import Prompt

        segments, offsets, at = [], {}, 0
        for number, (kind, ids) in enumerate(self._parts):
            is_document = kind is SegmentKind.DOCUMENT
            document = number if is_document else None
            segments.append(Segment(kind, at, at + len(ids), 0, document))
            if is_document:
                offsets[0, number] = np.arange(len(ids) + 1, dtype=np.int64)
            at += len(ids)
        return Prompt(np.concatenate([ids for _, ids in self._parts]), tuple(segments), offsets)


def _forked(pair: Any, remembered: Any) -> Any:
    """The same history, for a turn that goes its own way."""
    from app.engine.conversation_cache import ConversationCache

    twin = ConversationCache(pair)
    twin.target, twin.draft = remembered.target.fork(), remembered.draft.fork()
    return twin


def _parameters(model: Any) -> int:
    from mlx.utils import tree_flatten

    flat: list[tuple[str, Any]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    return sum(array.size for _, array in flat)


# ------------------------------------------------------------------------------------- figures


def _errors(turns: list[Asked], error: Callable[[Asked], float | None]) -> list[float]:
    """Of turns with enough of others before them."""
    found = [error(turn) for turn in turns if turn.known >= LEARNT]
    return [each for each in found if each is not None]


def _quantile(values: list[float], share: float) -> float:
    return float(np.quantile(values, share)) if values else math.nan


def _near(turns: list[Asked]) -> float:
    return statistics.mean(turn.near for turn in turns)


def _table(turns: list[Asked], crossings: dict[str, int | None], described: str) -> str:
    lines = [
        f"{len(turns)} turns of random conversations, documents of {SHORTEST:,} to"
        f" {LONGEST:,} tokens, keep {KEEPS[0]:.0%} to {KEEPS[1]:.0%}",
        described,
        "",
        f"{'':<10}{'turns':>6}{'error':>8}{'p90':>8}{'other':>8}{'p90':>8}"
        f"{'sparse':>8}{'within':>8}{'median':>8}{'worst':>8}{'crossing':>10}",
    ]
    for shape in (*SHAPES, "all"):
        some = [turn for turn in turns if shape in ("all", turn.shape)]
        if not some:
            continue
        errors = _errors(some, lambda turn: turn.error)
        others = _errors(some, lambda turn: turn.error_of_other)
        figures = [_quantile(errors, 0.5), _quantile(errors, 0.9)]
        figures += [_quantile(others, 0.5), _quantile(others, 0.9)]
        figures += [statistics.mean(t.reading == Reading.SPARSE for t in some), _near(some)]
        regrets = [turn.regret for turn in some]
        crossed = crossings.get(shape)
        lines.append(
            f"{shape:<10}{len(some):>6}"
            + "".join(f"{figure:>8.1%}" for figure in figures)
            + f"{statistics.median(regrets):>8.2f}{max(regrets):>8.2f}"
            + f"{'' if crossed is None else f'{crossed:,}':>10}"
        )
    lines += [
        "",
        f"error: of the foretold first word, after {LEARNT} turns, and the same of the other way",
        "sparse: the turns that auto read sparsely",
        f"within: the turns in which auto took at most {NEAR:g} times the better way, or not more"
        f" than {format_seconds(DENSE_WITHIN_SECONDS)}; then how many times",
        "crossing: the new tokens from which on sparse reading pays at keep 20 %",
    ]
    return "\n".join(lines) + "\n"


def _json(turns: list[Asked], crossings: dict[str, int | None], described: str) -> str:
    errors = _errors(turns, lambda turn: turn.error)
    figures = {
        "machine": described,
        "error": _quantile(errors, 0.5),
        "error_p90": _quantile(errors, 0.9),
        "within": _near(turns),
        "crossing": crossings,
        "turns": [asdict(turn) | {"regret": turn.regret} for turn in turns],
    }
    return json.dumps(figures) + "\n"
