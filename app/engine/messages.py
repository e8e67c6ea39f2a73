"""What the rest of the app and the engine say to each other.

Plain frozen dataclasses of plain Python values. Commands go in, events come out. This file is the
only face of the engine that `app/ui` may import. Token positions are indices into the full prompt;
every duration is in seconds, every size in bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Protocol

from app.engine.costs import FEW as FEW
from app.engine.costs import UNKNOWN as UNKNOWN
from app.engine.costs import UNMEASURED_BELOW as UNMEASURED_BELOW
from app.engine.costs import Costs as Costs
from app.engine.costs import Way as Way
from app.engine.costs import Work as Work
from app.engine.costs import duration as duration
from app.engine.costs import recalled as recalled
from app.engine.costs import skimmed as skimmed
from app.engine.costs import sparse_pays as sparse_pays
from app.engine.phases import Phase as Phase
from app.engine.phases import PhaseTime as PhaseTime
from app.engine.pressure import MadeRoom as MadeRoom
from app.engine.pressure import MemoryFigures as MemoryFigures
from app.engine.pressure import MemoryReport as MemoryReport
from app.engine.pressure import Parked as Parked
from app.engine.pressure import PressureChanged as PressureChanged
from app.engine.pressure import Rung as Rung
from app.engine.pressure import Unparked as Unparked
from app.engine.pressure import memory_size as memory_size
from app.engine.spans import Segment as Segment
from app.engine.spans import SegmentKind as SegmentKind
from app.engine.spans import Span as Span
from app.engine.spans import SpanReason as SpanReason
from app.engine.spans import SpanText as SpanText
from app.engine.tuning import DEFAULT_SAMPLING, Tuning
from app.engine.tuning import DEFAULT_TUNING as DEFAULT_TUNING
from app.engine.tuning import Sampling as Sampling
from app.engine.upkeep import EngineWarning as EngineWarning
from app.engine.upkeep import Forget as Forget
from app.engine.upkeep import Heal as Heal
from app.engine.upkeep import Healed as Healed
from app.engine.upkeep import Measure as Measure
from app.engine.upkeep import NotSaved as NotSaved
from app.engine.upkeep import Restored as Restored
from app.engine.upkeep import Saved as Saved
from app.engine.upkeep import Upkeep as Upkeep


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Document:
    """An attachment's text, as the model gets it. `pinned` characters `(start, end)` are always
    read."""

    name: str
    text: str
    pinned: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `token_ids` of an assistant message are the very ids that were generated, and
    `thinking` what it held between thinking tags: sent only where the chat template asks for it."""

    role: Role
    text: str
    documents: tuple[Document, ...] = ()
    token_ids: tuple[int, ...] | None = None
    thinking: str = ""


class Mode(StrEnum):
    """How a message asks to be read."""

    AUTO = "auto"
    SPARSE = "sparse"
    FULL = "full"


class Reading(StrEnum):
    """How it was read."""

    SPARSE = "sparse"
    DENSE = "dense"


DEFAULT_KEEP = 0.2


def _last_part(path: str) -> str:
    return PurePath(path).name


@dataclass(frozen=True, slots=True)
class Load:
    """Load a pair from two model folders. Without a draft the target reads densely. Each is
    answered by one `Loaded` or `Failed`, in order; one that comes behind it stops it.

    `shown_as` names the two on the screen; without it they are named by their folders. With
    `kv_bits`, 8 or 4, what the target has read is kept in so many bits a number.
    """

    target: str
    draft: str | None = None
    shown_as: tuple[str, str] | None = None
    kv_bits: int | None = None

    @property
    def names(self) -> tuple[str, str | None]:
        target, draft = self.shown_as or (_last_part(self.target), _last_part(self.draft or ""))
        return target, draft if self.draft else None


@dataclass(frozen=True, slots=True)
class Ask:
    """Answer the last message (a user's) of `messages`, or continue it (an answer): `Finished` has
    all of that then, and `Token` only what is new, after the ids it began with where the message
    has none. `keep` is used by SPARSE and AUTO.

    Turns of one `conversation` (any name) reuse what earlier ones read; without it nothing is kept.
    With `forced`, that text is fed as the answer instead of a generated one, and measured. With
    `despite_memory` it is tried though it is foreseen not to fit.
    """

    turn: int
    messages: tuple[Message, ...]
    mode: Mode = Mode.AUTO
    keep: float = DEFAULT_KEEP
    sampling: Sampling = DEFAULT_SAMPLING
    tuning: Tuning = DEFAULT_TUNING
    forced: str | None = None
    conversation: str | None = None
    despite_memory: bool = False

    @property
    def question(self) -> str:
        return next(m.text for m in reversed(self.messages) if m.role is Role.USER)


@dataclass(frozen=True, slots=True)
class Reselect:
    """Select again from the scores of the last scored turn; answered by `Selected` at once."""

    turn: int
    keep: float


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the turn (running or queued) at its next step border."""

    turn: int


@dataclass(frozen=True, slots=True)
class Close:
    """End the engine thread after what is running was cancelled and what is held was saved."""


Command = Load | Ask | Reselect | Cancel | Upkeep | Measure | Forget | Close


@dataclass(frozen=True, slots=True)
class ModelInfo:
    name: str
    architecture: str
    parameters: int
    bytes: int
    context: int
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
    faster: str | None = None
    rereads: bool = False


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
    keep: float
    prompt_tokens: int
    eligible_tokens: int
    reused_tokens: int
    prompt_ids: tuple[int, ...]
    segments: tuple[Segment, ...]
    guard: str | None = None
    ttft: float | None = None
    otherwise: float | None = None


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
    keep: float
    kept_tokens: int
    prompt_tokens: int
    spans: tuple[Span, ...]
    texts: tuple[SpanText, ...]


@dataclass(frozen=True, slots=True)
class FellBack:
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


class Ended(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    MEMORY = "memory"
    """Memory was nearly used up while the answer was written; what was written stays."""
    REPEATED = "repeated"
    """It only repeated itself."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """The figures of a turn. TTFT counts from sending the message to the first token; `phases` are
    its parts. `peak_bytes` is MLX's own peak during the turn."""

    reading: Reading
    mode: Mode
    keep: float
    reason: str
    prompt_tokens: int
    eligible_tokens: int
    kept_tokens: int
    reused_tokens: int
    recalled_tokens: int
    generated_tokens: int
    seed: int
    ttft: float
    phases: tuple[PhaseTime, ...]
    decode_seconds: float
    peak_bytes: int
    fallback: str | None = None
    forced_loss: float | None = None
    """Of a forced answer: mean negative log likelihood, nats a token."""

    @property
    def read_fraction(self) -> float:
        """Of all prompt tokens, how many the target read, 0..1."""
        return self.kept_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first one; 0 when there was no second one."""
        if self.generated_tokens < 2 or self.decode_seconds <= 0:
            return 0.0
        return (self.generated_tokens - 1) / self.decode_seconds


@dataclass(frozen=True, slots=True)
class Finished:
    """The turn is over; `text` is the whole answer, `statistics` None if it was cancelled before
    the prompt was built."""

    turn: int
    ended: Ended
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
    foreseen: bool = False
    excess: int = 0

    @property
    def sentence(self) -> str:
        return f"{self.problem}: {self.advice}."


@dataclass(frozen=True, slots=True)
class Learnt:
    """What reading costs the loaded pair on this machine, as far as it is known by now; `asked` for
    by `Measure`, or not."""

    costs: Costs
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Closed:
    """The engine thread has ended."""


Event = (
    Loaded
    | PhaseProgress
    | Planned
    | ImportanceMap
    | Selected
    | Restored
    | Healed
    | NotSaved
    | Saved
    | EngineWarning
    | FellBack
    | Token
    | Finished
    | Failed
    | MemoryReport
    | PressureChanged
    | MadeRoom
    | Parked
    | Unparked
    | Learnt
    | Closed
)

Listener = Callable[[Event], None]


class Engine(Protocol):
    """One engine: commands in, events out.

    `send` never blocks and may be called from any thread. The listener is called on the engine's
    own thread, must return quickly and must not raise. Events of one turn arrive in order and end
    with exactly one `Finished` or `Failed`.
    """

    def send(self, command: Command) -> None: ...

    def listen(self, listener: Listener) -> None:
        """Set the one listener. Call before the first `send`."""
        ...

    def join(self, timeout: float | None = None) -> None:
        """Wait for the engine thread to end, after `Close`."""
        ...
