"""What the engine does when a machine of a spread target is gone; the rank is in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from app.engine import memory
from app.engine.sharded_model import ShardsLost
from app.protocol.commands import Ask, CachePolicy, Load
from app.protocol.events import Event, Failed, Finished, Loaded, LoadingAlone, PairLost
from app.protocol.hosts import Host, Hosts
from app.protocol.options import BackgroundPolicy, Mode
from tests import tiny
from tests.engine.driver import TEXT, Driver, question
from tests.engine.local_shards import LocalShards

TOKENS = 40
HOSTS = Hosts((Host("other"),))


class Spread:
    """A driver with a target that is spread over one rank in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shards: list[LocalShards] = []
        self.driver = Driver(connect=self._connect)
        self.driver.engine.send(CachePolicy(BackgroundPolicy.OFF))

    def _connect(self, command: Load, stopped: Callable[[], bool]) -> LocalShards:
        self.shards.append(LocalShards(command))
        return self.shards[-1]

    def load(self) -> Loaded:
        loaded = self.driver.load(self.folder, hosts=HOSTS)
        assert isinstance(loaded, Loaded), loaded
        return loaded

    def lose_now(self) -> None:
        """Between two questions."""
        self.shards[-1].lost = ShardsLost("other does not answer any more (gone)")
        self.shards[-1].on_lost()

    def lose_at(self, operation: int) -> None:
        self.shards[-1].fail_at = operation

    def lose_when(self, wanted: Callable[[Event], bool]) -> None:
        """With the operation after the first such event."""

        def act(event: Event) -> None:
            if wanted(event) and self.shards[-1].fail_at is None:
                self.lose_at(0)

        self.driver.on_event = act


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("model"), "llama", 0)


@pytest.fixture
def spread(folder: Path) -> Iterator[Spread]:
    spread = Spread(folder)
    spread.load()
    yield spread
    spread.driver.close()


@pytest.fixture(scope="module")
def alone(folder: Path) -> Finished:
    """The answer on one machine."""
    driver = Driver()
    driver.load(folder)
    finished = driver.answer(asked())
    driver.close()
    return finished


def asked(turn: int = 1, tokens: int = TOKENS) -> Ask:
    ask = question(turn, Mode.SPARSE, tokens=tokens, text=TEXT[:600])
    return replace(ask, conversation="c")


def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free", lambda: 10.0)


# ------------------------------------------------------------------ it does not load here


def test_where_it_does_not_fit_no_pair_is_loaded_and_that_is_said(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = spread.driver
    with monkeypatch.context() as patch:
        spread.lose_at(3)
        no_memory(patch)
        failed = driver.run(asked())
    assert isinstance(failed, Failed)
    order = [
        event for event in driver.events if isinstance(event, LoadingAlone | PairLost | Failed)
    ]
    assert [type(event) for event in order] == [LoadingAlone, PairLost, Failed]
    assert order[1] == PairLost(failed.problem, failed.advice)
    assert "load the model again" in failed.advice
    spread.load()
    assert isinstance(driver.run(asked(2)), Finished), "the same pair loads again"


def test_between_two_questions_that_is_no_answer_to_a_load(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        no_memory(patch)
        spread.lose_now()
        spread.driver.until(PairLost)
    spread.load()
    assert not spread.driver.of(Failed)


def test_whatever_fails_there_is_said(spread: Spread, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("[metal::malloc] no")

    with monkeypatch.context() as patch:
        patch.setattr("app.engine.pair_loader.load_one", fail)
        spread.lose_now()
        lost = spread.driver.until(PairLost)
    assert isinstance(lost, PairLost)
    assert "does not load on this machine alone (" in lost.advice
