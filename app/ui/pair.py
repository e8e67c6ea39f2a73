"""Which two models the screen asks the engine for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath


@dataclass(frozen=True, slots=True)
class PairPaths:
    """Model folders. Without a draft the target reads everything."""

    target: str
    draft: str | None = None

    @property
    def target_name(self) -> str:
        return PurePath(self.target).name

    @property
    def draft_name(self) -> str | None:
        return PurePath(self.draft).name if self.draft is not None else None
