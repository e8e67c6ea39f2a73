"""Free memory in bytes, and detection of errors that mean out of memory or a lost GPU."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable

import mlx.core as mx
import psutil

from app.engine.backend.memory_probes import available, ceiling
from app.estimate.memory import BUDGET_SHARE
from app.protocol.events import CommandFailed, Failed
from app.protocol.memory import MemoryStats
from app.protocol.reasons import Data, EngineFailure, Failure, FailureKind
from app.util.formatting import error_text, one_line

BUFFER_CACHE_SHARE = 1 / 16
"""Share of the memory ceiling that MLX's buffer cache may hold between two steps."""


class NotEnoughMemory(EngineFailure):
    """A task needs more bytes than are free. `task`: {"reading": tokens}, {"scoring": tokens} or
    {"loading": name of the model}."""

    def __init__(self, task: Data, needed: float, free: float) -> None:
        data = {**task, "needed": float(needed), "free": float(max(free, 0))}
        super().__init__(FailureKind.NOT_ENOUGH_MEMORY, data)

    def add(self, data: Data) -> None:
        """Add data about what would fit instead."""
        self.failure = Failure(self.failure.kind, {**self.failure.data, **data})


def memory_stats() -> MemoryStats:
    system = psutil.virtual_memory()
    return MemoryStats(
        total=system.total,
        available=available(),
        process=psutil.Process().memory_info().rss,
        active=mx.get_active_memory(),
        cached=mx.get_cache_memory(),
        peak=mx.get_peak_memory(),
        ceiling=ceiling(),
    )


def set_limits() -> None:
    """Lower MLX's own limits to the ceiling. Never call `set_wired_limit`: it is the most likely
    trigger of a kernel panic in IOGPU (MLX issue 3186)."""
    limit_bytes = ceiling()
    for set_limit, limit in (
        (mx.set_memory_limit, limit_bytes),
        (mx.set_cache_limit, int(limit_bytes * BUFFER_CACHE_SHARE)),
    ):
        if (before := set_limit(limit)) < limit:
            set_limit(before)


def free() -> float:
    """Bytes that a plan may use."""
    return free_within(BUDGET_SHARE)


def free_within(share: float) -> float:
    """Bytes available below this share of the ceiling."""
    available_bytes, limit_bytes, active = sample()
    return min(available_bytes, limit_bytes * share - active)


def sample() -> list[float]:
    """Bytes available to this process, the ceiling, and bytes in use by MLX."""
    return [available() + mx.get_cache_memory(), ceiling(), mx.get_active_memory()]


def trim_buffer_cache() -> None:
    """Return MLX's unused buffers to the system if they exceed `BUFFER_CACHE_SHARE`. Doing so after
    every step would make the next one allocate the same memory again."""
    if mx.get_cache_memory() > ceiling() * BUFFER_CACHE_SHARE:
        mx.clear_cache()


def check_fits(task: Data, needed: float) -> None:
    """Raise NotEnoughMemory unless `needed` bytes are free."""
    if needed > (available_bytes := free()):
        raise NotEnoughMemory(task, needed, available_bytes)


MAX_CAUSES = 16
"""Maximum length of a chain of causes; it may be circular."""
OOM_MESSAGES = (
    "out of memory",  # CUDA, and Python's own C code
    "outofmemory",  # Metal's kIOGPUCommandBufferCallbackErrorOutOfMemory: never translated
    "out_of_memory",  # names of CUDA's codes
    "insufficient memory",  # Metal, when a command buffer fails
    "unable to allocate",  # [malloc], on every device; NumPy
    "cannot allocate memory",  # the system: ENOMEM
    "maximum allowed buffer size",  # [metal::malloc]
    "[metal::malloc] resource limit",  # too many buffers
    "bad_alloc",  # C++, when an error comes from another thread
    "allocation_failed",  # cuDNN 9
    "alloc_failed",  # cuDNN 8, cuFFT
    "cublasltcreate(&storage.handle) failed with code: 3",  # CUBLAS_STATUS_ALLOC_FAILED
)
"""Parts of messages of MLX 0.32 and its libraries when memory runs out, in lower case."""
GPU_LOST_MESSAGES = (
    # Metal's codes are never translated; older systems only have the words.
    "callbackerrorsubmissionsignored",  # every later command of this process fails
    "excessive gpu errors",
    "callbackerrorimpactinginteractivity",  # a command kept the screen waiting
    "impacting interactivity",
    "callbackerrortimeout",
    "caused gpu timeout",
    "callbackerrorhang",
    "caused gpu hang",
    "callbackerrorinnocentvictim",  # another command's error ended this one, too
    "victim of gpu error",
    "illegal memory access",  # CUDA: these errors stay until the process ends
    "unspecified launch failure",
    "misaligned address",
)
"""Parts of MLX's messages after the system aborted this process's GPU commands, in lower case. Only
a new process can use the GPU again."""


def is_oom(error: BaseException) -> bool:
    """Whether this error or a cause of it means that memory ran out. Do not fall back to dense
    reading then: it needs even more."""
    causes = _with_causes(error)
    return _any_contains(causes, OOM_MESSAGES) or any(isinstance(e, MemoryError) for e in causes)


def is_gpu_lost(error: BaseException) -> bool:
    """Whether this error or a cause of it means that the GPU is lost to this process. Every later
    command fails too, or makes it worse."""
    return _any_contains(_with_causes(error), GPU_LOST_MESSAGES)


def gpu_lost_reason(error: BaseException) -> str:
    """The system's message in an error for which `is_gpu_lost`, without MLX's additions."""
    texts = map(error_text, _with_causes(error))
    text = next((each for each in texts if _contains(each, GPU_LOST_MESSAGES)), "")
    what = " ".join(text.rpartition("execution failed: ")[2].split())
    return re.sub(r" \(\w+: ?\w+\)", "", what)[:100].rstrip(".")


def _with_causes(error: BaseException) -> list[BaseException]:
    found = [error]
    while len(found) < MAX_CAUSES and (cause := found[-1].__cause__) is not None:
        found.append(cause)
    return found


def _any_contains(errors: Iterable[BaseException], wordings: tuple[str, ...]) -> bool:
    return any(_contains(error_text(error), wordings) for error in errors)


def _contains(text: str, wordings: Iterable[str]) -> bool:
    return any(wording in text.lower() for wording in wordings)


def cause_of(error: BaseException) -> Data:
    """An error as data of a failure or reason that it causes: its `failure` if the kind is known,
    otherwise its text as `error`."""
    known = None
    if is_oom(error):
        known = Failure(FailureKind.OUT_OF_MEMORY)
    elif is_gpu_lost(error):
        known = Failure(FailureKind.GPU_LOST, {"system": gpu_lost_reason(error)})
    elif isinstance(error, EngineFailure):
        known = error.failure
    return {"error": one_line(error)} if known is None else {"failure": known.to_plain()}


def reraise_device_failure(error: BaseException) -> None:
    """Raise `error` again if memory ran out or the GPU is lost."""
    if is_oom(error) or is_gpu_lost(error):
        raise error


def reraise_gpu_lost(error: BaseException) -> None:
    """Raise `error` again if the GPU is lost."""
    if is_gpu_lost(error):
        raise error


def to_failed(turn: int | None, error: BaseException) -> Failed | CommandFailed:
    """The event for an error. `turn`: None outside turns. Never raises."""
    try:
        failure = _failure(error, turn is None)
    except Exception:  # converting the error to text failed
        failure = Failure(FailureKind.INTERNAL, {"error": type(error).__name__})
    return CommandFailed(failure) if turn is None else Failed(turn, failure)


def _failure(error: BaseException, loading: bool) -> Failure:
    if is_oom(error):  # also if it only caused an EngineFailure
        return Failure(FailureKind.OUT_OF_MEMORY, {"loading": loading})
    if is_gpu_lost(error):
        return Failure(FailureKind.GPU_LOST, {"system": gpu_lost_reason(error)})
    if isinstance(error, EngineFailure):
        return error.failure
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:300].rstrip(".")
    what = f"{type(error).__name__} in {where.name}, {text}"
    return Failure(FailureKind.INTERNAL, {"error": what})
