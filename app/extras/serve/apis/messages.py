"""Anthropic's messages."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request

from app.extras.serve.answers import AnswerPiece, ServedAnswer
from app.extras.serve.fields import Thoughts
from app.extras.serve.formats import named_event
from app.extras.serve.message_fields import (
    ChatMessage,
    ContentPart,
    Items,
)
from app.extras.serve.requests import (
    AnsweredRequest,
    Limit,
    Stops,
    Tools,
    WithMessages,
    read,
    takes,
    to_messages,
)
from app.extras.serve.server import Server, add_answers, on_thread

PATHS = ("/v1/messages",)


class CountRequest(WithMessages, Tools):
    """`/v1/messages/count_tokens`."""

    model: str = ""
    system: str | Items[str | ContentPart] | None = None

    @property
    def all_messages(self) -> list[ChatMessage]:
        system = [ChatMessage(role="system", content=self.system)] if self.system else []
        return system + self.messages


class MessagesRequest(Thoughts, CountRequest, AnsweredRequest):
    """`/v1/messages`."""

    max_tokens: Limit
    stop_sequences: Stops | None = None

    @property
    def limit(self) -> int | None:
        return self.max_tokens

    @property
    def stops(self) -> list[str]:
        return self.stop_sequences or []


BODIES = MessagesRequest, CountRequest


def add_routes(app: FastAPI, server: Server) -> None:
    (path,) = PATHS

    @app.post(f"{path}/count_tokens", openapi_extra=takes(CountRequest))
    async def count_tokens(request: Request) -> dict[str, int]:
        body = await read(CountRequest, request)
        body.check()

        def count() -> int:
            return server.pair.tokens.count(to_messages(body.all_messages))

        return {"input_tokens": await on_thread(request, count)}

    add_answers(
        app,
        server,
        path,
        MessagesRequest,
        lambda body: to_messages(body.all_messages),
        lambda body, id: AnthropicFormat(id, body.model or server.pair.model),
    )


def error(message: str, status: int, code: str | None = None) -> dict[str, Any]:
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        503: "overloaded_error",
    }
    kind = kinds.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def _anthropic_usage(answer: ServedAnswer) -> dict[str, Any]:
    progress = answer.turn.progress
    return {
        "input_tokens": max(0, answer.prompt_tokens - progress.reused_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": progress.reused_tokens,
        "output_tokens": progress.generated_tokens,
        "specchat": answer.report(),
    }


class AnthropicFormat:
    """Formats one answer: a block for the thinking, if there is any, and one for the text."""

    error = staticmethod(error)

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
        """Number and type of the block that is being streamed."""
        self._started = False

    def whole(self, answer: ServedAnswer) -> dict[str, Any]:
        text, thinking = answer.turn.text, answer.turn.thinking
        content: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if citations := _char_locations(answer):
            content[0]["citations"] = citations
        if thinking:
            content.insert(0, {"type": "thinking", "thinking": thinking, "signature": ""})
        found = {"content": content, "usage": _anthropic_usage(answer)}
        return self._message | found | _stop_reason(answer)

    def start(self, answer: ServedAnswer) -> str:
        if self._started:
            return ""
        self._started = True
        message = self._message | {"content": [], "usage": _anthropic_usage(answer)}
        return named_event("message_start", message=message)

    def waiting(self, answer: ServedAnswer, is_due: bool) -> str:
        return named_event("ping") if is_due else ""

    def piece(self, piece: AnswerPiece) -> str:
        return self._delta("thinking", piece.thinking) + self._delta("text", piece.text)

    def end(self, answer: ServedAnswer) -> str:
        found = "" if self._open == "text" else self._start("text")
        for citation in _char_locations(answer):
            cited = {"type": "citations_delta", "citation": citation}
            found += named_event("content_block_delta", index=self._index, delta=cited)
        found += self._stop()
        delta, usage = _stop_reason(answer), _anthropic_usage(answer)
        found += named_event("message_delta", delta=delta, usage=usage)
        return found + named_event("message_stop")

    def _delta(self, kind: str, text: str) -> str:
        if not text:
            return ""
        opening = "" if self._open == kind else self._start(kind)
        delta = {"type": f"{kind}_delta", kind: text}
        return opening + named_event("content_block_delta", index=self._index, delta=delta)

    def _start(self, kind: str) -> str:
        before = self._stop() if self._open else ""
        self._index, self._open = self._index + 1, kind
        block = {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})
        return before + named_event("content_block_start", index=self._index, content_block=block)

    def _stop(self) -> str:
        found = ""
        if self._open == "thinking":
            signed = {"type": "signature_delta", "signature": ""}
            found = named_event("content_block_delta", index=self._index, delta=signed)
        return found + named_event("content_block_stop", index=self._index)

    def failed(self, message: str, status: int, code: str | None = None) -> str:
        return named_event("error", error=error(message, status)["error"])


def _char_locations(answer: ServedAnswer) -> list[dict[str, Any]]:
    """The passages that are cited, each once."""
    documents = [each for message in answer.messages for each in message.in_prompt]
    return [
        {
            "type": "char_location",
            "cited_text": note.passage,
            "document_index": next(i for i, each in enumerate(documents) if each is note.document),
            "document_title": note.document.name,
            "start_char_index": note.citation.passage_start,
            "end_char_index": note.citation.passage_end,
        }
        for note in {note.number: note for note in answer.footnotes}.values()
    ]


def _stop_reason(answer: ServedAnswer) -> dict[str, Any]:
    reason = "max_tokens" if answer.cut_off else "stop_sequence" if answer.stop else "end_turn"
    return {"stop_reason": reason, "stop_sequence": answer.stop}
