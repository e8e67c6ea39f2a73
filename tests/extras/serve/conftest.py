"""A server over an engine that gives one answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.extras.serve.running import ANSWER, running
from tests.fakes import FakeEngine, Story


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine(Story(answer=ANSWER))
    engine.start_thread(lambda event: 0.0)
    return engine


@pytest.fixture
def address(engine: FakeEngine) -> Iterator[str]:
    with running(engine) as address:
        yield address
