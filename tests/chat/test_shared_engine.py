"""The app and other programs' requests use one engine, and neither gets the other's events."""

from __future__ import annotations

from typing import Any

from app.chat.shared_engine import GUEST_TURNS, SharedEngine
from app.protocol.commands import Ask, Cancel, Command, Load
from app.protocol.events import BackgroundProgress, Failed, Finished, Loaded, ModelInfo, PairLost
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
    assert (theirs.turn >= GUEST_TURNS, theirs.on_disk) == (True, False)
    assert cancelled == Cancel(theirs.turn)
    assert both.guest.busy
    engine.emit(Finished(mine.turn, FinishReason.STOP, "A", (), None))
    assert both.guest.busy
    engine.emit(Failed(theirs.turn, "Too long", "send less"))
    assert not both.guest.busy
    assert app == [Finished(1, FinishReason.STOP, "A", (), None)]
    assert guest == [Failed(1, "Too long", "send less")]


def test_a_turn_of_before_is_not_mistaken_for_one_of_the_same_number() -> None:
    engine, both, _, guest = shared()
    both.guest.send(ask(1))
    both.guest.send(ask(1))
    old, new = (each.turn for each in engine.sent if isinstance(each, Ask))
    assert old != new
    engine.emit(Finished(old, FinishReason.CANCELLED, "", (), None))
    assert not guest
    for _ in range(2):  # the second is of no turn
        engine.emit(Finished(new, FinishReason.STOP, "Mine", (), None))
    assert guest == [Finished(1, FinishReason.STOP, "Mine", (), None)]


def test_once_requests_are_stopped_nobody_hears_of_them() -> None:
    engine, both, app, guest = shared()
    both.guest.send(ask(1))
    both.guest.stop()
    (asked,) = (each for each in engine.sent if isinstance(each, Ask))
    assert engine.sent[-1] == Cancel(asked.turn)
    both.guest.listen(guest.append)
    engine.emit(Finished(asked.turn, FinishReason.CANCELLED, "", (), None))
    assert not guest
    assert not app
    assert not both.guest.busy


def test_a_request_behind_another_pair_goes_without_ids() -> None:
    engine, both, _, _ = shared()
    known = Message(Role.ASSISTANT, "Me.", token_ids=(1,))
    request = Ask(1, (Message(Role.USER, "Who?"), known, Message(Role.USER, "Sure?")))
    loaded = Loaded(ModelInfo("a", "llama", 1, 1, 1), None, None, 1.0)

    def sent_ids() -> tuple[int, ...] | None:
        both.guest.send(request)
        last = engine.sent[-1]
        assert isinstance(last, Ask)
        return last.messages[1].token_ids

    both.send(Load("a"))
    engine.emit(loaded)
    assert sent_ids() == (1,)
    both.send(Load("b"))
    assert sent_ids() is None
    while_it_changes = list[Any]()
    both.on_pair = lambda: while_it_changes.append(sent_ids())
    engine.emit(loaded)
    assert while_it_changes == [None]
    assert sent_ids() == (1,)


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


def test_it_knows_when_nothing_is_loaded_any_more() -> None:
    engine, both, app, _ = shared()
    both.send(Load("t"))
    engine.emit(Loaded(ModelInfo("t", "llama", 1, 1, 0), None, None, 1.0))
    lost = PairLost("studio.local is gone", "start the worker again")
    engine.emit(lost)
    assert both.pair is None
    assert app[-1] == lost
