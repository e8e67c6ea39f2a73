"""The real model that is offered instead of the demo model: the smallest that answers well."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from app.models.packaged import SMOLLM2
from app.util.formatting import size


@dataclass(frozen=True, slots=True)
class FirstModel:
    """`download` is in bytes, `promise` a clause about its answers."""

    repository: str
    download: int
    promise: str

    @property
    def name(self) -> str:
        return self.repository.rpartition("/")[2]

    @property
    def name_and_size(self) -> str:
        return f"{self.name} ({size(self.download)})"


WITH_GPU = FirstModel(
    "mlx-community/LFM2.5-1.2B-Instruct-4bit", 663_391_416, "which answers in its own words"
)
ON_CPU = FirstModel(
    SMOLLM2.repository, SMOLLM2.download, "which answers in its own words, but is often wrong"
)
"""On a CPU, MLX multiplies weights of 4 bits too slowly."""


def first_model() -> FirstModel:
    """The one for this machine. docs/models.md says how it was chosen."""
    return WITH_GPU if sys.platform == "darwin" else ON_CPU
