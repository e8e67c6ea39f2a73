"""Converts the model of a GGUF file once, and installs it in the cache as `local/NAME`.

There it is listed, checked, moved to the trash and paired like one that was downloaded. Nothing in
the file is run. Until the last step everything lies in a folder of ours, which the next conversion
clears.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.models.cache import ModelCache, is_repository
from app.models.check import check_model
from app.models.errors import ModelError, disk_errors
from app.models.gguf.architectures import config_of, named_tensors
from app.models.gguf.file import GgufError, GgufFile, is_gguf, read_gguf
from app.models.gguf.tokenizer import has_template, special_ids, tokenizer_files
from app.models.gguf.weights import SAFETENSORS_BYTES, ErrorSum, TensorPlan, convert, plan
from app.models.manifest import Manifest, ModelFile
from app.models.progress import ByteProgress, ProgressMeter
from app.models.unfinished import lock_model
from app.protocol.generation_config import FILE_NAME
from app.util.atomic_files import make_folder, temp_file
from app.util.formatting import size
from app.util.regular_files import open_file

ORGANISATION = "local"
_SPARE = 64 << 20
"""Bytes that stay free on the disk."""
_WEIGHTS = "model.safetensors"
_BLOCK = 8 << 20
_OUTCOME = "nothing of the model is left"

_SAMPLING = {
    "temp": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""Metadata below `general.sampling.`, and its names in `generation_config.json`."""


class ConversionStopped(Exception):
    """It was cancelled; nothing is left of it."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What will be converted, and into what. `size` is in bytes, of what will be written."""

    gguf: GgufFile
    repository: str
    config: dict[str, Any]
    tokenizer: dict[str, Any]
    tokenizer_config: dict[str, Any]
    generation_config: dict[str, Any]
    plans: tuple[TensorPlan, ...]
    size: int

    def lines(self) -> Iterator[str]:
        """What it is, and what will be lost in it: one sentence each."""
        matrices = [each for each in self.plans if each.is_matrix]
        kinds = Counter(each.tensor.kind for each in matrices)
        names = ", ".join(f"{number} in {kind}" for kind, number in kinds.most_common())
        yield f"{self.config['model_type']}, {len(matrices)} matrices: {names}."
        exact = sum(each.is_exact for each in matrices)
        if exact:
            count = "All" if exact == len(matrices) else f"{exact} of {len(matrices)}"
            yield f"{count} stay exactly as they are."
        rounded = [each for each in matrices if each.keeps_codes and not each.is_exact]
        if rounded:
            yield f"{len(rounded)} keep their numbers, with scales rounded to {rounded[0].dtype}."
        others = Counter(
            (each.tensor.kind, f"{each.bits} bits" if each.bits else each.dtype)
            for each in matrices
            if not each.keeps_codes and not each.is_exact
        )
        for (kind, becomes), number in sorted(others.items()):
            yield f"{number} in {kind} become {becomes}."
        if not has_template(self.gguf):
            yield (
                "It has no chat template: it can be a draft, and as a target it continues plain"
                " text."
            )


@dataclass(frozen=True, slots=True)
class Converted:
    """An installed model. `error` is the relative error of the matrices that were not held exactly,
    root mean square, and `changed` the share of all weights in them. Norms are held in the type of
    the rest."""

    repository: str
    folder: Path
    size: int
    error: float
    changed: float

    @property
    def loss(self) -> str:
        """What was lost, in a sentence."""
        if not self.changed:
            return "Every matrix is exactly as in the file."
        return (
            f"The weights that were changed, {self.changed:.0%} of all, differ by"
            f" {self.error:.2%} (root mean square)."
        )


def plan_conversion(
    paths: Sequence[Path], bits: int | None = None, name: str | None = None
) -> Conversion:
    """Look at a GGUF file, or the first part of several, and decide what becomes of it. `bits` is
    for what MLX cannot hold as it is: 4, 8 or 16; with 32 everything is dequantised. Takes a second
    or two. ModelError."""
    gguf = read_gguf(paths[0])
    config = config_of(gguf)
    plans = tuple(plan(gguf, config, list(named_tensors(gguf, config)), bits))
    tokenizer, tokenizer_config = tokenizer_files(gguf)
    if len(tokenizer["model"]["vocab"]) > config["vocab_size"]:
        raise GgufError(f"'{paths[0]}' has more tokens than embeddings", "use another file")
    config |= special_ids(gguf) | _quantisation(plans)
    total = sum(_bytes(*output) for each in plans for output in each.outputs().values())
    repository = f"{ORGANISATION}/{name}" if name else repository_of(paths[0])
    if not is_repository(repository):
        raise ModelError(
            f"{name!r} cannot be the name of a model",
            "use letters, digits, dots, dashes and underscores",
        )
    generation = _generation_config(gguf)
    return Conversion(
        gguf, repository, config, tokenizer, tokenizer_config, generation, plans, total
    )


def _generation_config(gguf: GgufFile) -> dict[str, Any]:
    """The sampling that the file recommends; empty where it recommends nothing. What is not a
    number is not taken."""
    found: dict[str, Any] = {}
    for key, name in _SAMPLING.items():
        with suppress(GgufError):
            if (value := gguf.metadata.number(f"general.sampling.{key}")) is not None:
                found[name] = int(value) if name == "top_k" else round(value, 6)
    return {"do_sample": True} | found if found else {}


def repository_of(path: Path, title: str = "") -> str:
    """What the model of a file is called once it is installed. `title` is used where the file is
    named after its digest, as Ollama's are."""
    name = title if title and path.name.startswith("sha256") else path.name
    stem = re.sub(r"(-\d{5}-of-\d{5})?\.gguf(\.part\d+)?$", "", name, flags=re.IGNORECASE)
    stem = re.sub(r"[^\w.]+|_{2,}|\.{2,}", "-", stem, flags=re.ASCII).strip("-.")[:90]
    return f"{ORGANISATION}/{stem or 'model'}"


def _bytes(dtype: str, shape: Iterable[int]) -> int:
    return SAFETENSORS_BYTES[dtype] * math.prod(shape)


def _quantisation(plans: Iterable[TensorPlan]) -> dict[str, Any]:
    each: dict[str, Any] = {
        p.module: {"group_size": p.group, "bits": p.bits} for p in plans if p.bits is not None
    }
    if not each:
        return {}
    common, _ = Counter((v["group_size"], v["bits"]) for v in each.values()).most_common(1)[0]
    return {"quantization": {"group_size": common[0], "bits": common[1]} | each}


def install(
    conversion: Conversion,
    cache: ModelCache,
    on_progress: Callable[[ByteProgress], object] = lambda progress: None,
    stopped: Callable[[], bool] = lambda: False,
) -> Converted:
    """Write it and publish it. Raises ModelError, also when the disk has not enough space, and
    ConversionStopped soon after `stopped` returns true."""
    with working_folder(cache, conversion.repository) as folder:
        if cache.find(conversion.repository) is not None:
            raise ModelError(
                f"{conversion.repository} is installed already",
                f"remove it with `specchat models rm {conversion.repository}`, or choose another"
                " name with --as",
            )
        check_space(folder, conversion.size, "The converted model")
        return _ModelWriter(conversion, cache, folder, on_progress, stopped).run()


@contextmanager
def working_folder(cache: ModelCache, repository: str) -> Iterator[Path]:
    """An empty folder for what becomes a model, which no other process has. It is deleted at the
    end of the block. ModelError, also for an OSError in the block."""
    with disk_errors(_OUTCOME):
        cache.prepare()
    name = repository.partition("/")[2]
    with lock_model(cache, repository), disk_errors(_OUTCOME), _empty_folder(cache, name) as folder:
        yield folder


def check_space(folder: Path, needed: int, what: str) -> None:
    """ModelError when the disk of `folder` has fewer bytes free than `what` needs."""
    free = shutil.disk_usage(folder).free
    if needed + _SPARE > free:
        raise ModelError(
            f"{what} needs {size(needed)}, and {size(free)} is free on the disk",
            "free some space, or set HF_HUB_CACHE to a folder on another disk",
        )


@contextmanager
def joined(paths: Sequence[Path], cache: ModelCache) -> Iterator[tuple[Path, ...]]:
    """Files of which only the first begins as a GGUF file does, in one; others as they are. The
    joined file is deleted at the end of the block."""
    if len(paths) < 2 or any(map(is_gguf, paths[1:])):
        yield tuple(paths)
        return
    with disk_errors(_OUTCOME):
        cache.prepare()
        with _empty_folder(cache, "joined") as folder:
            check_space(folder, sum(path.stat().st_size for path in paths), "The joined file")
            whole = folder / paths[0].name
            with whole.open("wb") as file:
                for path in paths:
                    with open_file(path) as part:
                        shutil.copyfileobj(part, file, _BLOCK)
            yield (whole,)


@contextmanager
def _empty_folder(cache: ModelCache, name: str) -> Iterator[Path]:
    folder = cache.app_folder / "conversions" / name
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.parent.rmdir()


class _ModelWriter:
    def __init__(
        self,
        conversion: Conversion,
        cache: ModelCache,
        folder: Path,
        on_progress: Callable[[ByteProgress], object],
        stopped: Callable[[], bool],
    ) -> None:
        self._conversion, self._cache, self._folder = conversion, cache, folder
        self._on_progress, self._stopped = on_progress, stopped
        self._meter, self._error = ProgressMeter(), ErrorSum()
        self._meter.start(0, conversion.size)
        self._files: list[ModelFile] = []

    def run(self) -> Converted:
        conversion = self._conversion
        with self._file(_WEIGHTS) as write:
            self._weights(write)
        texts = {
            "tokenizer.json": conversion.tokenizer,
            "tokenizer_config.json": conversion.tokenizer_config,
            "config.json": conversion.config,
        }
        if conversion.generation_config:
            texts[FILE_NAME] = conversion.generation_config
        for name, content in texts.items():
            with self._file(name) as write:
                write(json.dumps(content, ensure_ascii=False, indent=1).encode())
        check_model(self._folder)
        self._check()
        digests = "".join(file.digest for file in self._files)
        commit = hashlib.sha1(digests.encode(), usedforsecurity=False).hexdigest()
        manifest = Manifest(conversion.repository, commit, tuple(self._files))
        blobs = {file.digest: self._folder / file.path for file in self._files}
        folder = self._cache.publish(manifest, blobs)
        matrices = [each for each in conversion.plans if each.is_matrix]
        weights = sum(map(_count, matrices))
        changed = sum(_count(each) for each in matrices if not each.is_exact)
        return Converted(
            conversion.repository, folder, manifest.size, self._error.relative, changed / weights
        )

    @contextmanager
    def _file(self, name: str) -> Iterator[Callable[[Any], object]]:
        """Write a file durably, and note its digest."""
        digest = hashlib.sha256()
        with temp_file(self._folder / name) as file:

            def write(data: Any) -> None:
                digest.update(data)
                file.write(data)

            yield write
            length = file.tell()
        self._files.append(ModelFile(name, length, digest.hexdigest()))

    def _weights(self, write: Callable[[Any], object]) -> None:
        """One safetensors file: the length of its header, the header, and the tensors."""
        header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
        at = 0
        for planned in self._conversion.plans:
            for name, (dtype, shape) in planned.outputs().items():
                end = at + _bytes(dtype, shape)
                header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
                at = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        write(len(text).to_bytes(8, "little"))
        write(text)
        for planned in self._conversion.plans:
            for values in convert(planned, self._error, self._check):
                write(values.tobytes())
                self._meter.add(values.nbytes)
                self._check()

    def _check(self) -> None:
        self._on_progress(self._meter.read())
        if self._stopped():
            raise ConversionStopped


def _count(planned: TensorPlan) -> int:
    return math.prod(planned.tensor.shape)
