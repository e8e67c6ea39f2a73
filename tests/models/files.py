"""Model folders of a few bytes, for tests that read files and never load a model."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any


def fresh(folder: Path) -> Path:
    """A new folder below this one: for the rows of a table, which share `tmp_path`."""
    return Path(tempfile.mkdtemp(dir=folder))


def safetensors(path: Path, floats: int = 6) -> Path:
    """A whole safetensors file with one float32 tensor of `floats` elements."""
    tensor = {"dtype": "F32", "shape": [floats], "data_offsets": [0, 4 * floats]}
    header = json.dumps({"__metadata__": {"format": "mlx"}, "w": tensor}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4 * floats))
    return path


def tokenizer(**changes: Any) -> dict[str, Any]:
    model = {
        "type": "BPE",
        "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4},
        "merges": [["a", "b"], ["ab", "c"]],
    }
    added = [{"id": 5, "content": "<|end|>", "special": True}]
    return {"version": "1.0", "model": model | changes, "added_tokens": added}


def write(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def model(folder: Path, shards: int = 1) -> Path:
    """A folder that `check_model` finds nothing wrong with."""
    folder.mkdir(parents=True)
    write(folder / "config.json", {"model_type": "qwen3"})
    write(folder / "tokenizer.json", tokenizer())
    if shards == 1:
        safetensors(folder / "model.safetensors")
        return folder
    names = [f"model-{index:05}-of-{shards:05}.safetensors" for index in range(1, shards + 1)]
    for name in names:
        safetensors(folder / name)
    weights = {f"layer.{index}": name for index, name in enumerate(names)}
    write(folder / "model.safetensors.index.json", {"weight_map": weights})
    return folder
