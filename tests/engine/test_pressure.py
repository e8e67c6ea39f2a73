"""Pressure levels: single cases, then 10,000 random traces, in open and closed loop."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import mlx.core as mx
import pytest

from app.engine.backend.memory_probes import MemorySample, SystemPressure
from app.engine.memory import pressure
from app.engine.memory.pressure import (
    CRITICAL_AFTER,
    MIN_CHANGE_INTERVAL,
    RELAX_AFTER,
    LevelChange,
    PressureTracker,
    level_for,
)
from app.engine.model.text_encoder import english_encoder
from app.protocol.commands import CachePolicy
from app.protocol.events import (
    BackgroundProgress,
    Event,
    Failed,
    Finished,
    Loaded,
    MemoryFreed,
    MemoryReport,
    PhaseProgress,
    PressureChanged,
    Reloaded,
    Selected,
    Token,
    Unloaded,
)
from app.protocol.memory import PressureLevel
from app.protocol.options import BackgroundPolicy, Sampling
from app.protocol.reasons import FailureKind, Reason, ReasonCode
from app.protocol.stats import FinishReason, Phase
from tests.engine.driver import GB, Driver, ScriptedProbe, question, reading
from tests.tables import slow, table

TRACES = [100, slow(10_000)]
CALM, WARN, TIGHT, CRITICAL = PressureLevel


@table(
    "read, rung",
    [
        (reading(0.84), CALM),
        (reading(0.85), WARN),
        (reading(0.90), TIGHT),
        (reading(0.95), CRITICAL),
        (reading(0.1, SystemPressure.WARN), WARN),
        (reading(0.91, SystemPressure.WARN), TIGHT),
        (reading(0.1, SystemPressure.CRITICAL), CRITICAL),
        (reading(0.1, swapping=1e9), WARN),
        (MemorySample(SystemPressure.NORMAL, 1, 0), CRITICAL),
        (MemorySample(SystemPressure.NORMAL, 0, 0), CALM),
    ],
)
def test_a_sample_maps_to_its_level(read: MemorySample, rung: PressureLevel) -> None:
    assert level_for(read) is rung


def test_the_level_rises_at_once_but_becomes_critical_only_if_samples_agree() -> None:
    ladder = PressureTracker()
    assert ladder.update(0.0, reading(0.97)) is None
    assert ladder.update(0.3, reading(0.97)) is None, "less than half a second apart"
    assert ladder.update(0.4, reading(0.5)) is None, "a single one was wrong"
    assert ladder.update(0.9, reading(0.97)) is None
    change = ladder.update(1.5, reading(0.97))
    assert change == LevelChange(CRITICAL, CALM, reading(0.97))
    assert PressureTracker().update(0.0, reading(0.86)) == LevelChange(WARN, CALM, reading(0.86))


def test_the_level_falls_when_samples_stay_well_below() -> None:
    ladder = PressureTracker()
    ladder.update(0.0, reading(0.91))
    for second in range(1, 20):
        assert ladder.update(second, reading(0.86)) is None, "too near to leave"
    for second in range(20, 25):
        assert ladder.update(second, reading(0.81)) is None
    assert ladder.update(25.0, reading(0.81)) == LevelChange(WARN, TIGHT, reading(0.81))
    assert ladder.update(31.0, reading(0.3)) is None
    assert ladder.update(36.0, reading(0.3)) == LevelChange(CALM, WARN, reading(0.3))


def trace(random: random.Random) -> Iterator[tuple[float, MemorySample]]:
    """A minute or two of samples: quiet, drifting, jumping, swapping, at random intervals."""
    now, share = 0.0, random.random()
    while now < 90:
        mood = random.choice(["quiet", "drift", "jump", "edge"])
        edge = random.choice([0.80, 0.85, 0.90, 0.95])
        for _ in range(random.randrange(1, 40)):
            now += random.choice([0.1, 0.25, 0.5, 0.5, 1.0])
            match mood:
                case "quiet":
                    share = 0.9 * share + 0.03
                case "drift":
                    share += random.uniform(-0.03, 0.04)
                case "jump":
                    share = random.uniform(0, 1.1)
                case "edge":
                    share = edge + random.choice([-0.001, 0.001])
            share = min(max(share, 0.0), 1.2)
            level = random.choices(list(SystemPressure), [40, 2, 1])[0]
            yield now, reading(share, level, random.choice([0.0, 0.0, 0.0, 3e8]))


@pytest.mark.parametrize("traces", TRACES)
def test_the_level_does_not_flap(traces: int) -> None:
    for seed in range(traces):
        ladder, times, was = PressureTracker(), [], CALM
        for now, read in trace(random.Random(seed)):
            if (change := ladder.update(now, read)) is not None:
                assert change.previous is was
                assert change.level is ladder.level is not was
                was = change.level
                times.append(now)
        assert all(b - a >= MIN_CHANGE_INTERVAL for a, b in pairwise(times)), seed
        for second in range(1, 13):  # then all is quiet
            ladder.update(now + second, reading(0.2))
        assert ladder.level is CALM, seed


STEP = 0.5
REACTION = MIN_CHANGE_INTERVAL + CRITICAL_AFTER + STEP
"""Maximum seconds until a reaction: the minimum interval between changes, and agreeing samples."""


class Machine:
    """Simulates the memory of an engine and other programs. Reading grows a cache; the draft's
    weights and other conversations' caches can be freed."""

    def __init__(self, random: random.Random) -> None:
        self.random = random
        self.ladder = PressureTracker()
        self.weights, self.draft = 4.0, random.uniform(0.2, 1.0)
        self.idle, self.cache, self.others = random.uniform(0, 2), 0.0, 0.0
        self.reading = True

    @property
    def used(self) -> float:
        return self.weights + self.draft + self.idle + self.cache

    def step(self, now: float) -> MemorySample:
        self.others = max(0.0, min(self.others + self.random.uniform(-0.3, 0.3), 3.0))
        if self.reading:
            pace = 1 if self.ladder.level is CALM else 0.5
            self.cache += pace * self.random.uniform(0, 0.15)
        elif self.random.random() < 0.02:
            self.reading = True
        left = 13 - self.used - self.others
        level = (
            SystemPressure.CRITICAL
            if left < 0.3
            else SystemPressure.WARN
            if left < 0.6
            else SystemPressure.NORMAL
        )
        read = MemorySample(level, int(self.used * GB), 10 * GB)
        self.ladder.update(now, read)
        self.act()
        return read

    def act(self) -> None:
        if self.ladder.level is not CALM:
            self.idle = 0.0
        if self.ladder.level.severity >= TIGHT.severity:
            self.draft = 0.0
        if self.ladder.level is CRITICAL:
            self.cache, self.reading = 0.0, False


@pytest.mark.slow
@pytest.mark.parametrize("traces", TRACES)
def test_memory_exceeds_the_ceiling_only_until_the_reaction(traces: int) -> None:
    over_at_all = 0
    for seed in range(traces):
        machine, over_since = Machine(random.Random(seed)), None
        for tick in range(240):
            now = tick * STEP
            over = level_for(machine.step(now)) is CRITICAL
            over_at_all += over
            over_since = (now if over_since is None else over_since) if over else None
            assert over_since is None or now - over_since <= REACTION, seed
        machine.cache, machine.reading, machine.others = 0.0, False, 0.0
        machine.random = random.Random(0)
        machine.random.uniform = lambda a, b: 0.0  # type: ignore[method-assign]
        machine.random.random = lambda: 1.0  # type: ignore[method-assign]
        for tick in range(round((RELAX_AFTER + 2 * MIN_CHANGE_INTERVAL) / STEP) + 1):
            machine.step(120 + tick * STEP)
        assert machine.ladder.level is CALM, seed
    assert over_at_all > traces, "the traces have to push it"


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all waiting times; they are tested separately."""
    for name in ("MIN_CHANGE_INTERVAL", "CRITICAL_AFTER", "RELAX_AFTER"):
        monkeypatch.setattr(pressure, name, 0.0)
    monkeypatch.setattr(pressure, "MIN_SAMPLE_INTERVAL", 0.0)


@pytest.fixture
def probe() -> ScriptedProbe:
    return ScriptedProbe()


@pytest.fixture
def watched(probe: ScriptedProbe, folders: dict[str, Path], at_once: None) -> Iterator[Driver]:
    driver = Driver(probe=probe)
    assert isinstance(driver.load(folders["target"], folders["draft"]), Loaded)
    driver.engine.send(CachePolicy(BackgroundPolicy.OFF, share_prefixes=False))
    yield driver
    driver.on_event = lambda event: None
    driver.close()


def rise(driver: Driver, probe: ScriptedProbe, when: type[Event], to: MemorySample) -> None:
    def act(event: Event) -> None:
        if isinstance(event, when):
            probe.now = to

    driver.on_event = act


def test_a_warning_drops_idle_caches_and_halves_the_step(
    watched: Driver, probe: ScriptedProbe
) -> None:
    watched.answer(replace(question(), conversation="a"))
    rise(watched, probe, Selected, reading(0.87))
    watched.answer(replace(question(), conversation="b"))
    (change,) = watched.of(PressureChanged)
    assert (change.level, change.previous) == (PressureLevel.WARN, PressureLevel.NORMAL)
    assert change.reason.code is ReasonCode.MEMORY_SHARE
    assert change.reason.data["share"] == pytest.approx(0.87)
    (room,) = watched.of(MemoryFreed)
    assert room.freed_bytes > 0
    assert room.reason == Reason(ReasonCode.CACHES_DROPPED, {"all": False, "saved": False})
    steps = [e.done for e in watched.of(PhaseProgress) if e.phase is Phase.PREFILL]
    assert max(b - a for a, b in pairwise(steps[1:])) == 32, "half of the driver's 64"
    watched.until(MemoryReport)
    watched.on_event = lambda event: None
    probe.now = reading(0.3)
    finished = watched.answer(replace(question(), conversation="b"))
    assert finished.statistics.reused_tokens > 0, "the last conversation was kept"
    assert watched.of(PressureChanged)[0].level is PressureLevel.NORMAL


def test_a_warning_cancels_background_prefill_first(watched: Driver, probe: ScriptedProbe) -> None:
    watched.engine.send(CachePolicy(BackgroundPolicy.ALWAYS))
    first = watched.answer(replace(question(), conversation="a"))
    rise(watched, probe, BackgroundProgress, reading(0.87))
    room = watched.until(MemoryFreed)
    assert room.freed_bytes > 0
    assert room.reason.code is ReasonCode.BACKGROUND_FREED
    watched.on_event = lambda event: None
    again = watched.answer(replace(question(), conversation="a"))
    assert again.statistics.reused_tokens >= first.statistics.read_tokens - 1
    watched.events.clear()
    probe.now = reading(0.3)
    watched.finish(BackgroundProgress)


def test_the_systems_level_counts_as_well(watched: Driver, probe: ScriptedProbe) -> None:
    probe.now = reading(0.2, SystemPressure.WARN)
    change = watched.until(PressureChanged)
    assert isinstance(change, PressureChanged), "also while nothing is asked"
    assert change.level is PressureLevel.WARN
    assert change.reason.code is ReasonCode.OTHER_PROGRAMS


def test_at_tight_memory_the_draft_is_unloaded_until_needed(
    watched: Driver, probe: ScriptedProbe
) -> None:
    expected = watched.answer(question()).generated_ids
    rise(watched, probe, Selected, reading(0.91))
    watched.answer(question())
    (parked,) = watched.of(Unloaded)
    assert parked.model == "draft"
    assert parked.freed_bytes > 0
    watched.until(MemoryReport)
    watched.on_event = lambda event: None
    probe.now = reading(0.3)
    finished = watched.answer(question())
    (back,) = watched.of(Reloaded)
    assert back.model == "draft"
    assert {part.phase for part in finished.statistics.phases} >= {Phase.LOAD, Phase.SCORE}
    assert finished.generated_ids == expected


@pytest.mark.parametrize(
    ("phase", "speculate"),
    [
        (Phase.SCORE, True),
        (Phase.DECODE, False),
        slow(Phase.SCORE, False),
        slow(Phase.DECODE, True),
    ],
)
def test_a_draft_is_unloaded_once_nothing_holds_its_weights(
    phase: Phase, speculate: bool, watched: Driver, probe: ScriptedProbe
) -> None:
    """Neither scoring nor draft proposals reload it."""
    used: list[tuple[Event, int]] = []

    def act(event: Event) -> None:
        used.append((event, mx.get_active_memory()))
        if isinstance(event, PhaseProgress) and event.phase is phase:
            probe.now = reading(0.91)

    watched.on_event = act
    sampling = Sampling(max_tokens=12, speculate=speculate)
    watched.answer(replace(question(), sampling=sampling, conversation="a"))
    (at,) = (i for i, (event, _) in enumerate(used) if isinstance(event, Unloaded))
    (_, before), (unloaded, after) = used[at - 1 : at + 1]
    assert isinstance(unloaded, Unloaded)
    loaded = watched.engine._loaded
    assert before - after >= loaded.pair.draft.info.weight_bytes > 0
    assert unloaded.freed_bytes >= loaded.pair.draft.info.weight_bytes
    assert unloaded.freed_bytes == pytest.approx(before - after, rel=0.05)  # others free theirs


def test_at_critical_memory_the_answer_so_far_is_kept(
    watched: Driver, probe: ScriptedProbe
) -> None:
    rise(watched, probe, Token, reading(0.97))
    finished = watched.answer(replace(question(tokens=400), conversation="a"))
    assert finished.finish_reason is FinishReason.MEMORY
    assert 0 < len(finished.generated_ids) < 400
    assert finished.statistics
    assert watched.of(PressureChanged)[-1].level is PressureLevel.CRITICAL
    watched.until(MemoryFreed)
    freed = watched.of(MemoryFreed)[-1].reason
    assert (freed.code, freed.data["all"]) == (ReasonCode.CACHES_DROPPED, True)
    watched.on_event = lambda event: None
    probe.now = reading(0.3)
    assert watched.answer(question()).finish_reason is not FinishReason.MEMORY, (
        "the engine lives on"
    )


def test_critical_memory_before_the_first_token_is_reported(
    watched: Driver, probe: ScriptedProbe
) -> None:
    rise(watched, probe, Selected, reading(0.97))
    failed = watched.run(question())
    assert failed.failure.kind is FailureKind.MEMORY_EXHAUSTED
    again = watched.run(question())
    assert isinstance(again, Failed), "as long as it is"
    watched.on_event = lambda event: None
    probe.now = reading(0.3)
    assert isinstance(watched.run(question()), Finished)


def test_under_pressure_the_built_in_encoders_are_dropped(
    watched: Driver, probe: ScriptedProbe
) -> None:
    encoder = english_encoder()
    probe.now = reading(0.86)
    assert watched.until(PressureChanged).level is PressureLevel.WARN
    assert english_encoder() is encoder
    probe.now = reading(0.92)
    assert watched.until(PressureChanged).level is PressureLevel.TIGHT
    watched.answer(question(tokens=1))
    assert english_encoder() is not encoder
    probe.now = reading(0.3)


def test_a_failing_probe_is_ignored(folders: dict[str, Path]) -> None:
    class Broken(ScriptedProbe):
        def read(self) -> MemorySample:
            raise OSError("no /proc here")

    driver = Driver(probe=Broken())
    driver.load(folders["target"], folders["draft"])
    assert isinstance(driver.run(question()), Finished)
    driver.close()
