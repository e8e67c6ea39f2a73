"""The messages in requests, as clients send them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_ITEMS = 10_000
"""Maximum items of a list."""
T = TypeVar("T")
Items = Annotated[list[T], Field(max_length=MAX_ITEMS, fail_fast=True)]
"""Type of every list in a request. Only the first invalid item is reported."""


class Fields(BaseModel):
    """Base of all requests. A field that is null counts as absent, because clients send many."""

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}

    def check(self) -> None:
        """Raise BadRequest for what is not supported."""


class ContentPart(Fields):
    """A part of a message: text, thinking, a file, a tool call or result, or a type that is
    refused."""

    type: str
    id: Any = None
    name: Any = None
    input: Any = None
    tool_use_id: Any = None
    content: Any = None
    """A tool's or a search's result in Anthropic's API."""
    is_error: bool = False
    text: str = ""
    thinking: str = ""
    refusal: str = ""
    source: dict[str, Any] | str | None = None
    title: str | None = None
    context: str = ""
    """A document in Anthropic's API; the source of a search result is a text."""
    file: dict[str, Any] | None = None
    """A file in OpenAI's chat completions."""
    filename: str | None = None
    file_data: str | None = None
    """A file in OpenAI's responses."""


class Called(Fields):
    """The name and the arguments of a tool call."""

    name: Any = None
    arguments: Any = None
    input: Any = None


class ToolCall(Fields):
    """A tool call in OpenAI's chat completions."""

    id: Any = None
    function: Called | None = None
    custom: Called | None = None


class ChatMessage(Fields):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Items[str | ContentPart] | None = None
    name: Any = None
    tool_calls: Items[ToolCall] | None = None
    function_call: Called | None = None
    tool_call_id: Any = None
    """The call of which this message is the result."""
    reasoning_content: str | None = None
    """The thinking before this answer, in the field in which specchat returns it."""


class Item(Fields):
    """An input item of `/v1/responses`: a message, the thinking before one, a tool call or its
    result, or a reference to an item that the server remembers."""

    type: str = "message"
    id: str = ""
    call_id: Any = None
    name: Any = None
    arguments: Any = None
    input: Any = None
    action: Any = None
    operation: Any = None
    code: Any = None
    queries: Any = None
    output: Any = None
    outputs: Any = None
    results: Any = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | Items[str | ContentPart] | None = None
    summary: Items[ContentPart] | None = None
