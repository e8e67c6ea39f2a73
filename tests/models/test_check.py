"""A model's folder is refused in one sentence that names the file and says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.models.check import check_model
from app.models.errors import ModelError
from tests.models import files


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


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("config.json", "config.json"),
        ("tokenizer.json", "tokenizer"),
        ("model.safetensors", "weights"),
    ],
)
def test_a_missing_file(tmp_path: Path, name: str, word: str) -> None:
    folder = files.model(tmp_path / "m")
    (folder / name).unlink()
    assert word in refusal(folder)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]", b"[" * 100_000])
def test_broken_json(tmp_path: Path, name: str, content: bytes) -> None:
    folder = files.model(tmp_path / "m")
    (folder / name).write_bytes(content)
    assert name in refusal(folder)


@pytest.mark.parametrize("config", [{}, {"model_type": ""}, {"model_type": 3}])
def test_no_model_type(tmp_path: Path, config: dict[str, object]) -> None:
    folder = files.model(tmp_path / "m")
    files.write(folder / "config.json", config)
    assert "model_type" in refusal(folder)


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("config.json", "model_file"),
        ("config.json", "auto_map"),
        ("tokenizer_config.json", "auto_map"),
    ],
)
def test_code_in_the_folder_is_refused(tmp_path: Path, file: str, key: str) -> None:
    folder = files.model(tmp_path / "m")
    files.write(folder / file, {"model_type": "qwen3", key: {"AutoModel": "evil.Model"}})
    sentence = refusal(folder)
    assert key in sentence
    assert file in sentence


@pytest.mark.parametrize("key", ["model_file", "auto_map"])
def test_an_empty_mention_of_code_passes(tmp_path: Path, key: str) -> None:
    folder = files.model(tmp_path / "m")
    files.write(folder / "config.json", {"model_type": "qwen3", key: None})
    check_model(folder)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("left", [0, 7, 8, 40, -1])
def test_a_truncated_weights_file_is_named(tmp_path: Path, shards: int, left: int) -> None:
    folder = files.model(tmp_path / "m", shards)
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


@pytest.mark.parametrize(
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
    folder = files.model(tmp_path / "m")
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


@pytest.mark.parametrize("index", [{}, {"weight_map": {}}, {"weight_map": []}])
def test_an_index_without_weights(tmp_path: Path, index: dict[str, object]) -> None:
    folder = files.model(tmp_path / "m", shards=2)
    files.write(folder / "model.safetensors.index.json", index)
    assert "lists no weights" in refusal(folder)


def test_a_folder_in_a_files_place(tmp_path: Path) -> None:
    folder = files.model(tmp_path / "m")
    (folder / "config.json").unlink()
    (folder / "config.json").mkdir()
    assert "config.json" in refusal(folder)
