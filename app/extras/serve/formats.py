"""Formats answers for three APIs: OpenAI's (chat) completions, Anthropic's messages, and OpenAI's
responses."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from app.extras.serve.answers import AnswerPiece, ServedAnswer
from app.extras.serve.fields import BadRequest
from app.extras.serve.message_fields import Called, ChatMessage, ContentPart, Item, ToolCall
from app.extras.serve.requests import ResponsesRequest
from app.extras.serve.tool_texts import result_text

DONE = "data: [DONE]\n\n"


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"


def _named_event(kind: str, **content: Any) -> str:
    return f"event: {kind}\n{_event({'type': kind, **content})}"


def error_body(path: str, message: str, status: int, code: str | None = None) -> dict[str, Any]:
    """An error in the format that clients of this path expect."""
    if path.startswith("/v1/messages"):
        return anthropic_error(message, status)
    return openai_error(message, status, code)


def openai_error(message: str, status: int, code: str | None = None) -> dict[str, Any]:
    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


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
            last += _event(
                self._object("chat.completion.chunk", []) | {"usage": _openai_usage(answer)}
            )
        return last + DONE

    def failed(self, message: str, status: int, code: str | None = None) -> str:
        return _event(openai_error(message, status, code)) + DONE

    def _chunk(self, content: dict[str, Any] | str, reason: str | None = None) -> str:
        what = {"delta": content} if self._chat else {"text": content}
        choice = {"index": 0, **what, "logprobs": None, "finish_reason": reason}
        more = {"usage": None} if self._with_usage else {}
        return _event(self._object("chat.completion.chunk", [choice]) | more)

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


def anthropic_error(message: str, status: int) -> dict[str, Any]:
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
        return _named_event("message_start", message=message)

    def waiting(self, answer: ServedAnswer, is_due: bool) -> str:
        return _named_event("ping") if is_due else ""

    def piece(self, piece: AnswerPiece) -> str:
        return self._delta("thinking", piece.thinking) + self._delta("text", piece.text)

    def end(self, answer: ServedAnswer) -> str:
        found = "" if self._open == "text" else self._start("text")
        for citation in _char_locations(answer):
            cited = {"type": "citations_delta", "citation": citation}
            found += _named_event("content_block_delta", index=self._index, delta=cited)
        found += self._stop()
        delta, usage = _stop_reason(answer), _anthropic_usage(answer)
        found += _named_event("message_delta", delta=delta, usage=usage)
        return found + _named_event("message_stop")

    def _delta(self, kind: str, text: str) -> str:
        if not text:
            return ""
        opening = "" if self._open == kind else self._start(kind)
        delta = {"type": f"{kind}_delta", kind: text}
        return opening + _named_event("content_block_delta", index=self._index, delta=delta)

    def _start(self, kind: str) -> str:
        before = self._stop() if self._open else ""
        self._index, self._open = self._index + 1, kind
        block = {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})
        return before + _named_event("content_block_start", index=self._index, content_block=block)

    def _stop(self) -> str:
        found = ""
        if self._open == "thinking":
            signed = {"type": "signature_delta", "signature": ""}
            found = _named_event("content_block_delta", index=self._index, delta=signed)
        return found + _named_event("content_block_stop", index=self._index)

    def failed(self, message: str, status: int, code: str | None = None) -> str:
        return _named_event("error", error=anthropic_error(message, status)["error"])


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


MAX_REMEMBERED, OVERHEAD = 20_000_000, 1_000
"""Maximum characters of remembered requests and answers in total, and characters added for each
answer."""


class UnknownResponse(BadRequest):
    code = "previous_response_not_found"


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request's items and its answer. `previous` is the id of the response that it continued."""

    previous: str | None
    given: Sequence[Item]
    said: Sequence[Item]

    @property
    def items(self) -> list[Item]:
        return [*self.given, *self.said]

    @property
    def size(self) -> int:
        return OVERHEAD + sum(len(item.model_dump_json()) for item in self.items)


class Remembered:
    """The last responses, by id, in memory only. Thread-safe."""

    def __init__(self) -> None:
        self._turns: OrderedDict[str, Exchange] = OrderedDict()
        self._items: dict[str, Item] = {}
        self._size = 0
        self._lock = threading.Lock()

    def add(self, id: str, turn: Exchange) -> None:
        """Store a response, and forget the oldest ones if there are too many characters."""
        with self._lock:
            self._turns[id] = turn
            self._items |= {item.id: item for item in turn.said}
            self._size += turn.size
            while self._size > MAX_REMEMBERED:
                _, oldest = self._turns.popitem(last=False)
                self._size -= oldest.size
                for item in oldest.said:
                    self._items.pop(item.id, None)

    def until(self, id: str | None) -> list[Item]:
        """All items of a conversation up to this response. Raises BadRequest."""
        turns = []
        with self._lock:
            while id is not None:
                if id not in self._turns:
                    raise UnknownResponse(
                        f"The response {id[:80]!r} is not known: send the messages as `input`."
                    )
                turns.append(self._turns[id])
                id = turns[-1].previous
        return [item for turn in reversed(turns) for item in turn.items]

    def item(self, id: str) -> Item:
        """Raises BadRequest."""
        with self._lock:
            if id in self._items:
                return self._items[id]
        raise UnknownResponse(f"The item {id[:80]!r} is not known: send it whole.")


def conversation(request: ResponsesRequest, remembered: Remembered) -> list[ChatMessage]:
    """A request's messages. `instructions` apply to this request only. Raises BadRequest."""
    found, thoughts = [], ""
    if request.instructions:
        found.append(ChatMessage(role="system", content=request.instructions))
    for given in [*remembered.until(request.previous_response_id), *request.items]:
        item = remembered.item(given.id) if given.type == "item_reference" else given
        if item.type == "reasoning":
            thoughts = "\n\n".join(_texts(item))
        elif item.type.endswith("_call_output"):
            found.append(_result(item, item.output))
        elif item.type.endswith("_call"):
            found += _called(item, found[-1] if found else None, thoughts)
            thoughts = ""
        elif item.type != "message":
            raise BadRequest(f"Only text is read: leave out items of type {item.type[:50]!r}.")
        elif item.role is None:
            raise BadRequest("Each message in `input` needs a `role`.")
        else:
            thought = thoughts if item.role == "assistant" else None
            found.append(
                ChatMessage(role=item.role, content=item.content, reasoning_content=thought)
            )
            thoughts = ""
    return found


def _called(item: Item, last: ChatMessage | None, thoughts: str) -> list[ChatMessage]:
    """The messages of a call: it belongs to the `last` message if that is an answer. Calls that a
    server makes itself have their result with them."""
    arguments = item.arguments, item.input, item.action, item.operation, item.code, item.queries
    given = next((each for each in arguments if each is not None), None)
    name = item.name or item.type.removesuffix("_call")
    call = ToolCall(id=item.call_id or item.id, function=Called(name=name, arguments=given))
    outputs = (each for each in (item.output, item.outputs, item.results) if each is not None)
    results = [_result(item, each) for each in outputs]
    if last is None or last.role != "assistant":
        answer = ChatMessage(role="assistant", reasoning_content=thoughts, tool_calls=[call])
        return [answer, *results]
    last.tool_calls = [*(last.tool_calls or ()), call]
    return results


def _result(item: Item, output: Any) -> ChatMessage:
    id = item.call_id or item.id
    return ChatMessage(role="tool", tool_call_id=id, content=result_text(output))


def _texts(item: Item) -> list[str]:
    content = item.content or item.summary or []
    if isinstance(content, str):
        return [content]
    return [part.text if isinstance(part, ContentPart) else part for part in content]


class ResponsesFormat:
    """Formats one answer: an item for the thinking, if there is any, and one for the text."""

    def __init__(
        self, id: str, model: str, request: ResponsesRequest, remembered: Remembered
    ) -> None:
        self._key, self._id, self._request, self._remembered = id, f"resp_{id}", request, remembered
        self._response: dict[str, Any] = {
            "id": self._id,
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": model,
            "output": [],
            "parallel_tool_calls": True,
            "previous_response_id": request.previous_response_id,
            "store": request.store,
            "temperature": request.temperature,
            "text": {"format": {"type": "text"}},
            "tool_choice": request.tool_choice or "auto",
            "tools": [],
            "top_p": request.top_p,
            "truncation": "disabled",
            "usage": None,
        }
        self._events = 0
        self._items: list[dict[str, Any]] = []
        """Items streamed so far; all but the last are complete."""

    def whole(self, answer: ServedAnswer) -> dict[str, Any]:
        status = "incomplete" if answer.cut_off else "completed"
        if not self._items:
            if answer.turn.thinking:
                self._items.append(self._item("reasoning", answer.turn.thinking))
            self._items.append(self._item("message", answer.turn.text))
            self._part["annotations"] = _file_citations(answer)
        self._items[-1]["status"] = status
        if self._request.store:
            said = [Item.model_validate(item) for item in self._items]
            previous = self._request.previous_response_id
            self._remembered.add(self._id, Exchange(previous, self._request.items, said))
        return self._response | {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if answer.cut_off else None,
            "output": self._items,
            "usage": _responses_usage(answer),
        }

    def start(self, answer: ServedAnswer) -> str:
        kinds = () if self._events else ("response.created", "response.in_progress")
        return "".join(self._event(kind, response=self._response) for kind in kinds)

    def waiting(self, answer: ServedAnswer, is_due: bool) -> str:
        if started := self.start(answer):
            return started
        return self._event("response.in_progress", response=self._response) if is_due else ""

    def piece(self, piece: AnswerPiece) -> str:
        return self._delta("reasoning", piece.thinking) + self._delta("message", piece.text)

    def end(self, answer: ServedAnswer) -> str:
        found = "" if self._is_open("message") else self._open("message")
        self._part["annotations"] = annotations = _file_citations(answer)
        for index, annotation in enumerate(annotations):
            found += self._event(
                "response.output_text.annotation.added",
                **self._place,
                annotation_index=index,
                annotation=annotation,
            )
        found += self._close("incomplete" if answer.cut_off else "completed")
        response = self.whole(answer)
        return found + self._event(f"response.{response['status']}", response=response)

    def failed(self, message: str, status: int, code: str | None = None) -> str:
        error = {"code": code or ("server_error" if status >= 500 else "invalid_prompt")}
        response = self._response | {"status": "failed", "error": error | {"message": message}}
        return self._event("response.failed", response=response)

    def _delta(self, kind: str, text: str) -> str:
        if not text:
            return ""
        opening = "" if self._is_open(kind) else self._open(kind)
        self._part["text"] += text
        more: dict[str, Any] = {} if kind == "reasoning" else {"logprobs": []}
        return opening + self._event(
            f"response.{self._part['type']}.delta", **self._place, delta=text, **more
        )

    def _is_open(self, kind: str) -> bool:
        return bool(self._items) and self._items[-1]["type"] == kind

    def _open(self, kind: str) -> str:
        found = self._close("completed") if self._items else ""
        self._items.append(self._item(kind, ""))
        empty = {**self._items[-1], "content": []}
        found += self._event("response.output_item.added", output_index=self._last, item=empty)
        return found + self._event("response.content_part.added", **self._place, part=self._part)

    def _close(self, status: str) -> str:
        """Events that end the text, its part and its item, in this order."""
        item, part = self._items[-1], self._part
        item["status"] = status
        more: dict[str, Any] = {} if item["type"] == "reasoning" else {"logprobs": []}
        done = self._event(
            f"response.{part['type']}.done", **self._place, text=part["text"], **more
        )
        done += self._event("response.content_part.done", **self._place, part=part)
        return done + self._event("response.output_item.done", output_index=self._last, item=item)

    @property
    def _last(self) -> int:
        return len(self._items) - 1

    @property
    def _part(self) -> dict[str, Any]:
        part: dict[str, Any] = self._items[-1]["content"][0]
        return part

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._items[-1]["id"], "output_index": self._last, "content_index": 0}

    def _item(self, kind: str, text: str) -> dict[str, Any]:
        id = f"{self._key}_{len(self._items)}"
        item = {"type": kind, "status": "in_progress"}
        if kind == "reasoning":
            part: dict[str, Any] = {"type": "reasoning_text", "text": text}
            return item | {"id": f"rs_{id}", "summary": [], "content": [part]}
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        return item | {"id": f"msg_{id}", "role": "assistant", "content": [part]}

    def _event(self, kind: str, **content: Any) -> str:
        self._events += 1
        return _named_event(kind, sequence_number=self._events - 1, **content)


def _file_citations(answer: ServedAnswer) -> list[dict[str, Any]]:
    """`index` is the end of the cited text. The other indices are not part of the API."""
    return [
        {
            "type": "file_citation",
            "file_id": f"document_{note.citation.message}_{note.citation.document}",
            "filename": note.document.name,
            "index": note.citation.end,
            "start_index": note.citation.start,
            "end_index": note.citation.end,
            "quote": note.passage,
        }
        for note in answer.footnotes
    ]


def _responses_usage(answer: ServedAnswer) -> dict[str, Any]:
    progress = answer.turn.progress
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": progress.reused_tokens, "cache_write_tokens": 0},
        "output_tokens": progress.generated_tokens,
        "output_tokens_details": {"reasoning_tokens": progress.thinking_tokens},
        "total_tokens": answer.prompt_tokens + progress.generated_tokens,
        "specchat": answer.report(),
    }
