"""Events: what the engine reports. Frozen dataclasses of plain values; token positions are indices
into the full prompt, durations are in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.protocol.cost_model import Costs
from app.protocol.memory import MemoryStats, PressureLevel
from app.protocol.prompt import Segment, Span, SpanText
from app.protocol.stats import FinishReason, Phase, Reading, Statistics


@dataclass(frozen=True, slots=True)
class ModelInfo:
    name: str
    architecture: str
    parameters: int
    weight_bytes: int
    context_length: int
    """Longest prompt the model was made for, in tokens; 0 when its config does not say."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A pair is ready. `dense_only` says why it can only read densely, `faster` what would make
    this machine faster, or they are None. Where the target `rereads`, what is recalled cannot be
    read without all that stands behind it."""

    target: ModelInfo
    draft: ModelInfo | None
    dense_only: str | None
    seconds: float
    speed_hint: str | None = None
    recall_is_expensive: bool = False


@dataclass(frozen=True, slots=True)
class PhaseProgress:
    """`done` of `total` tokens of a phase. `eta` are the seconds until the first word, or until the
    phase's end where nobody knows what comes after it; None when not even that is known."""

    turn: int
    phase: Phase
    done: int
    total: int
    elapsed: float
    eta: float | None = None

    @property
    def finished(self) -> bool:
        return self.done >= self.total


@dataclass(frozen=True, slots=True)
class Planned:
    """The prompt was built and the reading decided. `reason` is one sentence for the user; `guard`
    is the same where sparse reading was foreseen to lose the answer. `ttft` is how soon the first
    word is expected, `otherwise` how soon by the other reading; None where nobody knows."""

    turn: int
    reading: Reading
    reason: str
    keep_ratio: float
    prompt_tokens: int
    eligible_tokens: int
    reused_tokens: int
    prompt_ids: tuple[int, ...]
    segments: tuple[Segment, ...]
    guard: str | None = None
    ttft: float | None = None
    ttft_alternative: float | None = None


@dataclass(frozen=True, slots=True)
class ImportanceMap:
    """Importance so far: the mean of each bucket of prompt tokens, scaled so that the highest is 1.

    Buckets are equal parts of the prompt; what is pinned counts as 0, as does what is not scored.
    Sent several times while the draft observes, for the strip that fills; `observed` of
    `to_observe` observations are in.
    """

    turn: int
    buckets: tuple[float, ...]
    observed: int
    to_observe: int


@dataclass(frozen=True, slots=True)
class Selected:
    """What is kept at this keep: `kept_tokens` of `prompt_tokens`, in `spans`, ascending."""

    turn: int
    keep_ratio: float
    selected_tokens: int
    prompt_tokens: int
    spans: tuple[Span, ...]
    texts: tuple[SpanText, ...]


@dataclass(frozen=True, slots=True)
class SnapshotRestored:
    """What was read of a conversation came back from disk, `tokens` of it. Where a snapshot was of
    no use, `reason` says why, in one sentence, and `tokens` is 0."""

    turn: int
    tokens: int
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class BackgroundProgress:
    """`done` of a conversation's `total` tokens are read with nothing left out before them."""

    conversation: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """What was read of a conversation is not on disk, so a later start reads it again; nothing else
    is lost. `reason` is one sentence."""

    conversation: str
    reason: str


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """`done` of the `total` parts of a conversation's snapshot are on disk. It counts once all of
    them are; a command in between leaves it there."""

    conversation: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class EngineWarning:
    """Something failed that costs time and nothing else. `sentence` says what, and what follows."""

    message: str
    conversation: str | None = None


@dataclass(frozen=True, slots=True)
class FellBackToDense:
    """The sparse path failed, so the turn reads densely instead. `reason` is one sentence."""

    turn: int
    reason: str


@dataclass(frozen=True, slots=True)
class Token:
    """Generated tokens since the last such event, and the text that became readable with them.

    `thinking` is what a thinking model wrote between its own thinking tags; `text` is the answer.
    """

    turn: int
    ids: tuple[int, ...]
    text: str
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """The turn is over; `text` is the whole answer, `statistics` None if it was cancelled before
    the prompt was built."""

    turn: int
    finish_reason: FinishReason
    text: str
    generated_ids: tuple[int, ...]
    statistics: Statistics | None


@dataclass(frozen=True, slots=True)
class Failed:
    """Something did not work. `turn` is None when it was no turn (loading, say).

    `problem` says what (capitalised, without a full stop), `advice` what to do about it (lower
    case, without a full stop); `sentence` is both. What was only `foreseen` was not tried: asked
    with `despite_memory`, it is. `excess` is by how many tokens the prompt is too long, where that
    is what is wrong.
    """

    turn: int | None
    problem: str
    advice: str
    predicted: bool = False
    excess_tokens: int = 0

    @property
    def message(self) -> str:
        return f"{self.problem}: {self.advice}."


@dataclass(frozen=True, slots=True)
class MemoryReport:
    stats: MemoryStats
    level: PressureLevel = PressureLevel.NORMAL


@dataclass(frozen=True, slots=True)
class PressureChanged:
    """Another rung was reached. `sentence` says why, with the figures, and what is done."""

    level: PressureLevel
    previous: PressureLevel
    stats: MemoryStats
    message: str


@dataclass(frozen=True, slots=True)
class MemoryFreed:
    """`freed` bytes were given up so that something else fits; `sentence` says which."""

    freed_bytes: int
    message: str


@dataclass(frozen=True, slots=True)
class Unloaded:
    """A model's weights left memory; they come back when it is needed. `sentence` says why."""

    model: str
    freed_bytes: int
    message: str


@dataclass(frozen=True, slots=True)
class Reloaded:
    """They came back, `size` bytes, which took so many `seconds`."""

    model: str
    weight_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CostsUpdated:
    """What reading costs the loaded pair on this machine, as far as it is known by now; `asked` for
    by `Measure`, or not."""

    costs: Costs
    requested: bool = False


@dataclass(frozen=True, slots=True)
class Closed:
    """The engine thread has ended."""


Event = (
    Loaded
    | PhaseProgress
    | Planned
    | ImportanceMap
    | Selected
    | SnapshotRestored
    | BackgroundProgress
    | SnapshotFailed
    | SnapshotProgress
    | EngineWarning
    | FellBackToDense
    | Token
    | Finished
    | Failed
    | MemoryReport
    | PressureChanged
    | MemoryFreed
    | Unloaded
    | Reloaded
    | CostsUpdated
    | Closed
)

Listener = Callable[[Event], None]
