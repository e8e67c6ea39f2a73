"""Steps: their size, their borders, and that neither changes what was read."""

from __future__ import annotations

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
from app.engine.cache.prefill import StepSize
from app.estimate.memory import LARGEST_STEP, SMALLEST_STEP
from tests.engine import oracle
from tests.tiny import ORACLE, VOCABULARY, build

mlx_patches.install()


@pytest.mark.parametrize(
    ("backend", "first", "least", "soon", "late"),
    [(CPU, 256, 32, 0.1, 0.8), (GPU, 512, 512, 1.9, 5.1)],
    ids=["cpu", "gpu"],
)
def test_a_step_follows_the_pace(
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
    [(CPU, [256, 128, 64, *[32] * 50]), (GPU, [512] * 4)],
    ids=["cpu", "gpu"],
)
def test_on_a_gpu_a_slow_target_does_not_read_all_its_weights_for_32_tokens(
    backend: Backend, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target of 70B, whose steps all take ten seconds by this clock."""
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(prefill.time, "perf_counter", lambda: next(clock))
    model, ids = build("llama"), np.zeros(2048, np.int32)
    done: list[int] = [0]
    step = StepSize(backend=backend)
    prefill.prefill(model, prefill.make_stock_cache(model), ids, None, step, done.append)
    assert np.diff(done).tolist() == steps


def test_memory_may_make_a_step_shorter_than_the_pace_may() -> None:
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


def test_a_fixed_step_stays() -> None:
    step = StepSize(100)
    step.record(100, 100.0)
    assert step.tokens == 100


def test_every_step_is_reported_and_an_exception_leaves_the_steps_done() -> None:
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


@pytest.mark.parametrize("name", [*ORACLE, "falcon_h1", "deepseek_v3", "gemma3n", "gemma4_text"])
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


def test_blocks_are_used_only_inside(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert oracle.difference(plain, blocked) < 1e-4


def test_spare_buffers_are_released_once_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    mx.clear_cache()
    mx.eval(mx.zeros((1000, 1000)))
    unused = mx.get_cache_memory()
    assert unused > 0
    memory.trim_buffer_cache()
    assert mx.get_cache_memory() == unused
    monkeypatch.setattr(memory, "ceiling", lambda: 1000)
    memory.trim_buffer_cache()
    assert mx.get_cache_memory() == 0
