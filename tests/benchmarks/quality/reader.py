"""A fake engine that answers from the sentences that it selected."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from app.protocol.commands import Ask, Close, Command, Load
from app.protocol.engine import TurnHandle
from app.protocol.events import Closed, Failed, Finished, Listener, Loaded, ModelInfo, Planned
from app.protocol.options import Mode
from app.protocol.reasons import Failure, FailureKind, Reason, ReasonCode
from app.protocol.stats import FinishReason, Reading, Statistics
from benchmarks.quality.settings import Scoring, ScoringSwitch

SENTENCE = re.compile(r"[^.\n]*[.\n]\s*|[^.\n]+$")
WORD = re.compile(r"[\w-]+")


@dataclass
class Reader:
    """Implements the `Engine` protocol; turns end within `send`. Scores by words of the question,
    or at random. `on_ask` is called first in every turn and may return an error message."""

    context: int = 0
    dense_only: Reason | None = None
    on_ask: Callable[[Ask], str | None] = lambda ask: None
    switch: ScoringSwitch = field(default_factory=ScoringSwitch)
    asks: list[Ask] = field(default_factory=list)
    scorings: list[Scoring] = field(default_factory=list)
    """The scoring of each of the `asks`."""
    loads: list[Load] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listener: Listener = lambda event: None
        self.turn: TurnHandle | None = None
        """The last turn."""

    def listen(self, listener: Listener) -> None:
        self._listener = listener

    def ask(self, ask: Ask, listener: Listener) -> TurnHandle:
        self.asks.append(ask)
        self.scorings.append(self.switch.scoring)
        turn = self.turn = TurnHandle(len(self.asks), lambda: ask, listener)
        self._answer(turn, ask)
        return turn

    def join(self, timeout: float | None = None) -> None:
        pass

    def send(self, command: Command) -> None:
        match command:
            case Load():
                self.loads.append(command)
                target = ModelInfo("reader", "fake", 0, 0, self.context)
                self._listener(Loaded(target, target, self.dense_only, 0.0))
            case Close():
                self._listener(Closed())

    def _answer(self, turn: TurnHandle, ask: Ask) -> None:
        problem = self.on_ask(ask)
        if problem is not None:
            failure = Failure(FailureKind.INTERNAL, {"error": problem})
            turn.listener(Failed(turn.number, failure))
            return
        document = ask.messages[0].documents[0].text
        question = ask.messages[-1].text
        flagged = ask.mode is Mode.AUTO and re.search("how many|most common", question, re.I)
        guard = Reason(ReasonCode.NEEDS_EVERY_TOKEN, {"words": "how many"}) if flagged else None
        dense = ask.mode is Mode.FULL or guard is not None
        reading = Reading.DENSE if dense else Reading.SPARSE
        turn.listener(Planned(turn.number, reading, (), ask.keep_ratio, 0, 0, 0, (), (), guard))
        sentences = SENTENCE.findall(document)
        selected = sentences if dense else self._select(ask, sentences, question)
        text = answer("".join(selected), question)
        ended = FinishReason.CANCELLED if turn.is_cancelled else FinishReason.STOP
        stats = statistics(ask, reading, len(selected), len(sentences))
        ids = tuple(text.encode())
        turn.listener(Finished(turn.number, ended, text, ids, stats))

    def _select(self, ask: Ask, sentences: list[str], question: str) -> list[str]:
        rng = Random(ask.sampling.seed)
        scores = [rng.random() / 2 for _ in sentences]
        if self.switch.scoring is not Scoring.RANDOM:
            pairs = zip(scores, sentences, strict=True)
            scores = [score + shared_words(question, text) for score, text in pairs]
        count = math.ceil(ask.keep_ratio * len(sentences))
        best = sorted(range(len(sentences)), key=lambda i: -scores[i])[:count]
        return [sentences[i] for i in sorted(best)]


def shared_words(question: str, sentence: str) -> float:
    return len(set(WORD.findall(question.lower())) & set(WORD.findall(sentence.lower())))


def answer(text: str, question: str) -> str:
    """Sentences with a key of the question, or the number of tickets with its mark."""
    if marks := re.findall(r"\b[A-Z]{4}\b", question):
        return f"In all: {text.count(marks[0] + ' ticket')}"
    keys = re.findall(r"[a-z]+-[a-z]+", question)
    found = [s.strip() for s in SENTENCE.findall(text) if any(key in s for key in keys)]
    return " ".join(found) or "The document does not say."


def statistics(ask: Ask, reading: Reading, selected: int, total: int) -> Statistics:
    """Seconds: a dense read takes `total`, a sparse one a tenth of it plus `selected`."""
    dense = reading is Reading.DENSE
    return Statistics(
        reading=reading,
        mode=ask.mode,
        keep_ratio=ask.keep_ratio,
        reasons=(),
        prompt_tokens=total,
        eligible_tokens=total,
        read_tokens=selected,
        reused_tokens=0,
        recalled_tokens=0,
        generated_tokens=1,
        seed=0,
        ttft=float(total) if dense else selected + total / 10,
        phases=(),
        decode_seconds=0.0,
        peak_bytes=0,
    )
