"""How much memory is free, in bytes, and which errors mean that memory or the GPU is lost."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable

import mlx.core as mx
import psutil

from app.engine.backend.memory_probes import available, ceiling
from app.estimate.memory import BUDGET_SHARE
from app.protocol.events import Failed
from app.protocol.memory import MemoryStats
from app.protocol.reasons import Data, EngineFailure, Failure, FailureKind
from app.util.formatting import error_text, one_line

BUFFER_CACHE_SHARE = 1 / 16
"""Share of the ceiling that MLX's buffer cache may hold between two steps."""


class NotEnoughMemory(EngineFailure):
    """A `task` needs more bytes than are free: `reading` or `scoring` a number of tokens, or
    `loading` the model of that name."""

    def __init__(self, task: Data, needed: float, free: float) -> None:
        data = {**task, "needed": float(needed), "free": float(max(free, 0))}
        super().__init__(FailureKind.NOT_ENOUGH_MEMORY, data)

    def add(self, data: Data) -> None:
        """Add what would fit."""
        self.failure = Failure(self.failure.kind, {**self.failure.data, **data})


def memory_stats() -> MemoryStats:
    """The machine's and MLX's memory now."""
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
    """Lower MLX's own limits to the ceiling. Never `set_wired_limit`: it is the best-attributed
    trigger of the IOGPU kernel panic (mlx issue 3186)."""
    most = ceiling()
    for set_limit, limit in (
        (mx.set_memory_limit, most),
        (mx.set_cache_limit, int(most * BUFFER_CACHE_SHARE)),
    ):
        if (before := set_limit(limit)) < limit:
            set_limit(before)


def free() -> float:
    """How many more bytes a plan may use."""
    return free_within(BUDGET_SHARE)


def free_within(share: float) -> float:
    """How many more bytes are available below this share of the ceiling."""
    available_bytes, most, active = sample()
    return min(available_bytes, most * share - active)


def sample() -> list[float]:
    """What is available to this process, the ceiling, and what MLX has taken."""
    return [available() + mx.get_cache_memory(), ceiling(), mx.get_active_memory()]


def trim_buffer_cache() -> None:
    """Return MLX's unused buffers to the system once they are many.

    After every step it would make the next step allocate the same memory again, page by page.
    """
    if mx.get_cache_memory() > ceiling() * BUFFER_CACHE_SHARE:
        mx.clear_cache()


def check_fits(task: Data, needed: float) -> None:
    """Raise NotEnoughMemory unless `needed` more bytes are free."""
    if needed > (available_bytes := free()):
        raise NotEnoughMemory(task, needed, available_bytes)


MAX_CAUSES = 16
"""Limit on how many causes of an error are looked at: one may be its own cause."""
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
"""What MLX 0.32 and the libraries below it say when memory runs out, in lower case."""
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
"""What MLX says when the system has stopped this process's work on the GPU, in lower case. Only a
new process can rely on the GPU again."""


def is_oom(error: BaseException) -> bool:
    """Whether this error, or its cause, is MLX, the system or Python running out of memory. A
    fallback that reads more would only need more."""
    causes = _with_causes(error)
    return _any_says(causes, OOM_MESSAGES) or any(isinstance(e, MemoryError) for e in causes)


def is_gpu_lost(error: BaseException) -> bool:
    """Whether this error, or its cause, is the system stopping this process's work on the GPU. What
    runs there next fails as well, or causes the next error."""
    return _any_says(_with_causes(error), GPU_LOST_MESSAGES)


def gpu_lost_reason(error: BaseException) -> str:
    """The system's words for it, without what MLX puts around them."""
    texts = map(error_text, _with_causes(error))
    text = next((each for each in texts if _says(each, GPU_LOST_MESSAGES)), "")
    what = " ".join(text.rpartition("execution failed: ")[2].split())
    return re.sub(r" \(\w+: ?\w+\)", "", what)[:100].rstrip(".")


def _with_causes(error: BaseException) -> list[BaseException]:
    found = [error]
    while len(found) < MAX_CAUSES and (cause := found[-1].__cause__) is not None:
        found.append(cause)
    return found


def _any_says(errors: Iterable[BaseException], wordings: tuple[str, ...]) -> bool:
    return any(_says(error_text(error), wordings) for error in errors)


def _says(text: str, wordings: Iterable[str]) -> bool:
    return any(wording in text.lower() for wording in wordings)


def cause_of(error: BaseException) -> Data:
    """An error as data of a failure or a reason that follows from it: the `failure`, where its kind
    is known, or else the `error`, a line of text."""
    known = None
    if is_oom(error):
        known = Failure(FailureKind.OUT_OF_MEMORY)
    elif is_gpu_lost(error):
        known = Failure(FailureKind.GPU_LOST, {"system": gpu_lost_reason(error)})
    elif isinstance(error, EngineFailure):
        known = error.failure
    return {"error": one_line(error)} if known is None else {"failure": known.to_plain()}


def reraise_device_failure(error: BaseException) -> None:
    """Raise `error` again if memory ran out or the GPU is lost: then nothing else is to blame."""
    if is_oom(error) or is_gpu_lost(error):
        raise error


def reraise_gpu_lost(error: BaseException) -> None:
    """Raise `error` again if the GPU is lost: then there is no other way to go on."""
    if is_gpu_lost(error):
        raise error


def to_failed(turn: int | None, error: BaseException) -> Failed:
    """What went wrong; `turn` is None when it was no turn. Raises nothing."""
    try:
        return Failed(turn, _failure(turn, error))
    except Exception:  # its text cannot be made, or its causes have no end
        return Failed(turn, Failure(FailureKind.INTERNAL, {"error": type(error).__name__}))


def _failure(turn: int | None, error: BaseException) -> Failure:
    if is_oom(error):  # also as the cause of one whose kind is known
        return Failure(FailureKind.OUT_OF_MEMORY, {"loading": turn is None})
    if is_gpu_lost(error):
        return Failure(FailureKind.GPU_LOST, {"system": gpu_lost_reason(error)})
    if isinstance(error, EngineFailure):
        return error.failure
    where = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:300].rstrip(".")
    what = f"{type(error).__name__} in {where.name}, {text}"
    return Failure(FailureKind.INTERNAL, {"error": what})
