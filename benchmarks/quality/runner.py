"""Runs every item in every configuration, continuing an earlier evaluation."""

from __future__ import annotations

import hashlib
import json
import math
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from statistics import fmean

from app.chat import wording
from app.chat.engine_session import EngineError, EngineSession
from app.protocol.commands import Ask, Load
from app.protocol.events import Event, Failed, Finished, ImportanceMap, Planned, Selected
from app.protocol.options import DEFAULT_TUNING, Mode, Sampling
from app.protocol.prompt import Message, Role
from app.protocol.reasons import FailureKind
from app.protocol.stats import FinishReason, Reading
from benchmarks.quality.real_documents import Corpus, facts_of
from benchmarks.quality.results_log import ReadConfig, Record, ResultsLog, code_digest, pair_digest
from benchmarks.quality.settings import Scoring, ScoringSwitch, Settings, guard_alone
from benchmarks.quality.suites import (
    ABOUT_PASSAGES,
    ASKED_ONCE,
    HOPS_IN_FILES,
    ONLY_PASSAGES,
    SUITES,
    DoesNotFit,
    Item,
    item_id,
    make,
)
from benchmarks.quality.tasks import is_correct
from benchmarks.quality.tokens import Tokens

EXTRA_ANSWER_TOKENS = 32
EXTRA_REAL_TOKENS = 24
"""For answers about real documents: a chat model often repeats the question."""
MIN_KEEP = 0.01


@dataclass(frozen=True, slots=True)
class ItemKey:
    """Identifies an item before it is made."""

    suite: str
    length: int
    index: int
    id: str


def item_keys(settings: Settings) -> Iterator[ItemKey]:
    """All items in the order of measuring: by length, with alternating suites, so that an
    evaluation that is stopped early is balanced."""
    for length in settings.lengths:
        for index in range(settings.n):
            for suite in settings.suites:
                item = item_id(suite, length, index)
                exists = suite not in ASKED_ONCE or index < len(facts_of(suite))
                if exists and (settings.only is None or item in settings.only):
                    yield ItemKey(suite, length, index, item)


def results_name(load: Load, settings: Settings) -> str:
    """The file name of the results log for this pair, seed and version."""
    parts = [pair_digest(load), settings.seed, settings.held_out, version("specchat")]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24] + ".jsonl"


@dataclass(frozen=True, slots=True)
class Status:
    """Runs done and in total; `eta`: seconds left, None if unknown."""

    key: ItemKey
    done: int
    total: int
    eta: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """`records`: in the order of measuring. `skipped`: a sentence for each suite and length with
    skipped items. `stale`: number of records measured by other code."""

    records: tuple[Record, ...]
    skipped: tuple[str, ...]
    stale: int
    complete: bool
    done: int
    total: int


class Runner:
    """Measures on a session with a loaded pair, whose engine uses `switch` to choose the scorer.
    `tokens`: the target's tokenizer. `context`: the target's context in tokens (0: unknown)."""

    def __init__(
        self,
        session: EngineSession,
        settings: Settings,
        log: ResultsLog,
        tokens: Tokens,
        switch: ScoringSwitch,
        context: int = 0,
    ) -> None:
        self._session, self._settings, self._log = session, settings, log
        self._tokens, self._switch, self._context = tokens, switch, context
        self._ways = settings.ways
        self._corpus = Corpus(settings.files, tokens)
        self._chats: dict[tuple[str, ReadConfig], list[Message]] = {}
        """The messages of every unfinished chat."""
        self._last_found: Record | None = None
        """The record of the last turn, if it only looked for a passage."""
        self._stopped = False
        self._code = code_digest()
        self._records: dict[tuple[str, ReadConfig], Record] = {}
        self._skipped: Counter[tuple[str, int, str]] = Counter()

    def cancel(self) -> None:
        """Stop at the next step boundary. Signal-safe."""
        self._stopped = True
        self._session.cancel()

    def run(self, on_progress: Callable[[Status], None] = lambda status: None) -> Outcome:
        """Measure everything that is not in the log, until cancelled. `on_progress` is called
        before every run. Raises UserError if results cannot be written."""
        planned = list(item_keys(self._settings))
        clock = _EtaClock(self._settings, planned, self._log)
        for key in planned:
            on_progress(clock.status(key))
            if self._stopped or self._is_complete(key):
                self._reuse(key)
            elif (item := self._make(key)) is None:
                clock.skip(key, self._settings.configs(key.suite))
            else:
                with guard_alone():
                    self._run_item(key, item, clock, on_progress)
        return Outcome(
            tuple(self._records.values()),
            tuple(self._skip_notes()),
            sum(record.code != self._code for record in self._records.values()),
            not self._stopped,
            clock.done,
            clock.total,
        )

    def _is_complete(self, key: ItemKey) -> bool:
        """Whether the same code has measured the item in all configurations."""
        found = [self._log.find(key.id, config) for config in self._settings.configs(key.suite)]
        return all(r is not None and r.code == self._code and not r.failed for r in found)

    def _reuse(self, key: ItemKey) -> None:
        """Use existing records of this item by the same code."""
        for config in self._settings.configs(key.suite):
            record = self._log.find(key.id, config)
            if record is not None and record.code == self._code:
                self._records.setdefault((key.id, config), record)

    def _run_item(
        self, key: ItemKey, item: Item, clock: _EtaClock, on_progress: Callable[[Status], None]
    ) -> None:
        for config in self._settings.configs(key.suite):
            record = self._log.find(key.id, config)
            if record is None or record.failed or record.digest != item.digest:
                on_progress(clock.status(key))
                started = time.monotonic()
                record = None if self._stopped else self._measure(item, config)
                if record is None:
                    self._stopped = True
                    self._reuse(key)
                    return
                self._log.add(record)
                clock.record(key, config, time.monotonic() - started)
            elif item.suite in ABOUT_PASSAGES:  # what is expected may have been corrected since
                right = is_correct(record.answer, item.expected, item.check)
                record = replace(record, right=right)
            self._records[key.id, config] = record

    def _make(self, key: ItemKey) -> Item | None:
        """Make the item; None if it has to be skipped."""
        settings = self._settings
        try:
            if key.suite in ABOUT_PASSAGES:
                item = self._corpus.item(key.suite, key.index, key.length, settings.seed)
            else:
                suite, seed = SUITES[key.suite], settings.seed
                count, held_out = self._tokens.count, settings.held_out
                files = settings.files if key.suite == HOPS_IN_FILES else ()
                item = make(suite, key.index, key.length, seed, count, held_out, files)
        except DoesNotFit as error:
            self._skipped[key.suite, key.length, str(error)] += 1
            return None
        if self._context and item.tokens + self._tokens.count(item.answer) >= self._context:
            reason = f"with its answer it is longer than this model's {self._context:,} tokens"
            self._skipped[key.suite, key.length, reason] += 1
            return None
        return item

    def _skip_notes(self) -> Iterator[str]:
        """A sentence with the first reason for each suite and length with skipped items."""
        groups: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for (suite, length, reason), times in self._skipped.items():
            groups.setdefault((suite, length), []).append((reason, times))
        for (suite, length), reasons in groups.items():
            times = sum(number for _, number in reasons)
            items = f"{times} of {self._settings.n} items"
            yield f"{suite} at {length:,} tokens: {items} skipped, {reasons[0][0]}."

    # ------------------------------------------------------------------------------ one run

    def _measure(self, item: Item, config: ReadConfig) -> Record | None:
        """Run the item's turns; None if cancelled."""
        if item.suite in ONLY_PASSAGES:
            return self._find_passage(item, config)
        if item.passages:  # scores are reused for all keeps, so times are not comparable
            record, _ = self._run_turn(item, config, item.messages)
            return None if record is None else replace(record, ttft=0.0)
        if item.chat is None:
            return self._run_turn(item, config, item.messages)[0]
        if all(chat != item.chat for chat, _ in self._chats):
            self._chats.clear()
        begins = [Message(Role.SYSTEM, item.system)] if item.system else []
        history = self._chats.setdefault((item.chat, config), begins)
        questions = [question for question, _ in item.before]
        record = None
        for question in [*questions, item.question][len(history) // 2 :]:
            documents = () if len(history) > 1 else (item.document,)
            history.append(Message(Role.USER, question, documents))
            record, finished = self._run_turn(item, config, tuple(history))
            if finished is None:
                del self._chats[item.chat, config]
                return record
            ids = finished.generated_ids
            history.append(Message(Role.ASSISTANT, finished.text, token_ids=ids))
        return record

    def _find_passage(self, item: Item, config: ReadConfig) -> Record | None:
        """Measure whether the passage is selected. The draft scores once for all keeps, and the
        target reads only `MIN_KEEP`."""
        last = self._last_found
        if last is None or (last.item, last.scoring) != (item.id, config.scoring):
            self._last_found = None
            last, _ = self._run_turn(item, replace(config, keep=MIN_KEEP), item.messages)
            if last is None or last.reading != Reading.SPARSE:  # there are no scores
                return last if last is None else replace(last, keep=config.keep)
            self._last_found = last
        event = self._session.reselect(config.keep)
        return replace(
            last,
            keep=config.keep,
            read_fraction=round(event.selected_tokens / event.prompt_tokens, 6),
            passage=share_selected(event, item),
        )

    def _run_turn(
        self, item: Item, config: ReadConfig, messages: tuple[Message, ...]
    ) -> tuple[Record | None, Finished | None]:
        """Run a turn. No record if it was cancelled, no `Finished` if it failed."""
        guard: str | None = None
        buckets: tuple[float, ...] | None = None
        passage: float | None = None
        event: Event | None = None
        for event in self._session.run(self._ask(item, config, messages)):
            if self._stopped:
                self._session.cancel()  # again, because the first may have come too early
            if isinstance(event, Planned) and event.guard is not None:
                guard = wording.reason(event.guard)
            if isinstance(event, ImportanceMap):
                buckets = event.buckets
            if isinstance(event, Selected) and config.mode is Mode.SPARSE:
                passage = share_selected(event, item)
        empty = Record(
            item.id,
            item.digest,
            self._code,
            item.suite,
            item.case,
            item.length,
            str(config.mode),
            config.keep,
            config.scoring,
            guard=guard,
            spread=None if buckets is None else round(normalised_entropy(buckets), 4),
            passage=passage,
        )
        if isinstance(event, Failed):
            # All other items would fail, too; the next evaluation continues here.
            if event.failure.kind is FailureKind.GPU_LOST:
                raise EngineError(event.failure)
            sentence = wording.failure(event.failure).sentence
            return None if self._stopped else replace(empty, failed=sentence), None
        assert isinstance(event, Finished), "a turn ends with one of the two"
        if event.finish_reason is FinishReason.MEMORY:
            return replace(empty, failed="Memory was nearly used up."), None
        if event.finish_reason is FinishReason.CANCELLED or event.statistics is None:
            return None, None
        return judge(empty, item, event), event

    def _max_tokens(self, item: Item) -> int:
        expected = self._tokens.count(item.answer)
        if item.suite not in ABOUT_PASSAGES:
            return 2 * expected + EXTRA_ANSWER_TOKENS
        return 1 if item.suite in ONLY_PASSAGES else expected + EXTRA_REAL_TOKENS

    def _ask(self, item: Item, config: ReadConfig, messages: tuple[Message, ...]) -> Ask:
        sampling = Sampling(max_tokens=self._max_tokens(item), seed=zlib.crc32(item.id.encode()))
        scoring, tuning = self._ways.get(config.scoring, (Scoring.BOTH, DEFAULT_TUNING))
        self._switch.scoring = scoring
        conversation = None if item.chat is None else f"{item.chat}/{config}"
        return Ask(
            messages,
            config.mode,
            config.keep,
            sampling,
            tuning,
            item.id if item.passages else conversation,
            read_again=bool(item.passages),
        )


class _EtaClock:
    """Counts runs and estimates the time left from their mean duration."""

    def __init__(self, settings: Settings, planned: Iterable[ItemKey], log: ResultsLog) -> None:
        every = [(key.id, c) for key in planned for c in settings.configs(key.suite)]
        self.total = len(every)
        self._left = {run for run in every if (found := log.find(*run)) is None or found.failed}
        self._times: list[float] = []

    @property
    def done(self) -> int:
        return self.total - len(self._left)

    def skip(self, key: ItemKey, configs: Iterable[ReadConfig]) -> None:
        for config in configs:
            self.total -= 1
            self._left.discard((key.id, config))

    def record(self, key: ItemKey, config: ReadConfig, seconds: float) -> None:
        self._left.discard((key.id, config))
        self._times.append(seconds)

    def status(self, key: ItemKey) -> Status:
        eta = fmean(self._times) * len(self._left) if self._times else None
        return Status(key, self.done, self.total, eta)


def judge(record: Record, item: Item, event: Finished) -> Record:
    statistics = event.statistics
    assert statistics is not None
    return replace(
        record,
        right=is_correct(event.text, item.expected, item.check),
        answer=event.text,
        tokens=hashlib.sha256(repr(event.generated_ids).encode()).hexdigest()[:12],
        prompt_tokens=statistics.prompt_tokens,
        read_fraction=round(statistics.prompt_fraction, 6),
        ttft=round(statistics.ttft, 6),
        reading=str(statistics.reading),
        ended=str(event.finish_reason),
        fallback=None if statistics.fallback is None else wording.reason(statistics.fallback),
        confidence=None if statistics.confidence is None else round(statistics.confidence, 4),
    )


def share_selected(event: Selected, item: Item) -> float | None:
    """Share of the characters of the answer's passages in selected spans; None without passages."""
    if not item.passages:
        return None
    selected = sum(
        max(0, min(end, text.end) - max(start, text.start))
        for text in event.texts
        for start, end in item.passages
    )
    return round(selected / sum(end - start for start, end in item.passages), 4)


def normalised_entropy(buckets: Sequence[float]) -> float:
    """exp(entropy) of the buckets' shares divided by their number: 1 if all are equal, near 0 if
    one has everything."""
    total = sum(buckets)
    shares = [bucket / total for bucket in buckets if bucket > 0]
    entropy = -sum(share * math.log(share) for share in shares)
    return math.exp(entropy) / len(buckets) if shares else 0.0
