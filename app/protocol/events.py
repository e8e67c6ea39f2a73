"""Events: what the engine reports. Frozen dataclasses of plain values; token positions are indices
into the full prompt, durations are in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.protocol.cost_model import Costs
from app.protocol.memory import MemoryStats, PressureLevel
from app.protocol.options import GREEDY, ModelSampling
from app.protocol.prompt import RetrievedPart, Segment, Span, SpanReason, SpanText
from app.protocol.reasons import Failure, FailureKind, Reason
from app.protocol.stats import FinishReason, Phase, Reading, Statistics


@dataclass(frozen=True, slots=True)
class ModelInfo:
    name: str
    architecture: str
    parameters: int
    weight_bytes: int
    context_length: int
    """Tokens; 0 if the config does not say."""
    sampling: ModelSampling = GREEDY


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model pair is ready. `dense_only` says why it can only read densely, `speed_hint` what
    would make this machine faster, or they are None. Where `recall_is_expensive`, recalling means
    prefilling everything behind it again."""

    target: ModelInfo
    draft: ModelInfo | None
    dense_only: Reason | None
    seconds: float
    speed_hint: Reason | None = None
    recall_is_expensive: bool = False


@dataclass(frozen=True, slots=True)
class PhaseProgress:
    """`done` of `total` tokens of a phase. `eta` is the seconds until the first word, or until the
    end of the phase if later phases cannot be predicted; None if unknown."""

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
class RankedFile:
    """A file and how well it fits the question, relative to the best one, 0..1."""

    name: str
    score: float
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Retrieved:
    """The documents of the conversation do not all fit into the context, so `parts` of them were
    put before this question, in the order of the files; earlier questions' stay where they are, as
    far as they fit. `ranked` are the best files that were not, of `total_files`, and `room` is how
    many tokens there was room for."""

    turn: int
    parts: tuple[RetrievedPart, ...]
    ranked: tuple[RankedFile, ...]
    total_files: int
    room: int


@dataclass(frozen=True, slots=True)
class Planned:
    """The prompt was built, and sparse or dense decided, for these `reasons`; `guard` is the one
    for which sparse reading was predicted to lose the answer, or None. `ttft` is the predicted time
    to first token, `ttft_alternative` that of the other way of reading; None if unknown."""

    turn: int
    reading: Reading
    reasons: tuple[Reason, ...]
    keep_ratio: float
    prompt_tokens: int
    eligible_tokens: int
    reused_tokens: int
    prompt_ids: tuple[int, ...]
    segments: tuple[Segment, ...]
    guard: Reason | None = None
    ttft: float | None = None
    ttft_alternative: float | None = None


@dataclass(frozen=True, slots=True)
class ImportanceMap:
    """Importance so far: the mean of each bucket of prompt tokens, scaled so that the highest is 1.

    Buckets are equal parts of the prompt; pinned and unscored tokens count as 0. Sent several times
    while the draft scores, for a heatmap that fills; `observed` of `to_observe` observations are
    in."""

    turn: int
    buckets: tuple[float, ...]
    observed: int
    to_observe: int


@dataclass(frozen=True, slots=True)
class Selected:
    """The tokens selected at this keep ratio: `selected_tokens` of `prompt_tokens`, in ascending
    `spans`. Sent again when more was read while the answer was written."""

    turn: int
    keep_ratio: float
    selected_tokens: int
    prompt_tokens: int
    spans: tuple[Span, ...]
    texts: tuple[SpanText, ...]
    auto_keep: float | None = None
    """What AUTO_KEEP chooses, if nothing else limits it."""

    @property
    def read_on(self) -> tuple[Span, ...]:
        """What was read while the answer was written."""
        return tuple(span for span in self.spans if span.reason is SpanReason.NEEDED_LATER)


@dataclass(frozen=True, slots=True)
class SnapshotRestored:
    """A conversation's cache was restored from disk, `tokens` of it. If its snapshot was unusable,
    `reason` says why, and `tokens` is 0."""

    turn: int
    tokens: int
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class BackgroundProgress:
    """Background prefill: `done` of a conversation's `total` tokens are read without gaps."""

    conversation: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class SnapshotFailed:
    """A conversation's cache could not be saved, so it is read again after the next start; nothing
    else is lost."""

    conversation: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """`done` of the `total` parts of a conversation's snapshot are on disk. It is valid once all
    are; a command interrupts saving."""

    conversation: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class EngineWarning:
    """Something that the user should know and that ends no turn, such as a failure that only costs
    time."""

    reason: Reason
    conversation: str | None = None


@dataclass(frozen=True, slots=True)
class FellBackToDense:
    """The sparse path failed, so the turn reads densely instead."""

    turn: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class LoadingAlone:
    """A machine that held a part of the target is gone, and the target is being loaded on this
    machine alone. `HostsLost` or `PairLost` follows, or `Loaded` if another pair was requested."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class HostsLost:
    """A machine that held a part of the `target` is gone, so it was loaded on this machine alone,
    where it has read nothing yet; the running turn goes on there."""

    turn: int | None
    failure: Failure
    target: str


@dataclass(frozen=True, slots=True)
class PairLost:
    """A machine that held a part of the target is gone, and the target does not load on this
    machine alone: no pair is loaded any more."""

    failure: Failure


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
    """The turn has ended; `text` is the whole answer, `statistics` None if it was cancelled before
    the prompt was built."""

    turn: int
    finish_reason: FinishReason
    text: str
    generated_ids: tuple[int, ...]
    statistics: Statistics | None


@dataclass(frozen=True, slots=True)
class Failed:
    """A command failed. `turn` is None if it was not a turn."""

    turn: int | None
    failure: Failure

    @property
    def predicted(self) -> bool:
        """Whether a turn was not tried: with `skip_memory_check` it is."""
        return self.turn is not None and self.failure.kind is FailureKind.NOT_ENOUGH_MEMORY

    @property
    def excess_tokens(self) -> int:
        """By how many tokens the prompt is too long, if that is the problem."""
        return int(self.failure.data.get("excess_tokens", 0))


@dataclass(frozen=True, slots=True)
class GpuLost:
    """The system has stopped this process's work on the GPU, for good: no pair is loaded any more,
    and the engine fails every later command that needs one. Sent once, after the `Failed` of what
    was running, if anything was."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class MemoryReport:
    stats: MemoryStats
    level: PressureLevel = PressureLevel.NORMAL


@dataclass(frozen=True, slots=True)
class PressureChanged:
    """Memory pressure changed, because of what is scarce."""

    level: PressureLevel
    previous: PressureLevel
    stats: MemoryStats
    reason: Reason


@dataclass(frozen=True, slots=True)
class MemoryFreed:
    """Memory was freed for something else."""

    freed_bytes: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Unloaded:
    """A model was unloaded until it is needed again."""

    model: str
    freed_bytes: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Reloaded:
    """An unloaded model was loaded again, which took `seconds`."""

    model: str
    weight_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CostsUpdated:
    """What prefill costs the loaded pair on this machine, as far as known. `requested` by
    `CalibrateCosts`, or not."""

    costs: Costs
    requested: bool = False


@dataclass(frozen=True, slots=True)
class Closed:
    """The engine thread has ended."""


Event = (
    Loaded
    | PhaseProgress
    | Retrieved
    | Planned
    | ImportanceMap
    | Selected
    | SnapshotRestored
    | BackgroundProgress
    | SnapshotFailed
    | SnapshotProgress
    | EngineWarning
    | FellBackToDense
    | LoadingAlone
    | HostsLost
    | PairLost
    | Token
    | Finished
    | Failed
    | GpuLost
    | MemoryReport
    | PressureChanged
    | MemoryFreed
    | Unloaded
    | Reloaded
    | CostsUpdated
    | Closed
)

Listener = Callable[[Event], None]
