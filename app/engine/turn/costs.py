"""The cost model of the loaded pair on this machine: a first estimate, then a fit to stored
timings. Also stores the confidence of its last answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from app.engine.backend.blas import matrix_rate
from app.engine.backend.machine_record import MachineRecord
from app.engine.model.loader import LoadedModel, ModelPair
from app.engine.model.text_encoder import TextEncoder, english_encoder
from app.engine.progress import ScoringPart
from app.engine.scorers.attention import LOOKAHEAD
from app.engine.scorers.choice import choose_scorer
from app.estimate.fitting import MAX_TIMINGS, fit_costs
from app.protocol.cost_model import (
    FREE,
    AttentionWork,
    Costs,
    CostTerm,
    LinearCost,
    Timing,
)

ANSWERS = 32
"""Number of last answers whose median is the usual confidence."""
MIN_ANSWERS = 8
"""With fewer answers, the usual confidence is unknown."""


TOKENISE_SECONDS = 1e-5
"""Seconds to tokenise a token in the sandbox."""


def first_costs(pair: ModelPair, folder: Path | None = None) -> Costs:
    """Estimate all costs before any turn was timed. What has to be measured for that is stored in
    `folder`."""
    target, draft = pair.target, pair.draft
    step, per_token = _speed(target)
    built_in = draft is None or ScoringPart.BUILT_IN in choose_scorer(pair, 0).parts
    encoding = _encoder_speed(pair.encoder, folder) if built_in else 0.0
    quoting = _encoder_speed(None, folder) if pair.only_quotes else 0.0
    full = LinearCost(step, TOKENISE_SECONDS + quoting)
    read = LinearCost(0.0, per_token, per_token * attention_ratio(target))
    if draft is None:
        sparse = LinearCost(step, full.per_token + encoding)
        return Costs(read, FREE, full, sparse)
    draft_step, by_draft = _speed(draft)
    # The search for a quotation is timed as a part of scoring, too.
    scoring = by_draft + encoding + quoting
    sparse = LinearCost(step + LOOKAHEAD * draft_step, TOKENISE_SECONDS)
    score = LinearCost(0.0, scoring, by_draft * attention_ratio(draft))
    return Costs(read, score, full, sparse)


def attention_ratio(model: LoadedModel) -> float:
    """Seconds to attend to one cached token, as a fraction of a token's seconds in the weights."""
    return model.attention_cost_ratio * model.step.backend.attention_slowdown


def _encoder_speed(encoder: TextEncoder | None, folder: Path | None) -> float:
    """Seconds to encode a token of a text. Without an encoder, by the built-in English one."""
    name = "english" if encoder is None else encoder.fingerprint
    record = MachineRecord(folder, "encoder", name)
    known = record.read(lambda stored: _plausible(stored["seconds_per_token"]))
    if known is None:
        known = (encoder or english_encoder()).seconds_per_token
        record.write({"seconds_per_token": known})
    return known


def _plausible(seconds: Any) -> float:
    if not 0 < float(seconds) < 1e6:
        raise ValueError("not a plausible timing")
    return float(seconds)


def _speed(model: LoadedModel) -> tuple[float, float]:
    """Seconds of a decoding step, and seconds per token of prefill."""
    if model.speed is not None:
        return model.speed.step, model.speed.per_token
    per_token = 2 * max(model.info.parameters, 1) / model.processes / matrix_rate()
    return 10 * per_token, per_token


class _Stored(NamedTuple):
    timings: list[Timing]
    confidences: list[float]
    """Confidence of the last answers, 0..1."""


class PairCosts:
    """Timings and costs of one loaded pair, stored in `folder` (None: not stored)."""

    def __init__(self, pair: ModelPair, folder: Path | None) -> None:
        draft = pair.draft
        self._has_draft = draft is not None
        self._first = first_costs(pair, folder)
        self._ratios = attention_ratio(pair.target), attention_ratio(draft) if draft else 0.0
        prints = pair.target.fingerprint, pair.draft_fingerprint
        self._record = MachineRecord(folder, "costs", *prints)
        self._stored = self._record.read(_parse) or _Stored([], [])
        self.costs = self._fit()

    @property
    def usual_confidence(self) -> float | None:
        """Median confidence of the last answers, 0..1; None after fewer than `MIN_ANSWERS`."""
        known = self._stored.confidences
        return median(known) if len(known) >= MIN_ANSWERS else None

    def add(self, timings: Sequence[Timing], confidence: float | None = None) -> None:
        """Add timings and the confidence of an answer, and refit the costs."""
        # Another process may have added to the file.
        known = self._record.read(_parse) or self._stored
        confidences = known.confidences + ([] if confidence is None else [confidence])
        self._stored = _Stored(_newest([*known.timings, *timings]), confidences[-ANSWERS:])
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
    """Raises any exception if the stored values are implausible."""
    confidences = [float(each) for each in stored["confidences"]]
    if not all(0 <= each <= 1 for each in confidences):
        raise ValueError("not a probability")
    timings = [_parse_timing(*row) for row in stored["timings"]]
    return _Stored(_newest(timings), confidences[-ANSWERS:])


def _parse_timing(part: Any, tokens: Any, before: Any, max_context: Any, seconds: Any) -> Timing:
    counts = int(tokens), int(before), int(max_context)
    if not all(0 <= count < 1 << 32 for count in counts):
        raise ValueError("not a plausible timing")
    return Timing(CostTerm(part), AttentionWork(*counts), _plausible(seconds))


def _plain(stored: _Stored) -> dict[str, Any]:
    rows = [
        [str(c.term), c.work.tokens, c.work.cached, c.work.max_context, round(c.seconds, 6)]
        for c in stored.timings
        if c.seconds >= 1e-6
    ]
    return {"timings": rows, "confidences": [round(each, 4) for each in stored.confidences]}
