"""A whole turn as either device runs it, and one whose scores are not numbers."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from app.engine.backend.device import CPU, GPU, Backend
from app.engine.scorers import attention
from app.protocol.events import FellBackToDense, Finished, Selected
from app.protocol.stats import Reading
from tests.engine.driver import Driver, question


def _answered(backend: Backend, folders: dict[str, Path]) -> tuple[Finished, Selected]:
    driver = Driver(None, backend=backend)
    try:
        driver.load(folders["target"], folders["draft"])
        finished = driver.answer(question())
        return finished, driver.of(Selected)[-1]
    finally:
        driver.close()


def test_a_turn_answers_the_same_on_either_backend(folders: dict[str, Path]) -> None:
    (on_cpu, chosen), (on_gpu, same) = (_answered(backend, folders) for backend in (CPU, GPU))
    assert on_gpu.statistics is not None
    assert on_gpu.statistics.reading is Reading.SPARSE
    assert on_gpu.generated_ids == on_cpu.generated_ids
    assert [(s.start, s.end) for s in same.spans] == [(s.start, s.end) for s in chosen.spans]


def test_non_finite_scores_fall_back_to_dense_with_a_reason(
    loaded: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_numpy_softmax", lambda scores, sinks: scores * mx.nan)
    finished = loaded.answer(question())
    (fell_back,) = loaded.of(FellBackToDense)
    assert "not finite" in fell_back.reason.data["error"]
    assert not loaded.of(Selected), "nothing is chosen by them"
    assert finished.statistics is not None
    assert finished.statistics.reading is Reading.DENSE
