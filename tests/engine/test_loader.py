"""Loading: the sparse probe, cache sizes, stored findings and damaged models."""

from __future__ import annotations

import json
import os
import shutil
from importlib import metadata
from pathlib import Path
from unittest import mock

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import save_file

from app.chat import wording
from app.engine.backend import mlx_patches
from app.engine.backend.device import CPU, GPU, Backend
from app.engine.cache.caches import to_positioned
from app.engine.cache.prefill import StepSize, forward, make_stock_cache, prefill
from app.engine.cache.sizes import CacheSize
from app.engine.model import findings, loader
from app.engine.model.findings import probe
from app.engine.model.loader import LoadedModel, load_one
from app.engine.pair_loader import load_pair
from app.engine.progress import LoadError
from app.models.check import check_files
from app.protocol.commands import Load
from app.protocol.reasons import FailureKind, ReasonCode
from tests import tiny
from tests.engine import oracle, rounding
from tests.tables import slow, table
from tests.tiny import ORACLE, architectures, build

mlx_patches.install()

MORE = (
    *("deepseek_v3", "deepseek_v32", "gemma3n", "gemma4_text", "falcon_h1", "gemma2"),
    *("ministral3", "mistral4"),
)
"""Architectures with latent attention, key selection, shared caches, cache lists, capped attention,
and queries scaled by position."""
ROUNDED = [("llama", 0), ("gemma3", 0), ("qwen3_5", 0), ("gpt_oss", 4)]
"""Architectures, and the seeds of their weights."""
QUICK_ROUNDED = [
    ("llama", 0, "bfloat16"),
    ("gemma3", 0, "TF32"),
    ("qwen3_5", 0, "float16"),
    ("gpt_oss", 4, "TF32"),
]


@pytest.mark.parametrize("name", architectures(*ORACLE, *MORE))
def test_the_probe_accepts_exact_architectures(name: str) -> None:
    assert probe(build(name), 4096) is None


@pytest.mark.parametrize(
    "name",
    [name if name in ("deepseek_v32", "gemma3n", "ministral3") else slow(name) for name in MORE],
)
def test_further_architectures_pass_the_probe(name: str) -> None:
    model, (ids, kept) = build(name), oracle.prompt()
    together = oracle.sparse_logits(model, ids, kept)
    alone = oracle._one_by_one(model, ids, kept)
    # Gemma 2's logits go up to 22: rounding grows with them.
    assert oracle.difference(together, alone) < 1e-5 * float(mx.abs(alone).max().item())


@pytest.mark.parametrize(
    ("name", "seed", "precision"),
    [
        (*each, precision) if (*each, precision) in QUICK_ROUNDED else slow(*each, precision)
        for each in ROUNDED
        for precision in ("TF32", "bfloat16", "float16")
    ],
)
def test_the_probe_rejects_lost_positions_but_not_rounding(
    name: str, seed: int, precision: str
) -> None:
    """With a GPU's rounding, GPT-OSS chooses different experts for some tokens."""
    model = build(name, seed, rounding.DTYPES[precision])
    mx.random.seed(seed)
    with rounding.as_on_a_gpu(rounding.DTYPES[precision]):
        assert probe(model, 4096, tf32=True) is None
        with rounding.positions_lost():
            refusal = probe(model, 4096, tf32=True)
            assert refusal.code is ReasonCode.GAPS_CHANGE_ANSWERS


@table(
    "precision, name, context",
    [(each, *wrong) for each in rounding.DTYPES for wrong in rounding.WRONG.items()],
)
def test_the_probe_rejects_attention_that_depends_on_the_offset(
    name: str, context: int, precision: str
) -> None:
    """A model with learned positions."""
    model = build(name, dtype=rounding.DTYPES[precision])
    assert probe(model, context, precision == "TF32") is not None


@pytest.mark.parametrize(
    ("backend", "value", "uses"),
    [(CPU, "1", False), (GPU, "1", True), (GPU, None, True), (GPU, "0", False)],
)
def test_a_gpu_multiplies_float32_in_tf32_unless_that_is_forbidden(
    backend: Backend, value: str | None, uses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert os.environ["MLX_ENABLE_TF32"] == "0", "tests compare in float32"
    monkeypatch.delenv("MLX_ENABLE_TF32")
    if value is not None:
        monkeypatch.setenv("MLX_ENABLE_TF32", value)
    assert backend.uses_tf32 is uses


def test_a_model_with_an_unknown_cache_reads_densely(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        pass

    monkeypatch.setattr(findings, "make_positioned_cache", lambda model: to_positioned([Other()]))
    refusal = probe(build("llama"), 4096)
    assert refusal.code is ReasonCode.UNSUPPORTED_CACHE
    assert "Other" in refusal.data["error"]


@pytest.mark.parametrize("tokens", [1000, slow(3000)])
@pytest.mark.parametrize("name", ["llama", slow("gemma3"), "gpt_oss", "qwen3_next"])
def test_the_predicted_cache_size_is_the_real_one(name: str, tokens: int) -> None:
    model = build(name)
    used = make_stock_cache(model)
    mx.eval(forward(model, used, np.zeros(1, np.int32)))
    predicted = CacheSize.of(used).bytes(tokens)
    cache = make_stock_cache(model)
    ids = np.zeros(tokens, np.int32)
    prefill(model, cache, ids, None, StepSize(64), lambda done: None)
    real = sum(c.nbytes for c in cache if hasattr(c, "keys"))
    # Buffers grow by 256 entries, and a window holds one more step during prefill.
    assert predicted == pytest.approx(real, rel=0.35)


def test_the_context_length_is_found_under_other_names(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "gpt2", "gpt2")
    assert load_pair(Load(str(folder))).target.info.context_length == 512


def test_models_are_named_as_requested_or_by_their_folders(tmp_path: Path) -> None:
    target, draft = tiny.save(tmp_path / "big"), tiny.save(tmp_path / "small")
    pair = load_pair(Load(str(target), str(draft)))
    assert (pair.target.info.name, pair.draft.info.name) == ("big", "small")
    pair = load_pair(Load(str(target), str(draft), ("One", "Two")))
    assert pair.target.info.name == "One"


def test_loading_can_be_stopped_between_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "WEIGHT_BATCH_BYTES", 1000)
    folder, asked = tiny.save(tmp_path / "m"), []

    def stopped() -> bool:
        asked.append(True)
        return len(asked) == 3

    with pytest.raises(LoadError, match=FailureKind.LOADING_STOPPED):
        load_pair(Load(str(folder)), stopped=stopped)
    assert len(asked) == 3


def test_a_damaged_model_is_refused_with_one_sentence(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(LoadError, match=FailureKind.MODEL_NOT_LOADED):
        load_pair(Load(str(folder)))


def test_a_context_beyond_all_positions_is_read_densely(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "m", max_position_embeddings=1 << 60)
    refusal = load_pair(Load(str(folder), str(folder))).dense_only
    assert refusal.code is ReasonCode.GAPS_FAIL


mlx_patches.install()


def load(folder: Path, records: Path, kv_bits: int | None = None) -> LoadedModel:
    return load_one(str(folder), "m", 64, kv_bits, probes=True, remembered=records)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> dict[str, mock.Mock]:
    """Counts how often loading runs the model."""
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


def test_a_second_load_uses_the_stored_findings(
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


@table(
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
def test_a_damaged_findings_file_is_ignored_and_replaced(
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


@table("package", ["mlx", "mlx-lm"])
def test_a_fingerprint_names_the_code_that_computes(
    package: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, version = loader.fingerprint(folders["target"]), metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: "99" if name == package else version(name)
    )
    assert loader.fingerprint(folders["target"]) != before


def test_a_fingerprint_sees_weights_of_the_same_size_and_time(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model", "llama", 0)
    (weights,) = folder.glob("*.safetensors")
    before, status = loader.fingerprint(folder), weights.stat()
    assert loader.fingerprint(folder) == before
    tiny.save(folder, "llama", 1)
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert weights.stat().st_size == status.st_size
    assert loader.fingerprint(folder) != before


def test_a_folder_that_was_written_again_is_not_reloaded_silently(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model", "llama", 0)
    loaded = load(folder, tmp_path / "records")
    loaded.unload()
    loaded.reload()
    assert loaded.is_loaded
    loaded.unload()
    tiny.save(folder, "llama", 1)
    with pytest.raises(LoadError, match=FailureKind.MODEL_CHANGED) as caught:
        loaded.reload()
    assert not loaded.is_loaded
    words = wording.failure(caught.value.failure)
    assert "have changed since it was loaded" in " ".join(words.sentences)


def logits(folder: Path) -> np.ndarray:
    model, _ = loader.load_lazily(folder)
    return np.array(model(mx.array([[1, 2, 3]])))


def test_a_tensor_of_64_bits_is_converted(tmp_path: Path) -> None:
    """MLX refuses the whole file."""
    folder = tiny.save(tmp_path / "model", "llama", 0)
    before, (weights,) = logits(folder), folder.glob("*.safetensors")
    arrays = {name: np.array(array) for name, array in mx.load(str(weights)).items()}
    name = next(name for name in arrays if "q_proj" in name)
    arrays[name] = arrays[name].astype(np.float64)
    save_file(arrays, weights)
    with pytest.raises(RuntimeError, match="F64"):
        mx.load(str(weights))
    assert np.array_equal(logits(folder), before)
    loader.load_one(str(folder), "model", None)


def test_weights_that_the_index_does_not_list_are_not_loaded(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model", "llama", 0)
    before, (weights,) = logits(folder), folder.glob("*.safetensors")
    arrays, shards = list(mx.load(str(weights)).items()), []
    for number in range(2):
        shards.append(folder / f"model-0000{number + 1}-of-00002.safetensors")
        mx.save_safetensors(str(shards[-1]), dict(arrays[number::2]), {"format": "mlx"})
    listed = {name: shards[n % 2].name for n, (name, _) in enumerate(arrays)}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": listed}))
    spoilt = {name: array + 1 for name, array in arrays}
    mx.save_safetensors(str(weights), spoilt, {"format": "mlx"})
    assert np.array_equal(logits(folder), before)
    assert loader.weight_bytes(folder) == sum(shard.stat().st_size for shard in shards)
    # An index that lists the files of the model it was made from says nothing about these.
    for shard in shards:
        shard.unlink()
    assert not np.array_equal(logits(folder), before)
    check_files(folder)


def test_a_config_without_a_required_key_is_refused_with_its_name(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model", "qwen3", 0)
    config = json.loads((folder / "config.json").read_text())
    del config["num_hidden_layers"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(LoadError) as caught:
        loader.load_lazily(folder)
    assert "lacks num_hidden_layers" in wording.problem(caught.value.failure)
