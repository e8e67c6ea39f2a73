"""What reading costs a pair on a machine, by readings that were timed. Plain Python: a screen
reckons with it too.

Each model's reading takes start + token * n + pair * p seconds, where n tokens are read and p is
the sum over them of how many entries each attends to. What is neither's reading takes
start + token * M, where M is the prompt's length.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from app.protocol.options import DEFAULT_TUNING, Blocks, Tuning


class Part(StrEnum):
    """What is timed on its own."""

    TARGET = "target"
    DRAFT = "draft"
    FULL = "full"
    """Of a full reading, what is not the target's."""
    SPARSE = "sparse"
    """Of a sparse one, what is neither model's: lookahead, selection, the first word."""


@dataclass(frozen=True, slots=True)
class Work:
    """`tokens` that a model reads, `before` of them in its cache already. Each attends to `most` at
    most, where that is not 0."""

    tokens: int
    before: int = 0
    most: int = 0

    @property
    def pairs(self) -> float:
        whole = max(0, min(self.tokens, self.most - self.before)) if self.most else self.tokens
        return whole * self.before + whole * (whole + 1) / 2 + (self.tokens - whole) * self.most


def skimmed(tokens: int, before: int, tuning: Tuning = DEFAULT_TUNING) -> Work:
    """A draft's work: its attention is block-sparse while it reads a long prompt."""
    blocks = Blocks(top=tuning.sparse_draft_top)
    long = tokens + before >= tuning.sparse_draft_from
    return Work(tokens, before, blocks.keys + blocks.size if long else 0)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to read a prompt of so many tokens: sparsely where a draft has work, too."""

    prompt: int
    target: Work
    draft: Work | None = None


@dataclass(frozen=True, slots=True)
class Clocked:
    """A part of a turn, and the seconds it took."""

    part: Part
    work: Work
    seconds: float


@dataclass(frozen=True, slots=True)
class Line:
    """Seconds: once, for each token, and for each token that one attends to."""

    start: float
    token: float
    pair: float = 0.0

    def seconds(self, work: Work) -> float:
        if work.tokens <= 0:
            return 0.0
        return self.start + self.token * work.tokens + self.pair * work.pairs


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one pair on one machine; None for what was never timed."""

    target: Line | None = None
    draft: Line | None = None
    full: Line | None = None
    sparse: Line | None = None

    def seconds(self, way: Way) -> float | None:
        """Until the first word, when nothing has to be waited for; None when that is not known."""
        besides = self.full or self.sparse
        if way.draft is not None:
            besides = self.sparse or self.full
        if self.target is None or besides is None:
            return None
        seconds = self.target.seconds(way.target) + besides.seconds(Work(way.prompt))
        if way.draft is None:
            return seconds
        return None if self.draft is None else seconds + self.draft.seconds(way.draft)


def duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:,.0f} s"


UNKNOWN = Costs()

MARGIN = 0.2
"""By so much sparse reading must be predicted to be faster: what is skipped may be missed, so a
little time is no reason to skip it."""

QUICK = 1.0
"""Seconds: what is predicted to be read in full within them is."""

FEW = 1024
"""Tokens: where fewer may be skipped, everything is read. They make fewer than 32 chunks, so that
a fifth of them is a handful of places, and choosing these costs about what they save."""

UNMEASURED_BELOW = 8192
"""Tokens: before a pair was timed here, fewer are read in full."""


def sparse_pays(sparse: float, full: float) -> bool:
    return full > QUICK and sparse <= (1 - MARGIN) * full


def recalled(keep: float, share: float, eligible: int, left_out: int) -> int:
    """How many tokens of an earlier reading, of whose `eligible` ones so many were `left_out`, a
    later question asks for: as `selection.select` does, which counts chunks."""
    allowed = math.ceil(keep * eligible) - (eligible - left_out)
    return max(0, min(left_out, max(allowed, math.ceil(share * keep * eligible))))
