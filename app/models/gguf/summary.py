"""What a GGUF file says of itself, in a few words, remembered until the file changes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from app.models.gguf.file import GgufError, GgufFile, read_gguf
from app.util import formatting

_GUESSED = 1024
"""A flag in `general.file_type`."""
_MAX_TEXT = 200


@dataclass(frozen=True, slots=True)
class GgufSummary:
    """`context` is in tokens, `parameters` counts the numbers of all tensors. What the file does
    not say is empty, or 0 for `context`."""

    title: str
    architecture: str
    context: int
    quantised: str
    parameters: int

    def facts(self) -> tuple[str, ...]:
        """`8.2B`, `Q4_K_M`, `qwen3`, `context 40K`."""
        parameters = formatting.short_count(self.parameters) if self.parameters else ""
        context = f"context {formatting.short_count(self.context)}" if self.context else ""
        return tuple(filter(None, (parameters, self.quantised, self.architecture, context)))


def summarise(path: Path) -> GgufSummary:
    """Summarise the model of which `path` is the file or one of the parts. Takes up to half a
    second, and nothing again while the file has the same size and time. GgufError when it cannot be
    read."""
    try:
        status = path.stat()
    except OSError as error:
        raise GgufError.unreadable(path, error) from None
    return _summary(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=512)
def _summary(path: Path, changed: int, size: int) -> GgufSummary:
    file = read_gguf(path)
    return GgufSummary(
        (file.metadata.text("general.name") or "")[:_MAX_TEXT],
        file.architecture[:_MAX_TEXT],
        max(file.metadata.integer(".context_length") or 0, 0),
        _quantised(file),
        sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
    )


def _quantised(file: GgufFile) -> str:
    """`Q4_K_M` as the file says, or else the type of most of its bytes."""
    from gguf.constants import LlamaFileType

    number = file.metadata.integer("general.file_type")
    try:
        kind = LlamaFileType(-1 if number is None else number & ~_GUESSED)
        return kind.name.removeprefix("MOSTLY_").removeprefix("ALL_")
    except ValueError:
        sizes: Counter[str] = Counter()
        for tensor in file.tensors.values():
            sizes[tensor.kind] += len(tensor.data)
        return sizes.most_common(1)[0][0] if sizes else ""
