"""One turn, from conversation to answer: plan, score, select, prefill, decode.

Any failure on the sparse path reads densely instead, and the turn says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from app.engine import floors, memory, planner, snapping
from app.engine.caches import Cache
from app.engine.decode import Decoder
from app.engine.loader import Pair
from app.engine.messages import (
    Ask,
    Ended,
    Event,
    FellBack,
    Finished,
    ImportanceMap,
    Phase,
    PhaseProgress,
    PhaseTime,
    Planned,
    Reading,
    Selected,
    SpanText,
    Statistics,
)
from app.engine.planner import Plan
from app.engine.prefill import dense_cache, prefill, seek, sparse_cache
from app.engine.prompt import Prompt
from app.engine.scoring import Importance, Observations, ScoringError, score
from app.engine.selection import Selection, select
from app.engine.tuning import Scoring, Tuning

BUCKETS = 200
"""Resolution of the importance strip: finer than most terminals are wide."""


class Cancelled(Exception):
    """The user stopped the turn."""


class TurnError(RuntimeError):
    """The turn cannot be answered: what is wrong, and what to do."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(problem)
        self.advice = advice


@dataclass(frozen=True, slots=True)
class Scored:
    """What a later `Reselect` needs of a turn."""

    turn: int
    prompt: Prompt
    importance: Importance
    tuning: Tuning
    borders: NDArray[np.int64] | None

    def selected(self, keep: float) -> tuple[Selection, Selected]:
        selection = select(self.importance, self.prompt.pinned, keep, self.tuning, self.borders)
        event = Selected(
            turn=self.turn,
            keep=keep,
            kept_tokens=len(selection.positions),
            prompt_tokens=len(self.prompt.ids),
            spans=selection.spans,
            texts=tuple(_texts(self.prompt, selection)),
        )
        return selection, event


class Turn:
    """Runs one `Ask`.

    `emit` gets the events, `cancelled` is asked at every step border.
    """

    def __init__(
        self,
        pair: Pair,
        ask: Ask,
        emit: Callable[[Event], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self.scored: Scored | None = None
        self._pair, self._ask, self._emit, self._cancelled = pair, ask, emit, cancelled
        self._decoder = Decoder(ask.turn, pair.target.tokenizer, ask.sampling, emit)
        self._begun = time.perf_counter()
        self._phases: dict[Phase, float] = {}
        self._prompt: Prompt | None = None
        self._plan: Plan | None = None
        self._kept = 0
        self._fallback: str | None = None

    def run(self) -> None:
        """Emit everything up to `Finished`. Raises PromptError, TurnError or NotEnoughMemory."""
        mx.reset_peak_memory()
        try:
            ended = self._answer()
        except Cancelled:
            ended = Ended.CANCELLED
        ids, text = tuple(self._decoder.ids), self._decoder.text
        self._emit(Finished(self._ask.turn, ended, text, ids, self._statistics()))

    # --------------------------------------------------------------------------- the steps

    def _answer(self) -> Ended:
        with self._timed(Phase.TOKENISE):
            prompt = self._pair.prompts.build(self._ask.messages)
        self._check_cancel()
        room = self._room_to_answer(prompt)
        plan = self._planned(prompt)
        cache = self._read(prompt, plan)
        self._emit(PhaseProgress(self._ask.turn, Phase.DECODE, 0, room, 0.0))
        model = self._pair.target.model
        if self._ask.forced is not None:
            return self._decoder.force(model, cache, prompt.ids, self._ask.forced)
        return self._decoder.run(model, cache, prompt.ids, room, self._cancelled)

    def _room_to_answer(self, prompt: Prompt) -> int:
        """How many tokens may be written. Raises TurnError when the prompt fills the context."""
        wanted, context = self._ask.sampling.max_tokens, self._pair.target.info.context
        if not context:
            return wanted
        total = len(prompt.ids)
        if total >= context:
            raise TurnError(
                f"The prompt is {total:,} tokens long, and {self._pair.target.info.name} takes at"
                f" most {context:,}",
                "attach less, or choose a model with a longer context",
            )
        return min(wanted, context - total)

    def _planned(self, prompt: Prompt) -> Plan:
        total = len(prompt.ids)
        plan = planner.plan(self._ask, total, prompt.eligible, self._pair.dense_only)
        self._prompt, self._plan = prompt, plan
        self._emit(
            Planned(
                turn=self._ask.turn,
                reading=plan.reading,
                reason=plan.reason,
                keep=self._ask.keep if plan.reading is Reading.SPARSE else 1.0,
                prompt_tokens=total,
                eligible_tokens=prompt.eligible,
                reused_tokens=0,
                prompt_ids=tuple(prompt.ids.tolist()),
                segments=prompt.segments,
                guard=plan.guard,
            )
        )
        return plan

    def _read(self, prompt: Prompt, plan: Plan) -> Cache:
        """Read all of the prompt, or what is kept of it, but for the last token."""
        if plan.reading is Reading.SPARSE:
            try:
                return self._read_sparsely(prompt)
            except (Cancelled, memory.NotEnoughMemory):
                raise
            except Exception as error:  # whatever went wrong, the dense way still answers
                if memory.is_exhausted(error):
                    raise
                self._fall_back(error)
        return self._read_densely(prompt)

    def _read_sparsely(self, prompt: Prompt) -> Cache:
        ask = self._ask
        borders = snapping.borders(prompt, ask.messages, ask.tuning.snap)
        self.scored = Scored(ask.turn, prompt, self._importance(prompt), ask.tuning, borders)
        with self._timed(Phase.SELECT):
            selection, event = self.scored.selected(self._ask.keep)
            self._emit(event)
        cache = sparse_cache(self._pair.target.model)
        self._prefill(cache, prompt.ids[selection.positions], selection.positions)
        seek(cache, int(selection.positions[-1]))
        return cache

    def _read_densely(self, prompt: Prompt) -> Cache:
        cache = dense_cache(self._pair.target.model)
        self._prefill(cache, prompt.ids, None)
        return cache

    def _importance(self, prompt: Prompt) -> Importance:
        tuning = self._ask.tuning
        match tuning.scoring:
            case Scoring.RANDOM:
                return floors.by_lot(prompt.ids, tuning.chunk)
            case Scoring.LEXICAL:
                return floors.lexical(prompt.ids, prompt.question_start, tuning.chunk)
        return self._score(prompt)

    def _score(self, prompt: Prompt) -> Importance:
        draft = self._pair.draft
        if draft is None:
            raise ScoringError("no draft model is loaded")
        memory.check_fits(
            f"Scoring {len(prompt.ids):,} tokens", draft.cache_size.bytes(len(prompt.ids))
        )
        eligible = ~prompt.pinned
        reading = self._progress(Phase.SCORE, len(prompt.ids))
        begun, read = time.perf_counter(), 0.0
        looking: Callable[[int], None] | None = None

        def observed(observations: Observations, expected: int) -> None:
            nonlocal looking, read
            if looking is None:
                read = time.perf_counter()
                looking = self._progress(Phase.LOOKAHEAD, expected)
            self._emit(_importance_map(self._ask.turn, observations, expected, eligible))
            looking(observations.observed)

        try:
            return score(
                draft.model,
                prompt.ids,
                prompt.question_start,
                self._pair.target.tokenizer.eos_token_ids,
                draft.step,
                reading,
                observed,
                self._ask.tuning,
            )
        finally:
            ended = time.perf_counter()
            self._add(Phase.SCORE, (read or ended) - begun)
            self._add(Phase.LOOKAHEAD, ended - (read or ended))

    def _prefill(
        self, cache: Cache, ids: NDArray[np.int32], positions: NDArray[np.int32] | None
    ) -> None:
        """Read all `ids` but the last, which decoding feeds."""
        target = self._pair.target
        memory.check_fits(f"Reading {len(ids):,} tokens", target.cache_size.bytes(len(ids)))
        report = self._progress(Phase.PREFILL, len(ids) - 1)

        def read(done: int) -> None:
            self._kept = done
            report(done)

        self._kept = 0
        with self._timed(Phase.PREFILL):
            prefill(
                target.model,
                cache,
                ids[:-1],
                None if positions is None else positions[:-1],
                target.step,
                read,
            )
        self._kept = len(ids)

    def _fall_back(self, error: Exception) -> None:
        self._fallback = f"Sparse reading failed ({error}), so everything was read."
        self.scored = None
        mx.clear_cache()
        self._emit(FellBack(self._ask.turn, self._fallback))

    # ------------------------------------------------------------------------- bookkeeping

    def _check_cancel(self) -> None:
        if self._cancelled():
            raise Cancelled

    def _progress(self, phase: Phase, total: int) -> Callable[[int], None]:
        """A callback that reports tokens done and raises Cancelled at a step border."""
        begun = time.perf_counter()
        self._emit(PhaseProgress(self._ask.turn, phase, 0, total, 0.0))

        def report(done: int) -> None:
            elapsed = time.perf_counter() - begun
            eta = elapsed / done * (total - done) if done else None
            self._emit(PhaseProgress(self._ask.turn, phase, done, total, elapsed, eta))
            self._check_cancel()

        return report

    @contextmanager
    def _timed(self, phase: Phase) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._add(phase, time.perf_counter() - begun)

    def _add(self, phase: Phase, seconds: float) -> None:
        """A phase that ran twice, before and after a fallback, took the sum."""
        self._phases[phase] = self._phases.get(phase, 0.0) + seconds

    def _statistics(self) -> Statistics | None:
        if self._prompt is None or self._plan is None:
            return None
        reading = Reading.DENSE if self._fallback else self._plan.reading
        first, last = self._decoder.first_token, self._decoder.last_token
        ttft = first - self._begun if first else 0.0
        parts = [PhaseTime(p, self._phases[p]) for p in Phase if p in self._phases]
        if first:
            rest = ttft - sum(part.seconds for part in parts)
            parts.append(PhaseTime(Phase.DECODE, max(rest, 0.0)))
        return Statistics(
            reading=reading,
            mode=self._ask.mode,
            keep=self._ask.keep if reading is Reading.SPARSE else 1.0,
            reason=self._plan.reason,
            prompt_tokens=len(self._prompt.ids),
            eligible_tokens=self._prompt.eligible,
            kept_tokens=self._kept,
            reused_tokens=0,
            generated_tokens=len(self._decoder.ids),
            seed=self._decoder.seed,
            ttft=ttft,
            phases=tuple(parts),
            decode_seconds=last - first if first and last else 0.0,
            peak_bytes=mx.get_peak_memory(),
            fallback=self._fallback,
            forced_loss=self._decoder.forced_loss,
        )


def _importance_map(
    turn: int, observations: Observations, expected: int, eligible: NDArray[np.bool_]
) -> ImportanceMap:
    importance = observations.importance * eligible
    count = min(BUCKETS, len(importance))
    borders = np.arange(count) * len(importance) // count
    means = np.add.reduceat(importance, borders) / np.diff([*borders, len(importance)])
    buckets = tuple((means / max(float(means.max()), 1e-12)).tolist())
    return ImportanceMap(turn, buckets, observations.observed, expected)


def _texts(prompt: Prompt, selection: Selection) -> Iterator[SpanText]:
    """Where each kept span lies in its document's text."""
    documents = [s for s in prompt.segments if s.document is not None and s.message is not None]
    for number, span in enumerate(selection.spans):
        for segment in documents:
            start, end = max(span.start, segment.start), min(span.end, segment.end)
            if start >= end or segment.message is None or segment.document is None:
                continue
            starts = prompt.offsets[segment.message, segment.document]
            yield SpanText(
                number,
                segment.message,
                segment.document,
                int(starts[start - segment.start]),
                int(starts[end - segment.start]),
            )
