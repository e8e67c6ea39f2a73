"""Out of memory and lost GPUs: recognised by every message, reported, and not made worse."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from app.engine import pair_loader
from app.engine.backend.memory import NotEnoughMemory, cause_of, is_gpu_lost, is_oom, to_failed
from app.engine.cache import prefix_cache, snapshot
from app.engine.cache.snapshot import MANIFEST, SnapshotError, Snapshots
from app.engine.memory.cache_pool import BackgroundPrefill, CachePool
from app.engine.memory.conversation_cache import ConversationCache
from app.engine.model import findings, loader
from app.engine.model.token_stream import DraftProposals
from app.engine.progress import LoadError
from app.engine.scorers import attention
from app.engine.turn import decode
from app.protocol.commands import CachePolicy, CalibrateCosts, Load
from app.protocol.events import (
    CommandFailed,
    EngineWarning,
    Failed,
    FellBackToDense,
    Finished,
    GpuLost,
    Loaded,
    MemoryFreed,
    MemoryReport,
    PhaseProgress,
    SnapshotFailed,
    SnapshotProgress,
)
from app.protocol.options import BackgroundPolicy
from app.protocol.reasons import Failure, FailureKind, ReasonCode
from app.protocol.stats import Phase
from tests import tiny
from tests.engine.driver import Driver, opened
from tests.engine.test_cache_check import first_question
from tests.engine.test_idle import ALWAYS, Idle
from tests.engine.test_turns import FIRST, Chat, conversation, pair
from tests.tables import slow, table

METAL = (
    "[METAL] Command buffer execution failed: Insufficient Memory"
    " (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"
)
RAN_OUT: dict[str, BaseException] = {
    "Metal, while a command buffer runs": RuntimeError(METAL),
    "the same, in another language and with a full stop": RuntimeError(
        "[METAL] Command buffer execution failed: Nicht genug Speicher"
        " (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)."
    ),
    "Metal, before it had a code": RuntimeError(
        "[METAL] Command buffer execution failed: Insufficient Memory"
    ),
    "Metal, one buffer too large": RuntimeError(
        "[metal::malloc] Attempting to allocate 99 bytes which is greater than the maximum allowed"
        " buffer size of 9 bytes."
    ),
    "Metal, too many buffers": RuntimeError("[metal::malloc] Resource limit (499000) exceeded."),
    "any allocator": RuntimeError("[malloc] Unable to allocate 99 bytes."),
    "CUDA, an allocation": RuntimeError(
        "cudaMallocAsync(&data, size, stream) failed: out of memory"
    ),
    "CUDA, a kernel": RuntimeError("cudaGraphLaunch(graph_exec_, stream_) failed: out of memory"),
    "CUDA, a code's name": RuntimeError("Failed to compile kernel: NVRTC_ERROR_OUT_OF_MEMORY."),
    "cuBLAS": RuntimeError("cublasLtCreate(&storage.handle) failed with code: 3."),
    "cuDNN 8": RuntimeError("cudnnCreate(&handle) failed: CUDNN_STATUS_ALLOC_FAILED."),
    "cuDNN 9": RuntimeError(
        "graph.build() failed: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED."
    ),
    "C++ on the engine's thread": MemoryError("std::bad_alloc"),
    "C++ on a stream's thread": RuntimeError("std::bad_alloc"),
    "Python": MemoryError(),
    "the system": OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
}
OTHERS: dict[str, BaseException] = {
    "a GPU that hangs": RuntimeError(
        "[METAL] Command buffer execution failed: Caused GPU Timeout Error"
        " (00000002:kIOGPUCommandBufferCallbackErrorTimeout)"
    ),
    "a GPU's bad address, met while allocating": RuntimeError(
        "cudaMallocAsync(&data, size, stream) failed: an illegal memory access was encountered"
    ),
    "cuBLAS, something else": RuntimeError("cublasLtMatmul(a, b) failed with code: 13."),
    "what was predicted and not tried": NotEnoughMemory({"reading": 9}, 9e9, 1e9),
    "shapes": ValueError("[matmul] Last dimension of first input with shape (1,2) must match"),
}


@table("error", RAN_OUT.values())
def test_every_out_of_memory_message_is_recognised(error: BaseException) -> None:
    assert is_oom(error)
    outer = LoadError(FailureKind.MODEL_UNREADABLE)
    outer.__cause__ = error
    assert is_oom(outer), "also as a cause"


@table("error", OTHERS.values())
def test_other_errors_are_not_out_of_memory(error: BaseException) -> None:
    assert not is_oom(error)


def test_numpys_memory_error_is_recognised() -> None:
    with pytest.raises(MemoryError) as caught:
        np.zeros(1 << 60, np.uint8)
    assert is_oom(RuntimeError(str(caught.value)))


@pytest.mark.parametrize(
    "where", [slow("the draft reads"), "the draft observes", "the target reads"]
)
def test_a_sparse_turn_out_of_memory_does_not_fall_back_to_dense(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It frees memory and reports one failure."""
    loaded.engine.send(CachePolicy(BackgroundPolicy.OFF, share_prefixes=False))
    loaded.answer(replace(first_question(), conversation="other"))
    expected = loaded.answer(first_question()).generated_ids

    def exhausted(*args: Any, **_: Any) -> Any:
        raise RuntimeError(METAL)

    original = prefix_cache.prefill

    def only_target(model: Any, cache: Any, ids: Any, positions: Any, *rest: Any) -> None:
        if positions is not None:
            exhausted()
        original(model, cache, ids, positions, *rest)

    if where == "the draft observes":
        monkeypatch.setattr(attention, "_mask_scores", exhausted)
    else:
        prefill = exhausted if where == "the draft reads" else only_target
        monkeypatch.setattr(prefix_cache, "prefill", prefill)
    failed = loaded.run(replace(first_question(), conversation="third"))
    assert failed.failure == Failure(FailureKind.OUT_OF_MEMORY, {"loading": False})
    assert not failed.predicted
    assert not loaded.of(FellBackToDense)
    dense = [e for e in loaded.of(PhaseProgress) if e.phase is Phase.PREFILL and e.done]
    assert not dense
    (freed,) = loaded.of(MemoryFreed)
    assert freed.freed_bytes > 0
    assert loaded.of(MemoryReport)[-1].stats.cached == 0
    monkeypatch.undo()
    assert (
        loaded.answer(replace(first_question(), conversation="fourth")).generated_ids == expected
    ), "the engine lives on"


def test_out_of_memory_in_the_probe_does_not_make_a_model_dense_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dense reading would need even more memory."""
    folder = str(tiny.save(tmp_path / "m"))
    monkeypatch.setattr(findings, "probe_error", mock.Mock(side_effect=RuntimeError(METAL)))
    with pytest.raises(RuntimeError) as raised:
        pair_loader.load_pair(Load(folder, folder))
    assert is_oom(raised.value)


@pytest.mark.parametrize("step", ["_check_no_nans", "_measure", "load_model", "find_quantisation"])
def test_out_of_memory_while_loading_is_reported(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    folder = tiny.save(tmp_path / "m", head_dim=32)
    monkeypatch.setattr(loader, step, mock.Mock(side_effect=RuntimeError(METAL)))
    bits = 8 if step == "find_quantisation" else None
    driver.engine.send(Load(str(folder), kv_bits=bits))
    failed = driver.until(CommandFailed)
    assert failed.failure == Failure(FailureKind.OUT_OF_MEMORY, {"loading": True})


def test_a_snapshot_survives_out_of_memory_while_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = pair(tiny.build("llama"))
    chat = Chat(models.target.model)
    chat.read(conversation()[0], FIRST)
    snapshots = Snapshots(tmp_path, 1 << 30, {"target": ""})
    assert [*snapshots.save("c", chat.conversation)]
    with monkeypatch.context() as patched:
        patched.setattr(snapshot, "load_prompt_cache", mock.Mock(side_effect=RuntimeError(METAL)))
        with pytest.raises(RuntimeError) as caught:
            snapshots.load("c", lambda: ConversationCache(models))
    assert not isinstance(caught.value, SnapshotError), "nothing is wrong with it"
    assert [*tmp_path.glob(f"*/*/{MANIFEST}")]
    assert snapshots.load("c", lambda: ConversationCache(models)) is not None


def test_out_of_memory_while_saving_is_not_reported_as_a_disk_error(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = opened(folders, CachePolicy(BackgroundPolicy.OFF, snapshot_folder=str(tmp_path / "s")))
    error = mock.Mock(side_effect=RuntimeError(METAL))
    monkeypatch.setattr(snapshot, "save_prompt_cache", error)
    assert isinstance(driver.run(first_question()), Finished)
    event = driver.until(SnapshotFailed)
    driver.close()
    assert event.reason.code is ReasonCode.SNAPSHOT_FAILED
    assert event.reason.data["failure"]["kind"] == FailureKind.OUT_OF_MEMORY


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


@table("name", LOST)
def test_every_lost_gpu_message_is_recognised(name: str) -> None:
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


@table("error", RAN_OUT.values())
def test_out_of_memory_is_not_a_lost_gpu(error: BaseException) -> None:
    assert not is_gpu_lost(error)
    assert to_failed(1, error).failure.kind is FailureKind.OUT_OF_MEMORY


POINTS = {
    "the draft reads": (prefix_cache, "prefill"),
    "the draft observes": (attention, "_mask_scores"),
    "the draft proposes": (DraftProposals, "_write"),
    "the target decodes": (decode.Decoder, "generate"),
}


@pytest.fixture
def new(driver: Driver, folders: dict[str, Path]) -> Driver:
    """An engine of its own, because one that lost its GPU is of no more use."""
    driver.load(folders["target"], folders["draft"])
    return driver


@pytest.mark.parametrize(
    ("point", "text"),
    [
        ("the draft reads", IGNORED),
        ("the draft observes", INTERACTIVITY),
        ("the target decodes", IGNORED),
        slow("the draft reads", INTERACTIVITY),
        slow("the draft observes", IGNORED),
        slow("the target decodes", INTERACTIVITY),
    ],
    ids=lambda value: value if value in POINTS else value.split(": ")[1].split(" (")[0],
)
def test_after_a_lost_gpu_all_commands_are_refused(
    new: Driver, monkeypatch: pytest.MonkeyPatch, point: str, text: str, folders: dict[str, Path]
) -> None:
    new.answer(replace(first_question(), conversation="other"))
    used = mock.Mock(side_effect=RuntimeError(text))
    monkeypatch.setattr(*POINTS[point], used)
    failed = new.run(replace(first_question(), conversation="c"))
    assert failed.failure.kind is FailureKind.GPU_LOST
    assert new.until(GpuLost)
    used.assert_called_once()
    assert not new.of(FellBackToDense)
    touched = mock.Mock(side_effect=AssertionError("the GPU was used again"))
    for where, name in (*POINTS.values(), (loader, "load_model")):
        monkeypatch.setattr(where, name, touched)
    again = new.run(first_question())
    assert again == replace(failed, turn=again.turn)
    for command in (Load(str(folders["target"])), CalibrateCosts()):
        new.engine.send(command)
        assert new.until(CommandFailed, Loaded) == CommandFailed(failed.failure)
    new.engine.send(CachePolicy(BackgroundPolicy.OFF))
    again = new.run(first_question())
    assert again == replace(failed, turn=again.turn), "a policy is no command"
    touched.assert_not_called()


@pytest.mark.parametrize("step", ["_check_no_nans", "_measure"])
def test_a_gpu_lost_while_loading_is_reported(
    driver: Driver, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(loader, step, mock.Mock(side_effect=RuntimeError(IGNORED)))
    failed = driver.load(folders["target"])
    assert failed.failure.kind is FailureKind.GPU_LOST
    assert driver.until(GpuLost, CommandFailed) == GpuLost(failed.failure)


def test_a_gpu_lost_between_turns_is_reported_without_a_failed_turn(
    new: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    new.answer(first_question())
    monkeypatch.setattr(CachePool, "step", mock.Mock(side_effect=RuntimeError(IGNORED)))
    assert isinstance(new.until(GpuLost, Failed, EngineWarning), GpuLost)
    assert isinstance(new.run(first_question()), Failed)


def test_background_prefill_does_not_hide_a_lost_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    idle = Idle(ALWAYS)
    monkeypatch.setattr(BackgroundPrefill, "step", mock.Mock(side_effect=RuntimeError(IGNORED)))
    with pytest.raises(RuntimeError, match="Ignored"):
        idle.pool.step()
    assert not idle.of(EngineWarning)


def test_the_last_good_snapshot_survives_a_lost_gpu(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = opened(folders, CachePolicy(BackgroundPolicy.OFF, snapshot_folder=str(tmp_path)))
    ask = first_question()
    driver.answer(ask)
    driver.finish(SnapshotProgress)
    (manifest,) = tmp_path.glob(f"*/*/{MANIFEST}")
    before = manifest.read_bytes()
    monkeypatch.setattr(snapshot, "save_prompt_cache", mock.Mock(side_effect=RuntimeError(IGNORED)))
    driver.answer(replace(ask, sampling=replace(ask.sampling, max_tokens=3)))
    assert isinstance(driver.until(GpuLost, SnapshotFailed), GpuLost)
    driver.close()
    assert manifest.read_bytes() == before
