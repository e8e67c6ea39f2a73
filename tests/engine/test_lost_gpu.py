"""The system has stopped the process's work on the GPU: nothing more is tried there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from app.engine.backend.memory import cause_of, is_gpu_lost, is_oom, to_failed
from app.engine.cache import prefix_cache, snapshot
from app.engine.cache.snapshot import MANIFEST
from app.engine.memory.cache_pool import BackgroundPrefill, CachePool
from app.engine.model import loader
from app.engine.model.loader import LoadError
from app.engine.model.token_stream import DraftProposals
from app.engine.scorers import attention
from app.engine.turn import decode
from app.protocol.commands import CachePolicy, CalibrateCosts, Load
from app.protocol.events import (
    EngineWarning,
    Failed,
    FellBackToDense,
    GpuLost,
    Loaded,
    SnapshotFailed,
    SnapshotProgress,
)
from app.protocol.options import BackgroundPolicy
from app.protocol.reasons import FailureKind
from tests.engine.driver import Driver
from tests.engine.test_cache_check import first_question
from tests.engine.test_idle import ALWAYS, Idle
from tests.engine.test_memory_errors import RAN_OUT

FAILED = "[METAL] Command buffer execution failed: "
IGNORED = (
    f"{FAILED}Ignored (for causing prior/excessive GPU errors)"
    " (00000004:kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)."
)
INTERACTIVITY = (
    f"{FAILED}Impacting Interactivity"
    " (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)."
)
LOST = {
    "ignored": IGNORED,
    "ignored, in another language": (
        f"{FAILED}Ignoriert (00000004: kIOGPUCommandBufferCallbackErrorSubmissionsIgnored)."
    ),
    "ignored, on another GPU": (
        f"{FAILED}Ignored (00000004:kIOAccelCommandBufferCallbackErrorSubmissionsIgnored)."
    ),
    "ignored, without a code": f"{FAILED}Ignored (for causing prior/excessive GPU errors).",
    "too long": INTERACTIVITY,
    "too long, without a code": f"{FAILED}Impacting Interactivity.",
    "a timeout": (
        f"{FAILED}Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)."
    ),
    "a hang": f"{FAILED}Caused GPU Hang Error (00000003:kIOGPUCommandBufferCallbackErrorHang).",
    "another's error": (
        f"{FAILED}Discarded (victim of GPU error/recovery)"
        " (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)."
    ),
    "CUDA": "cudaMallocAsync(&data, size, stream) failed: an illegal memory access was encountered",
}
REASONS = {
    "ignored": "Ignored (for causing prior/excessive GPU errors)",
    "ignored, in another language": "Ignoriert",
    "too long": "Impacting Interactivity",
    "a hang": "Caused GPU Hang Error",
}


@pytest.mark.parametrize("name", LOST)
def test_every_wording_of_a_lost_gpu_is_known(name: str) -> None:
    text = LOST[name]
    outer = LoadError(FailureKind.MODEL_UNREADABLE)
    outer.__cause__ = RuntimeError(text)
    for error in (RuntimeError(text), outer):
        assert is_gpu_lost(error)
        assert not is_oom(error)
        assert cause_of(error)["failure"]["kind"] == FailureKind.GPU_LOST
        failed = to_failed(3, error)
        assert (failed.turn, failed.failure.kind) == (3, FailureKind.GPU_LOST)
        if name in REASONS:
            assert failed.failure.data == {"system": REASONS[name]}


@pytest.mark.parametrize("error", RAN_OUT.values(), ids=RAN_OUT)
def test_running_out_of_memory_is_not_taken_for_a_lost_gpu(error: BaseException) -> None:
    assert not is_gpu_lost(error)
    assert to_failed(1, error).failure.kind is FailureKind.OUT_OF_MEMORY


POINTS = {
    "the draft reads": (prefix_cache, "prefill"),
    "the draft observes": (attention, "_mask_scores"),
    "the draft proposes": (DraftProposals, "_write"),
    "the target decodes": (decode.Decoder, "run"),
}


@pytest.mark.parametrize("text", [IGNORED, INTERACTIVITY], ids=["ignored", "too long"])
@pytest.mark.parametrize("point", [p for p in POINTS if p != "the draft proposes"])
def test_after_a_lost_gpu_nothing_more_is_tried(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch, point: str, text: str, folders: dict[str, Path]
) -> None:
    loaded.answer(replace(first_question(1), conversation="other"))
    used = mock.Mock(side_effect=RuntimeError(text))
    monkeypatch.setattr(*POINTS[point], used)
    failed = loaded.run(replace(first_question(2), conversation="c"))
    assert isinstance(failed, Failed)
    assert failed.failure.kind is FailureKind.GPU_LOST
    assert loaded.until(GpuLost)
    used.assert_called_once()
    assert not loaded.of(FellBackToDense)
    touched = mock.Mock(side_effect=AssertionError("the GPU was used again"))
    for where, name in (*POINTS.values(), (loader, "load_model")):
        monkeypatch.setattr(where, name, touched)
    again = loaded.run(first_question(3))
    assert again == replace(failed, turn=again.turn)
    for command in (Load(str(folders["target"])), CalibrateCosts()):
        loaded.engine.send(command)
        assert loaded.until(Failed, Loaded) == replace(failed, turn=None)
    loaded.engine.send(CachePolicy(BackgroundPolicy.OFF))
    again = loaded.run(first_question(4))
    assert again == replace(failed, turn=again.turn), "a policy is no command"
    touched.assert_not_called()


@pytest.mark.parametrize("step", ["_check_no_nans", "_measure"])
def test_a_gpu_that_is_lost_while_loading_is_said(
    driver: Driver, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(loader, step, mock.Mock(side_effect=RuntimeError(IGNORED)))
    failed = driver.load(folders["target"])
    assert isinstance(failed, Failed)
    assert failed.failure.kind is FailureKind.GPU_LOST
    assert driver.until(GpuLost, Failed) == GpuLost(failed.failure)


def test_a_gpu_that_is_lost_between_two_turns_is_reported_without_a_failed_turn(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded.answer(first_question())
    monkeypatch.setattr(CachePool, "step", mock.Mock(side_effect=RuntimeError(IGNORED)))
    assert isinstance(loaded.until(GpuLost, Failed, EngineWarning), GpuLost)
    assert isinstance(loaded.run(first_question(2)), Failed)


def test_background_reading_does_not_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = Idle(ALWAYS)
    monkeypatch.setattr(BackgroundPrefill, "step", mock.Mock(side_effect=RuntimeError(IGNORED)))
    with pytest.raises(RuntimeError, match="Ignored"):
        idle.pool.step()
    assert not idle.of(EngineWarning)


def test_the_last_good_snapshot_outlives_it(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver()
    driver.engine.send(CachePolicy(BackgroundPolicy.OFF, snapshot_folder=str(tmp_path)))
    driver.load(folders["target"], folders["draft"])
    ask = first_question()
    driver.answer(ask)
    while (done := driver.until(SnapshotProgress)) and done.done < done.total:  # type: ignore[union-attr]
        pass
    (manifest,) = tmp_path.glob(f"*/{MANIFEST}")
    before = manifest.read_bytes()
    monkeypatch.setattr(snapshot, "save_prompt_cache", mock.Mock(side_effect=RuntimeError(IGNORED)))
    driver.answer(replace(ask, sampling=replace(ask.sampling, max_tokens=3)))
    assert isinstance(driver.until(GpuLost, SnapshotFailed), GpuLost)
    driver.close()
    assert manifest.read_bytes() == before
