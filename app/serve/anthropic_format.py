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
    """Of one answer. Its blocks of content are what the model thought, if it did, and its text."""

    def __init__(self, id: str, model: str) -> None:
        self._message = {
            "id": f"msg_{id}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "stop_reason": None,
            "stop_sequence": None,
        }
        self._index, self._open = -1, ""
        """Number and type of the block that is streamed."""

    def whole(self, answer: Answer) -> dict[str, Any]:
        content = [{"type": "text", "text": answer.text}]
        if answer.thinking:
            content.insert(0, {"type": "thinking", "thinking": answer.thinking, "signature": ""})
        return self._message | {"content": content, "usage": usage(answer), **_stop(answer)}

    def start(self, answer: Answer) -> str:
        message = self._message | {"content": [], "usage": usage(answer)}
        return _event("message_start", message=message)

    def piece(self, piece: Piece) -> str:
        found = ""
        if piece.thinking:
            found += self._delta("thinking", piece.thinking)
        if piece.text:
            found += self._delta("text", piece.text)
        return found

    def end(self, answer: Answer) -> str:
        return (
            ("" if self._open == "text" else self._start("text"))
            + self._stop()
            + _event("message_delta", delta=_stop(answer), usage=usage(answer))
            + _event("message_stop")
        )

    def _delta(self, kind: str, text: str) -> str:
        opening = "" if self._open == kind else self._start(kind)
        delta = {"type": f"{kind}_delta", kind: text}
        return opening + _event("content_block_delta", index=self._index, delta=delta)

    def _start(self, kind: str) -> str:
        before = self._stop() if self._open else ""
        self._index, self._open = self._index + 1, kind
        block = {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})
        return before + _event("content_block_start", index=self._index, content_block=block)

    def _stop(self) -> str:
        signed = {"type": "signature_delta", "signature": ""}
        return (
            _event("content_block_delta", index=self._index, delta=signed)
            if self._open == "thinking"
            else ""
        ) + _event("content_block_stop", index=self._index)

    def failed(self, message: str, status: int, code: str | None = None) -> str:
        return _event("error", error=error(message, status)["error"])


def _stop(answer: Answer) -> dict[str, Any]:
    reason = "max_tokens" if answer.cut_off else "stop_sequence" if answer.stop else "end_turn"
    return {"stop_reason": reason, "stop_sequence": answer.stop}


def _event(kind: str, **content: Any) -> str:
    data = json.dumps({"type": kind, **content}, ensure_ascii=False)
    return f"event: {kind}\ndata: {data}\n\n"
