"""Finds models of other programs on this machine. They are used where they are, and never copied,
changed or deleted.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from app.errors import UserError
from app.models.check import WalkedFolder, bounded_walk, check_files
from app.models.errors import ModelError
from app.models.formats import gguf
from app.util.regular_files import read_file

_PART = re.compile(r"(.*)-\d{5}-of-(\d{5})", re.IGNORECASE)
SEPARATOR = ":"
"""Separates the folders of the setting, as in PATH."""


class Kind(StrEnum):
    MLX = "mlx"
    """A folder that can be loaded unchanged."""
    GGUF = "gguf"
    """A file that must be converted."""


class Program(StrEnum):
    LM_STUDIO = "LM Studio"
    OLLAMA = "Ollama"
    USER = "your folder"


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model of another program. `path` is a folder or a GGUF file (the first part of a split
    file). `size` is in bytes on disk. `fault` is why the model cannot be used, or None. `aliases`
    are other names that Ollama has for the same file."""

    name: str
    kind: Kind
    program: Program
    path: Path
    size: int
    fault: str | None = None
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """A folder in which `program` keeps models."""

    program: Program
    folder: Path


def default_places() -> tuple[ModelPlace, ...]:
    """Default model folders of other programs. They need not exist."""
    home = Path.home()
    ollama = _path(os.environ.get("OLLAMA_MODELS", "")) or home / ".ollama/models"
    return (
        ModelPlace(Program.LM_STUDIO, home / ".lmstudio/models"),
        ModelPlace(Program.LM_STUDIO, home / ".cache/lm-studio/models"),
        ModelPlace(Program.OLLAMA, ollama),
    )


def user_places(folders: str) -> tuple[ModelPlace, ...]:
    """Folders of the setting `models.folders`."""
    paths = map(_path, folders.split(SEPARATOR))
    return tuple(ModelPlace(Program.USER, path) for path in paths if path is not None)


def missing_places(folders: str) -> tuple[str, ...]:
    """A sentence for each folder of the setting that does not exist."""
    names = filter(None, map(str.strip, folders.split(SEPARATOR)))
    return tuple(
        f"There is no folder '{name}', which the setting models.folders names."
        for name in names
        if not _is_folder(_path(name))
    )


def find_models(places: Iterable[ModelPlace]) -> tuple[FoundModel, ...]:
    """Find the models in `places`, in their order. A model that is found several times, also by
    links, is listed once. Reads no weights. Takes milliseconds for each model."""
    found: dict[str, FoundModel] = {}
    for place in places:
        models = _of_ollama(place) if place.program is Program.OLLAMA else _in_folders(place)
        for model in sorted(models, key=lambda model: model.name.casefold()):
            found.setdefault(os.path.realpath(model.path), model)
    return tuple(found.values())


def _in_folders(place: ModelPlace) -> Iterator[FoundModel]:
    inside: set[Path] = set()
    """MLX models and folders inside them, which are not searched for other models."""
    for folder in bounded_walk(place.folder):
        if folder.path.parent in inside:
            inside.add(folder.path)
            continue
        if _has_mlx_model(folder):
            inside.add(folder.path)
            yield _mlx_model(place, folder)
        yield from _gguf_models(place, folder)


def _has_mlx_model(folder: WalkedFolder) -> bool:
    weights = any(name.endswith(".safetensors") for name in folder.files)
    return weights and "config.json" in folder.files


def _mlx_model(place: ModelPlace, folder: WalkedFolder) -> FoundModel:
    relative = folder.path.relative_to(place.folder)
    name = relative.as_posix() if relative.parts else folder.path.name
    fault = None
    try:
        # Opening something else than a file, such as a pipe, could block.
        broken = [path for path in check_files(folder.path) if not path.is_file()]
        if broken:
            fault = f"'{broken[0]}' is missing, or not a file: download the model again"
    except ModelError as error:
        fault = str(error)
    except OSError as error:
        fault = str(ModelError.unreadable(folder.path, error))
    size = _total_size(folder.path, folder.files)
    return FoundModel(name, Kind.MLX, place.program, folder.path, size, fault)


def _gguf_models(place: ModelPlace, folder: WalkedFolder) -> Iterator[FoundModel]:
    """GGUF models in a folder: one for each file, or for all parts of a split file."""
    groups: dict[tuple[str, str], list[str]] = {}
    for file in folder.files:
        # mmproj files are not models: they let a model see pictures.
        if file.lower().endswith(".gguf") and "mmproj" not in file.lower():
            stem = file[: -len(".gguf")]
            part = _PART.fullmatch(stem)
            groups.setdefault((part[1], part[2]) if part else (stem, ""), []).append(file)
    for (stem, _), files in groups.items():
        path = folder.path / files[0]
        size = _total_size(folder.path, files)
        yield FoundModel(stem, Kind.GGUF, place.program, path, size, _gguf_fault(path))


def _of_ollama(place: ModelPlace) -> Iterator[FoundModel]:
    """Ollama's models: one for each file. The tag `latest` is used only if there is no other."""
    names: dict[Path, list[str]] = {}
    faults: dict[Path, str | None] = {}
    for name, path, fault in _ollama_models(place.folder):
        names.setdefault(path, []).append(name)
        faults[path] = fault
    for path, labels in names.items():
        name, *aliases = sorted(labels, key=lambda label: (label.endswith(":latest"), label))
        fault = faults[path] or _gguf_fault(path)
        size = _total_size(path.parent, [path.name])
        yield FoundModel(name, Kind.GGUF, place.program, path, size, fault, tuple(aliases))


def _gguf_fault(path: Path) -> str | None:
    try:
        return gguf().fault(path)
    except UserError as error:
        return str(error)


def _total_size(folder: Path, files: Iterable[str]) -> int:
    """Bytes of the files, following links."""
    total = 0
    for name in files:
        with suppress(OSError):
            total += (folder / name).stat().st_size
    return total


def _path(text: str) -> Path | None:
    """A path; None if the text is empty or not a valid path."""
    text = text.strip()
    with suppress(RuntimeError, ValueError, OSError):
        return Path(text).expanduser().absolute() if text and "\0" not in text else None
    return None


def _is_folder(path: Path | None) -> bool:
    with suppress(OSError):
        return path is not None and path.is_dir()
    return False


# ------------------------------------------------------------------------------------ Ollama
# manifests/REGISTRY/NAMESPACE/NAME/TAG     JSON that lists the layers of NAME:TAG
# blobs/sha256-DIGEST                       a layer; the one with the model is a GGUF file


_MODEL_LAYER = "application/vnd.ollama.image.model"
_OLLAMA_NAMESPACE = "library"
_LAYER_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MAX_MANIFEST = 1 << 20
"""Maximum bytes of a manifest: a thousand times the usual size."""
_PULL_AGAIN = "pull the model again with Ollama"


def _ollama_models(folder: Path) -> Iterator[tuple[str, Path, str | None]]:
    """Yield the name of each model in Ollama's folder, its GGUF file, and its fault or None. If
    there is a fault, the path may be that of a missing file or of the manifest. Skips models
    without a GGUF file, such as cloud models."""
    manifests = folder / "manifests"
    for found in bounded_walk(manifests, depth=3):
        owner = found.path.relative_to(manifests).parts
        if len(owner) != 3:
            continue
        _, namespace, name = owner
        prefix = "" if namespace == _OLLAMA_NAMESPACE else f"{namespace}/"
        for tag in found.files:
            manifest, label = found.path / tag, f"{prefix}{name}:{tag}"
            try:
                digest = _model_digest(manifest)
            except ModelError as error:
                yield label, manifest, str(error)
                continue
            if digest is not None:
                blob = folder / "blobs" / digest.replace(":", "-")
                yield label, blob, _blob_fault(blob)


def _blob_fault(blob: Path) -> str | None:
    try:
        return None if blob.is_file() else f"Its file '{blob.name}' is missing: {_PULL_AGAIN}"
    except OSError as error:
        return str(ModelError.unreadable(blob, error))


def _model_digest(manifest: Path) -> str | None:
    """Digest of the layer with the model, or None if there is none. Raises ModelError."""
    layers = _read_manifest(manifest).get("layers")
    for layer in layers if isinstance(layers, list) else ():
        if isinstance(layer, dict) and layer.get("mediaType") == _MODEL_LAYER:
            digest = layer.get("digest")
            if not isinstance(digest, str) or not _LAYER_DIGEST.fullmatch(digest):
                raise ModelError(f"The manifest '{manifest}' names no file", _PULL_AGAIN)
            return digest
    return None


def _read_manifest(manifest: Path) -> dict[str, Any]:
    damaged = ModelError(f"The manifest '{manifest}' is damaged", _PULL_AGAIN)
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
