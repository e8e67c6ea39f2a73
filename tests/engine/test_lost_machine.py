"""The engine's reaction to a lost machine of a sharded target; the rank is in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.engine.backend import memory
from app.engine.backend.memory import to_failed
from app.engine.progress import LoadStopped
from app.extras.hosts.sharded import Operation
from app.protocol.commands import Ask, CachePolicy, Close, Load
from app.protocol.events import (
    Closed,
    CommandFailed,
    CostsUpdated,
    Event,
    Failed,
    Finished,
    HostsLost,
    Loaded,
    LoadingAlone,
    PairLost,
    PhaseProgress,
    SnapshotFailed,
    SnapshotProgress,
    Token,
)
from app.protocol.options import BackgroundPolicy, Mode
from app.protocol.prompt import Message, Role
from app.protocol.reasons import Failure, FailureKind
from app.protocol.stats import FinishReason, Phase
from tests import tiny
from tests.engine.driver import TEXT, Driver, question
from tests.engine.spread import Spread, gone, lose_after
from tests.patience import PATIENCE

TOKENS = 40
LIMIT = 20.0 * PATIENCE


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
    """The answer on a single machine."""
    driver = Driver()
    driver.load(folder)
    finished = driver.answer(asked())
    driver.close()
    return finished


def asked(tokens: int = TOKENS) -> Ask:
    ask = question(Mode.SPARSE, tokens=tokens, text=TEXT[:600])
    return replace(ask, conversation="c")


def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free", lambda: 10.0)


# ------------------------------------------------------------------ it does not load here


def test_if_the_target_does_not_fit_on_this_machine_no_pair_is_loaded(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = spread.driver
    with monkeypatch.context() as patch:
        spread.lose_at(3)
        no_memory(patch)
        failed = driver.run(asked())
    order = [
        event for event in driver.events if isinstance(event, LoadingAlone | PairLost | Failed)
    ]
    assert [type(event) for event in order] == [LoadingAlone, PairLost, Failed]
    assert order[1] == PairLost(failed.failure)
    assert failed.failure.kind is FailureKind.NOT_LOADED_ALONE
    assert failed.failure.data["failure"]["kind"] == FailureKind.NOT_ENOUGH_MEMORY
    spread.load()
    assert isinstance(driver.run(asked()), Finished), "the same pair loads again"


def test_a_loss_between_turns_does_not_answer_a_load(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        no_memory(patch)
        spread.lose_now()
        spread.driver.until(PairLost)
    spread.load()
    assert not spread.driver.of(CommandFailed)


def test_every_failure_of_loading_alone_is_reported(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise RuntimeError("[metal::malloc] no")

    with monkeypatch.context() as patch:
        patch.setattr("app.engine.pair_loader.load_one", fail)
        spread.lose_now()
        lost = spread.driver.until(PairLost)
    assert lost.failure.data["lost"]["kind"] == FailureKind.MACHINE_LOST
    assert lost.failure.data["error"] == "[metal::malloc] no"


# ------------------------------------------------------------------ a complete answer


def test_an_answer_at_its_limit_is_complete(
    spread: Spread, alone: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_after(spread, monkeypatch, lambda decoder: len(decoder.ids) == TOKENS)
    finished = spread.driver.answer(asked())
    assert finished.generated_ids == alone.generated_ids
    assert finished.text == alone.text
    assert finished.finish_reason is FinishReason.LENGTH
    assert finished.statistics.generated_tokens == TOKENS
    assert not spread.driver.of(LoadingAlone), "it does not wait for that"
    spread.driver.until(HostsLost)
    load, _ = spread.driver.engine.pair
    assert load.hosts is None
    assert spread.driver.answer(asked()).generated_ids == alone.generated_ids


def test_an_answer_with_its_stop_sequence_is_complete(
    spread: Spread, alone: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = alone.generated_ids[19]

    class Stops:
        def advance(self, token: int) -> bool:
            return token == stop

    monkeypatch.setattr("app.engine.turn.decode.make_stop_sequences", lambda tokenizer: Matched())

    class Matched:
        def matcher(self) -> Stops:
            return Stops()

    lose_after(spread, monkeypatch, lambda decoder: decoder.ids[-1] == stop)
    finished = spread.driver.answer(asked())
    assert finished.finish_reason is FinishReason.STOP
    end = alone.generated_ids.index(stop) + 1
    assert finished.generated_ids == alone.generated_ids[:end]
    spread.driver.until(HostsLost)


@pytest.mark.slow  # after 20 tokens in the test of the statistics, too
@pytest.mark.parametrize("last", [1, 20, TOKENS - 1])
def test_an_unfinished_answer_continues(
    spread: Spread, alone: Finished, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    lose_after(spread, monkeypatch, lambda decoder: len(decoder.ids) == last)
    finished = spread.driver.answer(asked())
    assert spread.driver.of(HostsLost)
    assert finished.generated_ids == alone.generated_ids
    assert finished.text == alone.text


def test_an_answer_that_continues_an_earlier_one_keeps_its_limit(
    spread: Spread, alone: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, before = asked(TOKENS - 10), alone.generated_ids[:10]
    earlier = Message(Role.ASSISTANT, "", token_ids=before)
    lose_after(spread, monkeypatch, lambda decoder: len(decoder.ids) == 20)
    finished = spread.driver.answer(replace(ask, messages=(*ask.messages, earlier)))
    assert spread.driver.of(HostsLost)
    assert finished.generated_ids[:10] == before
    assert len(finished.generated_ids) == TOKENS
    assert finished.statistics.generated_tokens == TOKENS - 10


# ------------------------------------------------------------------ stopping it


def slow_load(patch: pytest.MonkeyPatch, on_load: Callable[[], None]) -> None:
    """Make loading last until it is stopped, at most `LIMIT` seconds."""

    def load(path: Path, model: object, stopped: Callable[[], bool], check: bool) -> None:
        on_load()
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            if stopped():
                raise LoadStopped
            time.sleep(0.01)

    patch.setattr("app.engine.model.loader._evaluate_weights", load)


def test_cancelling_while_loading_alone_keeps_the_answer_so_far(
    spread: Spread, alone: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = spread.driver
    with monkeypatch.context() as patch:
        slow_load(patch, driver.cancel)
        lose_after(spread, patch, lambda decoder: len(decoder.ids) == 20)
        finished = driver.answer(asked())
        assert finished.finish_reason is FinishReason.CANCELLED
        assert finished.generated_ids == alone.generated_ids[:20]
        assert alone.text.startswith(finished.text)
        assert finished.text
        assert finished.statistics.generated_tokens == 20
    again = driver.answer(asked())
    assert again.generated_ids == alone.generated_ids


def test_after_a_cancel_the_target_is_loaded_when_idle(
    spread: Spread, alone: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = spread.driver
    spread.lose_when(lambda event: isinstance(event, Token))

    def cancel(event: Event) -> None:
        if isinstance(event, LoadingAlone):
            driver.cancel()

    lose = driver.on_event

    def act(event: Event) -> None:
        lose(event)
        cancel(event)

    driver.on_event = act
    assert driver.answer(asked()).finish_reason is FinishReason.CANCELLED
    driver.on_event = lambda event: None
    driver.until(HostsLost)
    assert not driver.of(PairLost)


def test_cancelling_while_the_prompt_is_read_again_keeps_the_answer_so_far(
    spread: Spread, alone: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = spread.driver
    with monkeypatch.context() as patch:
        lose_after(spread, patch, lambda decoder: len(decoder.ids) == 20)
        driver.cancel_when(lambda event: isinstance(event, HostsLost))
        finished = driver.answer(asked())
    driver.on_event = lambda event: None
    assert finished.finish_reason is FinishReason.CANCELLED
    assert finished.generated_ids == alone.generated_ids[:20]
    assert finished.text


@pytest.mark.parametrize("command", [Close(), None])
def test_closing_or_another_load_stops_loading_alone_between_turns(
    folder: Path, monkeypatch: pytest.MonkeyPatch, command: Close | None
) -> None:
    spread, loading = Spread(folder), threading.Event()
    spread.load()
    driver = spread.driver
    with monkeypatch.context() as patch:
        slow_load(patch, loading.set)
        spread.lose_now()
        assert loading.wait(LIMIT)
        started_at = time.monotonic()
        if command is None:
            patch.undo()
        driver.engine.send(command or Load(str(folder)))
        driver.until(Closed, Loaded)
        assert time.monotonic() - started_at < LIMIT / 2
    assert not driver.of(HostsLost)
    assert not driver.of(PairLost)
    assert not driver.of(CommandFailed)
    if command is None:
        driver.close()


def test_if_another_pair_is_requested_the_lost_target_is_not_loaded(
    spread: Spread, folder: Path
) -> None:
    driver, engine = spread.driver, spread.driver.engine

    def lose_and_load(event: Event) -> None:
        if isinstance(event, Token) and spread.shards[-1].lost is None:
            spread.shards[-1].lost = gone()
            spread.shards[-1].on_lost()
            driver.cancel()
            engine.send(Load(str(folder)))

    driver.on_event = lose_and_load
    driver.answer(asked())
    driver.on_event = lambda event: None
    driver.until(Loaded)
    assert not driver.of(LoadingAlone)


def test_a_machine_lost_while_the_tokenizer_loads_is_noticed(folder: Path) -> None:
    spread = Spread(folder)
    spread.lost_while_loading = True
    spread.load()
    spread.driver.until(HostsLost)
    spread.driver.close()


# ------------------------------------------------------------------ how the turn is reported


def test_statistics_cover_the_whole_answer_and_are_not_used_as_timings(
    folder: Path, alone: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread = Spread(folder)
    spread.driver.engine.send(
        CachePolicy(BackgroundPolicy.OFF, costs_folder=str(tmp_path / "costs"))
    )
    spread.load()
    slow = 0.3
    monkeypatch.setattr("app.engine.model.loader.probe", lambda *args: time.sleep(slow))
    lose_after(spread, monkeypatch, lambda decoder: len(decoder.ids) == 20)
    finished = spread.driver.answer(asked())
    statistics = finished.statistics
    assert finished.generated_ids == alone.generated_ids
    assert finished.text == alone.text
    assert len(finished.generated_ids) == statistics.generated_tokens == TOKENS
    assert statistics.prompt_tokens == alone.statistics.prompt_tokens
    assert statistics.confidence == pytest.approx(alone.statistics.confidence, rel=1e-3)
    lost_at = [type(each) for each in spread.driver.events].index(HostsLost)
    assert statistics.ttft > 0
    assert statistics.decode_seconds > 0
    assert sum(part.seconds for part in statistics.phases) == pytest.approx(statistics.ttft)
    after = [each for each in spread.driver.events[lost_at:] if isinstance(each, CostsUpdated)]
    assert len(after) == 1, "only what was known about the pair before"
    spread.driver.close()


def test_time_of_an_interrupted_prefill_counts_as_loading(
    spread: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread.lose_when(lambda event: isinstance(event, PhaseProgress))
    finished = spread.driver.answer(asked())
    assert finished.statistics.generated_tokens == TOKENS
    assert Phase.LOAD in [part.phase for part in finished.statistics.phases]


# ------------------------------------------------------------------ the engine's thread


def test_an_error_that_cannot_be_converted_to_text_is_still_reported(spread: Spread) -> None:
    class Silent(RuntimeError):
        def __str__(self) -> str:
            raise ValueError("no text")

    def fail(operation: Operation) -> list[dict[str, Any]]:
        raise Silent

    spread.shards[-1].run = fail  # type: ignore[method-assign]
    failed = spread.driver.run(replace(asked(), mode=Mode.FULL))
    assert failed.failure == Failure(FailureKind.INTERNAL, {"error": "Silent"})
    assert isinstance(spread.load(), Loaded)


def test_circular_causes_are_described() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert to_failed(1, first).failure.kind is FailureKind.INTERNAL


def test_a_save_interrupted_by_a_lost_machine_keeps_the_older_snapshot(
    folder: Path, tmp_path: Path
) -> None:
    spread = Spread(folder)
    spread.driver.engine.send(
        CachePolicy(BackgroundPolicy.OFF, snapshot_folder=str(tmp_path / "saved"))
    )
    spread.load()
    driver = spread.driver
    driver.answer(asked())
    driver.finish(SnapshotProgress)
    before = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    assert before
    spread.lose_when(lambda event: isinstance(event, Finished))
    driver.answer(asked())
    driver.until(HostsLost)
    assert not driver.of(SnapshotFailed)
    after = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*"))
    assert set(before) <= set(after)
    driver.close()
