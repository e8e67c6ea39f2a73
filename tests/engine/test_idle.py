"""Idle work: its memory is counted and freed first, and its failures are reported."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np
import pytest

from app.engine import engine
from app.engine.backend import memory
from app.engine.cache import prefill
from app.engine.cache.sizes import CacheSize
from app.engine.cache.snapshot import MANIFEST
from app.engine.cache.snapshot_folder import remove_snapshot
from app.engine.memory.cache_pool import BackgroundPrefill, CachePool
from app.engine.memory.manager import MemoryManager, MemoryNeed
from app.engine.progress import TurnCancelled, TurnClock
from app.protocol.commands import CachePolicy
from app.protocol.events import (
    BackgroundProgress,
    EngineWarning,
    Event,
    MemoryFreed,
    SnapshotFailed,
    SnapshotProgress,
)
from app.protocol.options import BackgroundPolicy
from app.protocol.reasons import FailureKind, Reason, ReasonCode
from app.protocol.stats import Reading
from tests import tiny
from tests.engine.driver import LIMIT, Driver
from tests.engine.oracle import TOLERANCE, difference
from tests.engine.test_cache_check import first_question
from tests.engine.test_turns import FIRST, LATER, Chat, conversation, dense_logits, pair
from tests.tables import table
from tests.tiny import build


class Power:
    """A power probe controlled by the test."""

    def __init__(self, battery: bool = False) -> None:
        self.battery, self.asked = battery, 0
        self.asked_again = threading.Event()

    def on_battery(self) -> bool:
        self.asked += 1
        if self.asked >= 5:
            self.asked_again.set()
        return self.battery


class Idle:
    """A pool of sparsely read conversations of a tiny model, without an engine."""

    def __init__(self, policy: CachePolicy, names: str = "c", model: str = "llama") -> None:
        self.pair = pair(build(model))
        self.pair.target.cache_size = CacheSize(1000.0, 0)
        self.events: list[Event] = []
        self.stopped: Callable[[], bool] = lambda: False
        self.has_pending = False
        self.pool = CachePool(
            self.pair,
            policy,
            self.events.append,
            Power(),
            lambda: self.stopped(),
            lambda: self.has_pending,
        )
        for name in names:
            self.use(name)

    def use(self, name: str) -> None:
        conversation_cache = self.pool.get_or_restore(name, self.progress)
        if not len(conversation_cache.target):
            first, answer, _ = conversation()
            chat = Chat(self.pair.target.model)
            chat.conversation = conversation_cache
            chat.read(first, FIRST)
            chat.write(first, answer)

    @property
    def progress(self) -> TurnClock:
        return TurnClock(1, self.events.append, lambda: self.stopped())

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


ALWAYS = CachePolicy(BackgroundPolicy.ALWAYS)


# ------------------------------------------------------- the fork counts, and goes first


def test_memory_of_background_prefill_is_counted() -> None:
    idle = Idle(ALWAYS, "ab")
    before, others = idle.pool.nbytes, idle.pool.idle_bytes
    assert idle.pool.step()
    forked = idle.pool.background_bytes
    assert forked > 0
    assert idle.pool.nbytes == before + forked
    assert idle.pool.idle_bytes == others + forked
    assert idle.pool.cancel_background() == forked
    assert idle.pool.nbytes == before


def test_cancelling_background_prefill_frees_its_memory() -> None:
    idle = Idle(ALWAYS)
    for _ in range(3):
        idle.pool.step()
    active, forked = mx.get_active_memory(), idle.pool.background_bytes
    MemoryManager(idle.pair, idle.events.append, idle.pool).stop_background_prefill()
    assert active - mx.get_active_memory() >= 0.9 * forked
    (event,) = idle.of(MemoryFreed)
    assert event.freed_bytes == forked
    assert event.reason.code is ReasonCode.BACKGROUND_FREED


def test_a_long_background_step_is_abandoned_for_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill, "PART_SECONDS", 1e-9)
    idle = Idle(ALWAYS)
    idle.pool.step()
    idle.has_pending = True
    assert idle.pool.step()
    idle.has_pending = False
    idle.pool.step()
    first, second = idle.of(BackgroundProgress)
    assert 0 < first.done < second.done == first.done + 16
    assert idle.of(EngineWarning) == []


def test_background_prefill_is_cancelled_before_other_conversations_are_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    idle = Idle(ALWAYS, "ab")
    idle.pool.step()
    pool = idle.pool
    monkeypatch.setattr(memory, "free", lambda: 0.0 if pool.background_bytes else 1e12)
    manager = MemoryManager(idle.pair, idle.events.append, pool)
    need = MemoryNeed("It", idle.pair.target, 1e6, 1e6)
    manager.ensure_free(need, pool._caches["b"], idle.progress, force=False)
    assert not pool.background_bytes
    assert set(pool._caches) == {"a", "b"}
    assert len(idle.of(MemoryFreed)) == 1


def test_background_prefill_starts_only_within_the_budget(
    tmp_path: Path,
) -> None:
    one = Idle(ALWAYS).pool.nbytes
    policy = CachePolicy(
        BackgroundPolicy.ALWAYS, memory_budget=2 * one + 1, snapshot_folder=str(tmp_path)
    )
    idle = Idle(replace(policy, snapshot_folder=None), "ab")
    assert not idle.pool.step()
    assert idle.pool.has_waiting_work
    assert set(idle.pool._caches) == {"a", "b"}
    idle = Idle(policy, "ab")
    while idle.pool.step():
        pass
    assert {event.conversation for event in idle.of(SnapshotProgress)} == {"a", "b"}
    assert idle.of(BackgroundProgress)[-1].done == idle.of(BackgroundProgress)[-1].total
    assert set(idle.pool._caches) == {"b"}, "what is on the disk goes for it"


@pytest.mark.parametrize("why", ["never saved", "saving failed", "deleted"])
def test_background_prefill_never_evicts_unsaved_caches(tmp_path: Path, why: str) -> None:
    """Conversations that are never saved, such as those of the server."""
    one = Idle(ALWAYS).pool.nbytes
    policy = CachePolicy(
        BackgroundPolicy.ALWAYS, memory_budget=2 * one + 1, snapshot_folder=str(tmp_path)
    )
    idle = Idle(policy, "ab")
    if why == "never saved":
        idle.pool.get_or_restore("a", idle.progress, on_disk=False)
        idle.pool._unsaved.pop("a")
        idle.use("b")
    elif why == "saving failed":
        with mock.patch("app.engine.cache.snapshot.os.replace", side_effect=OSError(28, "full")):
            idle.pool._save("a")
        assert idle.of(SnapshotFailed)
    while idle.pool.step(background=False):
        pass
    if why == "deleted":
        remove_snapshot(tmp_path, "a")
    while idle.pool.step():
        pass
    assert set(idle.pool._caches) == {"a", "b"}
    assert len(idle.pool._caches["a"].target)


def test_background_prefill_is_dropped_when_no_gaps_are_left() -> None:
    """This happens after a turn that read everything."""
    idle = Idle(ALWAYS)
    idle.pool.step()
    idle.pool._caches["c"].reset_to_stock()
    assert not idle.pool.step()
    assert not idle.pool.background_bytes


# ---------------------------------------------------------------------------- failures


def test_a_background_failure_is_reported_once_and_has_no_other_effect(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = Idle(ALWAYS, "ab")
    with monkeypatch.context() as patched:
        broken = mock.Mock(side_effect=ValueError("shapes\ndo not match"))
        patched.setattr(BackgroundPrefill, "step", broken)
        with caplog.at_level(logging.WARNING, "app.engine"):
            while idle.pool.step():
                pass
    assert broken.call_count == 1
    (warning,) = idle.of(EngineWarning)
    assert warning.conversation == "b"
    assert warning.reason == Reason(ReasonCode.BACKGROUND_STOPPED, {"error": "shapes do not match"})
    assert "ValueError" in caplog.text
    assert all(len(cache.target) for cache in idle.pool._caches.values())
    assert not idle.pool.has_waiting_work
    idle.use("b")
    assert idle.pool.step()
    assert idle.of(BackgroundProgress)


def test_out_of_memory_in_the_background_is_reported_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    idle = Idle(ALWAYS)
    error = RuntimeError("[METAL] Command buffer execution failed: Insufficient Memory (00000008)")
    monkeypatch.setattr(BackgroundPrefill, "step", mock.Mock(side_effect=error))
    assert idle.pool.step()
    data = idle.of(EngineWarning)[0].reason.data
    assert data["failure"]["kind"] == FailureKind.OUT_OF_MEMORY


def test_failures_of_idle_work_keep_all_caches(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded.engine.send(CachePolicy(BackgroundPolicy.OFF))
    ask = first_question()
    first = loaded.answer(ask)
    with monkeypatch.context() as patched:
        patched.setattr(CachePool, "step", mock.Mock(side_effect=ValueError("broken")))
        warning = loaded.until(EngineWarning)
    assert warning.reason == Reason(ReasonCode.IDLE_WORK_FAILED, {"error": "broken"})
    again = loaded.answer(ask)
    assert again.statistics.reused_tokens >= first.statistics.read_tokens - 1


def test_a_damaged_cache_is_neither_saved_nor_extended(tmp_path: Path) -> None:
    idle = Idle(CachePolicy(BackgroundPolicy.OFF, snapshot_folder=str(tmp_path)))
    target = idle.pool._caches["c"].target
    target.ids, target.cached = target.ids[:-3], target.cached[:-3]
    while idle.pool.step():
        pass
    (warning,) = idle.of(EngineWarning)
    assert warning.reason.code is ReasonCode.CACHE_DAMAGED
    assert list(warning.reason.data) == ["target"]
    assert not idle.of(SnapshotProgress)
    assert not [*tmp_path.glob(f"*/*/{MANIFEST}")]
    idle = Idle(ALWAYS)
    target = idle.pool._caches["c"].target
    target.ids, target.cached = target.ids[:-3], target.cached[:-3]
    while idle.pool.step():
        pass
    assert len(idle.of(EngineWarning)) == 1
    assert not idle.of(BackgroundProgress)


# ------------------------------------------------------------------------------- power


def test_ac_power_starts_background_prefill(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "RECHECK_INTERVAL", 0.01)
    power = Power(battery=True)
    driver = Driver()
    driver.engine._power = power
    driver.engine.send(CachePolicy(BackgroundPolicy.ON_AC_POWER))
    driver.load(folders["target"], folders["draft"])
    driver.answer(first_question())
    too_soon: list[bool] = []
    driver.on_event = lambda e: (
        too_soon.append(power.battery) if isinstance(e, BackgroundProgress) else None
    )
    assert power.asked_again.wait(LIMIT)
    power.battery = False
    driver.finish(BackgroundProgress)
    driver.close()
    assert not any(too_soon)
    assert driver.engine._recheck_delay is None


def test_without_waiting_work_nothing_is_rechecked(loaded: Driver) -> None:
    loaded.engine.send(CachePolicy(BackgroundPolicy.OFF))
    loaded.answer(first_question())
    assert loaded.engine._recheck_delay is None
    idle = Idle(ALWAYS)
    assert idle.pool.has_waiting_work
    while idle.pool.step():
        pass
    assert not idle.pool.has_waiting_work


# ------------------------------------------------------- saving to make room, and cancel


@pytest.mark.parametrize("files", [0, 2])
def test_saving_for_a_turn_stops_when_the_turn_is_cancelled(tmp_path: Path, files: int) -> None:
    """The save stops after a file; the conversation is unchanged and saved later."""
    idle = Idle(CachePolicy(BackgroundPolicy.OFF, snapshot_folder=str(tmp_path)), "ab")
    idle.stopped = lambda: len(idle.of(SnapshotProgress)) >= files
    manager = MemoryManager(idle.pair, idle.events.append, idle.pool)
    need = MemoryNeed("It", idle.pair.target, 1e30, 0)
    with pytest.raises(TurnCancelled):
        manager.ensure_free(need, idle.pool._caches["b"], idle.progress, force=False)
    assert len(idle.of(SnapshotProgress)) == files
    assert set(idle.pool._caches) == {"a", "b"}
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    idle.stopped = lambda: False
    idle.pool.close()
    assert len([*tmp_path.glob(f"*/*/{MANIFEST}")]) == 2


def test_a_question_cancels_a_save_and_closing_completes_it(tmp_path: Path) -> None:
    policy = CachePolicy(BackgroundPolicy.OFF, snapshot_folder=str(tmp_path))
    idle = Idle(policy, "ab")

    def files() -> set[Path]:
        return {path for path in tmp_path.rglob("*") if path.is_file()}

    for _ in range(4):
        for _ in range(2):
            idle.pool.step()
        assert files()
        conversation = idle.of(SnapshotProgress)[-1].conversation
        idle.use("b" if conversation == "a" else "a")
        assert files(), "another conversation's question does not cost it"
        idle.use(conversation)
        assert not files()
    for _ in range(2):
        idle.pool.step()
    idle.events.clear()
    conversation = next(iter({path.parent for path in files()}))
    idle.pool.close()
    saved = [event.done for event in idle.of(SnapshotProgress) if event.conversation in "ab"]
    assert 3 in saved[:1], "it continued where it was"
    assert len([*tmp_path.glob(f"*/*/{MANIFEST}")]) == 2
    assert (conversation / MANIFEST).exists()


# ------------------------------------------------------------- recurrent layers alone


@table("needed, later, reused", [(None, None, 183), (FIRST, FIRST, 47), (FIRST, LATER, 4)])
def test_a_purely_recurrent_model_reuses_its_cache(
    needed: tuple[int, ...] | None, later: tuple[int, ...] | None, reused: int
) -> None:
    """Recall starts again at the documents, as with all recurrent layers."""
    model = build("mamba2")
    first, answer, second = conversation()
    chat = Chat(model)
    chat.read(first, needed)
    chat.write(first, answer)
    logits = chat.read(second, later)
    assert chat.reader.so_far.reused_tokens == reused
    read = chat.conversation.target.cached
    assert difference(logits, dense_logits(model, second.ids[np.flatnonzero(read)])) < TOLERANCE
    assert chat.conversation.target.has_gaps is (needed is not None)


def test_a_sparse_conversation_with_a_recurrent_target_continues(
    driver: Driver, folders: dict[str, Path], tmp_path: Path
) -> None:
    driver.load(tiny.save(tmp_path / "mamba2", "mamba2"), folders["draft"])
    driver.engine.send(CachePolicy(BackgroundPolicy.OFF))
    ask = first_question()
    first = driver.answer(ask)
    again = driver.answer(ask)
    assert again.statistics.reading is Reading.SPARSE
    assert again.statistics.reused_tokens > 0.5 * first.statistics.read_tokens
    assert again.generated_ids == first.generated_ids
