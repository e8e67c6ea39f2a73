"""Statistics of a turn."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from app.protocol.options import Mode
from app.protocol.reasons import Reason

SURE = 0.9
"""No answer with this confidence or more counts as unsure. docs/quality.md says how many right and
wrong answers of the demo model have less."""


class Reading(StrEnum):
    """How a prompt was read."""

    SPARSE = "sparse"
    DENSE = "dense"


class Phase(StrEnum):
    """The phases of a turn, in order. A dense turn has SCORE, LOOKAHEAD and SELECT only if it shows
    a selection or quotes."""

    WAIT = "wait"
    """Something else finishes first: background work, another turn, loading a model."""
    RESTORE = "restore"
    """The conversation's cache is loaded from its snapshot."""
    RETRIEVE = "retrieve"
    """Files are chosen for the question, because not all files fit in the context."""
    TOKENISE = "tokenise"
    LOAD = "load"
    """An unloaded model is loaded again."""
    SCORE = "score"
    """The importance of tokens is computed, or the passage to quote is found."""
    LOOKAHEAD = "lookahead"
    """The draft writes a few tokens, whose attention is observed."""
    SELECT = "select"
    PREFILL = "prefill"
    """The target reads the selected tokens."""
    DECODE = "decode"


@dataclass(frozen=True, slots=True)
class PhaseTime:
    phase: Phase
    seconds: float


@dataclass(frozen=True, slots=True)
class DocumentsRead:
    """How much of a conversation's documents is read, in tokens of the target: `read` of `tokens`,
    `new` of them in this turn. If they exceed the context, `tokens` is an estimate, and `chosen`
    of them are in the prompt. `name` is that of the only document, or of the folder of all
    `files`; empty if there is none for all of them."""

    name: str
    files: int
    tokens: int
    chosen: int
    read: int = 0
    new: int = 0

    @classmethod
    def of(cls, names: Iterable[str], tokens: int, chosen: int) -> DocumentsRead:
        """Documents with these names, which parts of a file share. The tree of a folder, whose name
        ends with `/`, is no file."""
        files = [*dict.fromkeys(name for name in names if not name.endswith("/"))]
        folders = {name.partition("/")[0] if "/" in name else "" for name in files}
        if len(files) == 1:
            return cls(files[0], 1, tokens, chosen)
        name = f"{folders.pop()}/" if len(folders) == 1 and "" not in folders else ""
        return cls(name, len(files), tokens, chosen)

    @property
    def fraction(self) -> float:
        return self.read / self.tokens if self.tokens else 0.0


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    MEMORY = "memory"
    """Memory was nearly used up while the answer was written; what was written stays."""
    REPEATED = "repeated"
    """The answer only repeated itself."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Statistics of a turn. `reasons` are why it was read as it was, in order. `ttft` is the time
    from sending the message to the first token; `phases` are its parts. `peak_bytes` is MLX's peak
    memory during the turn."""

    reading: Reading
    mode: Mode
    keep_ratio: float
    reasons: tuple[Reason, ...]
    prompt_tokens: int
    eligible_tokens: int
    read_tokens: int
    reused_tokens: int
    recalled_tokens: int
    generated_tokens: int
    seed: int
    ttft: float
    phases: tuple[PhaseTime, ...]
    decode_seconds: float
    peak_bytes: int
    fallback: Reason | None = None
    proposed_tokens: int = 0
    """Tokens that were verified several at a time: copies of the prompt, and the draft's tokens."""
    accepted_tokens: int = 0
    """Proposed tokens that were right."""
    verified_steps: int = 0
    """Number of steps that verified proposed tokens."""
    plain_rate: float = 0.0
    """Tokens a second when written one at a time; 0 if too few were."""
    confidence: float | None = None
    """Geometric mean of the probabilities of the tokens written, 0 to 1."""
    unsure: bool = False
    """Whether `confidence` is far below the usual value of this pair of models, and not everything
    was read."""
    documents: DocumentsRead | None = None
    """None if the prompt has none."""

    @property
    def read_fraction(self) -> float:
        """Fraction of the documents' tokens, or without documents of the prompt's, that the target
        read."""
        return self.prompt_fraction if self.documents is None else self.documents.fraction

    @property
    def prompt_fraction(self) -> float:
        """Fraction of the prompt's tokens that the target read."""
        return self.read_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def read_everything(self) -> bool:
        """Whether no token of the prompt was skipped."""
        return self.reading is Reading.DENSE or self.read_tokens >= self.prompt_tokens

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first token; 0 if there was no second token."""
        if self.generated_tokens < 2 or self.decode_seconds <= 0:
            return 0.0
        return (self.generated_tokens - 1) / self.decode_seconds

    @property
    def is_sped_up(self) -> bool:
        """Whether proposed tokens made the answer significantly faster."""
        return 0 < 1.1 * self.plain_rate < self.decode_rate and self.accepted_tokens > 0


def _joint_confidence(first: Statistics, second: Statistics) -> float | None:
    """Confidence over the tokens of both parts; None if that of one part is unknown."""
    total = first.generated_tokens + second.generated_tokens
    joint = 1.0
    for part in (first, second):
        if part.generated_tokens and part.confidence is None:
            return None
        joint *= (part.confidence or 1.0) ** (part.generated_tokens / max(total, 1))
    return joint if total else None


def merge_statistics(first: Statistics | None, second: Statistics | None) -> Statistics | None:
    """Statistics of an answer in two parts. Tokens and seconds are added; how the prompt was read
    is taken from the first part."""
    if first is None or second is None:
        return first or second
    return replace(
        first,
        generated_tokens=first.generated_tokens + second.generated_tokens,
        proposed_tokens=first.proposed_tokens + second.proposed_tokens,
        accepted_tokens=first.accepted_tokens + second.accepted_tokens,
        verified_steps=first.verified_steps + second.verified_steps,
        plain_rate=second.plain_rate,
        confidence=_joint_confidence(first, second),
        unsure=first.unsure or second.unsure,
        decode_seconds=first.decode_seconds + second.decode_seconds,
        ttft=first.ttft or second.ttft,
        peak_bytes=max(first.peak_bytes, second.peak_bytes),
        fallback=first.fallback or second.fallback,
    )
