"""What the app uses of this extra. The conversion, which loads NumPy, is imported when needed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from app.extras.gguf import file
from app.models.cache import ModelCache
from app.models.errors import ModelError
from app.models.formats import Conversion, ModelFormat, Summary


class GgufFormat(ModelFormat):
    def fault(self, path: Path) -> str | None:
        try:
            file.parts_of(path)
            if path.is_file() and file.is_gguf(path):
                return None
            readable = os.access(path, os.R_OK)
        except ModelError as error:
            return str(error)
        except OSError:
            readable = False
        if not readable:
            return f"'{path}' cannot be read: check its permissions"
        return f"'{path}' is not a GGUF file: download the model again"

    def parts_of(self, path: Path) -> tuple[Path, ...]:
        return file.parts_of(path)

    def summarise(self, path: Path) -> Summary:
        return file.summarise(path)

    def repository_of(self, path: Path, title: str = "") -> str:
        return file.repository_of(path, title)

    def joined(
        self, paths: Sequence[Path], cache: ModelCache
    ) -> AbstractContextManager[tuple[Path, ...]]:
        from app.extras.gguf.convert import joined

        return joined(paths, cache)

    def plan_conversion(
        self, paths: Sequence[Path], bits: int | None = None, name: str | None = None
    ) -> Conversion:
        from app.extras.gguf.convert import plan_conversion

        return plan_conversion(paths, bits, name)


FORMAT = GgufFormat()
