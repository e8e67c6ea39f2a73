"""Turns an exception into the failure that the engine reports."""

from __future__ import annotations

import traceback

from app.engine.backend.memory import gpu_lost_reason, is_gpu_lost, is_oom
from app.protocol.events import Failed
from app.protocol.reasons import EngineFailure, Failure, FailureKind


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
