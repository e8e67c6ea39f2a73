"""Quantised caches: accuracy, size, and models that do not support them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import base as mlx_base
from mlx_lm.models.cache import QuantizedKVCache

from app.chat import wording
from app.engine.backend import mlx_patches
from app.engine.backend.device import CPU
from app.engine.cache import kv_quantisation
from app.engine.cache.caches import (
    DequantisedCache,
    QuantisedCache,
    WindowedCache,
    flatten,
    positioned_layers,
)
from app.engine.cache.kv_quantisation import (
    NotQuantisable,
    Quantisation,
    find_quantisation,
)
from app.engine.cache.prefill import (
    StepSize,
    forward,
    make_positioned_cache,
    make_stock_cache,
    prefill,
    set_next_position,
)
from app.engine.cache.sizes import CacheSize, Transient
from app.engine.model.loader import CacheMaker, load_one
from app.engine.pair_loader import load_pair
from app.engine.progress import LoadError
from app.models.architecture import parse_architecture
from app.models.fit import cache_bytes
from app.protocol.commands import CachePolicy, Load
from app.protocol.events import CommandFailed, Loaded, SnapshotRestored
from app.protocol.options import BackgroundPolicy, Mode
from app.protocol.prompt import Document, Message, Role
from app.protocol.reasons import FailureKind
from app.protocol.stats import Reading
from tests import tiny
from tests.engine.driver import TEXT, Driver, question
from tests.engine.oracle import difference, prompt
from tests.tables import slow, table

WIDE = {"head_dim": 32}
UNPACKED = ("gpt_oss", "gemma4_text", "gemma2", "deepseek_v3")
"""Models whose attention cannot read packed values: sinks, shared keys, capped scores, latent
keys."""
SUITED = tuple(dict.fromkeys((*tiny.ORACLE, *UNPACKED)))


mlx_patches.install()


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The oracle's architectures with heads of at least 32 dimensions."""
    for name in SUITED:
        config = tiny.config_of(name)
        for part in (config, config.get("text_config", {})):
            part.update({key: value for key, value in WIDE.items() if key in part})
        if name in ("phi3", "qwen2"):  # they have no head width in their configuration
            config.update(hidden_size=128)
        if name == "deepseek_v3":
            config.update(qk_rope_head_dim=32)
        monkeypatch.setitem(tiny.CONFIGS, name, config)
    return tiny.build


def read_sparsely(model: Any, caches: Any) -> tuple[mx.array, Any]:
    """The logits after the selected tokens of the oracle's prompt, and the cache."""
    ids, selected = prompt()
    cache = make_positioned_cache(caches)
    prefill(model, cache, ids[selected[:-1]], selected[:-1], StepSize(16), lambda done: None)
    set_next_position(cache, int(selected[-1]))
    return forward(model, cache, ids[selected[-1:]])[0, -1].astype(mx.float32), cache


def read_in_full(model: Any, caches: Any) -> tuple[mx.array, Any]:
    ids, _ = prompt()
    cache = make_stock_cache(caches)
    prefill(model, cache, ids[:-1], None, StepSize(16), lambda done: None)
    return forward(model, cache, ids[-1:])[0, -1].astype(mx.float32), cache


@pytest.mark.parametrize("name", tiny.architectures(*SUITED))
def test_a_quantised_cache_changes_logits_little(name: str, wide: Any) -> None:
    model = wide(name)
    quantised = {bits: CacheMaker(model, find_quantisation(model, bits)) for bits in (8, 4)}
    for read, packed in ((read_sparsely, QuantisedCache), (read_in_full, QuantizedKVCache)):
        expected, _ = read(model, model)
        errors = {}
        for bits, caches in quantised.items():
            found, cache = read(model, caches)
            kind = DequantisedCache if name in UNPACKED else packed
            assert any(isinstance(c, kind) for c in flatten(cache)), (read, bits)
            error = mx.linalg.norm(found - expected) / mx.linalg.norm(expected)
            errors[bits] = float(error.item())
        assert errors[8] < 0.1, read
        assert 0 < errors[8] < errors[4], read


@pytest.mark.parametrize("name", tiny.architectures(*SUITED))
def test_the_size_of_a_quantised_cache_is_predicted_within_one_percent(
    name: str, wide: Any
) -> None:
    model = wide(name)
    tokens = 512  # whole blocks, so that buffers are exactly as long as their contents
    ids = np.arange(tokens, dtype=np.int32) % tiny.VOCABULARY
    config = {**tiny.config_of(name), "dtype": "float32"}
    unquantised = CacheSize.of(filled(model, ids)).bytes_per_token
    for bits, share in ((8, 0.35), (4, 0.22)):
        cache = make_stock_cache(CacheMaker(model, find_quantisation(model, bits)))
        prefill(model, cache, ids, None, StepSize(64), lambda done: None)
        stored = sum(int(c.nbytes) for c in cache)
        shape = replace(parse_architecture(config), kv_bits=bits)
        assert cache_bytes(shape, tokens, 64) == pytest.approx(stored, rel=0.01), bits
        assert CacheSize.of(cache).bytes_per_token < share * unquantised, bits


@table("mask", ["causal", "array", None])
def test_attention_over_dequantised_keys_is_the_same(mask: str | None) -> None:
    q, k, v = (mx.random.normal((1, heads, 200, 64)) for heads in (8, 2, 2))
    packed = [mx.quantize(each, group_size=64, bits=8) for each in (k, v)]
    seen = mx.tril(mx.ones((200, 200), mx.bool_)) if mask == "array" else mask
    ours = mlx_base.quantized_scaled_dot_product_attention
    found = ours(q, *packed, scale=0.125, mask=seen, group_size=64, bits=8)
    expected = ours.__wrapped__(q, *packed, scale=0.125, mask=seen, group_size=64, bits=8)
    assert difference(found, expected) < 1e-5


@pytest.mark.parametrize("name", ["llama", slow("gemma3"), slow("qwen3_next")])
def test_long_steps_on_a_quantised_cache_use_fused_attention(
    name: str, wide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, every score of a step was materialised three times."""
    model = wide(name)
    caches = CacheMaker(model, find_quantisation(model, 8))
    ids = (np.arange(1024, dtype=np.int32) * 7) % tiny.VOCABULARY
    calls: list[int] = []
    attend = mlx_base.quantized_scaled_dot_product_attention.__wrapped__

    def counted(queries: mx.array, *args: Any) -> mx.array:
        calls.append(queries.shape[2])
        return attend(queries, *args)

    def read(dequantise_from: int) -> tuple[mx.array, int]:
        with monkeypatch.context() as patch:
            patch.setattr(mlx_patches, "DEQUANTISE_FROM", dequantise_from)
            name = "quantized_scaled_dot_product_attention"
            patch.setattr(mlx_base, name, mlx_patches._patched_quantised_attention(counted))
            cache = make_stock_cache(caches)
            mx.clear_cache()
            before = mx.get_active_memory()
            mx.reset_peak_memory()
            prefill(model, cache, ids, None, StepSize(256), lambda done: None)
            peak = mx.get_peak_memory() - before
            return forward(model, cache, ids[:2])[0, -1].astype(mx.float32), peak

    unfused, much = read(1 << 20)
    assert max(calls) == 256
    calls.clear()
    fused, less = read(mlx_patches.DEQUANTISE_FROM)
    assert max(calls) == 2, "a few tokens are attended to as they are stored"
    # A value that one layer rounds differently may be quantised differently in the next.
    assert float((mx.linalg.norm(fused - unfused) / mx.linalg.norm(unfused)).item()) < 1e-2
    assert less < 0.7 * much
    config = tiny.config_of(name)
    size = CacheSize.of(filled(caches, ids, model))
    step = Transient.of(config.get("text_config") or config, 4, True, False, CPU).bytes(
        256, len(ids)
    )
    assert size.bytes(len(ids)) + 2 * size.largest_layer_bytes * len(ids) + step >= 0.9 * less


def filled(caches: Any, ids: Any, model: Any = None) -> Any:
    cache = make_stock_cache(caches)
    mx.eval(forward(model or caches, cache, ids))
    return cache


def test_models_that_cannot_be_quantised_are_refused(
    wide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotQuantisable, match="only 8 and 4"):
        find_quantisation(wide("llama"), 3)
    monkeypatch.undo()
    with pytest.raises(NotQuantisable, match="16 wide"):
        find_quantisation(tiny.build("llama"), 8)


def test_keys_that_are_too_large_for_four_bits_are_refused(wide: Any, tmp_path: Path) -> None:
    """As in Qwen2.5, whose key biases reach 354: 4 bits cannot tell the other numbers of a head
    apart. A real model wrote `of of of of` then."""
    folder = tiny.save(tmp_path / "large", "qwen2")
    weights: Any = mx.load(str(folder / "model.safetensors"))
    for name in [name for name in weights if name.endswith("k_proj.bias")]:
        last = mx.arange(weights[name].size) % WIDE["head_dim"] == WIDE["head_dim"] - 1
        weights[name] = mx.where(last, 60.0, weights[name])
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    assert load_one(str(folder), "large", None, kv_bits=8).quantisation == Quantisation(8, 32)
    with pytest.raises(LoadError) as raised:
        load_one(str(folder), "large", None, kv_bits=4)
    said = wording.failure(raised.value.failure).sentence
    assert said == (
        "The cache of large cannot be quantised to 4 bits (its answers would be very different):"
        " set KV bits to 8 or full."
    )


@pytest.mark.parametrize("error", ["Impacting Interactivity", "Insufficient Memory"])
def test_a_failing_device_is_not_reported_as_unsuitable_attention(
    error: str, wide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = mock.Mock(side_effect=RuntimeError(f"{error} (kIOGPUCommandBufferCallbackError)"))
    monkeypatch.setattr(kv_quantisation, "quantise_cache", failing)
    with pytest.raises(RuntimeError, match=error) as raised:
        find_quantisation(wide("llama"), 8)
    assert not isinstance(raised.value, NotQuantisable)


@pytest.mark.parametrize(("name", "packed"), [("gemma3", True), ("gemma4_text", False)])
def test_sliding_windows_are_not_quantised(name: str, packed: bool, wide: Any) -> None:
    model = wide(name)
    cache = make_positioned_cache(CacheMaker(model, Quantisation(8, 32, packed)))
    kinds = {type(c) for c in positioned_layers(cache)}
    assert kinds == {QuantisedCache if packed else DequantisedCache, WindowedCache}


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("gemma3", 4),
        slow("gemma3", 8),
        slow("gpt_oss", 4),
        slow("gpt_oss", 8),
        slow("gemma4_text", 4),
        slow("gemma4_text", 8),
    ],
)
def test_windowed_models_with_a_quantised_cache_answer_several_turns(
    name: str, bits: int, tmp_path: Path, wide: Any, driver: Driver
) -> None:
    target, draft = tiny.save(tmp_path / "target", name), tiny.save(tmp_path / "draft", "qwen3", 1)
    loaded = driver.load(target, draft, kv_bits=bits)
    assert loaded.dense_only is None
    messages: list[Message] = []
    for number, (text, mode) in enumerate(
        [
            ("What is the code of gate 7?", Mode.SPARSE),
            ("And of gate 41?", Mode.SPARSE),
            ("And of gate 12?", Mode.FULL),
        ],
        1,
    ):
        documents = () if messages else (Document("gates.txt", TEXT),)
        messages.append(Message(Role.USER, text, documents))
        ask = question(mode=mode)
        answer = driver.answer(replace(ask, messages=tuple(messages), conversation="c"))
        assert answer.generated_ids
        assert answer.statistics.fallback is None
        assert (answer.statistics.recalled_tokens > 0) == (number == 2)
        messages.append(Message(Role.ASSISTANT, "Seven."))


def test_heads_that_are_too_narrow_are_refused_before_weights_are_read(tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "m", "gemma4_text", global_head_dim=16)
    weights: Any = mx.load(str(folder / "model.safetensors"))
    damaged = {name: array * mx.nan for name, array in weights.items()}
    mx.save_safetensors(str(folder / "model.safetensors"), damaged, metadata={"format": "mlx"})
    with pytest.raises(LoadError) as raised:
        load_one(str(folder), "m", None, kv_bits=8)
    assert "16 wide" in raised.value.failure.data["error"]


@pytest.fixture
def pair(tmp_path: Path, wide: Any) -> tuple[Path, Path]:
    return tiny.save(tmp_path / "target", "qwen3", 0), tiny.save(tmp_path / "draft", "qwen3", 1)


@pytest.mark.slow
def test_quantised_caches_support_recall_rewind_and_snapshots(
    tmp_path: Path, pair: tuple[Path, Path]
) -> None:
    def asked(number: int, texts: list[str]) -> Any:
        messages = [Message(Role.USER, texts[0], (Document("gates.txt", TEXT),))]
        for text in texts[1:]:
            messages += [Message(Role.ASSISTANT, "Seven."), Message(Role.USER, text)]
        return replace(question(), messages=tuple(messages), conversation="c")

    answers = []
    for restart in (False, True):
        driver = Driver()
        driver.engine.send(Load(*map(str, pair), kv_bits=8))
        assert isinstance(driver.until(Loaded, CommandFailed), Loaded)
        folder = tmp_path / ("again" if restart else "once")
        driver.engine.send(CachePolicy(BackgroundPolicy.OFF, snapshot_folder=str(folder)))
        first = driver.answer(asked(1, ["What is the code of gate 7?"]))
        assert first.statistics.reading is Reading.SPARSE
        assert first.statistics.fallback is None
        if restart:
            driver.close()
            driver = Driver()
            driver.engine.send(Load(*map(str, pair), kv_bits=8))
            driver.until(Loaded)
            driver.engine.send(CachePolicy(BackgroundPolicy.OFF, snapshot_folder=str(folder)))
        second = driver.answer(asked(2, ["What is the code of gate 7?", "And of gate 41?"]))
        assert second.statistics.reused_tokens > 0
        assert second.statistics.recalled_tokens > 0
        assert second.statistics.fallback is None
        if restart:
            (restored,) = driver.of(SnapshotRestored)
            assert restored.tokens > 0
        answers.append((first.generated_ids, second.generated_ids))
        driver.close()
    assert answers[0] == answers[1]


def test_another_precision_makes_a_snapshot_unusable(pair: tuple[Path, Path]) -> None:
    prints = {load_one(str(pair[0]), "t", None, bits).fingerprint for bits in (None, 8, 4)}
    assert len(prints) == 3


def test_a_refusal_is_one_sentence(folders: dict[str, Path], driver: Driver) -> None:
    with pytest.raises(LoadError, match=FailureKind.CACHE_NOT_QUANTISABLE):
        load_pair(Load(str(folders["target"]), str(folders["draft"]), kv_bits=8))
    driver.engine.send(Load(str(folders["sliding"]), str(folders["draft"]), kv_bits=4))
    failed = driver.until(Loaded, CommandFailed)
    assert failed.failure.kind is FailureKind.CACHE_NOT_QUANTISABLE
    assert (failed.failure.data["model"], failed.failure.data["bits"]) == ("sliding", 4)
    assert wording.failure(failed.failure).sentence.endswith(": set KV bits to full.")
