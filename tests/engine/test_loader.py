"""Loading: which models read sparsely, and what their caches take."""

from __future__ import annotations

import os
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from app.engine.backend import mlx_patches
from app.engine.backend.device import CPU, GPU, Backend
from app.engine.cache.caches import to_positioned
from app.engine.cache.prefill import StepSize, forward, make_stock_cache, prefill
from app.engine.cache.sizes import CacheSize
from app.engine.model import loader, sparse_probe
from app.engine.model.loader import LoadError
from app.engine.model.sparse_probe import probe
from app.engine.pair_loader import load_pair
from app.protocol.commands import Load
from app.protocol.reasons import FailureKind, ReasonCode
from tests import tiny
from tests.engine import oracle, rounding
from tests.tiny import ORACLE, build

mlx_patches.install()

MORE = (
    *("deepseek_v3", "deepseek_v32", "gemma3n", "gemma4_text", "falcon_h1", "gemma2"),
    *("ministral3", "mistral4"),
)
"""Latent attention, key selection, shared caches, lists of caches, capped attention, and queries
that are scaled by their positions."""


@pytest.mark.parametrize("name", [*ORACLE, *MORE])
def test_the_probe_lets_exact_architectures_pass(name: str) -> None:
    assert probe(build(name), 4096) is None


@pytest.mark.parametrize("name", MORE)
def test_more_architectures_read_gaps_as_one_by_one(name: str) -> None:
    model, (ids, kept) = build(name), oracle.prompt()
    together = oracle.sparse_logits(model, ids, kept)
    alone = oracle._one_by_one(model, ids, kept)
    # Gemma 2's logits go up to 22: rounding grows with them.
    assert oracle.difference(together, alone) < 1e-5 * float(mx.abs(alone).max().item())


@pytest.mark.parametrize("precision", ["TF32", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("name", "seed"), [("llama", 0), ("gemma3", 0), ("qwen3_5", 0), ("gpt_oss", 4)]
)
def test_the_probe_refuses_lost_positions_and_no_rounding(
    name: str, seed: int, precision: str
) -> None:
    """Where a GPU rounds: experts of GPT-OSS are other ones for some tokens then."""
    model = build(name, seed, rounding.DTYPES[precision])
    mx.random.seed(seed)
    with rounding.as_on_a_gpu(rounding.DTYPES[precision]):
        assert probe(model, 4096, tf32=True) is None
        with rounding.positions_lost():
            refusal = probe(model, 4096, tf32=True)
            assert refusal is not None
            assert refusal.code is ReasonCode.GAPS_CHANGE_ANSWERS


@pytest.mark.parametrize("precision", rounding.DTYPES)
@pytest.mark.parametrize(("name", "context"), rounding.WRONG.items())
def test_the_probe_refuses_what_depends_on_the_offset(
    name: str, context: int, precision: str
) -> None:
    """Learned positions."""
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


def test_a_cache_of_an_unknown_kind_reads_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        pass

    monkeypatch.setattr(
        sparse_probe, "make_positioned_cache", lambda model: to_positioned([Other()])
    )
    refusal = probe(build("llama"), 4096)
    assert refusal is not None
    assert refusal.code is ReasonCode.UNSUPPORTED_CACHE
    assert "Other" in refusal.data["error"]


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss", "qwen3_next"])
@pytest.mark.parametrize("tokens", [1000, 3000])
def test_the_predicted_cache_is_the_real_one(name: str, tokens: int) -> None:
    model = build(name)
    used = make_stock_cache(model)
    mx.eval(forward(model, used, np.zeros(1, np.int32)))
    predicted = CacheSize.of(used).bytes(tokens)
    cache = make_stock_cache(model)
    ids = np.zeros(tokens, np.int32)
    prefill(model, cache, ids, None, StepSize(64), lambda done: None)
    real = sum(c.nbytes for c in cache if hasattr(c, "keys"))
    # Buffers grow in pieces of 256, and a window holds a step more while it is being read.
    assert predicted == pytest.approx(real, rel=0.35)


def test_context_is_found_under_its_other_names(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "gpt2", "gpt2")
    assert load_pair(Load(str(folder))).target.info.context_length == 512


def test_models_are_named_as_asked_or_by_their_folders(tmp_path: Path) -> None:
    target, draft = tiny.save(tmp_path / "big"), tiny.save(tmp_path / "small")
    pair = load_pair(Load(str(target), str(draft)))
    assert pair.draft is not None
    assert (pair.target.info.name, pair.draft.info.name) == ("big", "small")
    pair = load_pair(Load(str(target), str(draft), ("One", "Two")))
    assert pair.target.info.name == "One"


def test_loading_can_be_stopped_between_pieces(
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


def test_a_damaged_model_is_a_sentence(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(LoadError, match=FailureKind.MODEL_NOT_LOADED):
        load_pair(Load(str(folder)))


def test_a_context_past_all_positions_is_read_in_full(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "m", max_position_embeddings=1 << 60)
    refusal = load_pair(Load(str(folder), str(folder))).dense_only
    assert refusal is not None
    assert refusal.code is ReasonCode.GAPS_FAIL
