"""A session waits for the events that answer what was sent."""

from __future__ import annotations

from app.chat.engine_session import EngineSession
from app.protocol.commands import Ask
from app.protocol.events import CommandFailed, Finished
from app.protocol.prompt import Message, Role
from app.protocol.reasons import Failure, FailureKind
from tests.fakes import FakeEngine


def test_a_failure_of_something_else_does_not_end_a_turn() -> None:
    engine = FakeEngine()
    with EngineSession(engine) as session:
        failed = CommandFailed(Failure(FailureKind.INTERNAL, {"error": "x"}))
        engine.say(failed)
        events = list(session.run(Ask((Message(Role.USER, "Why?"),))))
    assert failed in events
    assert isinstance(events[-1], Finished)
