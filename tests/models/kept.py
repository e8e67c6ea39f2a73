"""What other programs keep, imitated: their folders, with files of a few bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import gguf
import numpy as np

from tests.models import files

REGISTRY = "registry.example"
MODEL_LAYER = "application/vnd.ollama.image.model"


def gguf_file(path: Path, *, context: int = 40_960, file_type: int | None = 15) -> Path:
    """A whole GGUF file with one tensor of 256 numbers; 15 is Q4_K_M."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_name("A Model")
    writer.add_context_length(context)
    if file_type is not None:
        writer.add_file_type(file_type)
    writer.add_tensor("output.weight", np.zeros((8, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def lm_studio(home: Path) -> Path:
    """One MLX model and one GGUF file, beside what is no model. Returns the folder."""
    folder = home / ".lmstudio/models"
    files.model(folder / "mlx-people/Small-4bit")
    gguf_file(folder / "gguf-people/Big-GGUF/Big-Q4_K_M.gguf")
    gguf_file(folder / "gguf-people/Big-GGUF/mmproj-Big-f16.gguf")
    (folder / "gguf-people/Big-GGUF/README.md").write_text("Big")
    return folder


def ollama(folder: Path, name: str, tag: str, namespace: str = "library", context: int = 1) -> Path:
    """A model in a folder of Ollama's. Returns its blob."""
    blob = gguf_file(folder / "blobs" / f"{name}.part", context=context)
    digest = hashlib.sha256(blob.read_bytes()).hexdigest()
    blob = blob.rename(blob.with_name(f"sha256-{digest}"))
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "0" * 64},
        {"mediaType": MODEL_LAYER, "digest": f"sha256:{digest}", "size": blob.stat().st_size},
    ]
    manifest(folder, name, tag, namespace, {"schemaVersion": 2, "layers": layers})
    return blob


def manifest(folder: Path, name: str, tag: str, namespace: str, content: object) -> Path:
    path = folder / "manifests" / REGISTRY / namespace / name / tag
    path.parent.mkdir(parents=True, exist_ok=True)
    return files.write(path, content)
