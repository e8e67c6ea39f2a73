"""What can be chosen for a turn: how it is read, scored and sampled."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Mode(StrEnum):
    """How a message asks to be read."""

    AUTO = "auto"
    SPARSE = "sparse"
    FULL = "full"


DEFAULT_KEEP_RATIO = 0.2


@dataclass(frozen=True, slots=True)
class Blocks:
    """How many keys a block has, and how many blocks a block of queries attends to: `sinks` first
    ones, `recent` ones before the queries' own, and the `top` ones between."""

    size: int = 128
    sinks: int = 1
    recent: int = 4
    top: int = 19

    @property
    def keys(self) -> int:
        """What a block of queries attends to at most, beside its own keys."""
        return self.size * (self.sinks + self.recent + self.top)


class Scoring(StrEnum):
    """Where importance comes from."""

    LOOKAHEAD = "lookahead"
    """The draft's attention while it writes the first tokens of an answer (arXiv 2502.02789)."""
    QUESTION = "question"
    """Its attention while it reads the typed question and the generation prompt."""
    BOTH = "both"
    RANDOM = "random"
    """Chunks drawn by lot: a floor. Needs no draft."""
    LEXICAL = "lexical"
    """Chunks that share tokens with the question, by BM25: a floor. Needs no draft."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """`lookahead`, `pool` and `chunk` are tokens. `carry` is the share of a chunk's importance that
    the next one gets at least. With `recall`, a later turn reads what it needs of what earlier ones
    left out: `recall_share` of keep at least, and more where earlier ones read less than keep.
    `layers` is the share of the draft's layers, from the first, that are observed, less the share
    `skip_layers` of them; where only the question is observed, later ones are not run. The defaults
    are what `docs/quality.md` found best."""

    scoring: Scoring = Scoring.BOTH
    lookahead: int = 8
    pool: int = 13
    chunk: int = 32
    carry: float = 0.5
    recall: bool = True
    recall_share: float = 0.5
    layers: float = 1.0
    skip_layers: float = 0.0
    dense_below: int | None = None
    """Auto reads densely when fewer tokens are new, whatever that takes. None leaves it to what the
    two ways are expected to take here."""
    sparse_draft_from: int = 8192
    """The draft's attention is block-sparse while it reads a prompt of at least so many tokens."""
    sparse_draft_top: int = 19
    """Then each block of its queries attends to so many blocks of 128 keys beside the first one and
    the last few."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """`temperature` 0 is greedy. `seed` None draws a fresh one. With `stop_repeats` an answer ends
    where it only repeats itself."""

    max_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    stop_repeats: bool = False


DEFAULT_TUNING, DEFAULT_SAMPLING = Tuning(), Sampling()


class BackgroundPolicy(StrEnum):
    """When skipped tokens are prefilled in the background, while nothing else runs."""

    OFF = "off"
    ON_AC_POWER = "on AC power"
    """Not on battery, if the system reports that."""
    ALWAYS = "always"
