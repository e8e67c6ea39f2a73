"""The memory of a model's weights, from the headers of its files, or from the files' sizes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from app.models.check import check_files, extents, read_header
from app.models.manifest import ModelFile

_SKIPPED_MODULES = (
    "vision_tower",
    "visual",
    "vision_model",
    "multi_modal_projector",
    "audio_tower",
)
"""Modules of multimodal models that mlx-lm does not load."""


def loaded_bytes(folder: Path) -> int:
    """Bytes of the tensors that are loaded from the files in `folder`. ModelError."""
    return sum(_file_bytes(path) for path in check_files(folder))


def listed_bytes(files: Iterable[ModelFile]) -> int:
    """Bytes of the weight files in the hub's list, with those of modules that are not loaded."""
    return sum(file.size for file in files if file.path.endswith(".safetensors"))


def weight_format(config: dict[str, Any]) -> str:
    """`4-bit`, or the dtype; empty if the configuration names neither."""
    stored = config.get("quantization")
    if isinstance(stored, dict) and isinstance(stored.get("bits"), int):
        return f"{stored['bits']}-bit"
    named = config.get("dtype") or config.get("torch_dtype")
    return named.removeprefix("torch.") if isinstance(named, str) else ""


def _file_bytes(path: Path) -> int:
    _, _, header = read_header(path)
    tensors = extents(path, header).items()
    return sum(end - begin for name, (begin, end) in tensors if not _is_skipped(name))


def _is_skipped(name: str) -> bool:
    parts = name.split(".")
    return parts[0] == "mtp" or any(part in _SKIPPED_MODULES for part in parts[:3])
