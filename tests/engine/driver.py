"""Drives a real `MlxEngine` from a test."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from app.engine.backend.device import Backend
from app.engine.backend.memory_probes import MemoryProbe, MemorySample, SystemPressure
from app.engine.engine import MlxEngine
from app.engine.scorers.choice import ChooseScorer
from app.extras.hosts.loading import Connect, load_sharded
from app.protocol.commands import Ask, CachePolicy, Close, Command, Load
from app.protocol.engine import TurnHandle
from app.protocol.events import (
    BackgroundProgress,
    Closed,
    CommandFailed,
    Event,
    Failed,
    Finished,
    Loaded,
    SnapshotProgress,
)
from app.protocol.hosts import Hosts
from app.protocol.options import Mode, Sampling
from app.protocol.prompt import Document, Message, Role
from app.protocol.stats import Statistics
from tests.patience import PATIENCE

GB = 1_000_000_000


def reading(
    share: float = 0.3, level: SystemPressure = SystemPressure.NORMAL, swapping: float = 0.0
) -> MemorySample:
    """A sample in which MLX uses `share` of a ceiling of 10 GB."""
    return MemorySample(level, int(share * 10 * GB), 10 * GB, swapping)


class ScriptedProbe:
    """A probe that returns `now`, which tests change."""

    def __init__(self, now: MemorySample | None = None) -> None:
        self.now = now or reading()
        self.asked = 0

    def read(self) -> MemorySample:
        self.asked += 1
        return self.now


LIMIT = 120.0 * PATIENCE
"""Seconds to wait for an event."""

E = TypeVar("E", bound=Event)


def gates(number: int) -> str:
    return " ".join(f"The code of gate {n} is {n * 37 % 101}." for n in range(number))


TEXT = gates(36)
"""About a thousand tokens of the tiny models."""
LONG_TEXT = gates(60)
"""A text for which auto mode reads sparsely."""


def question(
    mode: Mode = Mode.SPARSE,
    keep: float = 0.25,
    tokens: int = 12,
    text: str = TEXT,
) -> Ask:
    message = Message(Role.USER, "What is the code of gate 7?", (Document("gates.txt", text),))
    return Ask((message,), mode, keep, Sampling(max_tokens=tokens))


class Driver:
    """Collects events. `on_event` runs on the engine thread, so that a test can act at an exact
    point of a turn. Without a `probe`, memory is never tight."""

    def __init__(
        self,
        step: int | None = 64,
        probe: MemoryProbe | None = None,
        backend: Backend | None = None,
        connect: Connect | None = None,
        choose_scorer: ChooseScorer | None = None,
    ) -> None:
        self.probe: Any = probe or ScriptedProbe()
        self.engine = MlxEngine(
            step,
            self.probe,
            backend=backend,
            load_spread=None if connect is None else partial(load_sharded, connect),
            choose_scorer=choose_scorer,
        )
        self.events: list[Event] = []
        self.on_event: Callable[[Event], None] = lambda event: None
        self.turn: TurnHandle | None = None
        """The number of the last turn."""
        self._asking = threading.RLock()
        self._queue: queue.Queue[Event] = queue.Queue()
        self.engine.listen(self._take)

    def _take(self, event: Event) -> None:
        with self._asking:  # so that `turn` is set
            pass
        self.on_event(event)
        self._queue.put(event)

    def until(self, *kinds: type[Event]) -> Any:
        while True:
            event = self._queue.get(timeout=LIMIT)
            self.events.append(event)
            if isinstance(event, kinds):
                return event

    def finish(self, kind: type[BackgroundProgress | SnapshotProgress]) -> Any:
        """Wait for the event that ends the turn."""
        while (event := self.until(kind)).done < event.total:
            pass
        return event

    def load(
        self,
        target: Path,
        draft: Path | None = None,
        hosts: Hosts | None = None,
        kv_bits: int | None = None,
    ) -> Event:
        named = str(draft) if draft else None
        self.engine.send(Load(str(target), named, hosts=hosts, kv_bits=kv_bits))
        return self.until(Loaded, CommandFailed)

    def ask(self, ask: Ask) -> TurnHandle:
        with self._asking:
            self.turn = self.engine.ask(ask, self._take)
        return self.turn

    def run(self, command: Ask | Command) -> Event:
        """Run a turn to its last event; `events` then has only this turn's."""
        self.events.clear()
        if isinstance(command, Ask):
            self.ask(command)
        else:
            self.engine.send(command)
        return self.until(Finished, Failed, CommandFailed)

    def cancel(self) -> None:
        if self.turn is not None:
            self.turn.cancel()

    def answer(self, command: Ask) -> Finished:
        event = self.run(command)
        assert isinstance(event, Finished), event
        return event

    def figures(self, command: Ask) -> Statistics:
        statistics = self.answer(command).statistics
        assert statistics is not None
        return statistics

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def cancel_when(self, wanted: Callable[[Event], bool]) -> None:
        def act(event: Event) -> None:
            if wanted(event):
                self.cancel()

        self.on_event = act

    def fresh(self) -> Driver:
        """As after loading the same pair: no conversations, caches, costs or events, the default
        policy, and free memory. For an engine that the tests of a module share."""
        self.on_event = lambda event: None
        self.probe.now = reading()
        self.engine.send(CachePolicy())
        self.settle()
        self.clear()
        self.turn = None
        return self

    def settle(self) -> None:
        """Wait until the engine has done all that was sent to it."""

        def never_asked() -> Ask:
            raise LookupError

        turn = self.engine.ask(never_asked, self._take)
        turn.cancel()
        while self.until(Finished, Failed).turn != turn.number:
            pass

    def clear(self) -> None:
        """Forget all events up to now."""
        with suppress(queue.Empty):
            while True:
                self._queue.get_nowait()
        self.events.clear()

    def close(self) -> None:
        self.engine.send(Close())
        self.until(Closed)
        self.engine.join(LIMIT)


def opened(folders: dict[str, Path], policy: CachePolicy) -> Driver:
    """A driver that has loaded a pair under this policy."""
    driver = Driver()
    driver.engine.send(policy)
    driver.load(folders["target"], folders["draft"])
    return driver
