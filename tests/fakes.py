"""A scripted engine: every state of the screen, the same every time, and no model.

`FakeEngine()` runs each turn to its end inside `send`. `FakeEngine(stepping=True)` waits to be told
(`advance_to`, `advance`, `finish`), so that a test can look at every state between. `start_thread`
plays on a thread of its own at a pace, as the real engine does: for looking at it in a terminal.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain

from app.protocol.citations import Citations
from app.protocol.commands import (
    Ask,
    CachePolicy,
    CalibrateCosts,
    Close,
    Command,
    DropConversation,
    Load,
    PruneSnapshots,
)
from app.protocol.cost_model import UNKNOWN_COSTS, Costs
from app.protocol.engine import MakeAsk, TurnHandle
from app.protocol.events import (
    Cited,
    Closed,
    CommandFailed,
    CostsUpdated,
    Event,
    Failed,
    FellBackToDense,
    Finished,
    GpuLost,
    ImportanceMap,
    Listener,
    Loaded,
    MemoryReport,
    ModelInfo,
    PhaseProgress,
    Planned,
    RankedFile,
    Retrieved,
    Retrieving,
    Selected,
    Token,
)
from app.protocol.memory import MemoryStats
from app.protocol.options import DEFAULT_KEEP_RATIO, Mode
from app.protocol.prompt import (
    Document,
    Message,
    RetrievalReason,
    RetrievedPart,
    Role,
    Segment,
    SegmentKind,
    Span,
    SpanReason,
    SpanText,
)
from app.protocol.reasons import Failure, FailureKind, Reason, ReasonCode
from app.protocol.stats import DocumentsRead, FinishReason, Phase, PhaseTime, Reading, Statistics

GIB = 1024**3
MEMORY_EXHAUSTED = Failure(FailureKind.MEMORY_EXHAUSTED)
CHARACTERS_PER_TOKEN = 4
ANSWER = (
    'The "Corresponding Source" for a work in object code form means **all the source code** '
    "needed to generate, install, and (for an executable work) run the object code and to modify "
    "the work, including scripts to control those activities.\n\n"
    "It leaves out:\n\n"
    "- the work's System Libraries,\n"
    "- general-purpose tools,\n"
    "- generally available free programs which are used unmodified.\n"
)


@dataclass(frozen=True)
class Story:
    """What happens to a turn. The defaults are a sparse reading that works."""

    answer: str = ANSWER
    thinking: str = ""
    prompt_tokens: int | None = None
    """None: from the length of what is asked about."""
    reused_tokens: int = 0
    buckets: int = 128
    importance: tuple[float, ...] | None = None
    """None: a few peaks."""
    slowness: float = 1.0
    """By how much reading takes longer than a second or two."""
    falls_back: str | None = None
    """The error for which it is read in full."""
    fails_in: Phase | None = None
    failure: Failure = MEMORY_EXHAUSTED
    """Where it is predicted not to fit, or to be too long, it fails before anything is read; with a
    lost GPU, so does every other turn."""
    ended: FinishReason = FinishReason.STOP
    cached: bool = False
    """Everything is read already: what keep would choose is shown, and everything answers."""
    read_on: int = 0
    """How many passages are read while the answer is written."""
    unsure: bool = False
    guard: str | None = None
    """The words for which the question asks for every token: everything is read."""
    retrieves: int | None = None
    """How many files are put before the model, where there are more."""
    stands_out: bool = True
    makes_room: bool = False
    """What was put before earlier questions goes."""
    part_lines: int = 40
    """Of a longer file, only so many lines around the first one with a word of the question."""
    citations: Citations | None = None


@dataclass(frozen=True)
class LoadStory:
    """What happens when the pair is loaded."""

    failure: CommandFailed | None = None
    dense_only: str | None = None
    """Why it is read in full: a clause."""
    faster: str | None = None
    """The package that would make it faster."""
    target: str = "qwen3-8b-4bit"
    draft: str = "qwen3-0.6b-4bit"


@dataclass
class FakeEngine:
    """Meets the `Engine` protocol. `commands` is everything that was sent or asked, in order."""

    story: Story = field(default_factory=Story)
    load_story: LoadStory = field(default_factory=LoadStory)
    stepping: bool = False
    """Turns wait to be played."""
    step_load: bool = False
    """Loading waits too."""
    load_stories: dict[str, LoadStory] = field(default_factory=dict)
    """Of targets by the names they are shown as, where it is another one."""
    costs: Costs = UNKNOWN_COSTS
    """What it finds when it is to time the pair."""
    commands: list[Command | Ask] = field(default_factory=list)
    turns: list[TurnHandle] = field(default_factory=list)
    """The turn of each question that was asked, in order."""
    selected: list[tuple[int, float]] = field(default_factory=list)
    """What was selected again: turn and keep."""
    pair: tuple[Load, Loaded] | None = None
    joined: bool = False

    def __post_init__(self) -> None:
        self._listeners: list[Listener] = []
        self._plays: deque[tuple[Iterator[Event], TurnHandle | None]] = deque()
        self._importance: dict[int, tuple[float, ...]] = {}
        self._prompt_tokens: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._documents: dict[int, DocumentsRead | None] = {}
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    # ------------------------------------------------------------------ the Engine protocol

    def listen(self, listener: Listener) -> Callable[[], None]:
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def ask(self, ask: Ask | MakeAsk, listener: Listener, background: bool = False) -> TurnHandle:
        if isinstance(ask, Ask):
            self.commands.append(ask)

        def make_ask() -> Ask:
            if isinstance(ask, Ask):
                return ask
            self.commands.append(made := ask())
            return made

        turn = TurnHandle(len(self.turns) + 1, make_ask, listener)
        self.turns.append(turn)
        self._play(self._turn(turn, self.story), turn, self.stepping)
        return turn

    def reselect(self, turn: TurnHandle, keep_ratio: float) -> None:
        self.selected.append((turn.number, keep_ratio))
        self._play(self._reselect(turn.number, keep_ratio), turn)

    def send(self, command: Command) -> None:
        self.commands.append(command)
        if isinstance(command, CachePolicy | DropConversation | PruneSnapshots):
            return
        if isinstance(command, CalibrateCosts):
            self.say(CostsUpdated(self.costs, requested=True))
            return
        match command:
            case Load():
                self._play(self._load(command), None, self.step_load)
            case Close():
                self._play(self._close(), None)

    def _play(self, events: Iterator[Event], turn: TurnHandle | None, waits: bool = False) -> None:
        self._plays.append((events, turn))
        self._wake.set()
        if self._thread is None and not waits:
            self._play_commands_between_turns()

    def join(self, timeout: float | None = None) -> None:
        self.joined = True
        if self._thread is not None:
            self._thread.join(timeout)

    # ------------------------------------------------------------------ driving it from a test

    def sent(self, kind: type[Command]) -> list[Command]:
        return [command for command in self.commands if isinstance(command, kind)]

    @property
    def cancelled(self) -> list[int]:
        """The numbers of the turns that were stopped."""
        return [turn.number for turn in self.turns if turn.is_cancelled]

    @property
    def asks(self) -> list[Ask]:
        return [command for command in self.commands if isinstance(command, Ask)]

    def advance(self) -> Event | None:
        """Play one event; None when there is nothing left."""
        while self._plays:
            events, turn = self._plays[0]
            event = next(events, None)
            if event is not None:
                if turn is not None and getattr(event, "turn", None) is not None:
                    turn.listener(event)
                else:
                    self.say(event)
                return event
            self._plays.popleft()
        return None

    def advance_to(self, wanted: Callable[[Event], bool]) -> Event:
        """Play up to and with the first event that `wanted` accepts."""
        while (event := self.advance()) is not None:
            if wanted(event):
                return event
        raise AssertionError("the script ended before the wanted event")

    def say(self, event: Event) -> None:
        """What comes without being asked for."""
        for listener in tuple(self._listeners):
            listener(event)

    def finish(self) -> None:
        while self.advance() is not None:
            pass

    def start_thread(self, pace: Callable[[Event], float]) -> None:
        """Play by itself from now on, `pace(event)` seconds after each event."""

        def run() -> None:
            while not self._closed:
                self._wake.wait()
                self._wake.clear()
                while (event := self.advance()) is not None:
                    time.sleep(pace(event))

        self._thread = threading.Thread(target=run, name="fake-engine", daemon=True)
        self._thread.start()

    def _play_commands_between_turns(self) -> None:
        if not self.stepping or len(self._plays) == 1:
            self.finish()

    # ------------------------------------------------------------------ the scripts

    def _load(self, command: Load) -> Iterator[Event]:
        story = self.load_stories.get(command.names[0], self.load_story)
        if story.failure is not None:
            yield story.failure
            return
        names = command.names if command.display_names else (story.target, story.draft)
        target = ModelInfo(names[0], "qwen3", 8_190_000_000, 4_600_000_000, 40_960)
        draft = None
        if names[1] is not None:
            draft = ModelInfo(names[1], "qwen3", 596_000_000, 340_000_000, 40_960)
        dense_only, faster = None, None
        if story.dense_only is not None:
            dense_only = Reason(ReasonCode.UNSUPPORTED_CACHE, {"error": story.dense_only})
        if story.faster is not None:
            faster = Reason(ReasonCode.SLOW_BLAS, {"package": story.faster})
        self.pair = command, Loaded(target, draft, dense_only, 0.8, faster)
        yield self.pair[1]
        yield MemoryReport(
            MemoryStats(32 * GIB, 11 * GIB, 6 * GIB, 5 * GIB, GIB // 2, 6 * GIB, 24 * GIB)
        )

    def _close(self) -> Iterator[Event]:
        self._closed = True
        yield Closed()

    def _reselect(self, turn: int, keep: float) -> Iterator[Event]:
        if turn in self._importance:
            yield self._select(turn, keep or DEFAULT_KEEP_RATIO)

    def _turn(self, asked: TurnHandle, story: Story) -> Iterator[Event]:
        """Everything of one turn; stops at the first event after a cancel, as at a step border."""
        if asked.is_cancelled:
            yield Finished(asked.number, FinishReason.CANCELLED, "", (), None)
            return
        ask = asked.make_ask()
        turn, retrieved = asked.number, retrieve(ask, story)
        if retrieved is not None:
            retrieved = replace(retrieved, turn=turn)
            parts = tuple(part.document for part in retrieved.parts)
            last = replace(ask.messages[-1], retrieved=parts)
            earlier = ask.messages[:-1]
            if story.makes_room:
                earlier = tuple(replace(each, retrieved=()) for each in earlier)
            ask = replace(ask, messages=(*earlier, last))
        total = story.prompt_tokens or prompt_tokens(ask)
        self._prompt_tokens[turn] = total
        self._documents[turn] = documents_of(ask)
        self._lengths[turn] = sum(len(d.text) for d in ask.messages[0].in_prompt[:1])
        shown: list[Event] = []
        for event in chain(choosing(retrieved), self._events(turn, ask, story, total)):
            if asked.is_cancelled:
                yield self._cancelled_turn(turn, ask, total, shown)
                return
            shown.append(event)
            yield event
            if isinstance(event, Failed) and event.failure.kind is FailureKind.GPU_LOST:
                yield GpuLost(event.failure)
                return

    def _events(self, turn: int, ask: Ask, story: Story, total: int) -> Iterator[Event]:
        dense = ask.mode is Mode.FULL or self.load_story.dense_only is not None or story.cached
        failed = Failed(turn, story.failure)
        if (failed.predicted or failed.excess_tokens) and not ask.skip_memory_check:
            yield failed
            return
        yield self._plan(turn, ask, story, total, dense)
        kept = total
        if not dense or story.cached:
            for event in self._sparse_phases(turn, ask, story, total):
                yield event
                if isinstance(event, Failed):
                    return
                if isinstance(event, Selected) and not story.cached:
                    kept = event.selected_tokens
            if story.falls_back is not None:
                yield FellBackToDense(turn, fell_back(story.falls_back))
                dense, kept = True, total
        for event in phase(turn, Phase.PREFILL, kept, 0.9 * story.slowness, steps=6):
            yield event
            if story.fails_in is Phase.PREFILL and isinstance(event, PhaseProgress) and event.done:
                yield Failed(turn, story.failure)
                return
        yield from self._answer(turn, ask, story, total, kept, dense)

    def _sparse_phases(self, turn: int, ask: Ask, story: Story, total: int) -> Iterator[Event]:
        for event in phase(turn, Phase.SCORE, total, 0.8 * story.slowness, steps=8):
            yield event
            if story.fails_in is Phase.SCORE and event.done:
                yield Failed(turn, story.failure)
                return
            if story.falls_back is not None and event.done * 2 >= total:
                return
        buckets = story.importance or importance(story.buckets)
        self._importance[turn] = buckets
        observations = 4
        for seen in range(1, observations + 1):
            filled = len(buckets) * seen // observations
            shown = buckets[:filled] + (0.0,) * (len(buckets) - filled)
            yield ImportanceMap(turn, shown, seen, observations)
            seconds = 0.02 * seen * story.slowness
            yield PhaseProgress(turn, Phase.LOOKAHEAD, seen, observations, seconds)
        yield self._select(turn, ask.expected_keep)

    def _answer(
        self, turn: int, ask: Ask, story: Story, total: int, kept: int, dense: bool
    ) -> Iterator[Event]:
        words, begun = pieces(story.answer), begun_answer(ask)
        yield PhaseProgress(turn, Phase.DECODE, 0, 512, 0.0)
        for thought in pieces(story.thinking):
            yield Token(turn, (7,), "", thought)
        for index, word in enumerate(words):
            yield Token(turn, (1000 + index,), word)
            if index < story.read_on:
                yield self._select(turn, ask.expected_keep, index + 1)
        statistics = self._statistics(ask, total, kept, dense, len(words), story.falls_back)
        ids = tuple(1000 + index for index in range(len(words)))
        ids = (*(begun.token_ids or ()), *ids)
        if story.citations is not None and ask.cite:
            yield Cited(turn, story.citations)
        yield Finished(turn, story.ended, begun.text + story.answer, ids, statistics)

    def _cancelled_turn(self, turn: int, ask: Ask, total: int, shown: list[Event]) -> Finished:
        tokens = [event for event in shown if isinstance(event, Token)]
        selected = [event for event in shown if isinstance(event, Selected)]
        planned = any(isinstance(event, Planned) for event in shown)
        statistics = None
        if planned:
            kept = selected[-1].selected_tokens if selected else total if tokens else 0
            statistics = self._statistics(ask, total, kept, not selected, len(tokens), None)
        text = "".join(token.text for token in tokens)
        ids = tuple(identity for token in tokens for identity in token.ids)
        begun = begun_answer(ask)
        text, ids = begun.text + text, (*(begun.token_ids or ()), *ids)
        return Finished(turn, FinishReason.CANCELLED, text, ids, statistics)

    def _plan(self, turn: int, ask: Ask, story: Story, total: int, dense: bool) -> Planned:
        question = max(1, total - 60)
        end = (Segment(SegmentKind.QUESTION, question, total, 0),)
        return Planned(
            turn=turn,
            reading=Reading.DENSE if dense else Reading.SPARSE,
            reasons=(reason(ask, dense),),
            keep_ratio=ask.keep_ratio,
            prompt_tokens=total,
            eligible_tokens=question,
            reused_tokens=story.reused_tokens,
            prompt_ids=tuple(range(total)),
            segments=(*document_segments(ask, question), *end),
            guard=None
            if story.guard is None
            else Reason(ReasonCode.NEEDS_EVERY_TOKEN, {"words": story.guard}),
            documents=documents_of(ask),
        )

    def _select(self, turn: int, keep: float, read_on: int = 0) -> Selected:
        total = self._prompt_tokens[turn]
        spans = select(self._importance[turn], total, keep, read_on)
        kept = sum(span.end - span.start for span in spans)
        length = self._lengths[turn]
        places = [
            (number, *(min(CHARACTERS_PER_TOKEN * at, length) for at in (span.start, span.end)))
            for number, span in enumerate(spans)
        ]
        texts = (SpanText(n, 0, 0, start, end) for n, start, end in places if start < end)
        documents = self._documents[turn]
        if documents is not None:
            documents = replace(documents, read=round(kept / total * documents.chosen))
        return Selected(turn, keep, kept, total, spans, tuple(texts), documents=documents)

    def _statistics(
        self, ask: Ask, total: int, kept: int, dense: bool, generated: int, fallback: str | None
    ) -> Statistics:
        slowness = self.story.slowness
        sparse_times = (
            PhaseTime(Phase.SCORE, 0.8 * slowness),
            PhaseTime(Phase.LOOKAHEAD, 0.1 * slowness),
        )
        return Statistics(
            reading=Reading.DENSE if dense else Reading.SPARSE,
            mode=ask.mode,
            keep_ratio=ask.expected_keep,
            reasons=(reason(ask, dense),),
            prompt_tokens=total,
            eligible_tokens=max(1, total - 60),
            read_tokens=kept,
            reused_tokens=0,
            recalled_tokens=0,
            generated_tokens=generated,
            seed=0,
            ttft=1.9 * slowness if generated else 0.0,
            phases=(() if dense else sparse_times) + (PhaseTime(Phase.PREFILL, 0.9 * slowness),),
            decode_seconds=max(0, generated - 1) / 31,
            peak_bytes=6 * GIB,
            fallback=None if fallback is None else fell_back(fallback),
            unsure=self.story.unsure,
            documents=documents_of(ask, kept / total),
        )


# ---------------------------------------------------------------------- what the scripts are of


def documents_of(ask: Ask, share: float = 0.0) -> DocumentsRead | None:
    """The documents of the messages, of which this share is read."""
    every = {each.name: each for message in ask.messages for each in message.documents}
    chosen = [each for message in ask.messages for each in message.in_prompt]
    tokens, in_prompt = (
        sum(len(each.text) for each in documents) // CHARACTERS_PER_TOKEN
        for documents in (every.values(), chosen)
    )
    read = round(share * in_prompt)
    return (
        replace(DocumentsRead.of(every, tokens, in_prompt), read=read, new=read) if tokens else None
    )


def prompt_tokens(ask: Ask) -> int:
    """A plausible length: what all messages hold, and a frame of 40 tokens."""
    lengths = (
        len(message.text) + sum(len(document.text) for document in message.in_prompt)
        for message in ask.messages
    )
    return 40 + sum(lengths) // CHARACTERS_PER_TOKEN


def retrieve(ask: Ask, story: Story) -> Retrieved | None:
    """The files that the user chose, then those that the question names, then those that have most
    of its words; each as a whole, or some lines around the first of these words."""
    asked = ask.messages[-1]
    every = dict.fromkeys(
        document
        for message in ask.messages
        for document in message.documents
        if not document.name.endswith("/")
    )
    allowed = [each for each in every if each.name not in ask.files.never]
    if story.retrieves is None or asked.retrieved is not None or len(every) <= story.retrieves:
        return None
    question = [word for word in asked.text.lower().replace("?", "").split() if len(word) > 3]
    words = {each: tuple(w for w in question if w in each.text.lower()) for each in allowed}

    def reason(file: Document) -> RetrievalReason:
        if file.name in ask.files.always:
            return RetrievalReason.CHOSEN
        if file.name.rpartition("/")[2].lower() in asked.text.lower():
            return RetrievalReason.NAME
        return RetrievalReason.WORDS if words[file] else RetrievalReason.MEANING

    first = (RetrievalReason.CHOSEN, RetrievalReason.NAME)
    order = sorted(
        allowed,
        key=lambda file: (
            first.index(why) if (why := reason(file)) in first else len(first),
            -len(words[file]),
        ),
    )
    chosen = sorted(order[: story.retrieves], key=lambda file: file.name)
    parts = [part_of(file, words[file], story.part_lines) for file in chosen]
    return Retrieved(
        0,
        tuple(
            RetrievedPart(part, len(part.text) // CHARACTERS_PER_TOKEN, reason(file), words[file])
            for part, file in zip(parts, chosen, strict=True)
        ),
        tuple(
            RankedFile(file.name, 0.9**number, words[file])
            for number, file in enumerate(order[story.retrieves :][:50])
        ),
        documents_of(ask),
        4_096,
        story.stands_out,
    )


def part_of(file: Document, words: tuple[str, ...], lines: int) -> Document:
    every = file.text.splitlines(keepends=True)
    if len(every) <= lines:
        return file
    has = (n for n, line in enumerate(every) if any(word in line.lower() for word in words))
    start = max(0, next(has, 0) - lines // 2)
    return replace(file, text="".join(every[start : start + lines]), line=start + 1)


def choosing(retrieved: Retrieved | None) -> Iterator[Event]:
    if retrieved is not None:
        yield Retrieving(retrieved.turn, retrieved.documents)
        yield from phase(retrieved.turn, Phase.RETRIEVE, 1_000, 0.4, steps=2)
        yield retrieved


def document_segments(ask: Ask, end: int) -> Iterator[Segment]:
    """One for each message with documents, as if it had one only, of equal lengths."""
    messages = [index for index, each in enumerate(ask.messages) if each.in_prompt]
    for number, message in enumerate(messages):
        start, stop = (at * end // len(messages) for at in (number, number + 1))
        yield Segment(SegmentKind.DOCUMENT, start, stop, message, 0)


def begun_answer(ask: Ask) -> Message:
    """What is to be continued; an empty answer where nothing is."""
    last = ask.messages[-1]
    return last if last.role is Role.ASSISTANT else Message(Role.ASSISTANT, "")


def reason(ask: Ask, dense: bool) -> Reason:
    if ask.mode is Mode.FULL:
        return Reason(ReasonCode.FULL_REQUESTED)
    if dense:
        return Reason(ReasonCode.ALL_CACHED)
    return Reason(ReasonCode.FASTER, {"sparse": 3.2, "full": 12.8})


def fell_back(error: str) -> Reason:
    return Reason(ReasonCode.SPARSE_FAILED, {"error": error})


def does_not_fit(excess: int = 0) -> Failure:
    """A turn of 118,204 tokens is predicted not to fit in memory."""
    data = {"reading": 118_204, "needed": 30.0 * GIB, "free": 20.0 * GIB}
    return Failure(FailureKind.NOT_ENOUGH_MEMORY, data | {"excess_tokens": excess})


def phase(
    turn: int, kind: Phase, total: int, seconds: float, steps: int
) -> Iterator[PhaseProgress]:
    """A phase in equal steps."""
    for step in range(steps + 1):
        left = seconds * (steps - step) / steps
        yield PhaseProgress(
            turn, kind, total * step // steps, total, seconds - left, left if step else None
        )


def importance(buckets: int) -> tuple[float, ...]:
    """A few peaks of different heights on a low floor, in 255ths of the highest, as it is kept."""
    peaks = {0.12: 1.0, 0.31: 0.55, 0.33: 0.8, 0.58: 0.65, 0.83: 0.9, 0.86: 0.4}

    def at(place: float) -> float:
        nearest = max(top / (1 + (60 * (place - peak)) ** 2) for peak, top in peaks.items())
        ripple = 0.06 * ((int(place * 1009) * 37 % 11) / 11)
        return min(1.0, nearest + ripple + 0.02)

    heights = [at(bucket / buckets) for bucket in range(buckets)]
    return tuple(round(255 * height / max(heights)) / 255 for height in heights)


def select(
    scores: tuple[float, ...], total: int, keep: float, read_on: int = 0
) -> tuple[Span, ...]:
    """The best buckets up to `keep`, and of the others some that are needed later, as spans,
    between a pinned beginning and a pinned end."""
    wanted = max(1, round(keep * len(scores)))
    ranked = sorted(range(len(scores)), key=lambda index: -scores[index])
    later = set(ranked[wanted + 8 :][: 9 * read_on : 9])
    chosen = sorted([*ranked[:wanted], *later])
    first, last = 4, max(5, total - 60)
    spans = [Span(0, first, SpanReason.PINNED)]
    for index in chosen:
        start = max(first, index * total // len(scores))
        end = min(last, (index + 1) * total // len(scores))
        previous = spans[-1]
        reason = SpanReason.NEEDED_LATER if index in later else SpanReason.IMPORTANT
        if previous.reason is reason and previous.end == start:
            spans[-1] = Span(previous.start, end, reason, 3.0)
        elif start < end:
            spans.append(Span(start, end, reason, 3.0))
    return (*spans, Span(last, total, SpanReason.PINNED))


def pieces(text: str) -> list[str]:
    """The text in small parts, as tokens come."""
    return [text[start : start + 5] for start in range(0, len(text), 5)]
