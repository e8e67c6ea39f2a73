"""The first step of a turn: build the prompt, find its cache, and plan how it is read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from app.engine.backend.memory import NotEnoughMemory
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.memory.conversation_cache import ConversationCache
from app.engine.model.loader import ModelPair
from app.engine.model.prompt import Prompt
from app.engine.progress import TurnClock, TurnError
from app.engine.turn.context import TurnContext
from app.engine.turn.retrieval import Retriever
from app.engine.turn.turn_estimate import TurnEstimate
from app.estimate import plan as planner
from app.estimate.plan import Plan, PredictedTtft
from app.protocol.commands import Ask
from app.protocol.events import EngineWarning, Planned, Retrieved, Retrieving
from app.protocol.options import AUTO_KEEP, Mode
from app.protocol.prompt import Document
from app.protocol.reasons import FailureKind, Reason, ReasonCode, too_long
from app.protocol.stats import DocumentsRead, Phase, Reading


@dataclass(frozen=True, slots=True)
class Prepared:
    """A turn of which nothing is read yet. If documents were chosen for it, `ask` has the chosen
    parts instead of the documents."""

    ask: Ask
    prompt: Prompt
    cache: ConversationCache
    plan: Plan
    estimate: TurnEstimate
    max_answer_tokens: int
    max_keep: float
    """Upper limit for an automatic keep, from free memory and the time limit."""
    resume_from: int | None
    """Where prefill starts if this continues an answer whose prompt is cached."""


def prepare(ask: Ask, context: TurnContext, prompt: Prompt | None = None) -> Prepared:
    """Prepare a turn, and emit `Planned`. Benchmarks pass a `prompt`; otherwise it is built from
    the messages. Raises TurnCancelled, PromptError, TurnError, NotEnoughMemory or TargetLost."""
    pair, clock = context.pair, context.clock
    ask = replace(ask, sampling=ask.sampling.resolved(pair.target.info.sampling))
    _check_logit_bias(ask, pair)
    # Memory pressure drops the cache used last after all others, also while the prompt is built.
    cache = context.caches.get_or_restore(ask.conversation, clock, ask.on_disk)
    if prompt is None:
        ask, prompt = _build_prompt(ask, context)
    clock.check_cancel()
    not_shared = context.caches.check_and_share(cache, ask, prompt, clock)
    max_answer_tokens = _answer_budget(ask, prompt, pair)
    estimate = TurnEstimate(pair, ask, prompt, cache, context.memory, context.choose_scorer)
    resume_from = resume_position(cache.target, prompt)
    max_keep = 1.0
    if resume_from is None:
        expected = estimate.predict_ttft(context.costs)
        plan = _plan(estimate, expected)
        if ask.keep_ratio == AUTO_KEEP:
            max_keep = estimate.max_keep(context.costs, clock.waited)
    else:
        expected = PredictedTtft()
        shared = cache.target.common_prefix_len(prompt.ids)
        reading = Reading.DENSE if cache.target.cached[:shared].all() else Reading.SPARSE
        plan = Plan(reading, (Reason(ReasonCode.CONTINUED),))
    if plan.show_selection and not estimate.scores_quickly:
        plan = replace(plan, show_selection=False)
    if not_shared is not None:
        plan = replace(plan, reasons=(*plan.reasons, not_shared))
    prepared = Prepared(
        ask, prompt, cache, plan, estimate, max_answer_tokens, max_keep, resume_from
    )
    if resume_from is None:
        context.forecast(estimate, Reading.SPARSE if plan.scores else Reading.DENSE)
    clock.emit(_planned(prepared, expected, clock))
    return prepared


def resume_position(target: PrefixCache, prompt: Prompt) -> int | None:
    """The position at which prefill must start so that the answer at the end of `prompt` can be
    continued. None if the question is not cached completely."""
    question = prompt.question_start
    if not prompt.answer_prefix_len:
        return None
    start = target.rewind_target(target.common_prefix_len(prompt.ids[:-1]))
    return start if start > question and target.cached[question:start].all() else None


def _check_logit_bias(ask: Ask, pair: ModelPair) -> None:
    """Raise TurnError if `logit_bias` names a token outside the vocabulary: indexing the logits
    with it would access memory out of bounds."""
    size = pair.target.vocab_size
    if any(not 0 <= token < size for token, _ in ask.sampling.logit_bias):
        raise TurnError(FailureKind.UNKNOWN_TOKENS_BIASED, {"highest": max(size - 1, 0)})


def _build_prompt(ask: Ask, context: TurnContext) -> tuple[Ask, Prompt]:
    """Build the prompt. If the documents exceed the context, retrieval first chooses the parts that
    are relevant to the question; the `Ask` returned has only these."""
    pair, clock, started_at = context.pair, context.clock, time.perf_counter()
    sampling = ask.sampling
    retriever = Retriever(
        pair.prompts,
        pair.target.info.context_length,
        sampling.thinking,
        clock.check_cancel,
        sampling.template_values,
        pair.encoder,
    )
    typed = [Document("", each.text) for each in ask.messages]
    typed += [part for each in ask.messages if each.plain for part in each.in_prompt]
    if retriever.is_far_too_long(typed):
        raise _too_long(pair, retriever.estimate(typed), estimated=True)
    report: Callable[[int], None] | None = None

    def on_progress(done: int, total: int) -> None:
        nonlocal report
        if report is None:
            names = (document.name for each in ask.messages for document in each.documents)
            clock.emit(Retrieving(clock.turn, DocumentsRead.of(dict.fromkeys(names), 0, 0)))
            report = clock.report(Phase.RETRIEVE, total)
        report(done)

    found = retriever.fit(ask.messages, ask.files, sampling.max_tokens, on_progress)
    chosen = found.parts is not None
    clock.add(Phase.RETRIEVE if chosen else Phase.TOKENISE, time.perf_counter() - started_at)
    for rule in sorted(found.prompt.rules - pair.reported_rules):
        pair.reported_rules.add(rule)
        reason = Reason(ReasonCode.TEMPLATE_RULE, {"rule": str(rule)})
        clock.emit(EngineWarning(reason, ask.conversation))
    if found.parts is not None and (whole := found.prompt.documents) is not None:
        parts, ranked, room = found.parts, found.ranked, found.room
        clock.emit(Retrieved(clock.turn, parts, ranked, whole, room, found.stands_out))
    return replace(ask, messages=found.messages), found.prompt


def _answer_budget(ask: Ask, prompt: Prompt, pair: ModelPair) -> int:
    """Maximum tokens to generate. Raises TurnError if the prompt fills the context."""
    requested, total = ask.sampling.max_tokens, len(prompt.ids)
    context = pair.target.info.context_length
    if not context:
        return requested
    if total >= context:
        raise _too_long(pair, total)
    return min(requested, context - total)


def _too_long(pair: ModelPair, tokens: int, estimated: bool = False) -> TurnError:
    info = pair.target.info
    failure = too_long(tokens, info.name, info.context_length, estimated)
    return TurnError(failure.kind, failure.data)


def _plan(estimate: TurnEstimate, expected: PredictedTtft) -> Plan:
    """How the prompt is read. Raises NotEnoughMemory."""
    pair, ask, prompt, target = estimate.pair, estimate.ask, estimate.prompt, estimate.cache.target
    shared = target.common_prefix_len(prompt.ids)
    known = target.cached[:shared]
    eligible = int((~known).sum()) + int((~prompt.pinned[shared:]).sum())
    cached = int((~prompt.pinned[:shared] & known).sum())
    quotes = pair.only_quotes
    plan = planner.plan(ask, eligible, pair.dense_only, expected, cached, quotes)
    plan = _fit_to_memory(plan, estimate)
    lacking = None if quotes else planner.parts_only(ask)
    if lacking is None:
        return plan
    return replace(plan, reasons=(*plan.reasons, lacking), guard=lacking)


def _fit_to_memory(plan: Plan, estimate: TurnEstimate) -> Plan:
    """The plan, or in auto mode a sparse one if only that fits into memory. Raises
    NotEnoughMemory."""
    if estimate.ask.skip_memory_check:
        return plan
    try:
        estimate.check(plan.reading)
    except NotEnoughMemory as error:
        is_auto = estimate.ask.mode is Mode.AUTO and estimate.pair.dense_only is None
        is_auto = is_auto and plan.guard is None and plan.reading is Reading.DENSE
        possible = is_auto and estimate.prompt.eligible_tokens
        if not possible or not estimate.fits(Reading.SPARSE):
            raise
        return Plan(Reading.SPARSE, (Reason(ReasonCode.ONLY_SPARSE_FITS, error.failure.data),))
    return plan


def _planned(prepared: Prepared, expected: PredictedTtft, clock: TurnClock) -> Planned:
    plan, prompt = prepared.plan, prepared.prompt
    total, sparse = len(prompt.ids), plan.reading is Reading.SPARSE
    chosen, other = (Reading.SPARSE, Reading.DENSE)[:: 1 if plan.scores else -1]

    def since_sent(reading: Reading) -> float | None:
        """Seconds from sending the question: the prediction plus the time in the queue."""
        seconds = expected.for_reading(reading)
        return None if seconds is None else clock.waited + seconds

    target = prepared.cache.target
    shared = target.common_prefix_len(prompt.ids)
    return Planned(
        turn=clock.turn,
        reading=plan.reading,
        reasons=plan.reasons,
        keep_ratio=prepared.ask.keep_ratio if sparse else 1.0,
        prompt_tokens=total,
        eligible_tokens=prompt.eligible_tokens,
        reused_tokens=int(target.cached[:shared].sum()),
        prompt_ids=tuple(prompt.ids.tolist()),
        segments=prompt.segments,
        guard=plan.guard,
        ttft=since_sent(chosen),
        ttft_alternative=since_sent(other),
        documents=prompt.documents_read(np.arange(0 if sparse else total)),
    )
