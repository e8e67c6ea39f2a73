"""What a load finds out about a model is remembered for the next one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest import mock

import mlx.core as mx
import pytest

from app.engine.backend import mlx_patches
from app.engine.model import findings, loader
from app.engine.model.loader import LoadedModel, LoadError, load_one
from app.protocol.reasons import FailureKind
from tests import tiny

mlx_patches.install()


def load(folder: Path, records: Path, kv_bits: int | None = None) -> LoadedModel:
    return load_one(str(folder), "m", 64, kv_bits, probes=True, remembered=records)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, mock.Mock]:
    """What a load runs the model for."""
    found = {name: mock.Mock(wraps=getattr(loader, name)) for name in ("_measure", "probe")}
    found["_check_no_nans"] = mock.Mock(wraps=loader._check_no_nans)
    for name, watched in found.items():
        monkeypatch.setattr(loader, name, watched)
    return found


def counts(runs: dict[str, mock.Mock]) -> list[bool]:
    called = [watched.called for watched in runs.values()]
    for watched in runs.values():
        watched.reset_mock()
    return called


def test_a_second_load_runs_nothing_and_knows_the_same(
    tmp_path: Path, folders: dict[str, Path], runs: dict[str, mock.Mock]
) -> None:
    for name, dense in (("target", False), ("gpt2", True)):
        first = load(folders[name], tmp_path)
        assert counts(runs) == [True] * 3
        later = load(folders[name], tmp_path)
        assert counts(runs) == [False] * 3
        assert (later.dense_only is not None) is dense
        for part in ("dense_only", "cache_size", "transient", "speed", "fingerprint"):
            assert getattr(later, part) == getattr(first, part), part
    load(tiny.save(tmp_path / "wide", "qwen3", 0, head_dim=64), tmp_path / "wide-records")
    assert counts(runs) == [True] * 3
    load(tmp_path / "wide", tmp_path / "wide-records", kv_bits=8)
    assert counts(runs) == [True] * 3, "other caches"
    load_one(str(folders["target"]), "m", 64, probes=True)
    assert counts(runs) == [True] * 3, "nothing is remembered without a folder"


def test_a_draft_that_becomes_a_target_is_probed(
    tmp_path: Path, folders: dict[str, Path], runs: dict[str, mock.Mock]
) -> None:
    load_one(str(folders["gpt2"]), "m", 64, remembered=tmp_path)
    assert not runs["probe"].called
    assert load(folders["gpt2"], tmp_path).dense_only is not None
    assert runs["_measure"].call_count == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: "",
        lambda stored: "[]",
        lambda stored: json.dumps(stored | {"probed": 5}),
        lambda stored: json.dumps(stored | {"dense_only": 5}),
        lambda stored: json.dumps(stored | {"dense_only": {"code": "unknown", "data": {}}}),
        lambda stored: json.dumps(stored | {"speed": {"step": 0.0, "per_token": 1.0}}),
        lambda stored: json.dumps(stored | {"cache_size": {"bytes_per_token": -1.0}}),
        lambda stored: json.dumps(stored | {"cache_size": {"unknown": 1.0}}),
    ],
)
def test_a_damaged_file_is_ignored_and_replaced(
    tmp_path: Path, folders: dict[str, Path], runs: dict[str, mock.Mock], damage: mock.Mock
) -> None:
    load(folders["target"], tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_text(damage(json.loads(file.read_text())))
    counts(runs)
    load(folders["target"], tmp_path)
    assert counts(runs) == [True] * 3
    load(folders["target"], tmp_path)
    assert counts(runs) == [False] * 3


def test_changed_weights_are_checked_again(tmp_path: Path, folders: dict[str, Path]) -> None:
    folder, records = tmp_path / "model", tmp_path / "records"
    shutil.copytree(folders["target"], folder)
    load(folder, records)
    (weights,) = folder.glob("*.safetensors")
    arrays = mx.load(str(weights))
    assert isinstance(arrays, dict)
    name = next(name for name in arrays if "embed" in name)
    arrays[name][7, 0] = float("nan")
    mx.save_safetensors(str(weights), arrays, {"format": "mlx"})
    with pytest.raises(LoadError, match=FailureKind.WEIGHTS_DAMAGED):
        load(folder, records)


def test_a_fast_model_is_timed_on_a_longer_step(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    prefill_step = findings.prefill_step

    def watched(model: object, cache: object, ids: object, *rest: object) -> None:
        lengths.append(len(ids))  # type: ignore[arg-type]
        prefill_step(model, cache, ids, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(findings, "prefill_step", watched)
    monkeypatch.setattr(findings, "WARM_UP_SECONDS", 1e9)
    model = tiny.build("llama")
    speed = findings.Speed.of(model, model, loader.StepSize().backend)
    assert lengths == [each for each in (1, *findings.WARM_UP_TOKENS) for _ in range(2)]
    assert speed.step > 0
    assert speed.per_token > 0
    monkeypatch.setattr(findings, "WARM_UP_SECONDS", 0.0)
    lengths.clear()
    findings.Speed.of(model, model, loader.StepSize().backend)
    assert lengths == [1, 1, *[findings.WARM_UP_TOKENS[0]] * 2]
