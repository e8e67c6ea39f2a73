"""What the engine does when a machine of a spread target is gone; the rank is in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.engine import memory
from app.engine.decode import Decoder
from app.engine.sharded_model import Operation, ShardsLost
from app.protocol.commands import Ask, CachePolicy, Load
from app.protocol.events import Event, Failed, Finished, HostsLost, Loaded, LoadingAlone, PairLost
from app.protocol.hosts import Host, Hosts
from app.protocol.options import BackgroundPolicy, Mode
from app.protocol.stats import FinishReason
from tests import tiny
from tests.engine.driver import TEXT, Driver, question
from tests.engine.local_shards import LocalShards

TOKENS = 40
HOSTS = Hosts((Host("other"),))


class Rank(LocalShards):
    """Says when it is lost, as machines do."""

    def run(self, operation: Operation) -> list[dict[str, Any]]:
        was_lost = self.lost
        try:
            return super().run(operation)
        finally:
            if self.lost is not None and was_lost is None:
                self.on_lost()


class Spread:
    """A driver with a target that is spread over one rank in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shards: list[LocalShards] = []
        self.driver = Driver(connect=self._connect)
        self.driver.engine.send(CachePolicy(BackgroundPolicy.OFF))

    def _connect(self, command: Load, stopped: Callable[[], bool]) -> LocalShards:
        self.shards.append(Rank(command))
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


# ------------------------------------------------------------------ a complete answer


def lose_after(spread: Spread, patch: pytest.MonkeyPatch, last: Callable[[Decoder], bool]) -> None:
    """Lose the machine with the operation after this token."""
    record = Decoder._record

    def record_and_lose(self: Decoder, token: int) -> None:
        record(self, token)
        if last(self) and spread.shards[-1].lost is None:
            spread.lose_at(0)

    patch.setattr(Decoder, "_record", record_and_lose)


def test_an_answer_at_its_limit_is_complete(
    spread: Spread, alone: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_after(spread, monkeypatch, lambda decoder: len(decoder.ids) == TOKENS)
    finished = spread.driver.answer(asked())
    assert finished.generated_ids == alone.generated_ids
    assert finished.text == alone.text
    assert finished.finish_reason is FinishReason.LENGTH
    assert finished.statistics is not None
    assert finished.statistics.generated_tokens == TOKENS
    assert not spread.driver.of(LoadingAlone), "it does not wait for that"
    spread.driver.until(HostsLost)
    assert spread.driver.answer(asked(2)).generated_ids == alone.generated_ids


def test_an_answer_with_its_stop_sequence_is_complete(
    spread: Spread, alone: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = alone.generated_ids[19]

    class Stops:
        def advance(self, token: int) -> bool:
            return token == stop

    monkeypatch.setattr("app.engine.decode.make_stop_sequences", lambda tokenizer: Matched())

    class Matched:
        def matcher(self) -> Stops:
            return Stops()

    lose_after(spread, monkeypatch, lambda decoder: decoder.ids[-1] == stop)
    finished = spread.driver.answer(asked())
    assert finished.finish_reason is FinishReason.STOP
    end = alone.generated_ids.index(stop) + 1
    assert finished.generated_ids == alone.generated_ids[:end]
    spread.driver.until(HostsLost)


@pytest.mark.parametrize("last", [1, 20, TOKENS - 1])
def test_an_answer_before_its_end_goes_on(
    spread: Spread, alone: Finished, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    lose_after(spread, monkeypatch, lambda decoder: len(decoder.ids) == last)
    finished = spread.driver.answer(asked())
    assert spread.driver.of(HostsLost)
    assert finished.generated_ids == alone.generated_ids
    assert finished.text == alone.text
