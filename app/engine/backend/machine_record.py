"""Stores measurements of this machine in small files.

They only save time: an unreadable file counts as missing. Several processes may write the same
file; each replaces it atomically.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from app.util.regular_files import read_file

FORMAT = 3
MAX_FILES = 80
"""The oldest files beyond this number are deleted."""

T = TypeVar("T")


class MachineRecord:
    """The file in `folder` (None: not stored) for a measurement identified by `named`, this machine
    and, unless it is for `any_version`, the versions of MLX and mlx-lm."""

    def __init__(self, folder: Path | None, *named: str, any_version: bool = False) -> None:
        self._file = None
        if folder is not None:
            versions = [] if any_version else [version("mlx"), version("mlx-lm")]
            identity = "\n".join([str(FORMAT), *named, *_machine(), *versions])
            self._file = folder / f"{hashlib.sha256(identity.encode()).hexdigest()[:32]}.json"

    def read(self, parse: Callable[[Any], T]) -> T | None:
        """The parsed contents; None if the file is missing or damaged."""
        if self._file is None:
            return None
        try:
            return parse(json.loads(read_file(self._file)))
        except (
            OSError,
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ):
            return None

    def forget(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)

    def write(self, contents: dict[str, Any]) -> None:
        if self._file is None:
            return
        aside, folder = None, self._file.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(
                "w", encoding="utf-8", dir=folder, suffix=".part", delete=False
            ) as writing:
                aside = Path(writing.name)
                json.dump(contents, writing)
            aside.replace(self._file)
            _delete_old(folder)
        except OSError:
            if aside is not None:
                with suppress(OSError):
                    aside.unlink(missing_ok=True)


def _machine() -> list[str]:
    import mlx.core as mx
    import psutil

    from app.engine.backend import blas

    device = str(mx.device_info().get("device_name", platform.machine()))
    memory, library = psutil.virtual_memory().total >> 30, blas.load_openblas() or ""
    kind = mx.default_device().type.name
    return [device, str(os.cpu_count()), str(memory), kind, Path(library).name]


def _delete_old(folder: Path) -> None:
    files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[MAX_FILES:]:
        with suppress(OSError):
            file.unlink(missing_ok=True)
