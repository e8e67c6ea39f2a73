"""The ladder: single cases, then 10,000 random traces of pressure, open and closed loop."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from app.engine.backend.memory_probes import MemorySample, SystemPressure
from app.engine.memory.pressure import (
    CRITICAL_AFTER,
    MIN_CHANGE_INTERVAL,
    RELAX_AFTER,
    LevelChange,
    PressureTracker,
    level_for,
)
from app.protocol.memory import PressureLevel
from tests.engine.scripted import GB, reading

TRACES = [500, pytest.param(10_000, marks=pytest.mark.slow)]
CALM, WARN, TIGHT, CRITICAL = PressureLevel


@pytest.mark.parametrize(
    ("read", "rung"),
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
def test_what_a_reading_asks_for(read: MemorySample, rung: PressureLevel) -> None:
    assert level_for(read) is rung


def test_it_climbs_at_once_but_to_the_top_only_when_two_readings_agree() -> None:
    ladder = PressureTracker()
    assert ladder.update(0.0, reading(0.97)) is None
    assert ladder.update(0.3, reading(0.97)) is None, "less than half a second apart"
    assert ladder.update(0.4, reading(0.5)) is None, "a single one was wrong"
    assert ladder.update(0.9, reading(0.97)) is None
    change = ladder.update(1.5, reading(0.97))
    assert change == LevelChange(CRITICAL, CALM, reading(0.97))
    assert PressureTracker().update(0.0, reading(0.86)) == LevelChange(WARN, CALM, reading(0.86))


def test_it_comes_down_when_readings_stay_well_below() -> None:
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
    """A minute or two of readings: quiet, drifting, jumping about, swapping, at any distance."""
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
def test_it_does_not_flap_whatever_is_read(traces: int) -> None:
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
"""Seconds: the last change may just have been, then two readings have to agree."""


class Machine:
    """An engine and other programs on one machine, as far as memory goes. Reading adds to a cache,
    the draft's weights and other conversations' caches can go."""

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


@pytest.mark.parametrize("traces", TRACES)
def test_it_is_never_over_the_ceiling_for_longer_than_it_takes_to_react(traces: int) -> None:
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
