"""What the engine does on each rung, with a probe that reads what the test says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import mlx.core as mx
import pytest

from app.engine.backend.memory_probes import MemorySample, SystemPressure
from app.engine.memory import pressure
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
from tests.engine.driver import Driver, question
from tests.engine.scripted import ScriptedProbe, reading


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its waits the ladder follows every reading; how long it waits is tested by itself."""
    for name in ("MIN_CHANGE_INTERVAL", "CRITICAL_AFTER", "RELAX_AFTER"):
        monkeypatch.setattr(pressure, name, 0.0)
    monkeypatch.setattr(pressure, "MIN_SAMPLE_INTERVAL", 0.0)


@pytest.fixture
def probe() -> ScriptedProbe:
    return ScriptedProbe()


@pytest.fixture
def watched(probe: ScriptedProbe, folders: dict[str, Path]) -> Iterator[Driver]:
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


def test_a_warning_drops_what_is_kept_and_halves_the_step(
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
    assert finished.statistics
    assert finished.statistics.reused_tokens > 0, "the last conversation was kept"
    assert watched.of(PressureChanged)[0].level is PressureLevel.NORMAL


def test_a_warning_gives_up_background_reading_first(watched: Driver, probe: ScriptedProbe) -> None:
    watched.engine.send(CachePolicy(BackgroundPolicy.ALWAYS))
    first = watched.answer(replace(question(), conversation="a"))
    rise(watched, probe, BackgroundProgress, reading(0.87))
    room = watched.until(MemoryFreed)
    assert isinstance(room, MemoryFreed)
    assert room.freed_bytes > 0
    assert room.reason.code is ReasonCode.BACKGROUND_FREED
    watched.on_event = lambda event: None
    again = watched.answer(replace(question(), conversation="a"))
    assert first.statistics
    assert again.statistics
    assert again.statistics.reused_tokens >= first.statistics.read_tokens - 1
    watched.events.clear()
    probe.now = reading(0.3)
    while not (healed := watched.of(BackgroundProgress)) or healed[-1].done < healed[-1].total:
        watched.until(BackgroundProgress)


def test_a_level_of_the_system_counts_as_well(watched: Driver, probe: ScriptedProbe) -> None:
    probe.now = reading(0.2, SystemPressure.WARN)
    change = watched.until(PressureChanged)
    assert isinstance(change, PressureChanged), "also while nothing is asked"
    assert change.level is PressureLevel.WARN
    assert change.reason.code is ReasonCode.OTHER_PROGRAMS


def test_when_it_is_tight_the_draft_is_parked_until_it_is_needed(
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
    assert finished.statistics
    assert {part.phase for part in finished.statistics.phases} >= {Phase.LOAD, Phase.SCORE}
    assert finished.generated_ids == expected


@pytest.mark.parametrize("speculate", [False, True])
@pytest.mark.parametrize("phase", [Phase.SCORE, Phase.DECODE])
def test_a_draft_is_unloaded_once_nothing_holds_its_weights(
    phase: Phase, speculate: bool, watched: Driver, probe: ScriptedProbe
) -> None:
    """Neither scoring, nor proposals."""
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
    assert loaded is not None
    assert loaded.pair.draft is not None
    assert before - after >= loaded.pair.draft.info.weight_bytes > 0
    assert unloaded.freed_bytes >= loaded.pair.draft.info.weight_bytes
    assert unloaded.freed_bytes == pytest.approx(before - after, rel=0.05)  # others free theirs


def test_when_it_is_critical_what_was_written_stays(watched: Driver, probe: ScriptedProbe) -> None:
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


def test_when_it_is_critical_before_the_first_word_a_sentence_says_so(
    watched: Driver, probe: ScriptedProbe
) -> None:
    rise(watched, probe, Selected, reading(0.97))
    failed = watched.run(question())
    assert isinstance(failed, Failed)
    assert failed.failure.kind is FailureKind.MEMORY_EXHAUSTED
    again = watched.run(question())
    assert isinstance(again, Failed), "as long as it is"
    watched.on_event = lambda event: None
    probe.now = reading(0.3)
    assert isinstance(watched.run(question()), Finished)


def test_a_probe_that_fails_tells_nothing(folders: dict[str, Path]) -> None:
    class Broken(ScriptedProbe):
        def read(self) -> MemorySample:
            raise OSError("no /proc here")

    driver = Driver(probe=Broken())
    driver.load(folders["target"], folders["draft"])
    assert isinstance(driver.run(question()), Finished)
    driver.close()
