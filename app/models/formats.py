"""Model files that must be converted before they can be loaded."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from app.extras import GGUF
from app.models.cache import ModelCache
from app.models.errors import ModelError, disk_errors
from app.models.progress import ByteProgress
from app.models.unfinished import lock_model
from app.util.atomic_files import make_folder
from app.util.formatting import short_count, size

OUTCOME = "nothing of the model is left"
_SPARE = 64 << 20
"""Bytes to leave free on the disk."""


class ConversionStopped(Exception):
    """The conversion was cancelled, and its files were deleted."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Main facts about a model. `context` is in tokens; `parameters` is the number of elements of
    all tensors. Unknown values are empty, or 0 for `context`."""

    title: str
    architecture: str
    context: int
    quantised: str
    parameters: int

    def facts(self) -> tuple[str, ...]:
        """`8.2B`, `Q4_K_M`, `qwen3`, `context 40K`."""
        parameters = short_count(self.parameters) if self.parameters else ""
        context = f"context {short_count(self.context)}" if self.context else ""
        return tuple(filter(None, (parameters, self.quantised, self.architecture, context)))


@dataclass(frozen=True, slots=True)
class Converted:
    """An installed model. `error` is the relative error (root mean square) of the matrices that
    were changed, and `changed` is their share of all weights. Norms have the same type as the
    rest."""

    repository: str
    folder: Path
    size: int
    error: float
    changed: float

    @property
    def loss(self) -> str:
        """A sentence about the error of the conversion."""
        if not self.changed:
            return "All matrices are identical to those in the file."
        return (
            f"The weights that were changed, {self.changed:.0%} of all, differ by"
            f" {self.error:.2%} (root mean square)."
        )


class Conversion(Protocol):
    """A plan: what will be converted, and how. `size` is the number of bytes to write."""

    @property
    def repository(self) -> str: ...

    @property
    def size(self) -> int: ...

    def lines(self) -> Iterator[str]:
        """Sentences about the model, and about what the conversion changes."""
        ...

    def install(
        self,
        cache: ModelCache,
        on_progress: Callable[[ByteProgress], object] = ...,
        stopped: Callable[[], bool] = ...,
    ) -> Converted:
        """Convert and install. Raises ModelError, also if there is not enough disk space, and
        ConversionStopped soon after `stopped` returns true."""
        ...


class ModelFormat(Protocol):
    """A format of files. All methods raise ModelError."""

    def fault(self, path: Path) -> str | None:
        """Why a file cannot be used, going by its first bytes and its other parts, or None."""
        ...

    def parts_of(self, path: Path) -> tuple[Path, ...]:
        """All parts of the model to which `path` belongs."""
        ...

    def summarise(self, path: Path) -> Summary:
        """Summarise a model. `path` is its file, or one of its parts. Takes up to half a second;
        the result is cached while the file's size and time stay the same."""
        ...

    def repository_of(self, path: Path, title: str = "") -> str:
        """Name under which the model of a file is installed. `title` is used if the file is named
        after its digest."""
        ...

    def joined(
        self, paths: Sequence[Path], cache: ModelCache
    ) -> AbstractContextManager[tuple[Path, ...]]:
        """Join files if only the first begins like one of this format; yield other files
        unchanged. A joined file is deleted at the end of the block."""
        ...

    def plan_conversion(
        self, paths: Sequence[Path], bits: int | None = None, name: str | None = None
    ) -> Conversion:
        """Read a file (or the first of several parts) and plan its conversion. `bits` is used for
        weights that MLX cannot store unchanged; with 32 everything is dequantised. Takes a second
        or two."""
        ...


def gguf() -> ModelFormat:
    """Raises UserError if the extra is not installed."""
    found: ModelFormat = GGUF.open()
    return found


# ---------------------------------------------------------------------------- on the disk


@contextmanager
def working_folder(cache: ModelCache, repository: str) -> Iterator[Path]:
    """Yield an empty folder for a model's files, locked against other processes. It is deleted at
    the end of the block. Raises ModelError, also for an OSError in the block."""
    with disk_errors(OUTCOME):
        cache.prepare()
    name = repository.partition("/")[2]
    with lock_model(cache, repository), disk_errors(OUTCOME), empty_folder(cache, name) as folder:
        yield folder


@contextmanager
def empty_folder(cache: ModelCache, name: str) -> Iterator[Path]:
    folder = cache.app_folder / "conversions" / name
    shutil.rmtree(folder, ignore_errors=True)
    make_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):
            folder.parent.rmdir()


def check_space(folder: Path, needed: int, what: str) -> None:
    """Raise ModelError if the disk of `folder` has less space than `what` needs."""
    free = shutil.disk_usage(folder).free
    if needed + _SPARE > free:
        raise ModelError(
            f"{what} needs {size(needed)}, and {size(free)} is free on the disk",
            "free some space, or set HF_HUB_CACHE to a folder on another disk",
        )
