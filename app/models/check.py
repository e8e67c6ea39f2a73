"""Checks whether a folder has a text model that can be loaded, and computes the memory of its
weights. Does not use MLX.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from app.estimate.memory import MTP_MODELS
from app.models.errors import ModelError
from app.models.manifest import ModelFile
from app.protocol.options import ENCODERS
from app.util.model_config import rotary_problem
from app.util.regular_files import open_file, read_file
from app.util.weight_files import INDEX, listed_files, missing_weights, weight_files

_MAX_HEADER = 100_000_000
"""Maximum bytes of a header in the safetensors format."""
_MAX_BYTES = {".json": 100 << 20, ".txt": 100 << 20, ".model": 256 << 20, ".jinja": 1 << 20}
"""Maximum bytes of files that loaders read whole, by suffix: several times the usual sizes."""
_MAX_CONFIG_BYTES = 16 << 20
_MAX_OBJECTS, _MAX_VALUES = 2_000_000, 4_000_000
"""Limits for one JSON file: three times what a vocabulary of 262,144 tokens and its merges need."""
_REDOWNLOAD = "download the model again"


def check_model(folder: Path) -> None:
    """Raise ModelError if `folder` is not a text model in mlx-lm's format, is incomplete, or
    contains code. Takes milliseconds, because it reads no weights."""
    weight_files = check_files(folder)
    for path in folder.glob("*.json"):
        with suppress(OSError):  # reported where the file is needed
            _check_amount(path, read_file(path))
    check_tokenizer(read_json(folder / "tokenizer.json"))
    for weights in weight_files:
        _check_weights(weights)


def check_files(folder: Path) -> list[Path]:
    """Check a model like `check_model`, except that tokenizer and weights only need to exist.
    Returns the weight files."""
    if not folder.is_dir():
        raise ModelError(f"There is no model folder '{folder}'", "check its name")
    if not (folder / "config.json").is_file():
        raise ModelError(
            f"'{folder}' is not a model: it has no config.json",
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
    """Check types and sizes of files, because loaders open any file that has an expected name."""
    names = (found.path / name for found in bounded_walk(folder, depth=1) for name in found.files)
    for path in names:
        with suppress(OSError):  # such as a broken link; reported where the file is needed
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
    """Limit the amount of JSON, because parsing cannot be interrupted."""
    if data.count(b"[") + data.count(b"{") > _MAX_OBJECTS or data.count(b",") > _MAX_VALUES:
        raise ModelError(f"'{path}' has too many values", _REDOWNLOAD)


def check_configs(folder: Path) -> None:
    """Raise ModelError if a configuration in `folder` is invalid or requires code. Missing ones are
    ignored."""
    config, tokenizer = folder / "config.json", folder / "tokenizer_config.json"
    if config.is_file():
        _check_config(read_json(config))
    if tokenizer.is_file():
        _refuse_code(read_json(tokenizer), tokenizer.name, "auto_map")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file. Raises ModelError if the file is missing or invalid."""
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
    check_rotary(config)


def check_rotary(config: dict[str, Any]) -> None:
    """Raise ModelError if specchat cannot compute the model's rotary embeddings."""
    if problem := rotary_problem(config):
        raise ModelError(
            f"The model's rotary embeddings are {problem}",
            "download the model again, or choose another one",
        )


def drafts_only(config: dict[str, Any]) -> bool:
    """Whether the configuration describes only the layers with which a model predicts several
    tokens (MTP), without the model."""
    return str(config.get("model_type")).endswith(("_mtp", "_assistant"))


def refuse_draft_layers(config: dict[str, Any]) -> None:
    if drafts_only(config):
        raise ModelError(
            f"This is only a draft head, not a complete model ({config['model_type'][:60]})",
            "use the model to which it belongs",
        )


def _refuse_code(config: dict[str, Any], file: str, key: str) -> None:
    """Raise ModelError if a configuration requires code from the model's folder, which would run
    with the user's permissions."""
    if config.get(key):
        raise ModelError(
            f"The model's {file} requires code from its folder ({key}), and specchat never runs"
            " code from a model",
            f"use a model that mlx-lm supports without it, or remove {key} from {file} if mlx-lm"
            " supports this one",
        )


def _weight_files(folder: Path) -> list[Path]:
    """The model's safetensors files. Raises ModelError if any are missing."""
    if (folder / INDEX).is_file():
        present = [path.name for path in folder.glob("*.safetensors") if path.is_file()]
        if missing := missing_weights(present, shards(folder)):
            raise ModelError(
                f"The model in '{folder}' is incomplete: {min(missing)} is missing", _REDOWNLOAD
            )
    found = weight_files(folder)
    if not found:
        raise ModelError(
            f"'{folder}' has no weights in safetensors files",
            "download the model again, or convert it with mlx_lm.convert",
        )
    return found


def shards(folder: Path) -> set[str]:
    """Weight files that the index in `folder` lists. Raises ModelError if it lists none."""
    index = folder / INDEX
    if not (listed := listed_files(read_json(index))):
        raise ModelError(f"'{index}' lists no weights", _REDOWNLOAD)
    return listed


def _check_weights(path: Path) -> None:
    size, start, extents = _read_header(path)
    expected = start + max((end for _, end in extents.values()), default=0)
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


def _read_header(path: Path) -> tuple[int, int, dict[str, tuple[int, int]]]:
    """Read the header of a safetensors file. Returns the file's size, the offset of the data, and
    for each tensor its start and end in the data. The file consists of the header's length (8
    bytes), the header and the data. Raises ModelError if the header cannot be read."""
    try:
        size = path.stat().st_size
        with open_file(path) as file:
            length = int.from_bytes(file.read(8), "little")
            header = file.read(length) if length <= min(_MAX_HEADER, size - 8) else None
    except OSError as error:
        raise ModelError.unreadable(path, error) from None
    if header is None:
        raise ModelError(f"'{path}' is truncated or not a safetensors file", _REDOWNLOAD)
    _check_amount(path, header)
    try:
        extents = {
            name: _extent(tensor["shape"], *tensor["data_offsets"])
            for name, tensor in json.loads(header).items()
            if name != "__metadata__"
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise ModelError(f"The header of '{path}' is damaged", _REDOWNLOAD) from None
    return size, 8 + length, extents


def _extent(shape: list[int], begin: int, end: int) -> tuple[int, int]:
    if any(type(number) is not int or number < 0 for number in (*shape, begin, end)):
        raise ValueError("a size that is no number")
    if begin > end or (end - begin) * 8 < math.prod(shape) * 4:
        raise ValueError("a tensor's extent does not fit its shape")
    return begin, end


# ------------------------------------------------------------------------------ config.json
# A loader builds all layers from these numbers before it reads any weights, and cannot be
# interrupted.


_MAX_LAYERS = 2000
_MAX_COUNT = 4096
"""Maximum number of experts, heads and the like."""
_MAX_LIST = 20_000
_MAX_NUMBER = 1 << 31
_MAX_FREE = 1 << 62
_LAYERS = frozenset(("num_hidden_layers", "n_layers", "n_layer", "num_layers"))
"""Counts that must be above 0."""

# Architectures name the same count differently, so keys are matched by patterns.
_PER_LAYER = re.compile(r"layer|block|pattern|depth|loop")
_COUNT = re.compile(r"(^|_)(n|num)_|_num$|(layers|experts|loops|blocks|depth|pattern)$")
_SIZE = re.compile(r"embd|position|ctx|inner|vocab|token|size|dim")
_FREE = re.compile(r"max_|rope|theta|token")
_NAMING_MODULES = frozenset({"quantization", "quantization_config"})


def check_config_numbers(config: dict[str, Any]) -> None:
    """Raise ModelError if a number in `config`, or the length of a list, is implausible, at any
    depth."""
    for key, value in _config_entries(config):
        if key in _LAYERS and value is not None and (type(value) is not int or value <= 0):
            what = f"{value:,} layers" if type(value) is int else "an invalid number of layers"
            raise _bad_config(what)
        limit = _config_limit(key, value)
        if limit is None:
            continue
        if isinstance(value, int) and abs(value) > limit:
            # A number with more digits than this is not even written.
            shown = f"{value:,}" if abs(value) < _MAX_FREE else "too many"
            raise _bad_config(f"{shown} layers" if key in _LAYERS else f"a {key[:60]} of {shown}")
        if isinstance(value, list | str) and len(value) > limit:
            raise _bad_config(f"a {key[:60]} with {len(value):,} entries")


def _config_entries(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys and values of all nested objects."""
    waiting: list[Any] = [config]
    while waiting:
        for key, value in waiting.pop().items():
            yield key, value
            nested = value if isinstance(value, list) else [value]
            if key not in _NAMING_MODULES:
                waiting += [each for each in nested if isinstance(each, dict)]


def _config_limit(key: str, value: Any) -> int | None:
    """The maximum value, or the maximum length, for this key."""
    per_layer = _PER_LAYER.search(key) is not None
    if isinstance(value, list):
        return _MAX_LAYERS if per_layer else _MAX_LIST
    if isinstance(value, str):
        return _MAX_LAYERS if per_layer else None
    if _COUNT.search(key) and not _SIZE.search(key):
        return _MAX_LAYERS if per_layer else _MAX_COUNT
    return _MAX_FREE if _FREE.search(key) else _MAX_NUMBER


def _bad_config(what: str) -> ModelError:
    return ModelError(f"The model's config.json has {what}", "download the model again")


# --------------------------------------------------------------------------- text encoders


_ENCODER_SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)
_MIN_POSITIONS = 64
"""Positions that a piece of a text takes at least."""


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_positive(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


def _has_bases(value: Any) -> bool:
    """Whether this gives RoPE bases by layer type."""
    return isinstance(value, dict) and all(
        each is None or (isinstance(each, dict) and _is_positive(each.get("rope_theta", 1.0)))
        for name, each in value.items()
        if name.endswith("_attention")
    )


def _is_quantisation(value: Any) -> bool:
    return isinstance(value, dict) and all(
        _is_positive(value.get(key)) for key in ("group_size", "bits")
    )


_ENCODER_VALUES: dict[str, Callable[[Any], bool]] = {
    "pad_token_id": _is_count,
    "local_attention": _is_count,
    "global_attn_every_n_layers": lambda value: _is_count(value) and value > 0,
    **dict.fromkeys(("layer_norm_eps", "norm_eps"), _is_positive),
    **dict.fromkeys(("global_rope_theta", "local_rope_theta"), _is_positive),
    **dict.fromkeys(
        ("hidden_act", "hidden_activation", "position_embedding_type"),
        lambda value: isinstance(value, str),
    ),
    "layer_types": lambda value: isinstance(value, list),
    "rope_parameters": _has_bases,
    "quantization": _is_quantisation,
}
"""Whether an optional value of an encoder's config.json is valid."""
_ACTIVATIONS = frozenset({"gelu", "relu", "silu"})
_MODULES = frozenset({"Transformer", "Pooling", "Normalize"})


def is_encoder(config: dict[str, Any]) -> bool:
    kind = config.get("model_type")
    return isinstance(kind, str) and kind in ENCODERS


def check_encoder(folder: Path) -> None:
    """Raise ModelError if specchat cannot compute the vectors of the text encoder in `folder`."""
    config = read_json(folder / "config.json")
    _check_encoder_config(config)
    activation = config.get("hidden_activation") or config.get("hidden_act") or "gelu"
    if activation not in _ACTIVATIONS:
        raise _unsupported_encoder(f"the activation {activation!r}")
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise _unsupported_encoder(f"{config['position_embedding_type']} positions")
    modules = folder / "modules.json"
    for kind in _module_kinds(modules) if modules.is_file() else ():
        if kind not in _MODULES:
            raise _unsupported_encoder(f"a module of the kind {kind!r}")
    pooling = folder / "1_Pooling" / "config.json"
    if not pooling.is_file():
        raise ModelError(
            f"'{folder}' does not say how its vectors are pooled: it has no 1_Pooling/config.json",
            "use a checkpoint made for Sentence Transformers",
        )
    prompts = folder / "config_sentence_transformers.json"
    _check_prompts(read_json(prompts) if prompts.is_file() else {})
    modes = [name for name, value in read_json(pooling).items() if value is True]
    pooled = [name for name in modes if name.startswith("pooling_mode_")]
    if pooled not in (["pooling_mode_cls_token"], ["pooling_mode_mean_tokens"]):
        raise _unsupported_encoder(f"the pooling {', '.join(pooled) or 'none'}")


def _check_encoder_config(config: dict[str, Any]) -> None:
    """Raise ModelError for a value that is missing, or of another kind than it must be."""
    for name in _ENCODER_SIZES:
        if type(config.get(name)) is not int:
            raise ModelError(f"The encoder's config.json has no {name}", _REDOWNLOAD)
        if config[name] < 1:
            raise _invalid_encoder(name, config[name])
    for name, is_valid in _ENCODER_VALUES.items():
        if config.get(name) is not None and not is_valid(config[name]):
            raise _invalid_encoder(name, config[name])
    if config["hidden_size"] % config["num_attention_heads"]:
        raise _invalid_encoder("num_attention_heads", config["num_attention_heads"])
    first = 0 if config["model_type"] == "bert" else (config.get("pad_token_id") or 0) + 1
    if first + _MIN_POSITIONS > config["max_position_embeddings"]:
        raise _invalid_encoder("max_position_embeddings", config["max_position_embeddings"])
    if len(config.get("layer_types") or ()) not in (0, config["num_hidden_layers"]):
        raise _invalid_encoder("layer_types", config["layer_types"])


def _check_prompts(settings: dict[str, Any]) -> None:
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or any(
        not isinstance(each, str | None) for each in prompts.values()
    ):
        raise ModelError(
            "The encoder's config_sentence_transformers.json has invalid prompts", _REDOWNLOAD
        )


def _invalid_encoder(name: str, value: Any) -> ModelError:
    shown = json.dumps(value)[:40]
    return ModelError(f"The encoder's config.json has an invalid {name} ({shown})", _REDOWNLOAD)


def _module_kinds(file: Path) -> list[str]:
    """The classes of a `modules.json`."""
    try:
        return [str(module["type"]).rpartition(".")[2] for module in json.loads(read_file(file))]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise ModelError(f"'{file}' cannot be read", _REDOWNLOAD) from None


def _unsupported_encoder(what: str) -> ModelError:
    return ModelError(
        f"This text encoder has {what[:80]}, which specchat cannot run",
        "choose another one, or use the built-in scorer",
    )


# --------------------------------------------------------------------------- tokenizer.json
# Long texts are tokenised in a limited process (`app/sandbox`), but loaders build tables of the
# tokens, encode a few names, and decode answers.


_MAX_STEPS = 100
_MAX_GROWTH = 1000
"""Maximum factor by which a text may grow."""
_MAX_TOKEN = 10_000
_MAX_IDS = 1 << 24
_NESTED = ("normalizers", "pretokenizers", "decoders", "processors")


def check_tokenizer(content: dict[str, Any]) -> None:
    """Raise ModelError if a token or a step of a tokenizer.json is implausible. Whether the file is
    a tokenizer at all is checked where it is loaded."""
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    listed = content.get("added_tokens")
    added = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    _check_tokens(_tokens(vocabulary), vocabulary.values() if isinstance(vocabulary, dict) else ())
    _check_tokens((each.get("content") for each in added), (each.get("id") for each in added))
    for name in ("normalizer", "pre_tokenizer", "decoder", "post_processor"):
        steps = list(_tokenizer_steps(content.get(name)))
        if len(steps) > _MAX_STEPS:
            raise _bad_tokenizer(f"more than {_MAX_STEPS} steps in its {name}")
        if math.prod(_growth(step) for step in steps) > _MAX_GROWTH:
            raise _bad_tokenizer(
                f"a {name} that makes texts more than {_MAX_GROWTH:,} times longer"
            )
        if name == "decoder" and any(_has_pattern(step) for step in steps):
            raise _bad_tokenizer("a regular expression in its decoder")


def _tokens(vocabulary: Any) -> Iterator[Any]:
    """The tokens of a vocabulary. Unigram models list pairs of token and score."""
    for each in vocabulary if isinstance(vocabulary, dict | list) else ():
        yield each[0] if isinstance(each, list) and each else each


def _check_tokens(texts: Iterable[Any], ids: Iterable[Any]) -> None:
    if any(isinstance(text, str) and len(text) > _MAX_TOKEN for text in texts):
        raise _bad_tokenizer(f"a token of more than {_MAX_TOKEN:,} characters")
    if any(isinstance(id, int | float) and not 0 <= id < _MAX_IDS for id in ids):
        raise _bad_tokenizer(f"a token id that is not between 0 and {_MAX_IDS - 1:,}")


def _tokenizer_steps(part: Any) -> Iterator[dict[str, Any]]:
    waiting, seen = [part], 0
    while waiting and seen <= _MAX_STEPS:
        step = waiting.pop()
        if not isinstance(step, dict):
            continue
        seen += 1
        yield step
        for key in _NESTED:
            nested = step.get(key)
            waiting += nested if isinstance(nested, list) else []


def _growth(step: dict[str, Any]) -> float:
    """Factor by which a step may lengthen a text. Unicode normalisation is bounded."""
    made = step.get("content")
    length = len(made) if isinstance(made, str) else 0
    match step.get("type"):
        case "Replace":
            pattern = step.get("pattern")
            found = pattern.get("String") if isinstance(pattern, dict) else None
            # A regular expression may match an empty string before every character.
            return max(1.0, length / len(found)) if found else 1.0 + length
        case "Prepend":
            prepended = step.get("prepend")
            return 1.0 + (len(prepended) if isinstance(prepended, str) else 0)
        case "ByteLevel" if (
            "trim_offsets" not in step
        ):  # a normaliser that maps bytes to characters
            return 4.0
    return 1.0


def _has_pattern(step: dict[str, Any]) -> bool:
    pattern = step.get("pattern")
    return isinstance(pattern, dict) and "Regex" in pattern


def _bad_tokenizer(what: str) -> ModelError:
    return ModelError(f"The model's tokenizer.json has {what}", "choose another model")


# ------------------------------------------------------------------------ weights in memory


_SKIPPED_MODULES = (
    "vision_tower",
    "visual",
    "vision_model",
    "multi_modal_projector",
    "audio_tower",
)
"""Modules of multimodal models that mlx-lm does not load."""


def loaded_bytes(folder: Path) -> int:
    """Bytes of the tensors that are loaded from `folder`. Raises ModelError."""
    headers = (_read_header(path) for path in check_files(folder))
    has_mtp = read_json(folder / "config.json").get("model_type") in MTP_MODELS
    return sum(
        end - begin
        for _, _, extents in headers
        for name, (begin, end) in extents.items()
        if not _is_skipped(name, has_mtp)
    )


def listed_bytes(files: Iterable[ModelFile]) -> int:
    """Bytes of the weight files in the hub's list, including modules that are not loaded."""
    return sum(file.size for file in files if file.path.endswith(".safetensors"))


def weight_format(config: dict[str, Any]) -> str:
    """Format of the weights: `4-bit` or the like, or the dtype; empty if the configuration names
    neither."""
    stored = config.get("quantization")
    if isinstance(stored, dict) and isinstance(stored.get("bits"), int):
        return f"{stored['bits']}-bit"
    named = config.get("dtype") or config.get("torch_dtype")
    return named.removeprefix("torch.") if isinstance(named, str) else ""


def _is_skipped(name: str, has_mtp: bool) -> bool:
    parts = name.split(".")[:3]
    return ("mtp" in parts and not has_mtp) or any(part in _SKIPPED_MODULES for part in parts)


# ---------------------------------------------------------------------------- walking folders
# These folders belong to other programs.


MAX_DEPTH, MAX_ENTRIES = 4, 10_000
"""Maximum levels below the first folder, and maximum files and folders visited in total."""


@dataclass(frozen=True, slots=True)
class WalkedFolder:
    """A folder. `files` are the sorted names of everything that is not a folder, including links to
    files."""

    path: Path
    files: tuple[str, ...]


def bounded_walk(
    top: Path, depth: int = MAX_DEPTH, entries: int = MAX_ENTRIES
) -> Iterator[WalkedFolder]:
    """Yield `top` and the folders below it, top-down. Each is visited once, even if links lead to
    it. Skips hidden and unreadable folders."""
    queue, seen = deque([(top, 0)]), set[tuple[int, int]]()
    while queue and entries > 0:
        path, level = queue.popleft()
        try:
            status = path.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with os.scandir(path) as scan:
                found = sorted(islice(scan, entries), key=lambda entry: entry.name)
        except OSError:
            continue
        entries -= len(found)
        found = [entry for entry in found if not entry.name.startswith(".")]
        folders = [entry.name for entry in found if _is_folder(entry)]
        if level < depth:
            queue.extend((path / name, level + 1) for name in folders)
        names = set(folders)
        yield WalkedFolder(path, tuple(entry.name for entry in found if entry.name not in names))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # a link to itself
        return entry.is_dir()
    return False
