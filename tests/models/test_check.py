"""A model's folder is refused in one sentence that names the file and says what to do."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import mlx_lm.models
import pytest

from app.models.architecture import parse_architecture
from app.models.check import check_config_numbers, check_files, check_model
from app.models.errors import ModelError
from tests import tiny
from tests.models import files
from tests.tables import table


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        check_model(folder)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("shards", [1, 3])
def test_a_whole_model_passes(tmp_path: Path, shards: int) -> None:
    check_model(files.model(tmp_path / "m", shards))


def test_no_folder(tmp_path: Path) -> None:
    assert "no model folder" in refusal(tmp_path / "m")


@table(
    "name, word",
    [
        ("config.json", "config.json"),
        ("tokenizer.json", "tokenizer"),
        ("model.safetensors", "weights"),
    ],
)
def test_a_missing_file(tmp_path: Path, name: str, word: str) -> None:
    folder = files.model(files.fresh(tmp_path) / "m")
    (folder / name).unlink()
    assert word in refusal(folder)


@table(
    "name, content",
    product(
        ["config.json", "tokenizer.json", "tokenizer_config.json"],
        [b"", b"{", b"\xff\xfe", b"[]", b"[" * 100_000],
    ),
)
def test_broken_json(tmp_path: Path, name: str, content: bytes) -> None:
    folder = files.model(files.fresh(tmp_path) / "m")
    (folder / name).write_bytes(content)
    assert name in refusal(folder)


@table("config", [{}, {"model_type": ""}, {"model_type": 3}])
def test_no_model_type(tmp_path: Path, config: dict[str, object]) -> None:
    folder = files.model(files.fresh(tmp_path) / "m")
    files.write(folder / "config.json", config)
    assert "model_type" in refusal(folder)


@table(
    "file, key",
    [
        ("config.json", "model_file"),
        ("config.json", "auto_map"),
        ("tokenizer_config.json", "auto_map"),
    ],
)
def test_code_in_the_folder_is_refused(tmp_path: Path, file: str, key: str) -> None:
    folder = files.model(files.fresh(tmp_path) / "m")
    files.write(folder / file, {"model_type": "qwen3", key: {"AutoModel": "evil.Model"}})
    sentence = refusal(folder)
    assert key in sentence
    assert file in sentence


@pytest.mark.parametrize("key", ["model_file", "auto_map"])
def test_an_empty_mention_of_code_passes(tmp_path: Path, key: str) -> None:
    folder = files.model(tmp_path / "m")
    files.write(folder / "config.json", {"model_type": "qwen3", key: None})
    check_model(folder)


@table("shards, left", product([1, 3], [0, 7, 8, 40, -1]))
def test_a_truncated_weights_file_is_named(tmp_path: Path, shards: int, left: int) -> None:
    folder = files.model(files.fresh(tmp_path) / "m", shards)
    weights = sorted(folder.glob("*.safetensors"))[-1]
    weights.write_bytes(weights.read_bytes()[:left])
    sentence = refusal(folder)
    assert weights.name in sentence
    assert "truncated" in sentence
    assert "download the model again" in sentence


def test_a_weights_file_with_more_than_its_header_says(tmp_path: Path) -> None:
    folder = files.model(tmp_path / "m")
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"more")
    assert "damaged" in refusal(folder)


def header(tensors: object) -> bytes:
    content = tensors if isinstance(tensors, bytes) else json.dumps(tensors).encode()
    return len(content).to_bytes(8, "little") + content


@table(
    "content",
    [
        header(b"not json"),
        header([1, 2]),
        header({"w": None}),
        header({"w": {"dtype": "F32", "shape": [2]}}),
        header({"w": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}),
        header({"w": {"dtype": "F32", "shape": ["x"], "data_offsets": [0, 8]}}),
        header({"w": {"dtype": "F32", "shape": [900], "data_offsets": [0, 8]}}) + bytes(8),
    ],
)
def test_a_damaged_header(tmp_path: Path, content: bytes) -> None:
    folder = files.model(files.fresh(tmp_path) / "m")
    (folder / "model.safetensors").write_bytes(content)
    assert "model.safetensors" in refusal(folder)


def test_a_header_longer_than_the_format_allows_is_not_read(tmp_path: Path) -> None:
    folder = files.model(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"\xff" * 64)
    assert "truncated or not a safetensors file" in refusal(folder)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = files.model(tmp_path / "m", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    assert "model-00002-of-00003.safetensors" in refusal(folder)


def test_a_whole_file_serves_where_shards_are_missing(tmp_path: Path) -> None:
    folder = files.model(tmp_path / "m", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    for name in ("model.safetensors", "model-mtp.safetensors"):
        files.safetensors(folder / name)
    assert "model-00002-of-00003.safetensors" in refusal(folder)  # most are there
    (folder / "model-00003-of-00003.safetensors").unlink()
    assert [path.name for path in check_files(folder)] == [
        "model-mtp.safetensors",
        "model.safetensors",
    ]
    (folder / "model.safetensors").unlink()
    assert "model-00002-of-00003.safetensors" in refusal(folder)


@table("index", [{}, {"weight_map": {}}, {"weight_map": []}])
def test_an_index_without_weights(tmp_path: Path, index: dict[str, object]) -> None:
    folder = files.model(files.fresh(tmp_path) / "m", shards=2)
    files.write(folder / "model.safetensors.index.json", index)
    assert "lists no weights" in refusal(folder)


def test_a_folder_in_a_files_place(tmp_path: Path) -> None:
    folder = files.model(tmp_path / "m")
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert "config.json" in refusal(folder)


# --------------------------------------------------------------------------- config.json

SOURCES = sorted(Path(mlx_lm.models.__file__).parent.glob("*.py"))
NOT_COUNTS = {
    "text_config": "an object, looked into",
    "modules": "as long as any list may be",
    "engram_layer_ids": "of layers that there are",
    "layer_rope_theta": "of layers that there are",
    "ssm_multipliers": "five are taken",
}


def _looped() -> set[tuple[str, bool]]:
    """Fields of mlx-lm's models that something is repeated by: in a loop's head, in `range`, or
    in `[x] * n`; and whether each is a number."""
    found = set()
    for source in SOURCES:
        tree = ast.parse(source.read_text())
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        fields = {
            each.target.id: re.search(r"^(Optional\[)?int\b", ast.unparse(each.annotation))
            is not None
            for node in classes
            for each in node.body
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
        }
        for node in ast.walk(tree):
            heads: list[ast.AST] = []
            if isinstance(node, ast.For | ast.comprehension):
                heads = [node.iter]
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "range":
                heads = list(node.args)
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                heads = [node] if ast.List in map(type, (node.left, node.right)) else []
            names = [each.attr for h in heads for each in ast.walk(h) if hasattr(each, "attr")]
            found |= {(name, fields[name]) for name in names if name in fields}
    return found


def test_whatever_mlx_lm_repeats_something_by_is_bounded() -> None:
    looped = _looped()
    common = ("num_hidden_layers", "n_layer", "num_transformer_layers", "num_loops")
    assert looped.issuperset((name, True) for name in common)
    for name, number in sorted(looped):
        if name in NOT_COUNTS:
            continue
        value = 10_000_000 if number else ["full_attention"] * 100_000
        for config in ({name: value}, {"text_config": {name: value}}):
            with pytest.raises(ModelError):
                check_config_numbers({"model_type": "llama", **config})


@table(
    "config",
    [
        {"num_hidden_layers": 2, "n_layer": 10_000_000},
        {"n_layer": 2, "num_hidden_layers": 10_000_000},
        {"num_decoder_layers": 10_000_000},
        {"llm_config": {"text_config": {"n_layers": 10_000_000}}},
        {"parts": [{"num_layers": 10_000_000}]},
        {"hybrid_override_pattern": "M" * 1_000_000},
        {"block_configs": [{}] * 100_000},
        {"num_experts": 1_000_000},
        {"n_head": 1_000_000},
        {"vocab_size": 1 << 40},
        {"intermediate_size": -(1 << 40)},
        {"num_hidden_layers": 0},
        {"num_hidden_layers": True},
    ],
)
def test_absurd_counts_are_refused_under_any_name(config: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=r"config\.json has"):
        check_config_numbers(config)


def test_a_hubs_configuration_is_bounded_before_it_is_reckoned_with() -> None:
    """It was not downloaded, so nothing has looked at it yet."""
    with pytest.raises(ModelError, match="10,000,000,000 layers"):
        parse_architecture({**tiny.config_of("llama"), "num_hidden_layers": 10_000_000_000})


def test_the_numbers_of_real_and_tiny_models_pass() -> None:
    rows = tomllib.loads((Path(__file__).parent / "configs.toml").read_text("utf-8"))["config"]
    for row in rows:
        check_config_numbers(row["numbers"])
    for name in (*tiny.CONFIGS, *tiny.EXTRA):
        check_config_numbers(tiny.config_of(name))
    long = {"max_position_embeddings": 10_485_760, "rope_theta": 10**11, "n_positions": 1 << 20}
    large = {"n_embd": 16_384, "vocab_size_per_layer_input": 262_144, "image_token_id": 1 << 32}
    modules = {"ignored_layers": [f"model.layers.{n}" for n in range(50_000)]}
    check_config_numbers({**long, **large, "quantization_config": modules})
