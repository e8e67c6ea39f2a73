"""What the loaded model pair costs on this machine: a first estimate, then fitted to its stored
timings; and how sure it was of its last answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from app.engine.backend.blas import matrix_rate
from app.engine.backend.machine_record import MachineRecord
from app.engine.model.loader import LoadedModel, ModelPair
from app.engine.model.text_encoder import ENCODER_OPERATIONS
from app.engine.progress import Part
from app.engine.scorers.attention import LOOKAHEAD
from app.engine.scorers.choice import choose_scorer
from app.engine.turn.cost_fit import MAX_TIMINGS, fit_costs
from app.protocol.cost_model import FREE, AttentionWork, Costs, CostTerm, LinearCost, Timing

ANSWERS = 32
"""The last answers, whose confidence is the usual one."""
FEWEST_ANSWERS = 8
"""With fewer it is unknown."""


TOKENISE_SECONDS = 1e-5
"""To tokenise a token, in the sandbox."""
SMALL_MATRICES = 2.0
"""How many times as long the encoder's operations take as a large model's (measured: 1.4 to 2)."""


def first_costs(pair: ModelPair) -> Costs:
    """The estimate of all costs."""
    target, draft = pair.target, pair.draft
    step, per_token = _speed(target)
    rate = 2 * target.info.parameters / per_token if target.info.parameters else matrix_rate()
    encoding = SMALL_MATRICES * ENCODER_OPERATIONS / rate
    full = LinearCost(step, TOKENISE_SECONDS + (encoding if pair.only_quotes else 0.0))
    read = LinearCost(0.0, per_token, per_token * attention_ratio(target))
    if draft is None:
        sparse = LinearCost(step, full.per_token + encoding)
        return Costs(read, FREE, full, sparse)
    draft_step, by_draft = _speed(draft)
    scoring = by_draft
    # The search for what to quote is timed as a part of scoring, too.
    if pair.only_quotes or Part.BUILT_IN in choose_scorer(pair, 0).parts:
        scoring += encoding
    sparse = LinearCost(step + LOOKAHEAD * draft_step, TOKENISE_SECONDS)
    score = LinearCost(0.0, scoring, by_draft * attention_ratio(draft))
    return Costs(read, score, full, sparse)


def attention_ratio(model: LoadedModel) -> float:
    """Seconds of attending to one token, as a share of those of a token in the weights."""
    return model.attention_cost_ratio * model.step.backend.attention_slowdown


def _speed(model: LoadedModel) -> tuple[float, float]:
    """Seconds of a step of one token, and of each token of a longer one."""
    if model.speed is not None:
        return model.speed.step, model.speed.per_token
    per_token = 2 * max(model.info.parameters, 1) / model.processes / matrix_rate()
    return 10 * per_token, per_token


class _Stored(NamedTuple):
    timings: list[Timing]
    confidences: list[float]
    """Of the last answers, 0..1."""


class CostStore:
    """For one loaded model pair; without a folder nothing is stored."""

    def __init__(self, pair: ModelPair, folder: Path | None) -> None:
        draft = pair.draft
        self._has_draft = draft is not None
        self._first = first_costs(pair)
        self._ratios = attention_ratio(pair.target), attention_ratio(draft) if draft else 0.0
        prints = pair.target.fingerprint, draft.fingerprint if draft else ""
        self._record = MachineRecord(folder, "costs", *prints)
        self._stored = self._record.read(_parse) or _Stored([], [])
        self.costs = self._fit()

    @property
    def usual_confidence(self) -> float | None:
        """The median of the last answers' confidence, 0..1; None after too few of them."""
        known = self._stored.confidences
        return median(known) if len(known) >= FEWEST_ANSWERS else None

    def add(self, timings: Sequence[Timing], confidences: Sequence[float] = ()) -> None:
        """Add timings and answers' confidences, and fit the costs again."""
        # Another program may have added to the file.
        known = self._record.read(_parse) or self._stored
        self._stored = _Stored(
            _newest([*known.timings, *timings]), [*known.confidences, *confidences][-ANSWERS:]
        )
        self._record.write(_plain(self._stored))
        self.costs = self._fit()

    def _fit(self) -> Costs:
        costs = fit_costs(self._stored.timings, self._ratios, self._first)
        return costs if self._has_draft else replace(costs, draft=FREE)


def _newest(timings: Sequence[Timing]) -> list[Timing]:
    return [
        each for part in CostTerm for each in [c for c in timings if c.term is part][-MAX_TIMINGS:]
    ]


def _parse(stored: Any) -> _Stored:
    """Raises an exception if that is implausible."""
    confidences = [float(each) for each in stored["confidences"]]
    if not all(0 <= each <= 1 for each in confidences):
        raise ValueError("not a probability")
    timings = [_parse_timing(*row) for row in stored["timings"]]
    return _Stored(_newest(timings), confidences[-ANSWERS:])


def _parse_timing(part: Any, tokens: Any, before: Any, most: Any, seconds: Any) -> Timing:
    counts = int(tokens), int(before), int(most)
    if not 0 < float(seconds) < 1e6 or not all(0 <= count < 1 << 32 for count in counts):
        raise ValueError("not a plausible timing")
    return Timing(CostTerm(part), AttentionWork(*counts), float(seconds))


def _plain(stored: _Stored) -> dict[str, Any]:
    rows = [
        [str(c.term), c.work.tokens, c.work.cached, c.work.max_context, round(c.seconds, 6)]
        for c in stored.timings
        if c.seconds >= 1e-6
    ]
    return {"timings": rows, "confidences": [round(each, 4) for each in stored.confidences]}
