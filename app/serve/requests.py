"""What clients may send, and the `Ask` that it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from app.protocol.commands import Ask
from app.protocol.options import AUTO_KEEP, DEFAULT_SAMPLING, Mode, Sampling
from app.protocol.prompt import Document, Message, Role
from app.serve.cutting import cut

MAX_STOPS, MAX_ITEMS = 128, 10_000
"""Stop sequences, and items of any other list."""
SPARSE_HEADER, KEEP_HEADER = "x-specprefill", "x-specprefill-keep-pct"
"""For clients that cannot send fields of their own."""


HEADER_VALUES: dict[str, bool | str] = {"true": True, "false": False, "auto": "auto"}


class BadRequest(ValueError):
    """One sentence about what is wrong with a request, and what to do; and a code, if any, by which
    clients know it."""

    code: str | None = None


T = TypeVar("T")
Items = Annotated[list[T], Field(max_length=MAX_ITEMS, fail_fast=True)]
"""Every list of a request: one mistake in it is enough."""
TOOLS_IGNORED = (
    "Tools are not supported: those of the request were ignored, and the answer is text."
)
Stops = Annotated[list[str], Field(max_length=MAX_STOPS, fail_fast=True)]
Tokens = Annotated[int, Field(ge=1, le=1_000_000)]
NO_LIMIT = -1
"""What programs send for fields that shall not limit anything."""
Limit = Annotated[
    int,
    Field(ge=NO_LIMIT, le=1_000_000),
    AfterValidator(lambda limit: None if limit == NO_LIMIT else _at_least_one(limit)),
]
"""`Tokens`, or no limit."""


def _at_least_one(limit: int) -> int:
    if limit < 1:
        raise ValueError("Input should be greater than or equal to 1")
    return limit


class _Fields(BaseModel):
    """Unknown fields are ignored, and null is as good as absent: clients send many."""

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


class _Common(_Fields):
    """Fields of every route that answers."""

    model: str = ""
    stream: bool = False
    temperature: float | None = Field(None, ge=0, le=10, allow_inf_nan=False)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=NO_LIMIT, le=1_000_000)
    specprefill: bool | Literal["auto"] | None = None
    """true reads what matters, false everything, "auto" what is predicted to be faster."""
    specprefill_keep_pct: float | None = Field(None, gt=0, le=1)
    """The fraction of documents and earlier messages that is read; without it the scores choose."""


class _Tools(_Fields):
    """Editors send tools with every question, and most leave the choice to the model: it answers
    in text."""

    tools: Items[Any] | None = None
    functions: Items[Any] | None = None
    tool_choice: Any = None
    function_call: Any = None

    def check_tools(self) -> None:
        """Raises BadRequest where the answer must be a call."""
        if self._has_tools and self._choice not in (None, "auto", "none"):
            raise BadRequest(
                "Tools are not supported: set `tool_choice` to auto or none, or leave `tools` out."
            )

    @property
    def note(self) -> str:
        """What was ignored of the request, as one sentence, if anything."""
        return TOOLS_IGNORED if self._has_tools and self._choice != "none" else ""

    @property
    def _has_tools(self) -> bool:
        return bool(self.tools or self.functions)

    @property
    def _choice(self) -> Any:
        choice = self.tool_choice or self.function_call
        if not isinstance(choice, dict):
            return choice
        kind = choice.get("type", "function")
        return choice.get("mode", kind) if kind == "allowed_tools" else kind


class Part(_Fields):
    """A part of a message: text, what the model thought before it, or what is refused."""

    type: str
    text: str = ""
    thinking: str = ""
    refusal: str = ""
    source: dict[str, Any] | None = None
    title: str | None = None


class ChatMessage(_Fields):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Items[str | Part] | None = None
    reasoning_content: str | None = None
    """What the model thought before this answer, as we send it."""


class StreamOptions(_Fields):
    include_usage: bool = False


class _OpenAi(_Common):
    max_tokens: Limit | None = None
    stop: str | Stops | None = None
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    """-1 draws one, as for llama.cpp."""
    n: int = 1
    stream_options: StreamOptions | None = None

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class ChatRequest(_Tools, _OpenAi):
    """`/v1/chat/completions`."""

    messages: Items[ChatMessage] = Field(min_length=1)
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None

    def check(self) -> None:
        """Raises BadRequest for what is not supported."""
        if self.n != 1:
            raise BadRequest("n must be 1: ask again for another answer.")
        self.check_tools()
        if self.logprobs or self.top_logprobs:
            raise BadRequest("Log probabilities are not supported: leave `logprobs` out.")
        if ((self.response_format or {}).get("type") or "text") != "text":
            raise BadRequest("Only text is written: leave `response_format` out.")


class CompletionRequest(_OpenAi):
    """`/v1/completions`: a text that the model continues, without its chat template."""

    prompt: str | Items[str]
    echo: bool = False
    logprobs: int | None = None
    suffix: str | None = None

    def check(self) -> None:
        """Raises BadRequest for what is not supported."""
        if self.n != 1:
            raise BadRequest("n must be 1: ask again for another answer.")
        if isinstance(self.prompt, list) and len(self.prompt) != 1:
            raise BadRequest("Send one prompt at a time.")
        if not self.text:
            raise BadRequest("The prompt is empty: send a text to continue.")
        if self.logprobs:
            raise BadRequest("Log probabilities are not supported: leave `logprobs` out.")
        if self.suffix or self.echo:
            raise BadRequest("`suffix` and `echo` are not supported: leave them out.")

    @property
    def text(self) -> str:
        return self.prompt if isinstance(self.prompt, str) else self.prompt[0]


class CountRequest(_Tools):
    """`/v1/messages/count_tokens`."""

    model: str = ""
    messages: Items[ChatMessage] = Field(min_length=1)
    system: str | Items[str | Part] | None = None

    def check(self) -> None:
        """Raises BadRequest for what is not supported."""
        self.check_tools()

    @property
    def all_messages(self) -> list[ChatMessage]:
        system = [ChatMessage(role="system", content=self.system)] if self.system else []
        return system + self.messages


class MessagesRequest(CountRequest, _Common):
    """`/v1/messages`."""

    max_tokens: Tokens
    stop_sequences: Stops | None = None


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where a request says nothing."""

    mode: Mode = Mode.AUTO
    keep: float = AUTO_KEEP
    sampling: Sampling = DEFAULT_SAMPLING
    within_seconds: float = 0.0


class Item(_Fields):
    """Of the input of `/v1/responses`: a message, what a model thought before one, or the name of
    an item that the server knows."""

    type: str = "message"
    id: str = ""
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | Items[str | Part] | None = None
    summary: Items[Part] | None = None


class ResponsesRequest(_Tools, _Common):
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

    def check(self) -> None:
        """Raises BadRequest for what is not supported."""
        self.check_tools()
        form = (self.text or {}).get("format")
        if isinstance(form, dict) and form.get("type", "text") != "text":
            raise BadRequest("Only text is written: leave `text.format` out.")
        if (self.text or {}).get("verbosity", "medium") not in ("medium", None):
            raise BadRequest("`text.verbosity` is not supported: leave it out.")
        if self.top_logprobs or any("logprobs" in each for each in self.include or []):
            raise BadRequest("Log probabilities are not supported: leave them out.")
        if self.background:
            raise BadRequest("Answers are not written in the background: leave `background` out.")
        if self.conversation is not None or self.prompt is not None:
            raise BadRequest(
                "Conversations and prompts are not stored: send the messages as `input`."
            )

    @property
    def items(self) -> list[Item]:
        return (
            [Item(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        )


def to_messages(messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """Raises BadRequest."""
    found = []
    for message in messages:
        if message.role in ("tool", "function"):
            raise BadRequest("Tools are not supported: leave out messages of theirs.")
        parts, thoughts, documents = _parts(message.content)
        if message.role == "user":
            cut_out, text = cut(parts)
            found.append(Message(Role.USER, text, (*documents, *cut_out)))
        elif message.role == "assistant":
            thinking = message.reasoning_content or "\n\n".join(thoughts)
            found.append(Message(Role.ASSISTANT, "\n\n".join(parts), thinking=thinking))
        else:
            found.append(Message(Role.SYSTEM, "\n\n".join(parts)))
    if all(message.role is not Role.USER for message in found):
        raise BadRequest("There is no question: send a message of the role `user`.")
    return tuple(found)


def _parts(
    content: str | list[str | Part] | None,
) -> tuple[list[str], list[str], tuple[Document, ...]]:
    """A message's texts, what was thought before them, and the documents that came as such."""
    if isinstance(content, str):
        return [content], [], ()
    texts: list[str] = []
    thoughts: list[str] = []
    documents: list[Document] = []
    for part in content or []:
        if isinstance(part, str):
            texts.append(part)
            continue
        source = part.source or {}
        if part.type in ("text", "input_text", "output_text"):
            texts.append(part.text)
        elif part.type == "refusal":
            texts.append(part.refusal)
        elif part.type in ("thinking", "redacted_thinking"):
            thoughts += [part.thinking] if part.thinking else []
        elif part.type == "document" and isinstance(source.get("data"), str | None):
            if source.get("type") != "text" or not source.get("data"):
                raise BadRequest("Documents must be plain text: send `source` of type `text`.")
            name = part.title or f"document {len(documents) + 1}"
            documents.append(Document(name, source["data"]))
        else:
            raise BadRequest(f"Only text is read: leave out parts of type {part.type[:50]!r}.")
    return texts or [""], thoughts, tuple(documents)


def to_ask(
    messages: tuple[Message, ...],
    request: _Common,
    headers: Mapping[str, str],
    defaults: Defaults,
    max_tokens: int | None,
) -> Ask:
    """Without a conversation. Raises BadRequest."""
    seed = getattr(request, "seed", None)
    given = {
        "max_tokens": max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": 0 if request.top_k == NO_LIMIT else request.top_k,
        "seed": None if seed is None or seed == -1 else seed % 2**63,
    }
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    sampling = replace(defaults.sampling, **values)
    mode, keep = _reading(request, headers, defaults)
    return Ask(0, messages, mode, keep, sampling, within_seconds=defaults.within_seconds)


def _reading(
    request: _Common, headers: Mapping[str, str], defaults: Defaults
) -> tuple[Mode, float]:
    """Mode and keep: the body's, else the headers', else the defaults."""
    asked: bool | str | None = request.specprefill
    keep = request.specprefill_keep_pct
    if asked is None and (text := headers.get(SPARSE_HEADER)) is not None:
        if text.strip().lower() not in HEADER_VALUES:
            raise BadRequest(f"{SPARSE_HEADER} must be true, false or auto.")
        asked = HEADER_VALUES[text.strip().lower()]
    if keep is None and (text := headers.get(KEEP_HEADER)) is not None:
        try:
            keep = float(text)
        except ValueError:
            keep = 0.0
        if not 0 < keep <= 1:
            raise BadRequest(f"{KEEP_HEADER} must be above 0, and at most 1.")
    if asked is None:
        return (defaults.mode, defaults.keep) if keep is None else (Mode.SPARSE, keep)
    mode = Mode.AUTO if asked == "auto" else Mode.SPARSE if asked else Mode.FULL
    return mode, defaults.keep if keep is None else keep
