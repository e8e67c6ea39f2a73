"""What real models read sparsely is exact: it equals a dense forward by mlx-lm in which skipped
tokens are masked, as `tests.engine.test_oracle` shows for tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model, load_tokenizer
from numpy.typing import NDArray

from app.chat.sample import sample
from app.engine.backend import mlx_patches
from app.engine.backend.device import CPU
from app.engine.cache.kv_quantisation import find_quantisation
from app.engine.cache.prefill import (
    StepSize,
    forward,
    make_positioned_cache,
    prefill,
    set_next_position,
)
from app.engine.model.loader import CacheMaker
from tests.engine.oracle import difference, keys_masked_out
from tests.real.documents import fetch_documents

pytestmark = pytest.mark.real
MODELS = pytest.mark.parametrize("name", ["smollm2", "gemma3"])
DECODED, CHUNK, KEEP = 4, 32, 0.2
TOLERANCE = 5e-4
"""Logits are as large as 30. Measured: 1e-4."""
mlx_patches.install()


class Real:
    """A model and the ids of a text."""

    def __init__(self, folder: Path, text: str) -> None:
        self.model: Any = load_model(folder)[0]
        self.ids = np.array(load_tokenizer(folder).encode(text), np.int32)

    def sparse(self, length: int, selected: NDArray[np.int32], bits: int | None = None) -> mx.array:
        """Logits after a prompt of `length` tokens and after those that follow, as ours."""
        how = find_quantisation(self.model, bits) if bits else None
        cache = make_positioned_cache(CacheMaker(self.model, how) if how else self.model)
        rest = selected[:-1]
        step = StepSize(256, backend=CPU)
        prefill(self.model, cache, self.ids[rest], rest, step, lambda done: None)
        set_next_position(cache, int(selected[-1]))
        rows = []
        for position in [selected[-1], *range(length, length + DECODED - 1)]:
            rows.append(forward(self.model, cache, self.ids[position : position + 1])[:, -1])
            mx.eval(rows[-1])
        return mx.concatenate(rows)

    def masked(self, length: int, selected: NDArray[np.int32]) -> mx.array:
        """The same by one forward of mlx-lm over everything."""
        dropped = np.ones(length + DECODED, bool)
        dropped[selected] = dropped[length:] = False
        with keys_masked_out(dropped):
            hidden = self.model.model(mx.array(self.ids[: length + DECODED])[None])
            rows = hidden[0, length - 1 : length + DECODED - 1]  # all logits would be gigabytes
            logits = self.model.model.embed_tokens.as_linear(rows)
            mx.eval(logits)
        return logits


def selection(length: int) -> NDArray[np.int32]:
    """A fifth of the prompt in chunks, its beginning and its end."""
    rng = np.random.default_rng(0)
    selected = np.repeat(rng.random(-(-length // CHUNK)) < KEEP, CHUNK)[:length]
    selected[:4] = selected[-9:] = True
    return np.flatnonzero(selected).astype(np.int32)


@pytest.fixture(scope="module")
def models(smollm2: Path, gemma3: Path) -> dict[str, Real]:
    text = sample().text
    return {"smollm2": Real(smollm2, text), "gemma3": Real(gemma3, text)}


@pytest.mark.parametrize(("name", "length"), [("smollm2", 2048), ("gemma3", 4096)])
def test_sparse_reading_equals_the_oracle(name: str, length: int, models: dict[str, Real]) -> None:
    """Gemma's windows hold 512 positions, of which a fifth was read."""
    real, selected = models[name], selection(length)
    ours, expected = real.sparse(length, selected), real.masked(length, selected)
    assert difference(ours, expected) < TOLERANCE
    assert difference(real.sparse(length, selected[selected != selected[-2]]), expected) > (
        10 * TOLERANCE
    ), "or the tolerance would hide a mistake"


@MODELS
def test_bfloat16_is_as_exact_as_the_model_is(name: str, smollm2: Path, gemma3: Path) -> None:
    """Only 128 tokens: a CPU has no fast products in bfloat16."""
    real, length = Real({"smollm2": smollm2, "gemma3": gemma3}[name], sample().text), 128
    selected = selection(length)
    exact = real.masked(length, selected)
    real.model.set_dtype(mx.bfloat16)
    dense, sparse = real.masked(length, selected), real.sparse(length, selected)
    error = [
        float(mx.linalg.norm(each.astype(mx.float32) - exact).item()) for each in (dense, sparse)
    ]
    assert 0 < error[1] < 1.5 * error[0]


@pytest.mark.parametrize(("name", "length"), [("smollm2", 4096), ("gemma3", 16_384)])
def test_keeping_everything_equals_plain_mlx_lm(
    name: str, length: int, smollm2: Path, gemma3: Path
) -> None:
    folder = {"smollm2": smollm2, "gemma3": gemma3}[name]
    text = (fetch_documents() / "genesis-exodus.txt").read_text(encoding="utf-8")
    real = Real(folder, text[: length * 6])
    ours = real.sparse(length, np.arange(length, dtype=np.int32))[0]
    prompt = mx.array(real.ids[:length])
    _, plain = next(generate_step(prompt, real.model, max_tokens=1, prefill_step_size=256))
    assert difference(ours - mx.logsumexp(ours, keepdims=True), plain) < TOLERANCE


@MODELS
def test_few_bits_change_little(name: str, models: dict[str, Real]) -> None:
    length = 1024
    selected = selection(length)
    exact = models[name].sparse(length, selected)

    def error(bits: int) -> float:
        found = models[name].sparse(length, selected, bits).astype(mx.float32)
        return float((mx.linalg.norm(found - exact) / mx.linalg.norm(exact)).item())

    errors = {bits: error(bits) for bits in (8, 4)}
    assert 0 < errors[8] < errors[4]
    assert errors[8] < 0.02
