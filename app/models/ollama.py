"""Reads what Ollama keeps: manifests that name a model, and blobs that hold it.

manifests/REGISTRY/NAMESPACE/NAME/TAG     JSON that lists the layers of NAME:TAG
blobs/sha256-DIGEST                       a layer; the model's own is a GGUF file
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.models.bounded_walk import bounded_walk
from app.models.errors import ModelError
from app.util.regular_files import read_file

_MODEL_LAYER = "application/vnd.ollama.image.model"
_OWN_NAMESPACE = "library"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_MANIFEST = 1 << 20
"""Bytes: a thousand times the usual size."""
_AGAIN = "pull the model again with Ollama"


@dataclass(frozen=True, slots=True)
class OllamaModel:
    """`path` is the model's GGUF file; with a `fault` it may be missing, or be the manifest."""

    name: str
    path: Path
    fault: str | None = None


def ollama_models(folder: Path) -> Iterator[OllamaModel]:
    """The models of a folder of Ollama's. Skips those without a GGUF file, such as those in the
    cloud."""
    manifests = folder / "manifests"
    for found in bounded_walk(manifests, depth=3):
        owner = found.path.relative_to(manifests).parts
        if len(owner) != 3:
            continue
        _, namespace, name = owner
        prefix = "" if namespace == _OWN_NAMESPACE else f"{namespace}/"
        for tag in found.files:
            manifest, label = found.path / tag, f"{prefix}{name}:{tag}"
            try:
                digest = _model_digest(manifest)
            except ModelError as error:
                yield OllamaModel(label, manifest, str(error))
                continue
            if digest is not None:
                blob = folder / "blobs" / digest.replace(":", "-")
                yield OllamaModel(label, blob, _blob_fault(blob))


def _blob_fault(blob: Path) -> str | None:
    try:
        return None if blob.is_file() else f"Its file '{blob.name}' is missing: {_AGAIN}"
    except OSError as error:
        return str(ModelError.unreadable(blob, error))


def _model_digest(manifest: Path) -> str | None:
    """The digest of the layer with the model, or None when there is none. ModelError."""
    layers = _read(manifest).get("layers")
    for layer in layers if isinstance(layers, list) else ():
        if isinstance(layer, dict) and layer.get("mediaType") == _MODEL_LAYER:
            digest = layer.get("digest")
            if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
                raise ModelError(f"The manifest '{manifest}' names no file", _AGAIN)
            return digest
    return None


def _read(manifest: Path) -> dict[str, Any]:
    damaged = ModelError(f"The manifest '{manifest}' is damaged", _AGAIN)
    try:
        content = json.loads(read_file(manifest, _MAX_MANIFEST))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ModelError(
            f"The manifest '{manifest}' cannot be read ({reason})", "check its permissions"
        ) from None
    except (ValueError, RecursionError):
        raise damaged from None
    if not isinstance(content, dict):
        raise damaged
    return content
