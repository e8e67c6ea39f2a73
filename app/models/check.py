"""Is a folder a text model that can be loaded? Answered from its files, without MLX."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.models.config_bounds import check_config_numbers
from app.models.errors import ModelError
from app.models.tokenizer_bounds import check_tokenizer

INDEX = "model.safetensors.index.json"
_MAX_HEADER = 100_000_000
"""Bytes. The safetensors format allows no longer header."""
_LARGEST = {".json": 100 << 20, ".txt": 100 << 20, ".model": 256 << 20, ".jinja": 1 << 20}
"""Bytes of files that a loader reads whole, by their endings: several times what is usual."""
_LARGEST_CONFIG = 16 << 20
_MOST_OBJECTS, _MOST_VALUES = 2_000_000, 4_000_000
"""Of one JSON file: three times what a vocabulary of 262,144 tokens needs with its merges."""
_AGAIN = "download the model again"


def check_model(folder: Path) -> None:
    """ModelError, in one sentence, when `folder` is no text model in mlx-lm's format, when it is
    incomplete, or when it brings code of its own. Reads no weights, so it takes milliseconds."""
    found = check_files(folder)
    for path in folder.glob("*.json"):
        with suppress(OSError):  # what cannot be read is found out where it is needed
            _check_amount(path, path.read_bytes())
    check_tokenizer(read_json(folder / "tokenizer.json"))
    for weights in found:
        _check_weights(weights)


def check_files(folder: Path) -> list[Path]:
    """The model's weight files. ModelError as `check_model`, but the tokenizer and the weights are
    only looked for, not read."""
    if not folder.is_dir():
        raise ModelError(f"There is no model folder '{folder}'", "check its name")
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"'{folder}' holds no model, it has no config.json",
            "give the folder of a model in mlx-lm's format",
        )
    _check_sizes(folder)
    check_configs(folder)
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(
            f"'{folder}' has no tokenizer.json",
            "give a model with a tokenizer, or download this one again",
        )
    return _weight_files(folder)


def _check_sizes(folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        most = _LARGEST_CONFIG if path.name == "config.json" else _LARGEST.get(path.suffix)
        if most is not None and path.is_file() and path.stat().st_size > most:
            raise ModelError(
                f"'{path}' has {path.stat().st_size:,} bytes, and no model needs more than {most:,}"
                " there",
                _AGAIN,
            )


def _check_amount(path: Path, data: bytes) -> None:
    """Of JSON, which is read in one go, while nothing else happens."""
    if data.count(b"[") + data.count(b"{") > _MOST_OBJECTS or data.count(b",") > _MOST_VALUES:
        raise ModelError(f"'{path}' holds more values than a model's file has", _AGAIN)


def check_configs(folder: Path) -> None:
    """ModelError when a configuration in `folder` is broken or asks for code; one that is not there
    is none."""
    config, tokenizer = folder / "config.json", folder / "tokenizer_config.json"
    if config.is_file():
        _check_config(read_json(config))
    if tokenizer.is_file():
        _refuse_code(read_json(tokenizer), tokenizer.name, "auto_map")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a model's folder. ModelError when there is none."""
    try:
        data = path.read_bytes()
        _check_amount(path, data)
        content = json.loads(data)
    except OSError as error:
        raise ModelError(
            f"'{path}' cannot be read ({error.strerror})", "check its permissions"
        ) from None
    except (ValueError, RecursionError):
        raise ModelError(f"'{path}' is not valid JSON", _AGAIN) from None
    if not isinstance(content, dict):
        raise ModelError(f"'{path}' does not hold a JSON object", _AGAIN)
    return content


def _check_config(config: dict[str, Any]) -> None:
    if not isinstance(config.get("model_type"), str) or not config["model_type"]:
        raise ModelError(
            "The model's config.json names no model_type",
            "give the folder of a model in mlx-lm's format",
        )
    for key in ("model_file", "auto_map"):
        _refuse_code(config, "config.json", key)
    check_config_numbers(config)


def _refuse_code(config: dict[str, Any], file: str, key: str) -> None:
    """Code that comes with a model would run with the user's rights."""
    if config.get(key):
        raise ModelError(
            f"The model's {file} asks to run code from its folder ({key}), and specchat runs"
            " no code that comes with a model",
            f"use a model that mlx-lm supports itself, or remove {key} from {file} if"
            " mlx-lm supports this one",
        )


def _weight_files(folder: Path) -> list[Path]:
    """The model's safetensors files. ModelError when there are none, or one is missing."""
    if (folder / INDEX).is_file():
        for name in sorted(shards(folder)):
            if not (folder / name).is_file():
                raise ModelError(f"The model in '{folder}' is incomplete, it lacks {name}", _AGAIN)
    found = sorted(folder.glob("model*.safetensors"))
    if not found:
        raise ModelError(
            f"'{folder}' holds no weights in safetensors files",
            "download the model again, or convert it with mlx_lm.convert",
        )
    return found


def shards(folder: Path) -> set[str]:
    """The names of the weight files that the index in `folder` lists. ModelError when it lists
    none."""
    index = folder / INDEX
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"'{index}' lists no weights", _AGAIN)
    return {str(file) for file in weight_map.values()}


def _check_weights(path: Path) -> None:
    size, length, header = read_header(path)
    expected = 8 + length + _data_bytes(path, header)
    if size < expected:
        raise ModelError(
            f"'{path}' is truncated, it has {size:,} of {expected:,} bytes",
            _AGAIN,
        )
    if size > expected:
        raise ModelError(
            f"'{path}' is damaged, it has {size:,} bytes where its header says {expected:,}",
            _AGAIN,
        )


def read_header(path: Path) -> tuple[int, int, bytes]:
    """A safetensors file is 8 bytes (the header's length), the header, and the tensors' data. The
    file's size, the length and the header. ModelError when they cannot be read."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if length <= min(_MAX_HEADER, size - 8) else None
    except OSError as error:
        raise ModelError(
            f"'{path}' cannot be read ({error.strerror})", "check its permissions"
        ) from None
    if header is None:
        raise ModelError(f"'{path}' is truncated or no safetensors file", _AGAIN)
    return size, length, header


def _data_bytes(path: Path, header: bytes) -> int:
    """Where the last tensor ends, in bytes after the header."""
    try:
        tensors = json.loads(header)
        return max(
            (
                _end(tensor["shape"], *tensor["data_offsets"])
                for name, tensor in tensors.items()
                if name != "__metadata__"
            ),
            default=0,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ModelError(f"The header of '{path}' is damaged", _AGAIN) from None


def _end(shape: list[int], begin: int, end: int) -> int:
    elements = math.prod(shape)
    if not 0 <= begin <= end or (end - begin) * 8 < elements * 4:
        raise ValueError("a tensor's extent does not fit its shape")
    return end
