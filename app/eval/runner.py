"""Asks an engine every item in every way, and goes on where an earlier evaluation stopped."""

from __future__ import annotations

import hashlib
import json
import math
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from importlib.metadata import version

from app.chat.engine_session import EngineSession
from app.eval.results_log import DENSE, ReadConfig, Record, ResultsLog, code_digest, pair_digest
from app.eval.suites import PERPLEXITY, SUITES, DoesNotFit, Item, continuation, item_id, make
from app.eval.tasks import is_correct
from app.eval.tokens import Tokens
from app.protocol.commands import Ask, Load
from app.protocol.events import Event, Failed, Finished, ImportanceMap, Planned
from app.protocol.options import DEFAULT_KEEP_RATIO, Mode, Sampling, Scoring, Tuning
from app.protocol.prompt import Document, Message, Role
from app.protocol.stats import FinishReason

TUNING = Tuning(dense_below=0)
"""The defaults, but that auto mode may read short prompts sparsely: its guard is judged on them."""
PUBLISHED = replace(TUNING, scoring=Scoring.LOOKAHEAD, lookahead=8, pool=13, chunk=32, carry=0.0)
"""As SpecPrefill has it (arXiv 2502.02789)."""
EXTRA_ANSWER_TOKENS = 32
SPARSE_OVERHEAD = 0.15
"""What scoring costs, as a share of a dense read: for the ETA only."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured: every scoring with each of `tunings`, which hold everything else, and the
    published one if it is wanted. `files` are the perplexity suite's."""

    suites: tuple[str, ...]
    lengths: tuple[int, ...]
    keeps: tuple[float, ...]
    scorings: tuple[Scoring, ...]
    n: int = 50
    seed: int = 0
    held_out: bool = False
    auto: bool = False
    tunings: tuple[Tuning, ...] = (TUNING,)
    files: tuple[Document, ...] = ()
    published: bool = False
    sparse_only: bool = False

    def configs(self, suite: str) -> tuple[ReadConfig, ...]:
        """How each item of a suite is read; dense first, the others are compared with it, unless
        only sparse reading is wanted."""
        sparse = [
            ReadConfig(Mode.SPARSE, keep, name)
            for name in self.tunings_by_name
            for keep in self.keeps
        ]
        if self.auto and suite != PERPLEXITY:
            sparse.append(ReadConfig(Mode.AUTO, DEFAULT_KEEP_RATIO, tuning_name(TUNING)))
        return tuple(sparse) if self.sparse_only else (DENSE, *sparse)

    @property
    def tunings_by_name(self) -> dict[str, Tuning]:
        """Every tuning by its name, in the order of measuring."""
        every = [replace(t, scoring=s) for s in self.scorings for t in self.tunings]
        every += [PUBLISHED] if self.published else []
        return {tuning_name(tuning): tuning for tuning in every}


def tuning_name(tuning: Tuning) -> str:
    """The scoring, and what differs from the defaults: `both`, `both pool=7`."""
    others = [f.name for f in fields(Tuning) if f.name != "scoring"]
    differing = [n for n in others if getattr(tuning, n) != getattr(TUNING, n)]
    return " ".join([str(tuning.scoring), *(f"{n}={getattr(tuning, n)}" for n in differing)])


@dataclass(frozen=True, slots=True)
class ItemKey:
    """The place of an item, before it is made."""

    suite: str
    length: int
    index: int
    id: str


def item_keys(settings: Settings) -> Iterator[ItemKey]:
    """In the order of measuring: short ones first, suites in turn, so that a run that was stopped
    has about as many of each."""
    marks = [hashlib.sha256(f.text.encode("utf-8", "replace")).hexdigest() for f in settings.files]
    for length in settings.lengths:
        for index in range(max(settings.n, len(marks))):
            for suite in settings.suites:
                if suite == PERPLEXITY and index < len(marks):
                    name = f"{PERPLEXITY}/{length}/{marks[index][:12]}"
                    yield ItemKey(suite, length, index, name)
                elif suite != PERPLEXITY and index < settings.n:
                    yield ItemKey(suite, length, index, item_id(suite, length, index))


def results_name(load: Load, settings: Settings) -> str:
    """The name of the file that runs of this pair, seed and version are kept in."""
    parts = [pair_digest(load), settings.seed, settings.held_out, version("specchat")]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:24] + ".jsonl"


@dataclass(frozen=True, slots=True)
class Status:
    """How far it is: runs done of all, and seconds to go, None when not known yet."""

    key: ItemKey
    done: int
    total: int
    eta: float | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """`records` in the order of measuring; `skipped` says in sentences what was left out; `stale`
    of the records were measured before by a program with other code."""

    records: tuple[Record, ...]
    skipped: tuple[str, ...]
    stale: int
    complete: bool
    done: int
    total: int


class Runner:
    """Measures on a session whose pair is loaded. `tokens` are the target's, as is `context`: its
    longest prompt in tokens, 0 when not known."""

    def __init__(
        self,
        session: EngineSession,
        settings: Settings,
        ledger: ResultsLog,
        tokens: Tokens,
        context: int = 0,
    ) -> None:
        self._session, self._settings, self._ledger = session, settings, ledger
        self._tokens, self._context = tokens, context
        self._tuned = settings.tunings_by_name
        self._chats: dict[tuple[str, ReadConfig], list[Message]] = {}
        """What was said so far in every chat under way."""
        self._turn = 0
        self._stopped = False
        self._code = code_digest()
        self._records: dict[tuple[str, ReadConfig], Record] = {}
        self._skipped: Counter[tuple[str, int, str]] = Counter()

    def cancel(self) -> None:
        """Stop at the next step border. Safe in a signal handler."""
        self._stopped = True
        self._session.cancel(self._turn)

    def run(self, on_progress: Callable[[Status], None] = lambda status: None) -> Outcome:
        """Everything that is not in the ledger yet, until it is done or cancelled. `tell` is called
        before every run. Raises UserError when results cannot be kept."""
        planned = list(item_keys(self._settings))
        clock = _EtaClock(self._settings, planned, self._ledger)
        for slot in planned:
            on_progress(clock.status(slot))
            if self._stopped or self._is_complete(slot):
                self._reuse(slot)
            elif (item := self._make(slot)) is None:
                clock.skip(slot)
            else:
                self._run_item(slot, item, clock, on_progress)
        return Outcome(
            tuple(self._records.values()),
            tuple(self._skip_notes()),
            sum(record.code != self._code for record in self._records.values()),
            not self._stopped,
            clock.done,
            clock.total,
        )

    def _is_complete(self, slot: ItemKey) -> bool:
        """Whether this very program measured all of it, so that the item need not be made."""
        found = [self._ledger.find(slot.id, way) for way in self._settings.configs(slot.suite)]
        return all(r is not None and r.code == self._code and not r.failed for r in found)

    def _reuse(self, slot: ItemKey) -> None:
        """Take in what is known of a slot, if the same code measured it."""
        for way in self._settings.configs(slot.suite):
            record = self._ledger.find(slot.id, way)
            if record is not None and record.code == self._code:
                self._records.setdefault((slot.id, way), record)

    def _run_item(
        self, slot: ItemKey, item: Item, clock: _EtaClock, tell: Callable[[Status], None]
    ) -> None:
        for way in self._settings.configs(slot.suite):
            record = self._ledger.find(slot.id, way)
            if record is None or record.failed or record.digest != item.digest:
                tell(clock.status(slot))
                begun = time.monotonic()
                record = None if self._stopped else self._measure(item, way)
                if record is None:
                    self._stopped = True
                    self._reuse(slot)
                    return
                self._ledger.add(record)
                clock.record(slot, way, time.monotonic() - begun)
            self._records[slot.id, way] = record

    def _make(self, slot: ItemKey) -> Item | None:
        """The item, or None when it has to be left out."""
        settings = self._settings
        try:
            if slot.suite == PERPLEXITY:
                document = settings.files[slot.index]
                offsets = self._tokens.offsets(document.text)
                item = continuation(document, slot.length, offsets, self._tokens.count)
            else:
                suite, seed = SUITES[slot.suite], settings.seed
                count, held_out = self._tokens.count, settings.held_out
                item = make(suite, slot.index, slot.length, seed, count, held_out)
        except DoesNotFit as error:
            self._skipped[slot.suite, slot.length, str(error)] += 1
            return None
        answer = item.answer if item.forced is None else item.forced
        if self._context and item.tokens + self._tokens.count(answer) >= self._context:
            reason = f"with its answer it is longer than this model's {self._context:,} tokens"
            self._skipped[slot.suite, slot.length, reason] += 1
            return None
        return item

    def _skip_notes(self) -> Iterator[str]:
        """One for each suite and length of which items were left out, with the first reason."""
        groups: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for (suite, length, reason), times in self._skipped.items():
            groups.setdefault((suite, length), []).append((reason, times))
        for (suite, length), reasons in groups.items():
            times = sum(number for _, number in reasons)
            n = len(self._settings.files) if suite == PERPLEXITY else self._settings.n
            yield f"{suite} at {length:,} tokens: {times} of {n} items left out, {reasons[0][0]}."

    # ------------------------------------------------------------------------------ one run

    def _measure(self, item: Item, way: ReadConfig) -> Record | None:
        """Ask the engine; None when it was cancelled."""
        if item.chat is None:
            return self._run_turn(item, way, item.messages)[0]
        if all(chat != item.chat for chat, _ in self._chats):
            self._chats.clear()
        said = self._chats.setdefault((item.chat, way), [])
        questions = [question for question, _ in item.before]
        record = None
        for question in [*questions, item.question][len(said) // 2 :]:
            documents = () if said else (item.document,)
            said.append(Message(Role.USER, question, documents))
            record, finished = self._run_turn(item, way, tuple(said))
            if finished is None:
                del self._chats[item.chat, way]
                return record
            ids = finished.generated_ids
            said.append(Message(Role.ASSISTANT, finished.text, token_ids=ids))
        return record

    def _run_turn(
        self, item: Item, way: ReadConfig, messages: tuple[Message, ...]
    ) -> tuple[Record | None, Finished | None]:
        """One turn: nothing when it was cancelled, no `Finished` when it failed."""
        self._turn += 1
        guard: str | None = None
        buckets: tuple[float, ...] | None = None
        event: Event | None = None
        for event in self._session.run(self._ask(item, way, messages)):
            if self._stopped:
                self._session.cancel(self._turn)  # once more: the first may have come too early
            if isinstance(event, Planned):
                guard = event.guard or guard
            if isinstance(event, ImportanceMap):
                buckets = event.buckets
        empty = Record(
            item.id,
            item.digest,
            self._code,
            item.suite,
            item.case,
            item.length,
            str(way.mode),
            way.keep,
            way.scoring,
            guard=guard,
            spread=None if buckets is None else round(normalised_entropy(buckets), 4),
        )
        if isinstance(event, Failed):
            return None if self._stopped else replace(empty, failed=event.message), None
        assert isinstance(event, Finished), "a turn ends with one of the two"
        if event.finish_reason is FinishReason.MEMORY:
            return replace(empty, failed="Memory was nearly used up."), None
        if event.finish_reason is FinishReason.CANCELLED or event.statistics is None:
            return None, None
        return _judge(empty, item, event), event

    def _ask(self, item: Item, way: ReadConfig, messages: tuple[Message, ...]) -> Ask:
        sampling = Sampling(
            max_tokens=2 * self._tokens.count(item.answer) + EXTRA_ANSWER_TOKENS,
            seed=zlib.crc32(item.id.encode()),
        )
        tuning = self._tuned.get(way.scoring, TUNING)
        return Ask(
            self._turn,
            messages,
            way.mode,
            way.keep,
            sampling,
            tuning,
            item.forced,
            None if item.chat is None else f"{item.chat}/{way}",
        )


def _judge(record: Record, item: Item, event: Finished) -> Record:
    statistics = event.statistics
    assert statistics is not None
    missing = item.forced is not None and statistics.forced_loss is None
    return replace(
        record,
        right=item.forced is None and is_correct(event.text, item.expected, item.check),
        answer=event.text,
        tokens=hashlib.sha256(repr(event.generated_ids).encode()).hexdigest()[:12],
        prompt_tokens=statistics.prompt_tokens,
        read_fraction=round(statistics.read_fraction, 6),
        ttft=round(statistics.ttft, 6),
        reading=str(statistics.reading),
        ended=str(event.finish_reason),
        fallback=statistics.fallback,
        failed="The engine did not measure this text." if missing else None,
        loss=statistics.forced_loss,
    )


def normalised_entropy(buckets: Sequence[float]) -> float:
    """The exponential of the entropy of the buckets' shares, over their number: 1 when all are
    equal, near 0 when one has everything."""
    total = sum(buckets)
    shares = [bucket / total for bucket in buckets if bucket > 0]
    entropy = -sum(share * math.log(share) for share in shares)
    return math.exp(entropy) / len(buckets) if shares else 0.0


class _EtaClock:
    """What is left to do, in tokens read, at the pace so far."""

    def __init__(self, settings: Settings, planned: Iterable[ItemKey], ledger: ResultsLog) -> None:
        self._settings = settings
        self._spent = self._seconds = self._effort_left = 0.0
        self._left: dict[tuple[str, ReadConfig], float] = {}
        self.total = 0
        for slot in planned:
            for way in settings.configs(slot.suite):
                self.total += 1
                record = ledger.find(slot.id, way)
                if record is None or record.failed:
                    self._left[slot.id, way] = _effort(slot, way)
        self._effort_left = sum(self._left.values())

    @property
    def done(self) -> int:
        return self.total - len(self._left)

    def skip(self, slot: ItemKey) -> None:
        for way in self._settings.configs(slot.suite):
            self.total -= 1
            self._effort_left -= self._left.pop((slot.id, way), 0.0)

    def record(self, slot: ItemKey, way: ReadConfig, seconds: float) -> None:
        self._effort_left -= self._left.pop((slot.id, way), 0.0)
        self._spent += _effort(slot, way)
        self._seconds += seconds

    def status(self, slot: ItemKey) -> Status:
        left = max(self._effort_left, 0.0)
        eta = self._seconds / self._spent * left if self._spent else None
        return Status(slot, self.done, self.total, eta)


def _effort(slot: ItemKey, way: ReadConfig) -> float:
    share = 1.0 if way.mode is Mode.FULL else min(way.keep + SPARSE_OVERHEAD, 1.0)
    return slot.length * share
