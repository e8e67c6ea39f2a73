"""OpenAI's responses."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fastapi import FastAPI

from app.extras.serve.answers import AnswerPiece, ServedAnswer
from app.extras.serve.fields import BadRequest, Thoughts
from app.extras.serve.formats import named_event, openai_error
from app.extras.serve.message_fields import (
    Called,
    ChatMessage,
    ContentPart,
    Item,
    Items,
    ToolCall,
)
from app.extras.serve.requests import (
    AnsweredRequest,
    Limit,
    Tools,
    to_messages,
)
from app.extras.serve.server import Server, add_answers
from app.extras.serve.tool_texts import result_text

PATHS = ("/v1/responses",)
error = openai_error


class ResponsesRequest(Thoughts, Tools, AnsweredRequest):
    """`/v1/responses`."""

    input: str | Items[Item]
    instructions: str | None = None
    max_output_tokens: Limit | None = None
    previous_response_id: str | None = None
    store: bool = True
    metadata: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    include: Items[str] | None = None
    top_logprobs: int | None = None
    max_tool_calls: int | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    background: bool = False
    conversation: Any = None
    prompt: Any = None

    @property
    def limit(self) -> int | None:
        return self.max_output_tokens

    def check(self) -> None:
        super().check()
        form = (self.text or {}).get("format")
        if isinstance(form, dict) and form.get("type", "text") != "text":
            raise BadRequest("Only text output is supported: leave `text.format` out.")
        if self.top_logprobs or any("logprobs" in each for each in self.include or []):
            raise BadRequest("Log probabilities are not supported: leave `logprobs` out.")
        if self.background:
            raise BadRequest("Background responses are not supported: leave `background` out.")
        if self.conversation is not None or self.prompt is not None:
            raise BadRequest(
                "Conversations and prompts are not stored: send the messages as `input`."
            )

    @property
    def tool_results(self) -> Iterator[Any]:
        yield from (item.output for item in self.items)

    @property
    def items(self) -> list[Item]:
        return (
            [Item(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        )


BODIES = (ResponsesRequest,)


def add_routes(app: FastAPI, server: Server) -> None:
    remembered = Remembered()
    (path,) = PATHS
    add_answers(
        app,
        server,
        path,
        ResponsesRequest,
        lambda body: to_messages(conversation(body, remembered)),
        lambda body, id: ResponsesFormat(id, server.pair.model, body, remembered),
    )


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

    error = staticmethod(error)

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
        return "".join(self.event(kind, response=self._response) for kind in kinds)

    def waiting(self, answer: ServedAnswer, is_due: bool) -> str:
        if started := self.start(answer):
            return started
        return self.event("response.in_progress", response=self._response) if is_due else ""

    def piece(self, piece: AnswerPiece) -> str:
        return self._delta("reasoning", piece.thinking) + self._delta("message", piece.text)

    def end(self, answer: ServedAnswer) -> str:
        found = "" if self._is_open("message") else self._open("message")
        self._part["annotations"] = annotations = _file_citations(answer)
        for index, annotation in enumerate(annotations):
            found += self.event(
                "response.output_text.annotation.added",
                **self._place,
                annotation_index=index,
                annotation=annotation,
            )
        found += self._close("incomplete" if answer.cut_off else "completed")
        response = self.whole(answer)
        return found + self.event(f"response.{response['status']}", response=response)

    def failed(self, message: str, status: int, code: str | None = None) -> str:
        error = {"code": code or ("server_error" if status >= 500 else "invalid_prompt")}
        response = self._response | {"status": "failed", "error": error | {"message": message}}
        return self.event("response.failed", response=response)

    def _delta(self, kind: str, text: str) -> str:
        if not text:
            return ""
        opening = "" if self._is_open(kind) else self._open(kind)
        self._part["text"] += text
        more: dict[str, Any] = {} if kind == "reasoning" else {"logprobs": []}
        return opening + self.event(
            f"response.{self._part['type']}.delta", **self._place, delta=text, **more
        )

    def _is_open(self, kind: str) -> bool:
        return bool(self._items) and self._items[-1]["type"] == kind

    def _open(self, kind: str) -> str:
        found = self._close("completed") if self._items else ""
        self._items.append(self._item(kind, ""))
        empty = {**self._items[-1], "content": []}
        found += self.event("response.output_item.added", output_index=self._last, item=empty)
        return found + self.event("response.content_part.added", **self._place, part=self._part)

    def _close(self, status: str) -> str:
        """Events that end the text, its part and its item, in this order."""
        item, part = self._items[-1], self._part
        item["status"] = status
        more: dict[str, Any] = {} if item["type"] == "reasoning" else {"logprobs": []}
        done = self.event(f"response.{part['type']}.done", **self._place, text=part["text"], **more)
        done += self.event("response.content_part.done", **self._place, part=part)
        return done + self.event("response.output_item.done", output_index=self._last, item=item)

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

    def event(self, kind: str, **content: Any) -> str:
        self._events += 1
        return named_event(kind, sequence_number=self._events - 1, **content)


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
