"""Tool calls and their results as text. Tools are not supported, but a conversation in which a
model of another server has used some is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from app.extras.serve.cutting import LONG, reminders_apart, text_document
from app.extras.serve.fields import BadRequest
from app.extras.serve.message_fields import Called, ChatMessage
from app.protocol.prompt import Message, Role

LABEL = 100
"""Maximum characters of a tool's name, and of the argument that is shown with it."""
MAX_ARGUMENTS = 100_000
"""Maximum characters of arguments in which that argument is looked for."""
MEDIA = "[image]", "[document]", "[file]", "[audio]", "[video]"
"""Stand for the parts of results that are not text."""
CALL = "a tool call"
"""Stands for a call whose name is not known."""


def call_text(name: Any, arguments: Any) -> str:
    shown = (
        arguments if isinstance(arguments, str) else "" if arguments is None else _json(arguments)
    )
    return f"[called {_name(name)} with {shown}]" if shown else f"[called {_name(name)}]"


def calls(message: ChatMessage, labels: dict[str, str]) -> Iterator[str]:
    """The text of each call of an assistant's message. Stores their labels."""
    found = [
        (each.id, each.function or each.custom or Called()) for each in message.tool_calls or []
    ]
    if message.function_call is not None:
        found.append((message.function_call.name, message.function_call))
    for id, call in found:
        given = call.input if call.arguments is None else call.arguments
        labels[key(id)] = label(call.name, given)
        yield call_text(call.name, given)


def key(id: Any) -> str:
    return id if isinstance(id, str) else ""


def label(name: Any, arguments: Any) -> str:
    """A name for a call's result: the tool's name and the first text among the arguments, such as
    `read app/a.py`."""
    if isinstance(arguments, str) and len(arguments) <= MAX_ARGUMENTS:
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            arguments = None
    values = arguments.values() if isinstance(arguments, dict) else ()
    texts = (each for each in values if isinstance(each, str))
    first = next((each for each in texts if 0 < len(each) <= LABEL and "\n" not in each), "")
    # JSON in JSON may have half of a surrogate pair, which cannot be encoded.
    return f"{_name(name)} {first}".strip().encode(errors="replace").decode()


def result_text(content: Any) -> str:
    """The text of a result, which is a text, a list of texts and parts, or any other value. Images
    and files are replaced by a word."""
    if isinstance(content, list):
        return "\n".join(filter(None, map(_part_text, content)))
    return content if isinstance(content, str) else "" if content is None else _json(content)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call."""

    label: str
    content: Any
    failed: bool = False

    @property
    def text(self) -> str:
        text = result_text(self.content)
        return f"{self._heading}\n{text}" if text else self._heading

    @property
    def _heading(self) -> str:
        return f"[{'error' if self.failed else 'result'} of {self.label}]"

    @property
    def message(self) -> Message:
        """A long result is a document. Reminders in it are always read."""
        if len(text := result_text(self.content)) < LONG:
            return Message(Role.USER, self.text)
        reminders, text = reminders_apart(text)
        documents = (text_document(self.label, text),) if text.strip() else ()
        return Message(Role.USER, self._heading, documents, context="\n\n".join(reminders))


def has_media(content: Any) -> bool:
    return isinstance(content, list) and any(_part_text(each) in MEDIA for each in content)


def _part_text(part: Any) -> str:
    if not isinstance(part, dict):
        return part if isinstance(part, str) else _json(part)
    source, nested = part.get("source"), part.get("content")
    if isinstance(source, dict) and source.get("type") in ("text", "content"):
        nested = source.get("data") or source.get("content")
    nested = [{"text": nested}] if isinstance(nested, str) else nested
    texts = nested if isinstance(nested, list) else [part]
    found = [each["text"] for each in texts if isinstance(each, dict) and "text" in each]
    if found and all(isinstance(each, str) for each in found):
        about = [part.get("title"), part.get("context")]
        return "\n".join([*(each for each in about if isinstance(each, str)), *found])
    kind = str(part.get("type"))
    return next((each for each in MEDIA if each[1:-1] in kind), "") or _json(part)


def _name(name: Any) -> str:
    return " ".join(name.split())[:LABEL] if isinstance(name, str) and name.strip() else "a tool"


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise BadRequest("The request is nested too deeply.") from None
