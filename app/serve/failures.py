"""Turns that failed, as HTTP has it: whose fault it was, and whether asking again helps."""

from __future__ import annotations

from app.chat import wording
from app.protocol.events import Failed
from app.protocol.reasons import FailureKind

RETRY_SECONDS = 5
TOO_LONG = "context_length_exceeded"
"""As OpenAI's clients know a prompt that is too long."""
TRY_LATER = frozenset(
    {
        FailureKind.OUT_OF_MEMORY,
        FailureKind.NOT_ENOUGH_MEMORY,
        FailureKind.MEMORY_EXHAUSTED,
        FailureKind.NO_MODEL,
        FailureKind.GPU_LOST,
        FailureKind.SERVER_STOPPED,
    }
)
"""The same request may succeed later."""
OURS = frozenset({FailureKind.INTERNAL, FailureKind.MLX_MISSING})
"""The request is not to blame."""


class AnswerFailed(Exception):
    """What is said about a turn that failed, the status of HTTP, and a code, if any. The text on a
    prompt that is too long begins as clients know it, which then shorten their history."""

    def __init__(self, failed: Failed) -> None:
        self.code = TOO_LONG if failed.excess_tokens > 0 else None
        beginning = "" if self.code is None else "The prompt is too long. "
        super().__init__(beginning + wording.failure(failed.failure).sentence)
        if self.code is not None:
            self.status = 400
        elif failed.failure.kind in TRY_LATER:
            self.status = 503
        else:
            self.status = 500 if failed.failure.kind in OURS else 400
