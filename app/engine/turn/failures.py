"""Turns an exception into the sentence that the user gets."""

from __future__ import annotations

import traceback

from app.engine.backend.memory import (
    NotEnoughMemory,
    describe_error,
    gpu_lost_reason,
    is_gpu_lost,
    is_oom,
)
from app.engine.model.chat_template import PromptError
from app.engine.model.loader import LoadError
from app.engine.sharded.model import ShardsLost
from app.engine.turn.turn import TurnError
from app.protocol.events import Failed

OUT_OF_MEMORY = "The machine ran out of memory"
_GPU_LOST = (
    "The system stopped specchat's work on the GPU ({}), which only a new process can use again"
)
_GPU_LOST_ADVICE = "ask again once specchat has started again"
_LOAD_ADVICE = "close other programs, or choose a smaller model"
_TURN_ADVICE = "close other programs, lower keep, or choose a smaller model"


def to_failed(turn: int | None, error: BaseException) -> Failed:
    """What went wrong and what to do; `turn` is None when it was no turn. Raises nothing."""
    try:
        return _describe(turn, error)
    except Exception:  # its text cannot be made, or its causes have no end
        what = type(error).__name__
        return Failed(turn, f"Something went wrong inside specchat ({what})", "try again")


def _describe(turn: int | None, error: BaseException) -> Failed:
    problem = str(error).rstrip(".")
    if is_oom(error):  # also as the cause of one of those below
        return Failed(turn, OUT_OF_MEMORY, _LOAD_ADVICE if turn is None else _TURN_ADVICE)
    if is_gpu_lost(error):
        problem = _GPU_LOST.format(gpu_lost_reason(error))
        return Failed(turn, problem, _GPU_LOST_ADVICE, gpu_lost=True)
    match error:
        case TurnError():
            return Failed(turn, problem, error.advice, excess_tokens=error.excess_tokens)
        case LoadError() | ShardsLost():
            return Failed(turn, problem, error.advice)
        case PromptError():
            return Failed(turn, problem, "choose another model")
        case NotEnoughMemory():
            advice = error.advice or _TURN_ADVICE
            return Failed(turn, problem, advice, turn is not None, error.excess_tokens)
    where = traceback.extract_tb(error.__traceback__)[-1]
    what = f"{type(error).__name__} in {where.name}, {' '.join(problem.split())[:300]}"
    return Failed(turn, f"Something went wrong inside specchat ({what})", "try again")


def why_not_alone(target: str, error: Exception) -> str:
    """Advice after a machine is gone without which the target does not load, because of `error`."""
    known = isinstance(error, LoadError | NotEnoughMemory)
    why = str(error).rstrip(".") if known else describe_error(error)
    return (
        f"{target} does not load on this machine alone ({why}): start the worker again and load the"
        " model again, or choose a smaller one"
    )
