"""OpenAI's chat completions and completions."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import FastAPI
from pydantic import Field

from app.extras.serve.answers import AnswerPiece, ServedAnswer
from app.extras.serve.cutting import LONG, TAIL
from app.extras.serve.fields import BadRequest, Thoughts
from app.extras.serve.formats import event, openai_error
from app.extras.serve.message_fields import (
    Fields,
)
from app.extras.serve.requests import (
    AnsweredRequest,
    Limit,
    Stops,
    Tools,
    WithMessages,
    to_messages,
)
from app.extras.serve.server import Server, add_answers
from app.protocol.prompt import Document, Message, Role

PATHS = "/v1/chat/completions", "/v1/completions"
error = openai_error
MAX_PROMPT = 1_000_000
"""Maximum token ids of a prompt."""


class StreamOptions(Fields):
    include_usage: bool = False


class _OpenAiRequest(AnsweredRequest):
    max_tokens: Limit | None = None
    n_predict: Limit | None = None
    stop: str | Stops | None = None
    n: int = 1
    stream_options: StreamOptions | None = None
    response_format: dict[str, Any] | None = None

    def check(self) -> None:
        super().check()
        if self.n != 1:
            raise BadRequest("n must be 1: ask again for another answer.")
        if ((self.response_format or {}).get("type") or "text") != "text":
            raise BadRequest("Only text output is supported: leave `response_format` out.")

    @property
    def limit(self) -> int | None:
        return getattr(self, "max_completion_tokens", None) or self.max_tokens or self.n_predict

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class ChatRequest(Thoughts, WithMessages, Tools, _OpenAiRequest):
    """`/v1/chat/completions`."""

    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    def check(self) -> None:
        super().check()
        if self.logprobs or self.top_logprobs:
            raise BadRequest("Log probabilities are not supported: leave `logprobs` out.")


class CompletionRequest(_OpenAiRequest):
    """`/v1/completions`: a text that the model continues, without its chat template."""

    prompt: str | Annotated[list[Any], Field(max_length=MAX_PROMPT, fail_fast=True)]
    """A text, its token ids, or a list of one of these."""
    echo: bool = False
    logprobs: bool | int | None = None
    suffix: str | None = None

    def check(self) -> None:
        super().check()
        prompt = self.only_prompt
        if not prompt:
            raise BadRequest("The prompt is empty: send a text to continue.")
        if not isinstance(prompt, str) and not all(type(token) is int for token in prompt):
            raise BadRequest("The prompt must be a text or a list of token ids.")
        if self.logprobs is not None and self.logprobs is not False:
            raise BadRequest("Log probabilities are not supported: leave `logprobs` out.")
        if self.suffix:
            raise BadRequest(
                "A text cannot be filled in before a `suffix`: leave it out to continue the prompt."
            )
        if self.echo:
            raise BadRequest("`echo` is not supported: leave it out.")

    @property
    def only_prompt(self) -> str | list[int]:
        """The text or the token ids of the only prompt. Raises BadRequest."""
        if isinstance(self.prompt, str) or not any(isinstance(p, str | list) for p in self.prompt):
            return self.prompt
        if len(self.prompt) != 1:
            raise BadRequest("Send one prompt at a time.")
        only: str | list[int] = self.prompt[0]
        return only


BODIES = ChatRequest, CompletionRequest


def add_routes(app: FastAPI, server: Server) -> None:
    form = partial(_format, server)
    chat, completions = PATHS
    add_answers(app, server, chat, ChatRequest, lambda body: to_messages(body.messages), form)
    add_answers(
        app,
        server,
        completions,
        CompletionRequest,
        lambda body: (_text_to_continue(body.only_prompt, server),),
        form,
    )


def _text_to_continue(prompt: str | list[int], server: Server) -> Message:
    if isinstance(prompt, str):
        return plain_message(prompt)
    text = server.pair.tokens.text(prompt)
    return Message(Role.USER, text, token_ids=tuple(prompt), plain=True)


def plain_message(text: str) -> Message:
    """A text to continue. Its end is always read, the rest may be skipped. The text is cut at a
    space, so that no special token is split."""
    start, end = len(text) - 2 * TAIL, len(text) - TAIL
    cut = 1 + max(text.rfind("\n", max(start, 0), end), -1)
    cut = cut or 1 + text.rfind(" ", 0, end)
    if len(text) < LONG or not cut:
        return Message(Role.USER, text, plain=True)
    return Message(Role.USER, text[cut:], (Document("text", text[:cut]),), plain=True)


def _format(server: Server, body: ChatRequest | CompletionRequest, id: str) -> OpenAiFormat:
    options, chat = body.stream_options, isinstance(body, ChatRequest)
    with_usage = options is not None and options.include_usage
    return OpenAiFormat(id, server.pair.model, int(time.time()), chat, with_usage)


DONE = "data: [DONE]\n\n"


def _openai_usage(answer: ServedAnswer) -> dict[str, Any]:
    progress = answer.turn.progress
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": progress.generated_tokens,
        "total_tokens": answer.prompt_tokens + progress.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": progress.reused_tokens},
        "specchat": answer.report(),
    }


class OpenAiFormat:
    """Formats one answer of a chat or of a plain completion."""

    error = staticmethod(error)

    def __init__(self, id: str, model: str, created: int, chat: bool, with_usage: bool) -> None:
        self._chat, self._with_usage = chat, with_usage
        self._head = {"id": f"{'chatcmpl' if chat else 'cmpl'}-{id}", "created": created}
        self._model, self._started = model, False

    def whole(self, answer: ServedAnswer) -> dict[str, Any]:
        if self._chat:
            message: dict[str, Any] = {"role": "assistant", "content": answer.turn.text}
            if answer.turn.thinking:
                message["reasoning_content"] = answer.turn.thinking
            message |= _url_citations(answer)
            content: dict[str, Any] = {"message": message}
        else:
            content = {"text": answer.turn.text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": _reason(answer)}
        return self._object("chat.completion", [choice]) | {"usage": _openai_usage(answer)}

    def start(self, answer: ServedAnswer) -> str:
        """The beginning of a stream; an empty string if it was sent."""
        started, self._started = self._started, True
        return (
            self._chunk({"role": "assistant", "content": ""}) if self._chat and not started else ""
        )

    def waiting(self, answer: ServedAnswer, is_due: bool) -> str:
        """An event without content, if one `is_due`; else an empty string."""
        return self.start(answer) + self._chunk({} if self._chat else "") if is_due else ""

    def piece(self, piece: AnswerPiece) -> str:
        if not self._chat:
            return self._chunk(piece.text) if piece.text else ""
        thought = {"reasoning_content": piece.thinking} if piece.thinking else {}
        return self._chunk(({"content": piece.text} if piece.text else {}) | thought)

    def end(self, answer: ServedAnswer) -> str:
        last = self._chunk(_url_citations(answer) if self._chat else "", _reason(answer))
        if self._with_usage:
            last += event(
                self._object("chat.completion.chunk", []) | {"usage": _openai_usage(answer)}
            )
        return last + DONE

    def failed(self, message: str, status: int, code: str | None = None) -> str:
        return event(openai_error(message, status, code)) + DONE

    def _chunk(self, content: dict[str, Any] | str, reason: str | None = None) -> str:
        what = {"delta": content} if self._chat else {"text": content}
        choice = {"index": 0, **what, "logprobs": None, "finish_reason": reason}
        more = {"usage": None} if self._with_usage else {}
        return event(self._object("chat.completion.chunk", [choice]) | more)

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = kind if self._chat else "text_completion"
        return {**self._head, "object": kind, "model": self._model, "choices": choices}


def _reason(answer: ServedAnswer) -> str:
    return "length" if answer.cut_off else "stop"


def _url_citations(answer: ServedAnswer) -> dict[str, Any]:
    """OpenAI's field for citations, which has no other type. The URL is the document's name with
    the characters of the passage, as in RFC 5147."""
    annotations = [
        {
            "type": "url_citation",
            "url_citation": {
                "start_index": note.citation.start,
                "end_index": note.citation.end,
                "title": note.source,
                "url": f"{quote(note.document.name)}#char={note.citation.passage_start},"
                f"{note.citation.passage_end}",
            },
        }
        for note in answer.footnotes
    ]
    return {"annotations": annotations} if annotations else {}
