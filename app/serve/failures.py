"""Turns that failed, as HTTP has it: whose fault it was, and whether asking again helps."""

from __future__ import annotations

from app.protocol.events import Failed
from app.serve.queue import STOPPED

RETRY_SECONDS = 5
TOO_LONG = "context_length_exceeded"
"""As OpenAI's clients know a prompt that is too long."""
TRY_LATER = (
    "The machine ran out of memory",
    "Memory was nearly used up, so reading was stopped",
    "No model is loaded",
    STOPPED[0],
)
"""How the engine's sentences begin where the same request may succeed later."""
OURS = ("Something went wrong inside specchat", "MLX cannot be loaded")
"""The same where the request is not to blame."""


class AnswerFailed(Exception):
    """The engine's sentence about a turn that failed, the status of HTTP, and a code, if any. That
    of a prompt that is too long begins as clients know it, which then shorten their history."""

    def __init__(self, failed: Failed) -> None:
        self.code = TOO_LONG if failed.excess_tokens > 0 else None
        beginning = "" if self.code is None else "The prompt is too long. "
        super().__init__(beginning + failed.message)
        if self.code is not None:
            self.status = 400
        elif failed.predicted or failed.gpu_lost or failed.problem.startswith(TRY_LATER):
            self.status = 503
        else:
            self.status = 500 if failed.problem.startswith(OURS) else 400
