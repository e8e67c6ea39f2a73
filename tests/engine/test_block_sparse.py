"""Block-sparse attention is exact over the chosen blocks and applies only where intended."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.utils import load_model
from numpy.typing import NDArray

from app.engine.backend import block_sparse, mlx_patches
from app.engine.backend.device import CPU, GPU, Backend
from app.engine.cache.prefill import StepSize, make_stock_cache
from app.engine.cache.prefix_cache import PrefixCache
from app.engine.cache.sizes import Transient
from app.engine.scorers.attention import score_by_attention
from app.models.embedded import draft_path
from app.protocol.options import Blocks
from tests.tables import table
from tests.tiny import VOCABULARY, architectures, build

mlx_patches.install()

Array = NDArray[np.float32]
FEW = Blocks(size=16, sinks=1, recent=2, top=3)
SCALE = 0.25


def _random(heads: int, kv_heads: int, length: int, width: int = 32) -> tuple[mx.array, ...]:
    chance = np.random.default_rng(length)
    return tuple(
        mx.array(chance.standard_normal((1, h, length, width), np.float32))
        for h in (heads, kv_heads, kv_heads)
    )


def _steps(
    arrays: tuple[mx.array, ...],
    blocks: Blocks | None,
    boundaries: tuple[int, ...],
    backend: Backend = CPU,
    **kw: Any,
) -> Array:
    """Plain causal attention, step by step."""
    q, k, v = arrays
    parts = []
    for start, end in zip((0, *boundaries), (*boundaries, q.shape[2]), strict=True):
        with (
            mlx_patches.blocked_attention(backend.query_block),
            mlx_patches.sparse_attention(blocks),
        ):
            step = q[:, :, start:end], k[:, :, :end], v[:, :, :end]
            options = {"scale": SCALE, "mask": "causal", **kw}
            parts.append(mx.fast.scaled_dot_product_attention(*step, **options))
    return np.array(mx.concatenate(parts, axis=2).astype(mx.float32))


@table("heads, length", product([(1, 1), (4, 4), (6, 2)], [512, 501]))
def test_without_skipped_blocks_it_equals_plain_attention(
    heads: tuple[int, int], length: int
) -> None:
    """This holds in the first steps of a prompt."""
    arrays = _random(*heads, length)
    q, k, v = arrays
    every = Blocks(size=16, sinks=1, recent=2, top=length // 16 - 3)
    last = block_sparse.attend(q[:, :, -20:], k, v, SCALE, mlx_patches._numpy_attention, every)
    expected = _steps(arrays, None, ())[:, :, -20:]
    np.testing.assert_allclose(np.array(last), expected, atol=1e-5)


@table(
    "heads, boundaries, backend",
    product([(3, 3), (6, 2)], [(), (100, 333), (320, 321)], [CPU, GPU]),
)
def test_it_equals_attention_masked_to_the_chosen_blocks(
    heads: tuple[int, int], boundaries: tuple[int, ...], backend: Backend
) -> None:
    """Naive choice of blocks, for each block of queries and group of heads."""
    q, k, v = arrays = _random(*heads, 501)
    seen = _chosen(np.array(q[0]), np.array(k[0]), boundaries)
    expected = mx.fast.scaled_dot_product_attention.__wrapped__(  # type: ignore[attr-defined]
        q, k, v, scale=SCALE, mask=mx.array(seen)
    )
    ours, plain = (_steps(arrays, blocks, boundaries, backend) for blocks in (FEW, None))
    np.testing.assert_allclose(ours, np.array(expected), atol=1e-5)
    assert not np.allclose(plain, np.array(expected), atol=1e-2)


def _chosen(q: Array, k: Array, boundaries: tuple[int, ...]) -> NDArray[np.bool_]:
    """Mask of the keys that each query sees, (Hq, N, N)."""
    heads, length, _ = q.shape
    group, size = heads // len(k), FEW.size
    seen = np.zeros((heads, length, length), bool)
    ends = sorted({*range(size, length, size), *boundaries, length})
    for start, end in zip((0, *ends), ends, strict=False):
        own = start // size
        window, middle = own - FEW.recent, np.arange(FEW.sinks, max(own - FEW.recent, FEW.sinks))
        for head in range(heads):
            wanted = set(range(FEW.sinks)) | set(range(max(window, 0), length // size + 1))
            means = k[head // group][: length // size * size].reshape(-1, size, k.shape[2]).mean(1)
            first = head // group * group
            queries = q[first : first + group, start:end].mean(axis=1)
            likes = (queries @ means[middle].T).max(axis=0)
            wanted |= set(middle[np.argsort(-likes)[: FEW.top]].tolist())
            for block in wanted:
                seen[head, start:end, block * size : (block + 1) * size] = True
    return seen & np.tril(np.ones((length, length), bool))


def test_no_query_sees_a_later_key() -> None:
    q, k, v = arrays = _random(4, 2, 400)
    before = _steps(arrays, FEW, (150,))
    k[:, :, 300:] = 9.0
    v[:, :, 300:] = 9.0
    np.testing.assert_array_equal(_steps((q, k, v), FEW, (150,))[:, :, :300], before[:, :, :300])


def test_sinks_and_recent_keys_are_always_visible() -> None:
    """Their values affect the result although their keys score lowest."""
    q, k, v = _random(2, 2, 500)
    v = mx.zeros_like(v)
    for place in (3, 470):
        k[:, :, place] = -mx.sign(q[:, :, -1])
        v[:, :, place] = 1.0
    assert (_steps((q, k, v), FEW, ())[0, :, -1] > 0).all()


def test_other_attention_is_unchanged() -> None:
    arrays = _random(4, 4, 300)
    places = mx.array(np.tri(300, dtype=bool))
    window = places & ~mx.array(np.tri(300, k=-50, dtype=bool))
    for kw in ({"mask": places}, {"mask": window}, {"sinks": mx.ones(4)}, {"mask": None}):
        np.testing.assert_array_equal(_steps(arrays, FEW, (), **kw), _steps(arrays, None, (), **kw))
    wide = Blocks(size=16, sinks=1, recent=2, top=20)
    np.testing.assert_array_equal(_steps(arrays, wide, ()), _steps(arrays, None, ()))


@table("dtype, constant", product([mx.float16, mx.bfloat16], [0, 2_000, 20_000, 80_000]))
def test_large_keys_do_not_change_the_chosen_blocks(constant: int, dtype: mx.Dtype) -> None:
    """All keys share a component that adds this much to every score."""
    q, k, v = (a.astype(dtype) for a in _random(4, 2, 1000))
    if constant:
        q[..., 0], k[..., 0] = 200, constant / 200
    v = mx.broadcast_to(mx.arange(1000)[:, None] // FEW.size, v.shape).astype(mx.float32)

    def chosen(q: mx.array, k: mx.array) -> list[set[int]]:
        found: list[set[int]] = []

        def one(q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
            found.extend(set(np.array(v)[0, head, :, 0].tolist()) for head in range(2))
            return q

        block_sparse.attend(q[:, :, -64:], k, v, SCALE, one, FEW)
        return found

    exact = chosen(q.astype(mx.float32), k.astype(mx.float32))
    assert len(exact) == 10, "five blocks of queries, two heads"
    assert chosen(q, k) == exact


def test_half_precision_is_preserved() -> None:
    half = tuple(a.astype(mx.bfloat16) for a in _random(4, 2, 300))
    rough, exact = _steps(half, FEW, ()), _steps(_random(4, 2, 300), FEW, ())
    assert np.corrcoef(rough.ravel(), exact.ravel())[0, 1] > 0.99


def _importance(model: Any, ids: NDArray[np.int32], step: int, sparse_from: int, top: int) -> Array:
    return score_by_attention(
        model,
        PrefixCache(partial(make_stock_cache, model)),
        ids,
        len(ids) - 20,
        (),
        StepSize(step),
        lambda done: None,
        lambda observations, expected: None,
        blocks=Blocks(top=top),
        blocks_from=sparse_from,
    )


@pytest.mark.parametrize("name", architectures("llama", "gpt_oss", "qwen3_next"))
def test_short_prompts_are_read_as_before(name: str) -> None:
    model = build(name)
    ids = np.random.default_rng(3).integers(0, VOCABULARY, 900).astype(np.int32)
    never, later, now = (_importance(model, ids, 128, n, top=0) for n in (10**9, 901, 900))
    np.testing.assert_array_equal(never, later)
    if name != "gpt_oss":  # its attention has sinks
        assert not np.array_equal(never, now)
    assert np.isfinite(now).all()


def test_the_embedded_draft_finds_the_same_chunks() -> None:
    model, _ = load_model(draft_path())
    ids = np.random.default_rng(3).integers(3, 6000, 2000).astype(np.int32)
    ids[700:708] = ids[-30:-22]  # repeated in the question, so important
    dense, sparse, other_steps = (
        _importance(model, ids, step, n, top=2) for n, step in ((10**9, 256), (0, 256), (0, 512))
    )
    assert np.corrcoef(dense, sparse)[0, 1] > 0.99
    np.testing.assert_allclose(sparse, other_steps, rtol=1e-3, atol=1e-6)


def test_a_step_uses_no_more_memory_than_predicted() -> None:
    length, step, blocks = 16384, 128, Blocks()
    config = {"hidden_size": 256, "num_attention_heads": 4, "head_dim": 64}
    q, k, v = _random(4, 4, length, 64)
    q = q[:, :, -step:]
    peaks = []
    for way in (None, blocks):
        mx.eval(q, k, v)
        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        with mlx_patches.blocked_attention(CPU.query_block), mlx_patches.sparse_attention(way):
            mx.eval(mx.fast.scaled_dot_product_attention(q, k, v, scale=SCALE, mask="causal"))
        peaks.append(mx.get_peak_memory() - before)
    assert 0 < peaks[1] <= peaks[0]
    assert peaks[1] <= Transient.of(config, 4, False, False, CPU).bytes(step, length)
