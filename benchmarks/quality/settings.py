"""What an evaluation measures."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from app.protocol.options import AUTO_KEEP, DEFAULT_KEEP_RATIO, Mode, Scoring, Tuning
from app.protocol.prompt import Document
from benchmarks.quality.results_log import DENSE, ReadConfig
from benchmarks.quality.suites import ONLY_PASSAGES, PERPLEXITY

TUNING = Tuning(Scoring.BOTH, dense_below=0)
"""The defaults, but that auto mode may read short prompts sparsely: its guard is judged on them."""
PUBLISHED = replace(TUNING, scoring=Scoring.LOOKAHEAD, neighbours=0.0)
"""As SpecPrefill has it (arXiv 2502.02789)."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The configurations to measure: every scoring with each of `tunings`, which hold everything
    else, and the published one if `published`. `files` are for the suites that ask about files."""

    suites: tuple[str, ...]
    lengths: tuple[int, ...]
    keeps: tuple[float, ...]
    scorings: tuple[Scoring, ...]
    n: int = 50
    seed: int = 0
    held_out: bool = False
    auto: bool = False
    tunings: tuple[Tuning, ...] = (TUNING,)
    files: tuple[Document, ...] = ()
    published: bool = False
    sparse_only: bool = False

    def configs(self, suite: str) -> tuple[ReadConfig, ...]:
        """How each item of a suite is read: dense first, if the others are compared with it. At a
        fixed keep `keep_above` changes nothing."""
        sparse = [
            ReadConfig(Mode.SPARSE, keep, tuning_name(tuning if keep == AUTO_KEEP else fixed))
            for tuning in self._tunings
            for fixed in [replace(tuning, keep_above=TUNING.keep_above)]
            for keep in self.keeps
        ]
        sparse = list(dict.fromkeys(sparse))
        if self.auto and suite not in {PERPLEXITY, *ONLY_PASSAGES}:
            sparse.append(ReadConfig(Mode.AUTO, DEFAULT_KEEP_RATIO, tuning_name(TUNING)))
        alone = self.sparse_only or suite in ONLY_PASSAGES
        return tuple(sparse) if alone else (DENSE, *sparse)

    @property
    def tunings_by_name(self) -> dict[str, Tuning]:
        """By the names of `configs`."""
        fixed = [replace(tuning, keep_above=TUNING.keep_above) for tuning in self._tunings]
        return {tuning_name(tuning): tuning for tuning in (*self._tunings, *fixed)}

    @property
    def _tunings(self) -> list[Tuning]:
        every = [replace(t, scoring=s) for s in self.scorings for t in self.tunings]
        return [*every, PUBLISHED] if self.published else every


def tuning_name(tuning: Tuning) -> str:
    """The scoring, and what differs from the defaults: `both`, `both pool=7`."""
    others = [f.name for f in fields(Tuning) if f.name != "scoring"]
    differing = [n for n in others if getattr(tuning, n) != getattr(TUNING, n)]
    return " ".join([str(tuning.scoring), *(f"{n}={getattr(tuning, n)}" for n in differing)])
