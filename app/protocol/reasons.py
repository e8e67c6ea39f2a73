"""Codes for failures and reasons, with data of plain values that JSON can represent.

`app/chat/wording.py` makes sentences of them. Code compares codes only. Text from outside, such as
a message of the operating system or a file name, is data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import Any

Data = Mapping[str, Any]
"""Numbers, strings, booleans, and lists and objects of these."""


class FailureKind(StrEnum):
    """What failed. `wording.FAILURES` names the data of each kind."""

    INTERNAL = auto()
    OUT_OF_MEMORY = auto()
    """Memory ran out during a turn or command."""
    GPU_LOST = auto()
    """The system stopped this process's work on the GPU. All later commands fail."""
    MLX_MISSING = auto()
    SERVER_STOPPED = auto()
    NEVER_ANSWERED = auto()
    """The program ended before the answer."""

    NO_MODEL = auto()
    NOT_ENOUGH_MEMORY = auto()
    """Predicted not to fit."""
    MEMORY_EXHAUSTED = auto()
    """Reading was stopped because memory was nearly used up."""
    PROMPT_TOO_LONG = auto()
    UNKNOWN_TOKENS_BIASED = auto()

    TEMPLATE_FAILED = auto()
    TEMPLATE_DROPS_MESSAGES = auto()
    TOKENIZER_UNUSABLE = auto()
    TOKENIZER_FAILED = auto()
    TOKENIZER_DROPS_TEXT = auto()
    TOKENS_UNKNOWN = auto()
    """The tokenizer has tokens that the model does not know."""
    TOKENS_OUT_OF_RANGE = auto()
    NOT_THE_USERS = auto()

    LOADING_STOPPED = auto()
    MODEL_NOT_LOADED = auto()
    CONFIG_INCOMPLETE = auto()
    MODEL_CHANGED = auto()
    """Its files changed while its weights were not in memory."""
    TOKENIZER_NOT_LOADED = auto()
    PACKAGE_MISSING = auto()
    """A package that mlx-lm's code for the architecture needs."""
    MODEL_UNREADABLE = auto()
    MODEL_CANNOT_RUN = auto()
    WEIGHTS_DAMAGED = auto()
    CACHE_NOT_QUANTISABLE = auto()
    NO_SHARDING = auto()
    LAYERS_INDIVISIBLE = auto()
    LAYERS_LOST = auto()

    MACHINES_NOT_READY = auto()
    VERSIONS_DIFFER = auto()
    NO_WORKER = auto()
    WORKER_GONE = auto()
    WORKER_REFUSES = auto()
    SHARD_FAILED = auto()
    """The process of a rank failed before it had loaded."""
    MACHINE_LOST = auto()
    RING_BROKEN = auto()
    NOT_LOADED_ALONE = auto()
    """A machine was lost without which the target cannot be loaded."""


@dataclass(frozen=True, slots=True)
class Failure:
    kind: FailureKind
    data: Data = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        return {"kind": str(self.kind), "data": dict(self.data)}


def failure_from_plain(plain: Any) -> Failure:
    """The inverse of `to_plain`. Raises TypeError, KeyError or ValueError."""
    return Failure(FailureKind(plain["kind"]), _data_of(plain))


def too_long(tokens: int, model: str, context: int, estimated: bool = False) -> Failure:
    """The failure of a prompt of `tokens` tokens that exceeds a model's `context`."""
    data = {"tokens": tokens, "model": model, "context": context, "estimated": estimated}
    return Failure(FailureKind.PROMPT_TOO_LONG, data | {"excess_tokens": tokens - context + 1})


class EngineFailure(RuntimeError):
    """An exception whose kind is known."""

    def __init__(self, kind: FailureKind, data: Data | None = None) -> None:
        self.failure = Failure(kind, data or {})
        super().__init__(str(kind))


class ReasonCode(StrEnum):
    """Why a prompt is read as it is, and other events that the user should know. `wording.REASONS`
    names the data of each code."""

    # How a prompt is read
    FULL_REQUESTED = auto()
    SPARSE_REQUESTED = auto()
    CACHED_STAYS = auto()
    NOTHING_TO_SKIP = auto()
    ALL_CACHED = auto()
    SAVES_NOTHING = auto()
    """A sparse read was requested, but saves nothing (all cached)."""
    NEEDS_EVERY_TOKEN = auto()
    PARTS_ONLY = auto()
    """The whole text was asked for, but exceeds the context."""
    FEW_TO_SKIP = auto()
    FASTER = auto()
    """One way of reading is predicted to be faster than the other."""
    QUICK_IN_FULL = auto()
    LITTLE_SAVED = auto()
    RELEVANT_ONLY = auto()
    """Times cannot be predicted, so the prompt is read sparsely."""
    ONLY_SPARSE_FITS = auto()
    CONTINUED = auto()
    READ_ELSEWHERE = auto()
    """Another conversation has read the documents, but after other text."""
    KEEP_CHOSEN = auto()
    KEEP_LIMITED = auto()
    RE_READ = auto()
    """Reading again is faster than reusing what is cached."""
    CANNOT_INSERT = auto()
    NO_MEMORY_TO_READ_ON = auto()
    SPARSE_FAILED = auto()
    SELECTION_UNKNOWN = auto()
    CITATIONS_UNKNOWN = auto()
    CITATIONS_STOPPED = auto()
    """The user stopped looking for the citations of an answer, which is complete."""

    # Why a model can only be read densely
    UNSUPPORTED_CACHE = auto()
    GAPS_FAIL = auto()
    STEPS_FAIL = auto()
    GAPS_CHANGE_ANSWERS = auto()
    ROTATION_UNSEEN = auto()
    """Its rotary embeddings are computed in a kernel that no patch reaches."""

    # What the user should know
    SLOW_BLAS = auto()
    SAMPLING_IGNORED = auto()
    LONG_FACTORS_ALWAYS = auto()
    WINDOW_IGNORED = auto()
    TEMPLATE_RULE = auto()
    CACHE_DAMAGED = auto()
    SNAPSHOT_UNUSABLE = auto()
    SNAPSHOT_FAILED = auto()
    BACKGROUND_STOPPED = auto()
    IDLE_WORK_FAILED = auto()

    # Memory
    LOADED_ALTERNATELY = auto()
    """Target and draft do not fit in memory together."""
    UNLOADED_UNDER_PRESSURE = auto()
    UNLOADED_FOR_OTHER = auto()
    CACHES_DROPPED = auto()
    DRAFT_CACHE_DROPPED = auto()
    BACKGROUND_FREED = auto()
    MEMORY_SHARE = auto()
    """This process uses most of the memory that it may use."""
    SWAPPING = auto()
    OTHER_PROGRAMS = auto()


@dataclass(frozen=True, slots=True)
class Reason:
    code: ReasonCode
    data: Data = field(default_factory=dict)

    def to_plain(self) -> dict[str, Any]:
        return {"code": str(self.code), "data": dict(self.data)}


def reason_from_plain(plain: Any) -> Reason:
    """The inverse of `to_plain`. Raises TypeError, KeyError or ValueError."""
    return Reason(ReasonCode(plain["code"]), _data_of(plain))


def _data_of(plain: Any) -> dict[str, Any]:
    data = plain["data"]
    if not isinstance(data, dict):
        raise TypeError("neither a failure nor a reason")
    return data
