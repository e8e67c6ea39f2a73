"""A machine that dies, sleeps or is cut off: the answer goes on without it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from app.extras.hosts import cluster
from app.extras.hosts.cluster import Cluster, RingState, RingWatch
from app.protocol.commands import Ask, CachePolicy, Close, Load
from app.protocol.events import Closed, Event, Failed, Finished, HostsLost, Loaded, Token
from app.protocol.hosts import Hosts
from app.protocol.options import BackgroundPolicy, Mode
from app.protocol.reasons import FailureKind
from benchmarks.machines import relayed
from benchmarks.relay import Relay
from tests import tiny
from tests.engine.driver import Driver, question
from tests.extras.hosts.machines import workers
from tests.patience import PATIENCE

NOTICED_SECONDS = 5.0 * PATIENCE
HANGS_SECONDS = 10.0 * PATIENCE
TOKENS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("model"), "llama", 0)


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver(connect=Cluster)
    driver.engine.send(CachePolicy(BackgroundPolicy.OFF))
    yield driver
    driver.engine.send(Close())
    driver.until(Closed)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with workers() as running:
        yield running


def asked(turn: int = 1) -> Ask:
    return replace(question(Mode.SPARSE, tokens=TOKENS), conversation="c")


def shards() -> dict[str, psutil.Process]:
    """The processes of the ranks that this process has started, by rank."""
    found = {}
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # also one that has ended, but was not waited for yet
            if "app.extras.hosts.shard" in each.cmdline():
                found[each.environ()["MLX_RANK"]] = each
    return found


def alone(folder: Path) -> Finished:
    driver = Driver()
    driver.load(folder)
    finished = driver.answer(asked())
    driver.engine.send(Close())
    return finished


def written(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Token))


def run_and_lose(
    driver: Driver,
    moment: int,
    lose: Callable[[psutil.Process], None],
    rank: str = "1",
    of: type[Event] | None = None,
) -> float:
    """Ask, and lose a rank after that many events, `of` a kind. Seconds from then to the end of the
    turn."""
    seen, lost_at, victim = 0, 0.0, shards()[rank]

    def on_event(event: Event) -> None:
        nonlocal seen, lost_at
        seen += of is None or isinstance(event, of)
        if seen == moment and not lost_at:
            lost_at = time.monotonic()
            lose(victim)

    driver.on_event = on_event
    driver.run(asked())
    driver.on_event = lambda event: None
    return time.monotonic() - lost_at if lost_at else 0.0


def suspend(relay: Relay) -> None:
    psutil.Process(relay.pid).suspend()


def kill(process: psutil.Process) -> None:
    process.kill()


def check_answer(driver: Driver, expected: Finished) -> None:
    """The same as on one machine, and nothing of it was shown twice or lost."""
    finished = driver.events[-1]
    assert isinstance(finished, Finished), finished
    assert finished.generated_ids == expected.generated_ids
    assert finished.text == expected.text
    assert written(driver.events) == expected.text


@pytest.mark.slow
def test_a_killed_worker_is_named_and_the_answer_goes_on(
    driver: Driver, hosts: Hosts, folder: Path
) -> None:
    expected = alone(folder)
    assert isinstance(driver.load(folder, hosts=hosts), Loaded)
    events = len(driver.events)
    assert run_and_lose(driver, 12, kill) < HANGS_SECONDS
    (lost,) = driver.of(HostsLost)
    assert lost.failure.kind is FailureKind.MACHINE_LOST
    assert lost.failure.data["machine"] == hosts.others[0].name
    check_answer(driver, expected)
    assert events
    assert not shards(), "no process is left"
    again = driver.answer(asked(2))
    assert again.generated_ids == expected.generated_ids, "and so does the next one"


@pytest.mark.slow
def test_one_that_sleeps_is_noticed_in_five_seconds(
    driver: Driver, hosts: Hosts, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, times, lose = alone(folder), list[float](), cluster.Cluster._lose

    def noticed(self: cluster.Cluster, name: str, reason: str) -> None:
        times.append(time.monotonic())
        lose(self, name, reason)

    def sleep(process: psutil.Process) -> None:
        times.append(time.monotonic())
        process.suspend()

    monkeypatch.setattr(cluster.Cluster, "_lose", noticed)
    driver.load(folder, hosts=hosts)
    assert run_and_lose(driver, 10, sleep) < HANGS_SECONDS
    assert times[1] - times[0] < NOTICED_SECONDS
    check_answer(driver, expected)


@pytest.mark.slow
def test_the_first_machines_own_part_may_be_lost_too(
    driver: Driver, hosts: Hosts, folder: Path
) -> None:
    expected = alone(folder)
    driver.load(folder, hosts=hosts)
    assert run_and_lose(driver, 12, kill, rank="0") < HANGS_SECONDS
    check_answer(driver, expected)


@pytest.mark.slow
def test_one_that_is_lost_between_questions_is_reported_then(
    driver: Driver, hosts: Hosts, folder: Path
) -> None:
    expected = alone(folder)
    driver.load(folder, hosts=hosts)
    files = [Path(each.environ()["MLX_HOSTFILE"]) for each in shards().values()]
    assert not any(file.parent.exists() for file in files), "who made them may be killed"
    shards()["1"].kill()
    driver.until(HostsLost)
    assert driver.answer(asked()).generated_ids == expected.generated_ids


@pytest.mark.slow
def test_where_it_does_not_fit_on_one_machine_what_was_written_stays(
    driver: Driver, hosts: Hosts, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.load(folder, hosts=hosts)

    def lose(process: psutil.Process) -> None:
        from app.engine.backend import memory

        monkeypatch.setattr(memory, "free", lambda: 10.0)
        process.kill()

    run_and_lose(driver, 2, lose, of=Token)
    failed = driver.events[-1]
    assert isinstance(failed, Failed)
    assert failed.failure.kind is FailureKind.NOT_LOADED_ALONE
    assert failed.failure.data["lost"]["kind"] == FailureKind.MACHINE_LOST
    assert written(driver.events)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [Relay.close, suspend], ids=["closed", "stalled"])
def test_a_ring_that_breaks_while_all_live_ends_the_waiting_soon(
    broken: Callable[[Relay], None],
    hosts: Hosts,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster, "STALLED_SECONDS", 2.0)
    with Relay(0.0, 1e9) as relay:

        def connect(command: Load, stopped: Callable[[], bool]) -> cluster.Cluster:
            return relayed(relay)(command, stopped)

        expected, driver = alone(folder), Driver(connect=connect)
        driver.engine.send(CachePolicy(BackgroundPolicy.OFF))
        assert isinstance(driver.load(folder, hosts=hosts), Loaded)
        assert run_and_lose(driver, 12, lambda process: broken(relay)) < HANGS_SECONDS
        (lost,) = driver.of(HostsLost)
        assert lost.failure.kind is FailureKind.RING_BROKEN
        check_answer(driver, expected)
        driver.engine.send(Close())
        driver.until(Closed)
    assert not shards()


def test_a_ring_may_be_still_for_ten_seconds_while_the_layers_run() -> None:
    watch = RingWatch(2.0, 10.0)
    states, told = (RingState(False, 7), RingState(False, 9)), list[float]()
    for now in map(float, range(100)):
        if watch.problem(states, True, now):
            told.append(now)
    assert min(told) == 10.0
    assert not watch.problem((RingState(False, 8), RingState(False, 9)), True, 100.0)
    assert not watch.problem((RingState(True, 8), RingState(False, 9)), True, 101.0)
    assert watch.problem((RingState(True, 9), RingState(False, 9)), True, 103.0) == "it was closed"


@pytest.mark.slow
def test_killed_at_twenty_moments_it_never_hangs_and_loses_no_text(
    hosts: Hosts, folder: Path
) -> None:
    expected = alone(folder)
    for moment in range(1, 21):
        driver = Driver(connect=Cluster)
        driver.engine.send(CachePolicy(BackgroundPolicy.OFF))
        assert isinstance(driver.load(folder, hosts=hosts), Loaded), moment
        assert run_and_lose(driver, moment, kill) < HANGS_SECONDS
        check_answer(driver, expected)
        driver.engine.send(Close())
        driver.until(Closed)
    assert not shards()
