"""A model in a GGUF file answers as the same weights do in mlx-lm's own format."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from mlx_lm.utils import load_model
from tokenizers import Tokenizer

from app.extras.gguf.convert import joined, plan_conversion
from app.models.cache import ModelCache, verify
from app.models.errors import ModelError
from app.models.formats import ConversionStopped, Converted
from app.models.progress import ByteProgress
from app.protocol.generation_config import read_generation_config
from app.protocol.options import ModelSampling
from tests import tiny
from tests.extras.gguf.making import NAMES, VOCABULARY, write_gguf
from tests.tables import slow, table

IDS = mx.array([[5, 17, 200, 31, 64, 90, 3, 7, 111, 45, 22, 250]])
WIDE = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 32}
"""Rows of a multiple of 32 numbers, as ggml's blocks want them."""


def converted(cache: ModelCache, path: Path, bits: int | None = None) -> Converted:
    return plan_conversion([path], bits).install(cache)


def logits(folder: Path) -> np.ndarray[Any, Any]:
    model, _ = load_model(folder)
    return np.array(model(IDS).astype(mx.float32))


def expected(name: str, seed: int = 0, **changes: Any) -> np.ndarray[Any, Any]:
    return np.array(tiny.build(name, seed, mx.float32, VOCABULARY, **changes)(IDS))


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_same_weights(name: str, tmp_path: Path, cache: ModelCache) -> None:
    changes = {"head_dim": 12} if name in ("qwen2", "phi3") else {}
    write_gguf(tmp_path / "tiny.gguf", name, **changes)
    done = converted(cache, tmp_path / "tiny.gguf")
    assert done.repository == "local/tiny"
    assert done.error == done.changed == 0
    assert np.abs(logits(done.folder) - expected(name, **changes)).max() < 1e-5


SCALINGS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "linear": (
        "llama",
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
        {"rope_scaling": {"type": "linear", "factor": 4.0}},
    ),
    "yarn": (
        "qwen2",
        {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 1024,
        },
        {
            "rope_scaling": {
                "type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 1024,
            },
            "head_dim": 12,
        },
    ),
}


@pytest.mark.parametrize("how", SCALINGS)
def test_scaled_rotary_positions(how: str, tmp_path: Path, cache: ModelCache) -> None:
    name, values, changes = SCALINGS[how]
    own = {f"{NAMES[name]}.{key}": value for key, value in values.items()}
    write_gguf(tmp_path / "tiny.gguf", name, values=own, **changes)
    done = converted(cache, tmp_path / "tiny.gguf")
    right = expected(name, **changes)
    assert np.abs(logits(done.folder) - right).max() < 1e-5
    unscaled = {key: value for key, value in changes.items() if key != "rope_scaling"}
    assert np.abs(expected(name, **unscaled) - right).max() > 1e-3, "it matters here"


def llama3_factors(factor: float, head_dim: int, theta: float) -> np.ndarray[Any, Any]:
    """As llama.cpp's converter computes them from Meta's numbers."""
    factors = []
    for at in range(0, head_dim, 2):
        wavelength = 2 * np.pi * theta ** (at / head_dim)
        if wavelength < 8192 / 4.0:
            factors.append(1.0)
        elif wavelength > 8192 / 1.0:
            factors.append(factor)
        else:
            smooth = (8192 / wavelength - 1.0) / (4.0 - 1.0)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


def test_the_rotary_factors_of_llama_3(tmp_path: Path, cache: ModelCache) -> None:
    changes: dict[str, Any] = {"rope_theta": 500_000.0, "head_dim": 64}
    factors = llama3_factors(32.0, 64, 500_000.0)
    write_gguf(tmp_path / "tiny.gguf", "llama", extra={"rope_freqs.weight": factors}, **changes)
    done = converted(cache, tmp_path / "tiny.gguf")
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    right = expected("llama", rope_scaling=scaling, **changes)
    assert np.abs(logits(done.folder) - right).max() < 1e-5


def test_factors_of_another_kind_are_refused(tmp_path: Path) -> None:
    factors = np.linspace(1, 3, 8, dtype=np.float32)
    write_gguf(tmp_path / "tiny.gguf", "llama", extra={"rope_freqs.weight": factors})
    with pytest.raises(ModelError, match="in an unknown way"):
        plan_conversion([tmp_path / "tiny.gguf"])


# ---------------------------------------------------------------------------- quantised weights


@pytest.mark.parametrize("kind", ["Q4_0", slow("Q4_1"), slow("Q5_0"), "Q5_1", slow("Q8_0")])
def test_quantised_weights_stay_as_they_are(kind: str, tmp_path: Path, cache: ModelCache) -> None:
    """Each number of a matrix is what ggml makes of it, to the last bit."""
    weights = write_gguf(tmp_path / "tiny.gguf", "llama", kind=kind, **WIDE)
    done = converted(cache, tmp_path / "tiny.gguf")
    held = mx.load(str(done.folder / "model.safetensors"))
    config = json.loads((done.folder / "config.json").read_text())
    name = "model.layers.1.mlp.down_proj"
    of_it = config["quantization"][name]
    ours = mx.dequantize(
        *(
            held[f"{name}.{part}"].astype(mx.float32)
            if part != "weight"
            else held[f"{name}.weight"]
            for part in ("weight", "scales", "biases")
        ),
        **of_it,
    )
    dtype = GGMLQuantizationType[kind]
    packed = quants.quantize(np.array(weights[f"{name}.weight"]), dtype)
    assert np.array_equal(np.array(ours), quants.dequantize(packed, dtype))
    assert done.error == done.changed == 0
    model, _ = load_model(done.folder)
    assert np.isfinite(np.array(model(IDS).astype(mx.float32))).all()


def test_what_mlx_cannot_hold_is_quantised_again_or_dequantised(
    tmp_path: Path, cache: ModelCache
) -> None:
    """F16 matrices: kept, or at the bits that were asked for, with an error that is said."""
    write_gguf(tmp_path / "tiny.gguf", "qwen3", kind="F16", **WIDE)
    right, errors = expected("qwen3", **WIDE), {}
    for bits in (None, 32, 8, 4):
        planned = plan_conversion([tmp_path / "tiny.gguf"], bits, f"bits-{bits}")
        done = planned.install(cache)
        errors[bits] = done.error
        size = sum(each.stat().st_size for each in done.folder.glob("*.safetensors"))
        assert abs(size - planned.size) < 20_000
        cosine = np.corrcoef(logits(done.folder).ravel(), right.ravel())[0, 1]
        assert cosine > {None: 0.9999, 32: 0.9999, 8: 0.999, 4: 0.9}[bits]
    assert errors[32] == 0
    assert errors[None] < 1e-3 < 0.002 < errors[8] < 0.01 < errors[4] < 0.1


def test_gemma_is_not_held_in_float16(tmp_path: Path, cache: ModelCache) -> None:
    write_gguf(tmp_path / "tiny.gguf", "gemma3_text", kind="Q8_0", hidden_size=128)
    planned = plan_conversion([tmp_path / "tiny.gguf"])
    assert "keep their values, with scales rounded to bfloat16" in " ".join(planned.lines())
    held = mx.load(str(planned.install(cache).folder / "model.safetensors"))
    assert {each.dtype for each in held.values()} == {mx.bfloat16, mx.uint32}


# ---------------------------------------------------------------------------- installing


def test_it_is_installed_like_one_that_was_downloaded(tmp_path: Path, cache: ModelCache) -> None:
    write_gguf(tmp_path / "A model's (1).Q8_0.gguf", "llama")
    seen: list[ByteProgress] = []
    planned = plan_conversion([tmp_path / "A model's (1).Q8_0.gguf"])
    done = planned.install(cache, seen.append)
    assert done.repository == "local/A-model-s-1-.Q8_0"
    assert [each.repository for each in cache.installed()] == [done.repository]
    assert cache.installed()[0].fault is None
    assert verify(cache, done.repository).faults == ()
    assert seen[-1].done == seen[-1].total == planned.size
    assert not (cache.app_folder / "conversions").exists()
    with pytest.raises(ModelError, match="is already installed"):
        planned.install(cache)


def test_the_sampling_that_a_file_recommends_is_kept(tmp_path: Path, cache: ModelCache) -> None:
    values = {
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": "much",
        "general.sampling.penalty_repeat": 1.05,
    }
    write_gguf(tmp_path / "m.gguf", values=values)
    folder = plan_conversion([tmp_path / "m.gguf"]).install(cache).folder
    expected = ModelSampling(0.6, top_k=20, repetition_penalty=1.05)
    assert read_generation_config(folder) == expected


def test_cancelling_leaves_nothing(tmp_path: Path, cache: ModelCache) -> None:
    write_gguf(tmp_path / "tiny.gguf", "llama")
    seen: list[ByteProgress] = []
    planned = plan_conversion([tmp_path / "tiny.gguf"])
    with pytest.raises(ConversionStopped):
        planned.install(cache, seen.append, lambda: len(seen) > 5)
    assert cache.installed() == []
    assert [p for p in cache.folder.rglob("*") if p.is_file() and p.suffix != ".lock"] == []


def test_a_disk_that_is_too_small_is_said_before(
    tmp_path: Path, cache: ModelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf(tmp_path / "tiny.gguf", "llama")
    usage = type("Usage", (), {"free": 1 << 20})
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(ModelError, match=r"needs .* and 1\.0 MB is free"):
        plan_conversion([tmp_path / "tiny.gguf"]).install(cache)


def _in_bytes(path: Path) -> list[Path]:
    data = path.read_bytes()
    parts = [path.with_name(f"tiny.gguf.part0{n}") for n in range(3)]
    for number, part in enumerate(parts):
        part.write_bytes(data[number * len(data) // 3 : (number + 1) * len(data) // 3])
    path.unlink()
    return parts


def test_parts_that_were_cut_anywhere_are_joined(tmp_path: Path, cache: ModelCache) -> None:
    write_gguf(tmp_path / "tiny.gguf", "llama")
    with joined(_in_bytes(tmp_path / "tiny.gguf"), cache) as paths:
        done = plan_conversion(paths).install(cache)
    assert done.repository == "local/tiny"
    assert np.abs(logits(done.folder) - expected("llama")).max() < 1e-5
    assert not (cache.app_folder / "conversions").exists()


def test_a_file_without_a_template_is_said_to_have_none(tmp_path: Path, cache: ModelCache) -> None:
    write_gguf(tmp_path / "tiny.gguf", "llama", values={"tokenizer.chat_template": None})
    planned = plan_conversion([tmp_path / "tiny.gguf"])
    assert "It has no chat template" in " ".join(planned.lines())
    assert "chat_template" not in planned.tokenizer_config


SPLITS = {
    "dbrx": "it|'s| a|  | b|123|45|,\n\n|c",
    "smaug-bpe": "it|'s| a|  | b|123|45|,\n\n|c",
    "falcon3": "it|'s| a|  | b|123|45|,\n\n|c",
    "glm4": "it|'s| a|  | b|123|45|,\n\n|c",
    "stablelm2": "it|'s| a|  | b|1|2|3|4|5|,\n\n|c",
    "qwen35": "it|'s| a|  | b|1|2|3|4|5|,\n\n|c",
    "gpt-4o": "it's| a|  | b|123|45|,\n\n|c",
    "deepseek-coder": "it|'|s| a|  | b|1|2|3|4|5|,|\n|\n|c",
    "deepseek-llm": "it|'|s| a|  | b|1|2|3|4|5|,|\n|\n|c",
    "deepseek-v3": "it|'s| a|  | b|123|45|,\n\n|c",
    "falcon": "it|'|s| a|  | b|123|45|,|\n|\n|c",
    "poro-chat": "it's| a|  | b12345|,\n\n|c",
    "viking": "it's| a|  | b|1|2|3|4|5|,\n\n|c",
    "seed-coder": "it|'s| a|  | b|1|2|3|4|5|,|\n\n|c",
    "minicpm5": "it|'s| a|  | b|123|45|,\n\n|c",
    "minerva-7b": "it|'s| a|  | b|1|2|3|4|5|,|\n|\n|c",
    "exaone4": "it|'s| a|  | b|12345|,|\n|\n|c",
}


@table("name", SPLITS)
def test_texts_are_split_by_the_rule_that_the_file_names(name: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "llama", values={"tokenizer.ggml.pre": name})
    planned = plan_conversion([tmp_path / "tiny.gguf"])
    splitter = Tokenizer.from_str(json.dumps(planned.tokenizer)).pre_tokenizer
    text = "it's a   b12345,\n\nc"
    pieces = [text[start:end] for _, (start, end) in splitter.pre_tokenize_str(text)]
    assert "|".join(pieces) == SPLITS[name]


@table(
    "name, said, begins",
    [
        ("llama-bpe", None, True),
        ("tekken", None, True),
        ("tekken", False, False),
        ("dbrx", None, False),
        ("dbrx", True, True),
    ],
)
def test_texts_begin_as_the_splitter_wants_it_unless_the_file_says_otherwise(
    name: str, said: bool | None, begins: bool, tmp_path: Path
) -> None:
    begin = {"tokenizer.ggml.bos_token_id": 5, "tokenizer.ggml.add_bos_token": said}
    write_gguf(tmp_path / "tiny.gguf", "llama", values={"tokenizer.ggml.pre": name} | begin)
    planned = plan_conversion([tmp_path / "tiny.gguf"])
    ids = Tokenizer.from_str(json.dumps(planned.tokenizer)).encode("a").ids
    assert (ids[0] == 5) == begins


Change = Callable[[dict[str, Any]], dict[str, Any]]
REFUSED = {
    "an architecture that is unknown": ({"general.architecture": "rwkv7"}, "'rwkv7'"),
    "experts": ({"llama.expert_count": 8}, "experts"),
    "no layers": ({"llama.block_count": 0}, "block_count"),
    "more layers than tensors": ({"llama.block_count": 1 << 30}, "layers are missing"),
    "one layer more": ({"llama.block_count": 4}, "blk.3.attn_norm.weight is missing"),
    "one layer less": ({"llama.block_count": 2}, "blk.2."),
    "heads by layer": ({"llama.attention.head_count": [4, 4, 4]}, "head_count"),
    "no context": ({"llama.context_length": None}, "context_length"),
    "another width": ({"llama.embedding_length": 64}, "embeddings of width 64"),
    "another inner width": ({"llama.feed_forward_length": 65}, "has the shape"),
    "no epsilon": ({"llama.attention.layer_norm_rms_epsilon": None}, "epsilon"),
    "an endless epsilon": ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "epsilon"),
    "half rotated": ({"llama.rope.dimension_count": 8}, "rotates 8 of 16"),
    "unknown scaling": ({"llama.rope.scaling.type": "spiral"}, "'spiral'"),
    "values of another width": ({"llama.attention.value_length": 8}, "different widths"),
    "no tokenizer": ({"tokenizer.ggml.tokens": None}, "no tokenizer"),
    "a tokenizer of another kind": ({"tokenizer.ggml.model": "bert"}, "'bert'"),
    "an unknown splitter": ({"tokenizer.ggml.pre": "zebra"}, "'zebra'"),
    "no merges": ({"tokenizer.ggml.merges": None}, "without merges"),
    "a merge of nothing": ({"tokenizer.ggml.merges": ["zz yy"]}, "the merge"),
    "an end that is no token": ({"tokenizer.ggml.eos_token_id": 1 << 20}, "token 1048576"),
    "kinds of too few tokens": ({"tokenizer.ggml.token_type": [1, 1]}, "kinds of its tokens"),
    "more tokens than embeddings": (
        {
            "tokenizer.ggml.merges": ["t 1"],
            "tokenizer.ggml.tokens": ["t", "1", *(f"t{n}" for n in range(298))],
            "tokenizer.ggml.token_type": [1] * 300,
        },
        "more tokens than embeddings",
    ),
}


@table("what", REFUSED)
def test_what_cannot_be_used_is_refused_in_a_sentence(what: str, tmp_path: Path) -> None:
    values, sentence = REFUSED[what]
    path = tmp_path / "tiny.gguf"
    write_gguf(path, "llama", values=values)
    with pytest.raises(ModelError, match=sentence) as refused:
        plan_conversion([path])
    assert "\n" not in str(refused.value)
