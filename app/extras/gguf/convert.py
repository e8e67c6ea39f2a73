"""Converts the model in a GGUF file, and installs it in the cache as `local/NAME`.

An installed model is listed, checked, removed and paired like a downloaded one. Nothing in the file
is executed. Until the last step, all output is in a folder that the next conversion clears.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.extras.gguf.architectures import config_of, named_tensors
from app.extras.gguf.file import (
    ORGANISATION,
    GgufError,
    GgufFile,
    is_gguf,
    read_gguf,
    repository_of,
)
from app.extras.gguf.tokenizer import has_template, special_ids, tokenizer_files
from app.extras.gguf.weights import SAFETENSORS_BYTES, ErrorSum, TensorPlan, convert, plan
from app.models.cache import ModelCache, is_repository
from app.models.check import check_model
from app.models.errors import ModelError, disk_errors
from app.models.formats import (
    OUTCOME,
    ConversionStopped,
    Converted,
    check_space,
    empty_folder,
    working_folder,
)
from app.models.manifest import Manifest, ModelFile
from app.models.progress import ByteProgress, ProgressMeter
from app.protocol.generation_config import FILE_NAME
from app.util.atomic_files import temp_file
from app.util.regular_files import open_file

_WEIGHTS = "model.safetensors"
_BLOCK = 8 << 20

_SAMPLING = {
    "temp": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""Metadata keys below `general.sampling.`, and their names in `generation_config.json`."""


@dataclass(frozen=True, slots=True)
class GgufConversion:
    """A plan: what will be converted, and how. `size` is the number of bytes to write."""

    gguf: GgufFile
    repository: str
    config: dict[str, Any]
    tokenizer: dict[str, Any]
    tokenizer_config: dict[str, Any]
    generation_config: dict[str, Any]
    plans: tuple[TensorPlan, ...]
    size: int

    def lines(self) -> Iterator[str]:
        """Sentences about the model, and about what the conversion changes."""
        matrices = [each for each in self.plans if each.is_matrix]
        kinds = Counter(each.tensor.kind for each in matrices)
        names = ", ".join(f"{number} in {kind}" for kind, number in kinds.most_common())
        yield f"{self.config['model_type']}, {len(matrices)} matrices: {names}."
        exact = sum(each.is_exact for each in matrices)
        if exact:
            count = "All" if exact == len(matrices) else f"{exact} of {len(matrices)}"
            yield f"{count} will not change."
        rounded = [each for each in matrices if each.keeps_codes and not each.is_exact]
        if rounded:
            yield f"{len(rounded)} keep their values, with scales rounded to {rounded[0].dtype}."
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

    def install(
        self,
        cache: ModelCache,
        on_progress: Callable[[ByteProgress], object] = lambda progress: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Converted:
        """Convert and install. Raises ModelError, also if there is not enough disk space, and
        ConversionStopped soon after `stopped` returns true."""
        with working_folder(cache, self.repository) as folder:
            if cache.find(self.repository) is not None:
                raise ModelError(
                    f"{self.repository} is already installed",
                    f"remove it with `specchat models rm {self.repository}`, or choose another"
                    " name with --as",
                )
            check_space(folder, self.size, "The converted model")
            return _ModelWriter(self, cache, folder, on_progress, stopped).run()


def plan_conversion(
    paths: Sequence[Path], bits: int | None = None, name: str | None = None
) -> GgufConversion:
    """Read a GGUF file (or the first of several parts) and plan its conversion. `bits` (4, 8 or 16)
    is used for weights that MLX cannot store unchanged; with 32 everything is dequantised. Takes a
    second or two. Raises ModelError."""
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
    return GgufConversion(
        gguf, repository, config, tokenizer, tokenizer_config, generation, plans, total
    )


def _generation_config(gguf: GgufFile) -> dict[str, Any]:
    """The sampling that the file recommends; empty if there is none. Values that are not numbers
    are ignored."""
    found: dict[str, Any] = {}
    for key, name in _SAMPLING.items():
        with suppress(GgufError):
            if (value := gguf.metadata.number(f"general.sampling.{key}")) is not None:
                found[name] = int(value) if name == "top_k" else round(value, 6)
    return {"do_sample": True} | found if found else {}


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


@contextmanager
def joined(paths: Sequence[Path], cache: ModelCache) -> Iterator[tuple[Path, ...]]:
    """Join files if only the first begins like a GGUF file; yield other files unchanged. A joined
    file is deleted at the end of the block."""
    if len(paths) < 2 or any(map(is_gguf, paths[1:])):
        yield tuple(paths)
        return
    with disk_errors(OUTCOME):
        cache.prepare()
        with empty_folder(cache, "joined") as folder:
            check_space(folder, sum(path.stat().st_size for path in paths), "The joined file")
            whole = folder / paths[0].name
            with whole.open("wb") as file:
                for path in paths:
                    with open_file(path) as part:
                        shutil.copyfileobj(part, file, _BLOCK)
            yield (whole,)


class _ModelWriter:
    def __init__(
        self,
        conversion: GgufConversion,
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
        """Write a file durably, and record its digest."""
        digest = hashlib.sha256()
        with temp_file(self._folder / name) as file:

            def write(data: Any) -> None:
                digest.update(data)
                file.write(data)

            yield write
            length = file.tell()
        self._files.append(ModelFile(name, length, digest.hexdigest()))

    def _weights(self, write: Callable[[Any], object]) -> None:
        """Write a safetensors file: the length of its header, the header, and the tensors."""
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
