"""The app and other programs' requests use one engine, and neither gets the other's events."""

from __future__ import annotations

from typing import Any

from app.chat.shared_engine import GUEST_TURNS, SharedEngine
from app.protocol.commands import Ask, Cancel, Command, Load
from app.protocol.events import BackgroundProgress, Failed, Finished, Loaded, ModelInfo
from app.protocol.prompt import Message, Role
from app.protocol.stats import FinishReason


class Recorder:
    """An engine that does nothing."""

    def __init__(self) -> None:
        self.sent: list[Command] = []
        self.emit: Any = None

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def listen(self, listener: Any) -> None:
        self.emit = listener

    def join(self, timeout: float | None = None) -> None: ...


def ask(turn: int) -> Ask:
    return Ask(turn, (Message(Role.USER, "Who?"),))


def shared() -> tuple[Recorder, SharedEngine, list[Any], list[Any]]:
    engine, app, guest = Recorder(), list[Any](), list[Any]()
    both = SharedEngine(engine)
    both.listen(app.append)
    both.guest.listen(guest.append)
    return engine, both, app, guest


def test_each_gets_the_events_of_its_own_turns_under_its_own_numbers() -> None:
    engine, both, app, guest = shared()
    both.send(ask(1))
    both.guest.send(ask(1))
    both.guest.send(Cancel(1))
    mine, theirs, cancelled = engine.sent
    assert isinstance(mine, Ask)
    assert isinstance(theirs, Ask)
    assert (mine.turn, mine.on_disk) == (1, True)
    assert (theirs.turn, theirs.on_disk) == (1 + GUEST_TURNS, False)
    assert cancelled == Cancel(theirs.turn)
    assert both.guest.busy
    engine.emit(Finished(mine.turn, FinishReason.STOP, "A", (), None))
    assert both.guest.busy
    engine.emit(Failed(theirs.turn, "Too long", "send less"))
    assert not both.guest.busy
    assert app == [Finished(1, FinishReason.STOP, "A", (), None)]
    assert guest == [Failed(1, "Too long", "send less")]


def test_what_belongs_to_no_turn_is_for_the_app() -> None:
    engine, _, app, guest = shared()
    engine.emit(BackgroundProgress("a", 1, 2))
    engine.emit(Failed(None, "Not loaded", "load another"))
    assert len(app) == 2
    assert not guest


def test_it_knows_what_is_loaded() -> None:
    engine, both, app, _ = shared()
    pairs = []
    both.on_pair = lambda: pairs.append(both.pair)
    load, loaded = Load("a"), Loaded(ModelInfo("a", "llama", 1, 1, 1), None, None, 1.0)
    both.send(load)
    engine.emit(loaded)
    assert pairs == [(load, loaded)]
    assert app == [loaded]
