"""What the server's log says beside requests."""

from __future__ import annotations

import asyncio
import logging

import pytest

from app.protocol.events import HostsLost
from app.protocol.reasons import Failure, FailureKind
from app.serve.answers import RequestQueue, log
from tests.fakes import FakeEngine


def test_a_lost_machine_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine()
    lost = Failure(FailureKind.MACHINE_LOST, {"machine": "10.0.0.2\n", "error": "gone"})

    async def lose() -> None:
        queue = RequestQueue(engine, 1)
        queue.start()
        engine.say(HostsLost(None, lost, "big"))
        queue.stop()

    log.addHandler(caplog.handler)
    try:
        asyncio.run(lose())
    finally:
        log.removeHandler(caplog.handler)
    assert caplog.messages[0].startswith("10.0.0.2␊ no longer responds (gone), so big continues")
    assert caplog.records[0].levelno == logging.WARNING
