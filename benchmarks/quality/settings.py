"""Settings of an evaluation: which configurations to measure."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import TYPE_CHECKING
from unittest import mock

from app.estimate.plan import Plan
from app.protocol.options import AUTO_KEEP, DEFAULT_KEEP_RATIO, DEFAULT_TUNING, Mode, Tuning
from app.protocol.prompt import Document
from app.protocol.reasons import Reason, ReasonCode
from app.protocol.stats import Reading
from benchmarks.quality.results_log import DENSE, ReadConfig
from benchmarks.quality.suites import ONLY_PASSAGES

if TYPE_CHECKING:
    from app.engine.model.loader import ModelPair
    from app.engine.scorers.scorer import Scorer


def guard_alone() -> AbstractContextManager[object]:
    """Context manager: auto mode reads sparsely unless its guard objects, so that the guard can be
    judged on short prompts."""
    sparse = Plan(Reading.SPARSE, (Reason(ReasonCode.RELEVANT_ONLY),))
    return mock.patch("app.estimate.plan.plan_auto", return_value=sparse)


class Scoring(StrEnum):
    """Scoring methods to compare."""

    BOTH = "both"
    """The draft's attention while it reads the question and while it writes."""
    JOINED = "joined"
    """`BOTH` combined with `BUILT_IN`."""
    RANDOM = "random"
    """Random chunks, as a baseline."""
    FIRST = "first"
    """The start of the documents, as a baseline."""
    LEXICAL = "lexical"
    """BM25 over token ids, as a baseline."""
    EMBEDDING = "embedding"
    """Words similar to the question's, by the target's input embeddings."""
    BUILT_IN = "builtin"
    """The built-in scorer."""

    @property
    def needs_draft(self) -> bool:
        return self in (Scoring.BOTH, Scoring.JOINED)


@dataclass(slots=True)
class ScoringSwitch:
    """A `choose_scorer` for the engine that uses the current `scoring`."""

    scoring: Scoring = Scoring.BOTH

    def __call__(self, pair: ModelPair, tokens: int) -> Scorer:
        from benchmarks.quality.scorers import scorer_of

        return scorer_of(self.scoring, pair)


@dataclass(frozen=True, slots=True)
class Settings:
    """The configurations to measure: every scoring with each of `tunings`. `files`: for suites that
    ask about files. `default`: the scoring that the engine would choose, for auto mode. `only`: the
    ids of the items to ask; None: all."""

    suites: tuple[str, ...]
    lengths: tuple[int, ...]
    keeps: tuple[float, ...]
    scorings: tuple[Scoring, ...]
    n: int = 50
    seed: int = 0
    held_out: bool = False
    auto: bool = False
    tunings: tuple[Tuning, ...] = (DEFAULT_TUNING,)
    files: tuple[Document, ...] = ()
    sparse_only: bool = False
    default: Scoring = Scoring.BOTH
    only: frozenset[str] | None = None

    def configs(self, suite: str) -> tuple[ReadConfig, ...]:
        """How each item of a suite is read; dense first, if it is compared. `keep_above` has no
        effect at a fixed keep."""
        sparse = [
            ReadConfig(Mode.SPARSE, keep, way_name(scoring, tuning if keep == AUTO_KEEP else fixed))
            for scoring in self.scorings
            for tuning in self.tunings
            for fixed in [replace(tuning, keep_above=DEFAULT_TUNING.keep_above)]
            for keep in self.keeps
        ]
        sparse = list(dict.fromkeys(sparse))
        if self.auto and suite not in ONLY_PASSAGES:
            name = way_name(self.default, DEFAULT_TUNING)
            sparse.append(ReadConfig(Mode.AUTO, DEFAULT_KEEP_RATIO, name))
        alone = self.sparse_only or suite in ONLY_PASSAGES
        return tuple(sparse) if alone else (DENSE, *sparse)

    @property
    def ways(self) -> dict[str, tuple[Scoring, Tuning]]:
        """Scorings and tunings by the names of `configs`."""
        fixed = [replace(tuning, keep_above=DEFAULT_TUNING.keep_above) for tuning in self.tunings]
        tunings = [*self.tunings, *fixed]
        ways = [(scoring, tuning) for scoring in self.scorings for tuning in tunings]
        return {way_name(*way): way for way in (*ways, (self.default, DEFAULT_TUNING))}


def way_name(scoring: Scoring, tuning: Tuning) -> str:
    """The scoring and all values that differ from the defaults: `both`, `both chunk=16`."""
    names = [field.name for field in fields(Tuning)]
    differing = [n for n in names if getattr(tuning, n) != getattr(DEFAULT_TUNING, n)]
    return " ".join([scoring, *(f"{n}={getattr(tuning, n)}" for n in differing)])
