"""OpenAI's Responses: the conversation that a request continues, and answers as it has them."""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.serve.answers import Answer, Piece
from app.serve.requests import BadRequest, ChatMessage, Item, Part, ResponsesRequest

MAX_REMEMBERED, OVERHEAD = 20_000_000, 1_000
"""Characters of the requests and answers that later requests may name, and what is added for each
answer."""


class UnknownResponse(BadRequest):
    code = "previous_response_not_found"


@dataclass(frozen=True, slots=True)
class Turn:
    """What a request sent, and the answer; `previous` is the response that it continued."""

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
    """The last responses, by id, in memory only. Safe on several threads."""

    def __init__(self) -> None:
        self._turns: OrderedDict[str, Turn] = OrderedDict()
        self._items: dict[str, Item] = {}
        self._size = 0
        self._lock = threading.Lock()

    def add(self, id: str, turn: Turn) -> None:
        """The oldest are forgotten for it."""
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
        """All items of a conversation, up to the answer of this response. Raises BadRequest."""
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
    """Its messages. Those of `instructions` hold for one request only. Raises BadRequest."""
    found, thoughts = [], ""
    if request.instructions:
        found.append(ChatMessage(role="system", content=request.instructions))
    for given in [*remembered.until(request.previous_response_id), *request.items]:
        item = remembered.item(given.id) if given.type == "item_reference" else given
        if item.type == "reasoning":
            thoughts = "\n\n".join(_texts(item))
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


def _texts(item: Item) -> list[str]:
    content = item.content or item.summary or []
    if isinstance(content, str):
        return [content]
    return [part.text if isinstance(part, Part) else part for part in content]


class ResponsesFormat:
    """Of one answer: an item of what the model thought, if it did, and one of its text."""

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
        """Those that were streamed; all but the last one are complete."""

    def whole(self, answer: Answer) -> dict[str, Any]:
        status = "incomplete" if answer.cut_off else "completed"
        if not self._items:
            thought = [self._item("reasoning", 0, answer.thinking)] if answer.thinking else []
            self._items = [*thought, self._item("message", len(thought), answer.text)]
        self._items[-1]["status"] = status
        if self._request.store:
            said = [Item.model_validate(item) for item in self._items]
            previous = self._request.previous_response_id
            self._remembered.add(self._id, Turn(previous, self._request.items, said))
        return self._response | {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if answer.cut_off else None,
            "output": self._items,
            "usage": usage(answer),
        }

    def start(self, answer: Answer) -> str:
        return self._event("response.created", response=self._response) + self._event(
            "response.in_progress", response=self._response
        )

    def piece(self, piece: Piece) -> str:
        found = ""
        if piece.thinking:
            found += self._delta("reasoning", piece.thinking)
        if piece.text:
            found += self._delta("message", piece.text)
        return found

    def end(self, answer: Answer) -> str:
        found = "" if self._is_open("message") else self._open("message")
        found += self._close("incomplete" if answer.cut_off else "completed")
        response = self.whole(answer)
        return found + self._event(f"response.{response['status']}", response=response)

    def failed(self, message: str, status: int, code: str | None = None) -> str:
        error = {"code": code or ("server_error" if status >= 500 else "invalid_prompt")}
        response = self._response | {"status": "failed", "error": error | {"message": message}}
        return self._event("response.failed", response=response)

    def _delta(self, kind: str, text: str) -> str:
        opening = "" if self._is_open(kind) else self._open(kind)
        self._part["text"] += text
        more: dict[str, Any] = {} if kind == "reasoning" else {"logprobs": []}
        return opening + self._event(
            f"response.{self._part['type']}.delta", **self._place, delta=text, **more
        )

    def _is_open(self, kind: str) -> bool:
        return bool(self._items) and self._items[-1]["type"] == kind

    def _open(self, kind: str) -> str:
        before = self._close("completed") if self._items else ""
        self._items.append(self._item(kind, len(self._items), ""))
        empty = {**self._items[-1], "content": []}
        added = self._event("response.output_item.added", output_index=self._last, item=empty)
        return (
            before
            + added
            + self._event("response.content_part.added", **self._place, part=self._part)
        )

    def _close(self, status: str) -> str:
        """The ends of the text, its part and its item, in this order."""
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

    def _item(self, kind: str, index: int, text: str) -> dict[str, Any]:
        if kind == "reasoning":
            content = [{"type": "reasoning_text", "text": text}]
            id = f"rs_{self._key}_{index}"
            return {
                "id": id,
                "type": kind,
                "status": "in_progress",
                "summary": [],
                "content": content,
            }
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        item = {"id": f"msg_{self._key}_{index}", "type": kind, "status": "in_progress"}
        return item | {"role": "assistant", "content": [part]}

    def _event(self, kind: str, **content: Any) -> str:
        data = {"type": kind, "sequence_number": self._events, **content}
        self._events += 1
        return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"


def usage(answer: Answer) -> dict[str, Any]:
    return {
        "input_tokens": answer.prompt_tokens,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": answer.generated,
        "output_tokens_details": {"reasoning_tokens": answer.thought},
        "total_tokens": answer.prompt_tokens + answer.generated,
        "specchat": answer.report(),
    }
