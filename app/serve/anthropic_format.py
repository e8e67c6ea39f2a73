"""Answers as Anthropic's messages have them."""

from __future__ import annotations

import json
from typing import Any

from app.serve.answers import Answer, Piece


def error(message: str, status: int, code: str | None = None) -> dict[str, Any]:
    """Anthropic's have no `code`."""
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        503: "overloaded_error",
    }
    kind = kinds.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def usage(answer: Answer) -> dict[str, Any]:
    return {
        "input_tokens": max(0, answer.prompt_tokens - answer.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": answer.cached_tokens,
        "output_tokens": answer.generated,
        "specchat": answer.report(),
    }


class AnthropicFormat:
    """Of one answer."""

    def __init__(self, id: str, model: str) -> None:
        self._message = {
            "id": f"msg_{id}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "stop_reason": None,
            "stop_sequence": None,
        }

    def whole(self, answer: Answer) -> dict[str, Any]:
        content = [{"type": "text", "text": answer.text}]
        return self._message | {"content": content, "usage": usage(answer), **_stop(answer)}

    def start(self, answer: Answer) -> str:
        message = self._message | {"content": [], "usage": usage(answer)}
        block = {"type": "text", "text": ""}
        return _event("message_start", message=message) + _event(
            "content_block_start", index=0, content_block=block
        )

    def piece(self, piece: Piece) -> str:
        if not piece.text:
            return ""
        delta = {"type": "text_delta", "text": piece.text}
        return _event("content_block_delta", index=0, delta=delta)

    def end(self, answer: Answer) -> str:
        return (
            _event("content_block_stop", index=0)
            + _event("message_delta", delta=_stop(answer), usage=usage(answer))
            + _event("message_stop")
        )

    def failed(self, message: str, status: int, code: str | None = None) -> str:
        return _event("error", error=error(message, status)["error"])


def _stop(answer: Answer) -> dict[str, Any]:
    reason = "max_tokens" if answer.cut_off else "stop_sequence" if answer.stop else "end_turn"
    return {"stop_reason": reason, "stop_sequence": answer.stop}


def _event(kind: str, **content: Any) -> str:
    data = json.dumps({"type": kind, **content}, ensure_ascii=False)
    return f"event: {kind}\ndata: {data}\n\n"
