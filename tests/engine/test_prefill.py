"""Prefill steps: their size, cancelling, and that neither affects the caches."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from app.engine.backend import memory, mlx_patches
from app.engine.backend.device import CPU, GPU, Backend
from app.engine.cache import prefill
from app.engine.cache.caches import Cache, StepWatcher, flatten
from app.engine.cache.kv_quantisation import find_quantisation
from app.engine.cache.prefill import StepSize, forward, make_positioned_cache, make_stock_cache
from app.engine.cache.prefix_cache import PrefixCache, find_mismatch
from app.engine.cache.sizes import Transient
from app.engine.model.loader import CacheMaker
from app.estimate.memory import LARGEST_STEP, MAX_SCORE_BYTES, SMALLEST_STEP
from tests.engine import oracle
from tests.tables import slow, table
from tests.tiny import ORACLE, QUICK, VOCABULARY, architectures, build

mlx_patches.install()


@pytest.mark.parametrize(
    ("backend", "first", "least", "soon", "late"),
    [(CPU, 256, 128, 0.1, 0.8), (GPU, 512, 512, 1.9, 5.1)],
    ids=["cpu", "gpu"],
)
def test_the_step_adapts_to_the_speed(
    backend: Backend, first: int, least: int, soon: float, late: float
) -> None:
    step = StepSize(backend=backend)
    assert step.tokens == first
    for _ in range(20):
        step.record(step.tokens, soon)
    assert step.tokens == LARGEST_STEP
    for _ in range(20):
        step.record(step.tokens, late)
    assert step.tokens == least
    step.record(step.tokens, (soon + late) / 2)
    assert step.tokens == least, "in between nothing changes"
    step.record(step.tokens - 1, 0.001)
    assert step.tokens == least, "a part of a step says nothing"


@pytest.mark.parametrize(
    ("backend", "steps"),
    [(CPU, [256, *[128] * 14]), (GPU, [512] * 4)],
    ids=["cpu", "gpu"],
)
def test_a_slow_target_does_not_read_all_its_weights_for_32_tokens(
    backend: Backend, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 70B target whose steps all take ten seconds."""
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(prefill.time, "perf_counter", lambda: next(clock))
    model, ids = build("llama"), np.zeros(2048, np.int32)
    done: list[int] = [0]
    step = StepSize(backend=backend)
    prefill.prefill(model, prefill.make_stock_cache(model), ids, None, step, done.append)
    assert np.diff(done).tolist() == steps


def test_memory_can_limit_a_step_below_the_minimum_for_speed() -> None:
    step = StepSize(backend=GPU)
    step.record(512, 10.0)
    assert step.tokens == 512
    step.under_pressure = True
    assert step.tokens == 256
    step.under_pressure = False
    step.limit(SMALLEST_STEP, SMALLEST_STEP)
    assert step.tokens == SMALLEST_STEP
    step.record(SMALLEST_STEP, 10.0)
    step.limit(LARGEST_STEP, LARGEST_STEP)
    assert step.tokens == 512


def test_a_fixed_step_does_not_change() -> None:
    step = StepSize(100)
    step.record(100, 100.0)
    assert step.tokens == 100


def test_every_step_is_reported_and_an_exception_keeps_the_steps_done() -> None:
    model = build("qwen3")
    ids = np.arange(50, dtype=np.int32)
    done: list[int] = []
    cache = prefill.make_positioned_cache(model)
    prefill.prefill(model, cache, ids, ids * 3, StepSize(16), done.append)
    assert done == [16, 32, 48, 50]

    def stop(tokens: int) -> None:
        if tokens == 32:
            raise KeyboardInterrupt

    cache = prefill.make_positioned_cache(model)
    with pytest.raises(KeyboardInterrupt):
        prefill.prefill(model, cache, ids, ids * 3, StepSize(16), stop)
    assert cache[0].positions.array().tolist() == (ids[:32] * 3).tolist()


@pytest.mark.parametrize(
    "name", architectures(*ORACLE, "falcon_h1", "deepseek_v3", "gemma3n", "gemma4_text")
)
def test_a_prefill_step_leaves_the_same_caches_as_a_whole_forward(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, ids = build(name), np.arange(66, dtype=np.int32) % VOCABULARY
    ours, whole = prefill.make_stock_cache(model), prefill.make_stock_cache(model)
    ended: list[bool] = []

    def filled(cache: Cache, part: NDArray[np.int32]) -> None:
        with mlx_patches.early_exit(StepWatcher(flatten(cache))):
            prefill.forward(model, cache, part)
            ended.append(False)

    for part in (ids[:40], ids[40:]):  # past the window of those that have one
        filled(ours, part)
        prefill.forward(model, whole, part)
    assert not ended, "the head was not reached"
    for a, b in zip(flatten(ours), flatten(whole), strict=True):
        arrays = zip(_arrays(a), _arrays(b), strict=True)
        assert [mx.array_equal(x, y).item() for x, y in arrays] == [True] * len(_arrays(a))


def _arrays(cache: Any) -> list[mx.array]:
    state: list[tuple[str, Any]] = tree_flatten(cache.state)  # type: ignore[assignment]
    return [value for _, value in state if isinstance(value, mx.array)]


def test_blocks_are_used_only_within_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = build("llama"), mx.array([[i % VOCABULARY for i in range(40)]])
    shapes: list[int] = []

    def watch(q: mx.array, *_: object) -> None:
        shapes.append(q.shape[2])

    calls: list[int] = []
    wrapped = mx.fast.scaled_dot_product_attention.__wrapped__

    def counted(q: mx.array, *args: object, **kwargs: object) -> mx.array:
        calls.append(q.shape[2])
        result: mx.array = wrapped(q, *args, **kwargs)
        return result

    monkeypatch.setattr(
        mx.fast, "scaled_dot_product_attention", mlx_patches._patched_attention(counted)
    )
    with mlx_patches.observed_attention(watch):
        plain = model(ids)
    assert calls == shapes == [40] * 3
    calls.clear()
    with mlx_patches.blocked_attention(16):
        blocked = model(ids)
        mx.eval(blocked)
        assert calls == [], "numpy does it in float32"
        model.set_dtype(mx.float16)
        mx.eval(model(ids))
    assert calls == [16, 16, 8] * 3
    assert oracle.difference(plain, blocked) < oracle.TOLERANCE


def test_unused_buffers_are_released_above_a_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    mx.clear_cache()
    mx.eval(mx.zeros((1000, 1000)))
    unused = mx.get_cache_memory()
    assert unused > 0
    memory.trim_buffer_cache()
    assert mx.get_cache_memory() == unused
    monkeypatch.setattr(memory, "ceiling", lambda: 1000)
    memory.trim_buffer_cache()
    assert mx.get_cache_memory() == 0


mlx_patches.install()

PROMPT = 60_000
BANDWIDTH = 400e9
"""Bytes per second. A step reads all weights once, including all experts of a mixture."""


@dataclass(frozen=True)
class Model:
    """`attentions`: number of attention layers, at which a step can be abandoned."""

    weight_bytes: float
    attentions: int
    head_size: int


MODELS = {
    "27B": Model(16.8e9, 16, 256),
    "35B-A3B": Model(20e9, 10, 256),
    "4B": Model(2.4e9, 28, 128),
}


@dataclass(frozen=True)
class Read:
    """A simulated prefill: the `sizes` of its steps, the share of time `lost` to steps below the
    maximum, and the longest wait for a cancel in seconds."""

    sizes: list[int]
    lost: float
    longest_wait: float


def read(model: Model, rate: float, halved_at: float = float("inf")) -> Read:
    """Simulate `rate` tokens per second in steps of 512, half of that after `halved_at` tokens."""
    step, overhead = StepSize(backend=GPU), model.weight_bytes / BANDWIDTH
    step.expect(1 / rate, model.head_size)
    done, elapsed, longest, sizes = 0, 0.0, 0.0, list[int]()
    while done < PROMPT:
        count = min(step.tokens, PROMPT - done)
        each = max((1 + done / halved_at) / rate - overhead / 512, 0.0)
        seconds = overhead + count * each
        layers = max(model.attentions // step.parts(count), 1)
        longest = max(longest, seconds * layers / model.attentions)
        step.record(count, seconds)
        elapsed, done = elapsed + seconds, done + count
        sizes.append(count)
    spared = len(sizes) - PROMPT / LARGEST_STEP
    return Read(sizes[:-1], spared * overhead / elapsed, longest)


@table(
    "name, rate, settled, at_the_end",
    [
        ("27B", 50, 512, 512),
        ("27B", 116, 512, 512),
        ("27B", 200, 512, 512),
        ("27B", 240, 1024, 512),
        ("27B", 400, 1024, 1024),
        ("27B", 645, 2048, 1024),
        ("27B", 1400, 2048, 2048),
        ("27B", 3500, 2048, 2048),
        ("35B-A3B", 50, 512, 512),
        ("35B-A3B", 116, 512, 512),
        ("35B-A3B", 200, 512, 512),
        ("35B-A3B", 240, 1024, 512),
        ("35B-A3B", 400, 1024, 1024),
        ("35B-A3B", 645, 2048, 1024),
        ("35B-A3B", 1400, 2048, 2048),
        ("35B-A3B", 3500, 2048, 2048),
        ("4B", 50, 512, 512),
        ("4B", 116, 512, 512),
        ("4B", 200, 512, 512),
        ("4B", 240, 512, 512),
        ("4B", 400, 1024, 1024),
        ("4B", 645, 2048, 1024),
        ("4B", 1400, 2048, 2048),
        ("4B", 3500, 2048, 2048),
    ],
)
def test_a_gpu_uses_long_steps_that_can_be_cancelled_quickly(
    name: str, rate: int, settled: int, at_the_end: int
) -> None:
    constant, falling = read(MODELS[name], rate), read(MODELS[name], rate, 65_536)
    assert set(constant.sizes[2:]) == {settled}
    assert falling.sizes[-1] == at_the_end
    for found in (constant, falling):
        assert min(found.sizes) >= 512
        assert found.lost < 0.015
        assert found.longest_wait < (0.9 if rate > 50 else 2.1)
        changes = np.count_nonzero(np.diff(found.sizes))
        assert changes <= 4, "sizes do not alternate"


CONFIG_27B = {
    "hidden_size": 5120,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "intermediate_size": 17408,
}


@table(
    "change, room, context, tokens, forced",
    [
        ({}, 8e9, 8_192, 2048, False),
        ({}, 2e9, 131_072, 2048, True),
        ({}, 40e9, 131_072, 2048, True),  # more than one array should have
        ({"global_head_dim": 512}, 40e9, 131_072, 512, False),
        ({"global_head_dim": 512}, 1e9, 131_072, 128, False),
        ({"v_head_dim": 128}, 1e9, 131_072, 128, False),
        ({"head_dim": 128}, 2e9, 131_072, 2048, False),
    ],
)
def test_attention_is_forced_to_be_fused_before_steps_get_shorter(
    change: dict[str, int], room: float, context: int, tokens: int, forced: bool
) -> None:
    transient = Transient.of({**CONFIG_27B, **change}, 2, False, False, GPU)
    step = StepSize(backend=GPU)
    step.limit(*(transient.largest_step(room, context, how) for how in (True, False)))
    for _ in range(4):
        step.record(step.tokens, 1.0)
    assert (step.tokens, step.forces_fused(step.tokens)) == (tokens, forced)
    assert transient.bytes(tokens, context, forced) <= room
    scores = 0 if forced or not transient.score_copies else 24 * tokens * context * 2
    assert scores <= MAX_SCORE_BYTES


def test_a_cpu_never_forces_fused_attention() -> None:
    transient = Transient.of(CONFIG_27B, 2, False, False, CPU)
    assert transient.bytes(512, 9000, forced=True) == transient.bytes(512, 9000)
    with pytest.raises(ValueError, match="no fused kernel"):
        attend(256, 64)


def attend(head_size: int, queries: int, values: int | None = None) -> None:
    q, k = mx.zeros((1, 4, queries, head_size)), mx.zeros((1, 2, 80, head_size))
    v = mx.zeros((1, 2, 80, values or head_size))
    with mlx_patches.forced_attention(GPU.forced_head_sizes):
        mx.eval(mx.fast.scaled_dot_product_attention(q, k, v, scale=0.1, mask="causal"))


@pytest.mark.parametrize(
    ("head_size", "queries", "values", "asked"),
    [
        (256, 64, 256, True),
        (192, 9, 192, True),
        (256, 8, 256, False),
        (192, 64, 128, False),
        (128, 64, 128, False),
        (512, 64, 512, False),
    ],
)
def test_the_fused_kernel_is_requested_only_if_it_exists(
    head_size: int, queries: int, values: int, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLX has no such kernel on a CPU, so requests are recorded instead."""
    plain, seen = mx.fast.scaled_dot_product_attention.__wrapped__, list[bool]()  # type: ignore[attr-defined]

    def kernel(*args: mx.array, force_fused: bool = False, **kwargs: Any) -> mx.array:
        seen.append(force_fused)
        result: mx.array = plain(*args, **kwargs)
        return result

    patched = mlx_patches._patched_attention(kernel)
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", patched)
    attend(head_size, queries, values)
    assert seen == [asked]


class Left(Exception):
    """Raised to abandon a step."""


IDS = (np.arange(90, dtype=np.int32) * 7 + 3) % VOCABULARY
PLACES = np.concatenate([np.arange(40), np.arange(300, 350)]).astype(np.int32)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(
            (name, kind) if name in QUICK else slow(name, kind)
            for name, kind in product(ORACLE, ["positioned", "stock"])
        ),
        ("qwen3", "8 bits"),
    ],
)
@table("backend", [CPU, GPU])
def test_an_abandoned_step_leaves_no_trace(
    name: str, kind: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlx_patches, "DEQUANTISE_FROM", 2)
    model = build(name, **({"head_dim": 32} if kind == "8 bits" else {}))
    quantisation = find_quantisation(model, 8) if kind == "8 bits" else None
    caches = CacheMaker(model, quantisation)
    make = make_stock_cache if kind == "stock" else make_positioned_cache
    places = np.arange(90, dtype=np.int32) if kind == "stock" else PLACES
    ids = np.zeros(int(places[-1]) + 1, np.int32)
    ids[places] = IDS

    def read_all(leave_at: int) -> tuple[int, mx.array]:
        """Abandon a step at this part. Returns the number of parts and the final logits."""
        prefix, step = PrefixCache(lambda: make(caches)), StepSize(25, backend)
        parts = list[int]()

        def on_part(done: int) -> None:
            parts.append(done)
            if len(parts) == leave_at:
                raise Left

        prefix.prefill_at(model, ids, places[:40], step, lambda done: None)
        prefix.add_checkpoint()
        step.expect(100.0)  # it was quick
        with pytest.raises(Left) if leave_at else nullcontext():
            prefix.prefill_at(model, ids, places[40:65], step, lambda done: None, on_part)
        assert find_mismatch(prefix) is None
        rest = prefix.uncached(places[:89])
        assert len(rest) == (49 if leave_at else 24)
        prefix.prefill_at(model, ids, rest, step, lambda done: None)
        assert find_mismatch(prefix) is None
        assert parts == sorted(parts)
        return len(parts), forward(model, prefix.cache, IDS[89:], places[89:])[0, -1]

    count, expected = read_all(0)
    assert count >= 2
    for leave_at in range(1, count + 1):
        assert mx.allclose(read_all(leave_at)[1], expected, atol=1e-5).item(), leave_at
