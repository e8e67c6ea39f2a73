"""Answers as OpenAI's chat completions and completions have them."""

from __future__ import annotations

import json
from typing import Any

from app.serve.answers import Answer, Piece


def event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


DONE = "data: [DONE]\n\n"


def error(message: str, status: int, code: str | None = None) -> dict[str, Any]:
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def usage(answer: Answer) -> dict[str, Any]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.generated,
        "total_tokens": answer.prompt_tokens + answer.generated,
        "prompt_tokens_details": {"cached_tokens": answer.cached_tokens},
        "specchat": answer.report(),
    }


class OpenAiFormat:
    """Of one answer; `chat` or a plain completion."""

    def __init__(self, id: str, model: str, created: int, chat: bool, with_usage: bool) -> None:
        self._chat, self._with_usage = chat, with_usage
        self._head = {"id": f"{'chatcmpl' if chat else 'cmpl'}-{id}", "created": created}
        self._model = model

    def whole(self, answer: Answer) -> dict[str, Any]:
        if self._chat:
            message = {"role": "assistant", "content": answer.text}
            if answer.thinking:
                message["reasoning_content"] = answer.thinking
            content: dict[str, Any] = {"message": message}
        else:
            content = {"text": answer.text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": _reason(answer)}
        return self._object("chat.completion", [choice]) | {"usage": usage(answer)}

    def start(self, answer: Answer) -> str:
        return self._chunk({"role": "assistant", "content": ""}) if self._chat else ""

    def piece(self, piece: Piece) -> str:
        if not self._chat:
            return self._chunk(piece.text) if piece.text else ""
        thought = {"reasoning_content": piece.thinking} if piece.thinking else {}
        return self._chunk(({"content": piece.text} if piece.text else {}) | thought)

    def end(self, answer: Answer) -> str:
        last = self._chunk({} if self._chat else "", _reason(answer))
        if self._with_usage:
            last += event(self._object("chat.completion.chunk", []) | {"usage": usage(answer)})
        return last + DONE

    def failed(self, message: str, status: int, code: str | None = None) -> str:
        return event(error(message, status, code)) + DONE

    def _chunk(self, content: dict[str, Any] | str, reason: str | None = None) -> str:
        what = {"delta": content} if self._chat else {"text": content}
        choice = {"index": 0, **what, "logprobs": None, "finish_reason": reason}
        more = {"usage": None} if self._with_usage else {}
        return event(self._object("chat.completion.chunk", [choice]) | more)

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = kind if self._chat else "text_completion"
        return {**self._head, "object": kind, "model": self._model, "choices": choices}


def _reason(answer: Answer) -> str:
    return "length" if answer.cut_off else "stop"
