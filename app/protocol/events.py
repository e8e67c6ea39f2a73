"""Events from the engine: frozen dataclasses of plain values. Token positions are indices into the
full prompt, durations are in seconds, sizes in bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.protocol.citations import Citations
from app.protocol.cost_model import Costs
from app.protocol.memory import MemoryStats, PressureLevel
from app.protocol.options import GREEDY, ModelSampling
from app.protocol.prompt import RetrievedPart, Segment, Span, SpanReason, SpanText
from app.protocol.reasons import Failure, FailureKind, Reason
from app.protocol.stats import DocumentsRead, FinishReason, Phase, Reading, Statistics


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """An event of one turn. Only the listener that asked for the turn gets it."""

    turn: int


@dataclass(frozen=True, slots=True)
class ModelInfo:
    name: str
    architecture: str
    parameters: int
    weight_bytes: int
    context_length: int
    """In tokens; 0 if the configuration does not say."""
    sampling: ModelSampling = GREEDY
    short_factors_below: int = 0
    """Tokens below which its configuration (LongRoPE) has other factors, which are not used; 0 if
    there are none."""
    ignored_window: int = 0
    """Tokens of its sliding window if mlx-lm does not apply it; otherwise 0."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A pair of models is ready. `dense_only` is why it can only read densely, `speed_hint` is what
    would make this machine faster; both may be None. If `recall_is_expensive`, recalling a chunk
    means prefilling everything after it again."""

    target: ModelInfo
    draft: ModelInfo | None
    dense_only: Reason | None
    seconds: float
    speed_hint: Reason | None = None
    recall_is_expensive: bool = False


@dataclass(frozen=True, slots=True)
class PhaseProgress(TurnEvent):
    """`done` of `total` tokens (or other work) of a phase are done. `eta` is the number of seconds
    to the first word, or to the end of the phase if later phases cannot be predicted; None if
    unknown."""

    phase: Phase
    done: int
    total: int
    elapsed: float
    eta: float | None = None

    @property
    def finished(self) -> bool:
        return self.done >= self.total


@dataclass(frozen=True, slots=True)
class Retrieving(TurnEvent):
    """The `documents` of the conversation do not all fit in the context, so parts are chosen."""

    documents: DocumentsRead


@dataclass(frozen=True, slots=True)
class RankedFile:
    """A file, and how well it matches the question relative to the best file, 0 to 1."""

    name: str
    score: float
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Retrieved(TurnEvent):
    """The documents of the conversation do not all fit in the context, so `parts` of them were put
    before this question, in the order of the files. Parts of earlier questions stay where they are
    if they fit. `ranked` are the best files that were not chosen, of all `documents`. `room` is
    the number of tokens that were available. `stands_out`: whether a file fits the question better
    than most."""

    parts: tuple[RetrievedPart, ...]
    ranked: tuple[RankedFile, ...]
    documents: DocumentsRead
    room: int
    stands_out: bool = True


@dataclass(frozen=True, slots=True)
class Planned(TurnEvent):
    """The prompt was built, and sparse or dense was chosen for these `reasons`. `guard` is the
    reason for which a sparse read was predicted to lose the answer, or None. `ttft` is the
    predicted time to first token, `ttft_alternative` that of the other way of reading; None if
    unknown."""

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
    documents: DocumentsRead | None = None
    """With nothing read."""


@dataclass(frozen=True, slots=True)
class ImportanceMap(TurnEvent):
    """Importance so far: the mean over each bucket of prompt tokens, scaled such that the highest
    is 1.

    Buckets are equal parts of the prompt; pinned and unscored tokens count as 0. Sent repeatedly
    while the draft scores, to update a heatmap. `observed` of `to_observe` observations were
    made."""

    buckets: tuple[float, ...]
    observed: int
    to_observe: int


@dataclass(frozen=True, slots=True)
class Selected(TurnEvent):
    """The tokens selected at this keep ratio: `selected_tokens` of `prompt_tokens`, as ascending
    `spans`. Sent again if more is read while the answer is written."""

    keep_ratio: float
    selected_tokens: int
    prompt_tokens: int
    spans: tuple[Span, ...]
    texts: tuple[SpanText, ...]
    auto_keep: float | None = None
    """Keep ratio that AUTO_KEEP would choose without other limits."""
    documents: DocumentsRead | None = None

    @property
    def read_on(self) -> tuple[Span, ...]:
        """Spans that were read while the answer was written."""
        return tuple(span for span in self.spans if span.reason is SpanReason.NEEDED_LATER)


@dataclass(frozen=True, slots=True)
class SnapshotRestored(TurnEvent):
    """`tokens` tokens of a conversation's cache were restored from disk. If its snapshot was
    unusable, `reason` says why and `tokens` is 0."""

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
    """A conversation's cache could not be saved, so its text is read again after the next start.
    Nothing else is lost."""

    conversation: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """`done` of `total` parts of a conversation's snapshot are on disk. It is valid once all are. A
    command interrupts saving."""

    conversation: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class EngineWarning:
    """A message for the user that ends no turn, such as a failure that only costs time."""

    reason: Reason
    conversation: str | None = None


@dataclass(frozen=True, slots=True)
class FellBackToDense(TurnEvent):
    """The sparse path failed, so the turn reads densely instead."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class LoadingAlone:
    """A machine with a shard of the target was lost, and the target is being loaded on this machine
    alone. `HostsLost` or `PairLost` follows, or `Loaded` if another pair was requested."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class HostsLost:
    """A machine with a shard of the `target` was lost, so the target was loaded on this machine
    alone, with empty caches. The running turn continues there."""

    failure: Failure
    target: str


@dataclass(frozen=True, slots=True)
class PairLost:
    """A machine with a shard of the target was lost, and the target cannot be loaded on this
    machine alone. No pair is loaded now."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class Token(TurnEvent):
    """Tokens generated since the last such event, and the text that they complete.

    `thinking` is text between the model's thinking tags; `text` is text of the answer.
    """

    ids: tuple[int, ...]
    text: str
    thinking: str = ""


@dataclass(frozen=True, slots=True)
class Cited(TurnEvent):
    """The citations of the whole answer. Sent before `Finished`, if documents are in the prompt."""

    citations: Citations


@dataclass(frozen=True, slots=True)
class Finished(TurnEvent):
    """The turn has ended. `text` is the whole answer. `statistics` is None if the turn was
    cancelled before the prompt was built."""

    finish_reason: FinishReason
    text: str
    generated_ids: tuple[int, ...]
    statistics: Statistics | None


@dataclass(frozen=True, slots=True)
class Failed(TurnEvent):
    """The turn failed."""

    failure: Failure

    @property
    def predicted(self) -> bool:
        """Whether the turn was refused by a prediction. With `skip_memory_check` it is tried."""
        return self.failure.kind is FailureKind.NOT_ENOUGH_MEMORY

    @property
    def excess_tokens(self) -> int:
        """Number of tokens by which the prompt is too long; 0 if that is not the problem."""
        return int(self.failure.data.get("excess_tokens", 0))


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """A command other than a turn failed, such as `Load`."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class GpuLost:
    """The system has permanently stopped this process's work on the GPU. No pair is loaded now, and
    every later command that needs one fails. Sent once, after the event
    that ended the running turn or command, if there was one."""

    failure: Failure


@dataclass(frozen=True, slots=True)
class MemoryReport:
    stats: MemoryStats
    level: PressureLevel = PressureLevel.NORMAL


@dataclass(frozen=True, slots=True)
class PressureChanged:
    """The level of memory pressure changed, for this reason."""

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
    """An unloaded model was loaded again. It took `seconds`."""

    model: str
    weight_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CostsUpdated:
    """Costs of the loaded pair on this machine, as far as known. `requested`: the answer to
    `CalibrateCosts`."""

    costs: Costs
    requested: bool = False


@dataclass(frozen=True, slots=True)
class Closed:
    """The engine thread has ended."""


EngineEvent = (
    Loaded
    | BackgroundProgress
    | SnapshotFailed
    | SnapshotProgress
    | EngineWarning
    | LoadingAlone
    | HostsLost
    | PairLost
    | CommandFailed
    | GpuLost
    | MemoryReport
    | PressureChanged
    | MemoryFreed
    | Unloaded
    | Reloaded
    | CostsUpdated
    | Closed
)
"""Events that all listeners get."""

Event = TurnEvent | EngineEvent

Listener = Callable[[Event], None]
