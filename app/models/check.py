"""Checks from its files whether a folder is a text model that can be loaded. Without MLX."""

from __future__ import annotations

import json
import math
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.models.bounded_walk import bounded_walk
from app.models.config_bounds import check_config_numbers
from app.models.errors import ModelError
from app.models.tokenizer_bounds import check_tokenizer
from app.util.regular_files import open_file, read_file

INDEX = "model.safetensors.index.json"
_MAX_HEADER = 100_000_000
"""Bytes: the limit of the safetensors format."""
_MAX_BYTES = {".json": 100 << 20, ".txt": 100 << 20, ".model": 256 << 20, ".jinja": 1 << 20}
"""Limits for files that loaders read whole, by suffix: several times the usual size."""
_MAX_CONFIG_BYTES = 16 << 20
_MAX_OBJECTS, _MAX_VALUES = 2_000_000, 4_000_000
"""In one JSON file: three times what a vocabulary of 262,144 tokens and its merges need."""
_REDOWNLOAD = "download the model again"


def check_model(folder: Path) -> None:
    """ModelError when `folder` is not a text model in mlx-lm's format, is incomplete, or contains
    code. Takes milliseconds, because it reads no weights."""
    weight_files = check_files(folder)
    for path in folder.glob("*.json"):
        with suppress(OSError):  # reported where the file is needed
            _check_amount(path, read_file(path))
    check_tokenizer(read_json(folder / "tokenizer.json"))
    for weights in weight_files:
        _check_weights(weights)


def check_files(folder: Path) -> list[Path]:
    """The model's weight files. Like `check_model`, but the tokenizer and the weights only need to
    exist."""
    if not folder.is_dir():
        raise ModelError(f"There is no model folder '{folder}'", "check its name")
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"'{folder}' has no model: there is no config.json",
            "use the folder of a model in mlx-lm's format",
        )
    _check_entries(folder)
    check_configs(folder)
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(
            f"'{folder}' has no tokenizer.json",
            "use a model with a tokenizer, or download this one again",
        )
    return _weight_files(folder)


def _check_entries(folder: Path) -> None:
    """Loaders open what they find by name, without looking at what it is."""
    names = (found.path / name for found in bounded_walk(folder, depth=1) for name in found.files)
    for path in names:
        with suppress(OSError):  # such as a broken link: reported where the file is needed
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise ModelError(f"'{path}' is not a regular file", _REDOWNLOAD)
            limit = _MAX_CONFIG_BYTES if path.name == "config.json" else _MAX_BYTES.get(path.suffix)
            if limit is not None and status.st_size > limit:
                raise ModelError(
                    f"'{path}' has {status.st_size:,} bytes, more than the limit of {limit:,}",
                    _REDOWNLOAD,
                )


def _check_amount(path: Path, data: bytes) -> None:
    """Limit the size of JSON, because parsing it cannot be interrupted."""
    if data.count(b"[") + data.count(b"{") > _MAX_OBJECTS or data.count(b",") > _MAX_VALUES:
        raise ModelError(f"'{path}' has more values than any model's file", _REDOWNLOAD)


def check_configs(folder: Path) -> None:
    """ModelError when a configuration in `folder` is invalid or requires code. Missing ones are
    ignored."""
    config, tokenizer = folder / "config.json", folder / "tokenizer_config.json"
    if config.is_file():
        _check_config(read_json(config))
    if tokenizer.is_file():
        _refuse_code(read_json(tokenizer), tokenizer.name, "auto_map")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. ModelError when the file is missing or invalid."""
    try:
        data = read_file(path)
        _check_amount(path, data)
        content = json.loads(data)
    except OSError as error:
        raise ModelError.unreadable(path, error) from None
    except (ValueError, RecursionError):
        raise ModelError(f"'{path}' is not valid JSON", _REDOWNLOAD) from None
    if not isinstance(content, dict):
        raise ModelError(f"'{path}' is not a JSON object", _REDOWNLOAD)
    return content


def _check_config(config: dict[str, Any]) -> None:
    if not isinstance(config.get("model_type"), str) or not config["model_type"]:
        raise ModelError(
            "The model's config.json has no model_type",
            "use the folder of a model in mlx-lm's format",
        )
    refuse_draft_layers(config)
    for key in ("model_file", "auto_map"):
        _refuse_code(config, "config.json", key)
    check_config_numbers(config)


def drafts_only(config: dict[str, Any]) -> bool:
    """Whether it describes the layers with which a model predicts several tokens (MTP), without the
    model."""
    return str(config.get("model_type")).endswith(("_mtp", "_assistant"))


def refuse_draft_layers(config: dict[str, Any]) -> None:
    if drafts_only(config):
        raise ModelError(
            "This is not a whole model, only layers that draft for one"
            f" ({config['model_type'][:60]})",
            "use the model that they belong to",
        )


def _refuse_code(config: dict[str, Any], file: str, key: str) -> None:
    """Code from a model would run with the user's permissions."""
    if config.get(key):
        raise ModelError(
            f"The model's {file} requires code from its folder ({key}), and specchat never runs"
            " code from a model",
            f"use a model that mlx-lm supports without it, or remove {key} from {file} if mlx-lm"
            " supports this one",
        )


def _weight_files(folder: Path) -> list[Path]:
    """The model's safetensors files. ModelError when any are missing."""
    if (folder / INDEX).is_file():
        for name in sorted(shards(folder)):
            if not (folder / name).is_file():
                raise ModelError(
                    f"The model in '{folder}' is incomplete: {name} is missing", _REDOWNLOAD
                )
    found = sorted(folder.glob("model*.safetensors"))
    if not found:
        raise ModelError(
            f"'{folder}' has no weights in safetensors files",
            "download the model again, or convert it with mlx_lm.convert",
        )
    return found


def shards(folder: Path) -> set[str]:
    """The weight files that the index in `folder` lists. ModelError when it lists none."""
    index = folder / INDEX
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"'{index}' lists no weights", _REDOWNLOAD)
    return {str(file) for file in weight_map.values()}


def _check_weights(path: Path) -> None:
    size, length, header = read_header(path)
    last = max((end for _, end in extents(path, header).values()), default=0)
    expected = 8 + length + last
    if size < expected:
        raise ModelError(
            f"'{path}' is truncated: it has {size:,} of {expected:,} bytes",
            _REDOWNLOAD,
        )
    if size > expected:
        raise ModelError(
            f"'{path}' is damaged: it has {size:,} bytes, and its header says {expected:,}",
            _REDOWNLOAD,
        )


def read_header(path: Path) -> tuple[int, int, bytes]:
    """The size, the header's length and the header of a safetensors file, which consists of the
    length (8 bytes), the header and the data. ModelError when it cannot be read."""
    try:
        size = path.stat().st_size
        with open_file(path) as file:
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if length <= min(_MAX_HEADER, size - 8) else None
    except OSError as error:
        raise ModelError.unreadable(path, error) from None
    if header is None:
        raise ModelError(f"'{path}' is truncated or not a safetensors file", _REDOWNLOAD)
    return size, length, header


def extents(path: Path, header: bytes) -> dict[str, tuple[int, int]]:
    """By each tensor's name, where it begins and ends, in bytes after the header. ModelError when
    the header of a safetensors file is damaged."""
    try:
        tensors = json.loads(header)
        return {
            name: _extent(tensor["shape"], *tensor["data_offsets"])
            for name, tensor in tensors.items()
            if name != "__metadata__"
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ModelError(f"The header of '{path}' is damaged", _REDOWNLOAD) from None


def _extent(shape: list[int], begin: int, end: int) -> tuple[int, int]:
    if any(type(number) is not int or number < 0 for number in (*shape, begin, end)):
        raise ValueError("a size that is no number")
    if begin > end or (end - begin) * 8 < math.prod(shape) * 4:
        raise ValueError("a tensor's extent does not fit its shape")
    return begin, end
