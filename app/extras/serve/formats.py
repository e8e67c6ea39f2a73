"""What a format of answers is, and what several have in common."""

from __future__ import annotations

import json
from typing import Any, Protocol

from app.extras.serve.answers import AnswerPiece, ServedAnswer


class Format(Protocol):
    """Formats one answer, as a whole or as a stream of server-sent events."""

    def whole(self, answer: ServedAnswer) -> dict[str, Any]: ...

    def start(self, answer: ServedAnswer) -> str:
        """The beginning of a stream; an empty string if it was sent."""
        ...

    def waiting(self, answer: ServedAnswer, is_due: bool) -> str:
        """An event without content, if one `is_due`; else an empty string."""
        ...

    def piece(self, piece: AnswerPiece) -> str: ...

    def end(self, answer: ServedAnswer) -> str: ...

    def failed(self, message: str, status: int, code: str | None = None) -> str: ...

    def error(self, message: str, status: int, code: str | None = None) -> dict[str, Any]:
        """The body of an error, if nothing of the answer was sent."""
        ...


def event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def named_event(kind: str, **content: Any) -> str:
    return f"event: {kind}\n{event({'type': kind, **content})}"


def openai_error(message: str, status: int, code: str | None = None) -> dict[str, Any]:
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
