"""The sum: against what MLX measures, against a Mac's figures, and in itself."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from app.engine.backend import mlx_patches
from app.engine.backend.device import GPU
from app.engine.cache import prefill
from app.engine.cache.kv_quantisation import find_quantisation
from app.engine.model.loader import CacheMaker
from app.engine.scorers.attention import AttentionObserver
from app.errors import UserError
from app.estimate import memory as memory_model
from app.estimate.memory import FUSED_HEAD_DIMS, MAX_QUERY_ROWS
from app.models import fit as estimates
from app.models.architecture import Architecture, Layer, parse_architecture
from app.models.errors import ModelError
from app.models.fit import (
    Machine,
    ModelSize,
    cache_bytes,
    fit,
    mac_with,
    parse_memory,
    scoring_bytes,
    step_bytes,
    with_kv_bits,
)
from tests import tiny
from tests.models.test_architecture import TABLE
from tests.tables import slow, table

TOKENS, STEP = 1024, 128
LARGER = {
    "hidden_size": 128,
    "num_hidden_layers": 4,
    "intermediate_size": 256,
    "num_attention_heads": 8,
    "head_dim": 32,
    "sliding_window": 256,
}
UNFUSED: frozenset[int] = frozenset()
"""No width has a fused kernel, as on a CPU."""
mlx_patches.install()


@pytest.fixture
def larger(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Builds the oracle's architectures large enough that what they read shows beside weights."""

    def build(name: str) -> tuple[Any, Architecture]:
        config = copy.deepcopy(tiny.CONFIGS[name])
        for part in (config, config.get("text_config", {})):
            part.update({key: value for key, value in LARGER.items() if key in part})
        if "layer_types" in config:
            config["layer_types"] = ["sliding_attention", "full_attention"] * 2
        monkeypatch.setitem(tiny.CONFIGS, name, config)
        return tiny.build(name), parse_architecture({**tiny.config_of(name), "dtype": "float32"})

    return build


def check_peak(model: Any, shape: Architecture, caches: Any) -> float:
    """That the peak of reading is predicted within a tenth. Returns it, with the weights."""
    cache = prefill.make_positioned_cache(caches)
    ids = np.arange(TOKENS, dtype=np.int32) % tiny.VOCABULARY
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    everything = np.arange(TOKENS, dtype=np.int32)
    prefill.prefill(
        model, cache, ids, everything, prefill.StepSize(STEP, backend=GPU), lambda done: None
    )
    weights = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    peak = float(weights + mx.get_peak_memory() - before)
    kept, moment = cache_bytes(shape, TOKENS, STEP), step_bytes(shape, TOKENS, STEP, UNFUSED)
    assert weights + kept + moment == pytest.approx(peak, rel=0.1)
    return peak


@pytest.mark.parametrize("name", tiny.architectures(*tiny.ORACLE))
def test_the_peak_of_reading_is_predicted(name: str, larger: Any) -> None:
    model, shape = larger(name)
    peak = check_peak(model, shape, model)
    # Without any of the parts it would not be.
    scores = step_bytes(shape, TOKENS, STEP, UNFUSED) - step_bytes(
        shape, TOKENS, STEP, frozenset({32, 16})
    )
    assert scores > 0.1 * peak


@pytest.mark.parametrize(
    ("heads", "tokens", "dtype"),
    [
        (16, 2048, mx.float32),
        (8, 4096, mx.bfloat16),
        slow(16, 2048, mx.bfloat16),
        slow(8, 4096, mx.float32),
        slow(4, 16384, mx.float32),
        slow(4, 16384, mx.bfloat16),
    ],
)
def test_what_scoring_needs(heads: int, tokens: int, dtype: mx.Dtype) -> None:
    q = mx.random.normal((1, heads, MAX_QUERY_ROWS, 32)).astype(dtype)
    k = mx.random.normal((1, 2, tokens, 32)).astype(dtype)
    mx.eval(q, k)

    def run() -> None:
        for _ in range(3):
            mx.fast.scaled_dot_product_attention(q, k, k, scale=0.1, mask="causal")

    observations = AttentionObserver(tokens, GPU)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    observations.observe(MAX_QUERY_ROWS, run)
    layer = Layer(kv_elements=2 * 2 * 32, heads=heads, head_dim=32)
    expected = scoring_bytes(Architecture("", (layer,), 1, 1, True, 0), tokens)
    assert 0.6 * expected < mx.get_peak_memory() - before < 1.1 * expected
    assert expected == memory_model.scoring_bytes(tokens, heads, 32), "the engine's own sum"
    assert GPU.fused_head_sizes == FUSED_HEAD_DIMS


MAC = {8: 21.7, 32: 23.8, 64: 26.7, 100: 29.8, 130: 32.5, 160: 35.2, 176: 36.5, 192: 38.0}
"""Thousands of tokens, and GB at the peak: Qwen3.6-35B-A3B-4bit, whose numbers are those of 3.5, in
steps of 2,048 on an M5 Max with mlx 0.32.0 (mlx-lm issue 1480)."""


@table("thousands", MAC)
def test_a_macs_peaks_are_predicted_within_a_tenth(thousands: int) -> None:
    shape = parse_architecture(row("Qwen/Qwen3.5-35B-A3B"))
    weights = 20_391_405_152
    tokens = thousands * 1000
    moment = step_bytes(shape, tokens, 2048, FUSED_HEAD_DIMS)  # mlx-lm forces nothing
    peak = weights + cache_bytes(shape, tokens, 2048) + moment
    assert peak / 1e9 == pytest.approx(MAC[thousands], rel=0.1)


def row(source: str) -> dict[str, Any]:
    return next(r["numbers"] for r in TABLE if r["source"].startswith(source))


def sized(source: str, weights: float) -> ModelSize:
    return ModelSize(source, parse_architecture(row(source)), int(weights))


QWEN = sized("Qwen/Qwen3-14B", 8.3e9)
SMALL = sized("Qwen/Qwen3-0.6B", 335e6)


def test_the_lines_add_up() -> None:
    found = fit(QWEN, SMALL, mac_with(32 << 30), tokens=10_000)
    assert [line.label for line in found.items] == [
        "target, weights",
        "target, cache",
        "draft, weights",
        "draft, cache",
        "one step",
    ]
    assert found.items[1].bytes == 40 * 2 * 8 * 128 * 2 * 10_000
    assert found.items[3].bytes == 28 * 2 * 8 * 128 * 2 * 10_000
    assert found.total == sum(line.bytes for line in found.items)
    assert found.total == estimates.peak_bytes(QWEN, SMALL, 10_000)


@table("gigabytes, draft", product([8, 16, 24, 32, 64, 128], [None, SMALL]))
def test_the_longest_is_the_last_that_fits(gigabytes: int, draft: ModelSize | None) -> None:
    machine = mac_with(gigabytes << 30)
    found = fit(QWEN, draft, machine)
    if found.max_tokens:
        assert estimates.peak_bytes(QWEN, draft, found.max_tokens) <= machine.budget
        assert found.total <= machine.budget
    if found.max_tokens < QWEN.architecture.context:
        beyond = max(found.max_tokens, estimates.MIN_TOKENS - 1024) + 1024
        assert estimates.peak_bytes(QWEN, draft, beyond) > machine.budget
    assert found.max_sparse_tokens >= found.max_tokens


def test_verdicts() -> None:
    assert fit(QWEN, SMALL, mac_with(8 << 30)).verdict == "too big"
    assert fit(QWEN, SMALL, mac_with(64 << 30)).verdict == "fits 40K"
    wide = sized("Qwen/Qwen3.5-4B", 3e9)
    assert fit(wide, None, mac_with(128 << 30)).verdict == "fits 256K"


def test_a_draft_that_needs_more_for_its_step_than_the_target() -> None:
    """Unfused, in steps of 2,048: its moment comes before the target has a cache."""
    target, draft = sized("Nemotron 3 Super", 68e9), sized("Qwen/Qwen3.5-4B", 3e9)
    wide = [replace(layer, head_dim=512) for layer in draft.architecture.layers]
    draft = replace(draft, architecture=replace(draft.architecture, layers=tuple(wide)))
    found = fit(target, draft, mac_with(128 << 30), tokens=32_768)
    assert found.items[-1].explanation.startswith("draft, before")
    weights = target.weight_bytes + draft.weight_bytes
    assert found.total == weights + cache_bytes(draft.architecture, 32_768, 2048) + step_bytes(
        draft.architecture, 32_768, 2048
    )


def test_windows_stop_growing_and_sparse_reading_keeps_them() -> None:
    shape = parse_architecture(row("OpenPipe/gemma-3-12b"))
    assert cache_bytes(shape, 65_536) - cache_bytes(shape, 32_768) == 32_768 * 8 * 2 * 8 * 256 * 2
    assert cache_bytes(shape, 65_536, windows=False) == 65_536 * 48 * 2 * 8 * 256 * 2


def test_fused_attention_writes_no_scores() -> None:
    shape = parse_architecture(row("Qwen/Qwen3-14B"))
    scores = 40 * 512 * 32_768 * 2 + 2 * 512 * 32_768
    assert step_bytes(shape, 32_768, fused=UNFUSED) - step_bytes(shape, 32_768) == scores


def test_where_mlx_has_a_fused_kernel_it_is_asked_for_it() -> None:
    shape = parse_architecture(row("Qwen/Qwen3.5-27B"))
    scores = 24 * 512 * 131_072 * 2 + 2 * 512 * 131_072
    unforced = step_bytes(shape, 131_072, fused=FUSED_HEAD_DIMS)
    assert unforced - step_bytes(shape, 131_072) == scores
    found = fit(sized("Qwen/Qwen3.5-27B", 16.8e9), None, mac_with(32 << 30))
    assert found.items[-1].explanation == "512 tokens at once; attention is fused"


def test_sinks_copy_the_scores() -> None:
    shape = parse_architecture(row("openai/gpt-oss-20b"))
    scores = 3 * 64 * 512 * 32_768 * 2 + 2 * 512 * 32_768
    assert step_bytes(shape, 32_768, fused=UNFUSED) - step_bytes(shape, 32_768) == scores


def test_the_share_of_a_mac() -> None:
    assert mac_with(16 << 30).ceiling == pytest.approx(10922.67 * 2**20, rel=1e-6)
    assert mac_with(32 << 30).ceiling == pytest.approx(21845.34 * 2**20, rel=1e-6)
    assert mac_with(64 << 30).ceiling == 49152 << 20
    assert Machine(10, 10).budget == 9


@table("text", ["32GB", "32 gb", "32", " 32 GiB ", "32G"])
def test_sizes_of_a_memory(text: str) -> None:
    assert parse_memory(text) == 32 << 30


@table("text", ["", "0", "0GB", "-8", "8.5GB", "8TB", "lots", "99999999", "٣٢"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UserError, match="32GB"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        *(("gpt_oss", 4), ("qwen3_next", 8)),
        *(slow(name, 8) for name in ("llama", "gemma3", "gpt_oss", "qwen3")),
        *(slow(name, 4) for name in ("llama", "gemma3", "qwen3", "qwen3_next")),
    ],
)
def test_the_peak_with_a_quantised_cache_is_predicted(name: str, bits: int, larger: Any) -> None:
    model, full = larger(name)
    caches = CacheMaker(model, find_quantisation(model, bits))
    check_peak(model, with_kv_bits(full, bits), caches)


def test_fewer_bits_make_longer_prompts_fit() -> None:
    shape = parse_architecture(row("Qwen/Qwen3-14B"))
    sums = [
        fit(ModelSize("q", with_kv_bits(shape, bits), 8_300_000_000), None, mac_with(16 << 30))
        for bits in (None, 8, 4)
    ]
    assert sums[0].max_tokens < sums[1].max_tokens < sums[2].max_tokens
    assert "keys and values dequantised" in sums[1].items[-1].explanation
    with pytest.raises(ModelError, match="multiple of 32"):
        with_kv_bits(parse_architecture({**row("Qwen/Qwen3-14B"), "head_dim": 80}), 8)
