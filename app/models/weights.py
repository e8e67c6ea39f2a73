"""How much memory a model's weights take once they are loaded. Told from the headers of its files,
or from their sizes alone where only those are known."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from app.models.check import check_files, read_header
from app.models.errors import ModelError
from app.models.manifest import ModelFile

_LEFT_OUT = ("vision_tower", "visual", "vision_model", "multi_modal_projector", "audio_tower")
"""What mlx-lm drops of a model that also sees or hears, before any of it is read from the disk."""


def loaded_bytes(folder: Path) -> int:
    """Bytes of the tensors that a text model keeps of the files in `folder`. ModelError."""
    return sum(_kept(path) for path in check_files(folder))


def listed_bytes(files: Iterable[ModelFile]) -> int:
    """Bytes of the weight files in a hub's list: at most a few percent more than is loaded."""
    return sum(file.size for file in files if file.path.endswith(".safetensors"))


def _kept(path: Path) -> int:
    _, _, header = read_header(path)
    try:
        tensors = json.loads(header)
        return sum(
            end - start
            for name, tensor in tensors.items()
            if name != "__metadata__" and not _is_left_out(name)
            for start, end in (tensor["data_offsets"],)
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ModelError(
            f"'{path}' is damaged, its header cannot be read", "download the model again"
        ) from None


def _is_left_out(name: str) -> bool:
    parts = name.split(".")
    return parts[0] == "mtp" or any(part in _LEFT_OUT for part in parts[:3])
