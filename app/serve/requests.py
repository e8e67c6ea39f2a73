"""Parses and checks requests, and converts them to an `Ask` for the engine."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import models_json_schema

from app.protocol.commands import Ask
from app.protocol.options import (
    AUTO_KEEP,
    DEFAULT_SAMPLING,
    NO_ANSWER_LIMIT,
    Mode,
    Sampling,
)
from app.protocol.prompt import Document, Message, Role
from app.serve.cutting import LONG, cut
from app.serve.fields import (
    NO_LIMIT,
    BadRequest,
    RequestError,
    Thoughts,
    ignored,
    refuse_unsupported,
)
from app.settings.definitions import Settings
from app.util.json_amount import is_too_much

MAX_VALUES, MAX_CONTAINERS = 1_000_000, 100_000
"""Maximum values in a request, and lists and objects among them. While JSON is parsed, no other
thread runs."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""Matches a surrogate as JSON escapes it. Most are halves of a pair."""
_SCHEMAS = "#/components/schemas/{model}"
Body = TypeVar("Body", bound=BaseModel)


async def read(model: type[Body], request: Request) -> Body:
    """Read and parse the body of a request. Raises BadRequest."""
    return await asyncio.to_thread(read_body, model, await request.body())


def read_body(model: type[Body], body: bytes) -> Body:
    """Raises BadRequest."""
    value = _parse(body)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))[:200]
        message = str(first["msg"]).removeprefix("Value error, ")[:300]
        raise BadRequest(f"{where}: {message}" if where else message) from None


def _parse(body: bytes) -> dict[str, Any]:
    """Raises BadRequest, also for unpaired surrogates, which can neither be encoded nor stored."""
    problem = "The request is not JSON in UTF-8: send one object."
    try:
        text = body.decode("utf-8-sig")
        if not is_too_much(text, MAX_CONTAINERS, MAX_VALUES):
            value = json.loads(text)
            if _SURROGATE.search(text):
                json.dumps(value, ensure_ascii=False).encode()
            if isinstance(value, dict):
                return value
        else:
            problem = (
                f"The request has more than {MAX_VALUES:,} values, or {MAX_CONTAINERS:,} lists and"
                " objects: send less."
            )
    except UnicodeEncodeError:
        problem = "The request has half of a surrogate pair, which is not valid Unicode."
    except RecursionError:
        problem = "The request is nested too deeply."
    except ValueError:
        pass
    raise BadRequest(problem)


def takes(model: type[BaseModel]) -> dict[str, Any]:
    """A route's `openapi_extra`, which describes the body that `read` parses."""
    schema = {"$ref": _SCHEMAS.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def openapi(app: FastAPI, models: tuple[type[BaseModel], ...]) -> dict[str, Any]:
    """The OpenAPI schema of all routes, including the models of request bodies."""
    if app.openapi_schema is None:
        found = get_openapi(title=app.title, version=app.version, routes=app.routes)
        _, bodies = models_json_schema(
            [(each, "validation") for each in models], ref_template=_SCHEMAS
        )
        found.setdefault("components", {}).setdefault("schemas", {}).update(bodies["$defs"])
        app.openapi_schema = found
    return app.openapi_schema


MAX_STOPS, MAX_ITEMS = 128, 10_000
"""Maximum stop sequences, and items of any other list."""
MAX_MARKS = 100
"""Documents of a message whose names are removed around the question."""
MAX_STOP_IDS, MAX_BIASES, MAX_PROMPT = 64, 1_000, 1_000_000
"""Maximum stop token ids, logit biases, and token ids of a prompt."""
SPARSE_HEADER, KEEP_HEADER = "x-specprefill", "x-specprefill-keep-pct"
"""Headers for clients that cannot send custom fields."""


HEADER_VALUES: dict[str, bool | str] = {"true": True, "false": False, "auto": "auto"}

T = TypeVar("T")
Items = Annotated[list[T], Field(max_length=MAX_ITEMS, fail_fast=True)]
"""Type of every list in a request. Only the first invalid item is reported."""
TOOLS_IGNORED = (
    "Tools are not supported: those of the request were ignored, and the answer is text."
)
Stops = Annotated[list[str], Field(max_length=MAX_STOPS, fail_fast=True)]
Limit = Annotated[
    int,
    Field(ge=NO_LIMIT, le=1_000_000),
    AfterValidator(lambda limit: None if limit == NO_LIMIT else _at_least_one(limit)),
]
"""Maximum tokens of an answer; None: unlimited."""


def _at_least_one(limit: int) -> int:
    if limit < 1:
        raise ValueError("Input should be greater than or equal to 1")
    return limit


def _not_too_many(given: Any) -> Any:
    if isinstance(given, dict) and len(given) > MAX_BIASES:
        raise ValueError(f"Dictionary should have at most {MAX_BIASES} items")
    return given


class _Fields(BaseModel):
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


Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Repetition = Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Biases = Annotated[dict[TokenId, Bias], BeforeValidator(_not_too_many)]
"""Bias of each token id. The number of entries is checked before the entries."""
StopIds = Annotated[list[TokenId], Field(max_length=MAX_STOP_IDS, fail_fast=True)]


class AnsweredRequest(_Fields):
    """Fields of all routes that return an answer. Other fields are checked against `fields.py`."""

    model_config = ConfigDict(extra="allow")

    model: str = ""
    stream: bool = False
    temperature: float | None = Field(None, ge=0, le=10, allow_inf_nan=False)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=NO_LIMIT, le=1_000_000)
    min_p: float | None = Field(None, ge=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    """-1 draws a random seed, as in llama.cpp."""
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    repeat_penalty: Repetition | None = None
    repetition_context_size: int | None = Field(None, ge=NO_LIMIT, le=1_000_000)
    repeat_last_n: int | None = Field(None, ge=NO_LIMIT, le=1_000_000)
    logit_bias: Biases | None = None
    xtc_probability: float | None = Field(None, ge=0, le=1)
    xtc_threshold: float | None = Field(None, ge=0, le=0.5)
    stop_token_ids: StopIds | None = None
    ignore_eos: bool | None = None
    specprefill: bool | Literal["auto"] | None = None
    """true: read sparsely; false: in full; "auto": whichever is predicted to be faster."""
    specprefill_keep_pct: float | None = Field(None, gt=0, le=1)
    """Fraction of documents and earlier messages to read; None: the settings decide."""

    def check(self) -> None:
        super().check()
        refuse_unsupported(self)

    @property
    def limit(self) -> int | None:
        """Maximum tokens of the answer; None if only the context limits it."""
        return None

    @property
    def stops(self) -> list[str]:
        """Stop sequences."""
        return []


class _Tools(_Fields):
    """Fields about tools, which are ignored: editors send tools with every question, and most let
    the model choose, so it answers with text."""

    tools: Items[Any] | None = None
    functions: Items[Any] | None = None
    tool_choice: Any = None
    function_call: Any = None

    def check(self) -> None:
        super().check()
        if self._has_tools and self._choice not in (None, "auto", "none"):
            raise BadRequest(
                "Tools are not supported: set `tool_choice` to auto or none, or leave `tools` out."
            )

    @property
    def are_tools_ignored(self) -> bool:
        return self._has_tools and self._choice != "none"

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


class ContentPart(_Fields):
    """A part of a message: text, thinking, a file, or a type that is refused."""

    type: str
    text: str = ""
    thinking: str = ""
    refusal: str = ""
    source: dict[str, Any] | None = None
    title: str | None = None
    """A document in Anthropic's API."""
    file: dict[str, Any] | None = None
    """A file in OpenAI's chat completions."""
    filename: str | None = None
    file_data: str | None = None
    """A file in OpenAI's responses."""


class ChatMessage(_Fields):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Items[str | ContentPart] | None = None
    reasoning_content: str | None = None
    """The thinking before this answer, in the field in which specchat returns it."""


class StreamOptions(_Fields):
    include_usage: bool = False


class _OpenAi(AnsweredRequest):
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


class ChatRequest(Thoughts, _Tools, _OpenAi):
    """`/v1/chat/completions`."""

    messages: Items[ChatMessage] = Field(min_length=1)
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    def check(self) -> None:
        super().check()
        if self.logprobs or self.top_logprobs:
            raise BadRequest("Log probabilities are not supported: leave `logprobs` out.")


class CompletionRequest(_OpenAi):
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
        if self.suffix or self.echo:
            raise BadRequest("`suffix` and `echo` are not supported: leave them out.")

    @property
    def only_prompt(self) -> str | list[int]:
        """The text or the token ids of the only prompt. Raises BadRequest."""
        if isinstance(self.prompt, str) or not any(isinstance(p, str | list) for p in self.prompt):
            return self.prompt
        if len(self.prompt) != 1:
            raise BadRequest("Send one prompt at a time.")
        only: str | list[int] = self.prompt[0]
        return only


class CountRequest(_Tools):
    """`/v1/messages/count_tokens`."""

    model: str = ""
    messages: Items[ChatMessage] = Field(min_length=1)
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


def note(request: AnsweredRequest) -> str:
    """Sentences about ignored parts of a request; an empty string if there are none."""
    has_tools = isinstance(request, _Tools) and request.are_tools_ignored
    return " ".join(filter(None, (TOOLS_IGNORED if has_tools else "", ignored(request))))


@dataclass(frozen=True, slots=True)
class Defaults:
    """Values for what a request does not set."""

    mode: Mode = Mode.AUTO
    keep: float = AUTO_KEEP
    sampling: Sampling = DEFAULT_SAMPLING
    within_seconds: float = 0.0


def defaults_of(settings: Settings) -> Defaults:
    """Defaults for reading and sampling, from the settings."""
    reading = settings.reading
    return Defaults(reading.mode, reading.keep, settings.sampling(), reading.first_word_within_s)


class Item(_Fields):
    """An input item of `/v1/responses`: a message, the thinking before one, or a reference to an
    item that the server remembers."""

    type: str = "message"
    id: str = ""
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | Items[str | ContentPart] | None = None
    summary: Items[ContentPart] | None = None


class ResponsesRequest(Thoughts, _Tools, AnsweredRequest):
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
        if (self.text or {}).get("verbosity", "medium") not in ("medium", None):
            raise BadRequest("`text.verbosity` is not supported: leave it out.")
        if self.top_logprobs or any("logprobs" in each for each in self.include or []):
            raise BadRequest("Log probabilities are not supported: leave `logprobs` out.")
        if self.background:
            raise BadRequest("Background responses are not supported: leave `background` out.")
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
    texts_by_name: dict[str, list[str]] = {}
    for message in messages:
        if message.role in ("tool", "function"):
            raise BadRequest("Tools are not supported: leave out messages of tools.")
        parts, thoughts, documents = _parts(message.content)
        if message.role == "user":
            cut_out, text = cut(parts)
            question = _without_names(text, cut_out)
            documents = tuple(_numbered(each, texts_by_name) for each in documents)
            found.append(Message(Role.USER, question, (*documents, *cut_out)))
        elif message.role == "assistant":
            thinking = message.reasoning_content or "\n\n".join(thoughts)
            found.append(Message(Role.ASSISTANT, "\n\n".join(parts), thinking=thinking))
        else:
            found.append(Message(Role.SYSTEM, "\n\n".join(parts)))
    if found and found[-1].role is Role.SYSTEM:  # the last message is what is answered
        found[-1] = replace(found[-1], role=Role.USER)
    if all(message.role is not Role.USER for message in found):
        raise BadRequest("There is no question: send a message of the role `user`.")
    return tuple(found)


def _numbered(document: Document, texts_by_name: dict[str, list[str]]) -> Document:
    """The document, with a number in its name if earlier ones of that name have other texts."""
    texts = texts_by_name.setdefault(document.name, [])
    if document.text not in texts:
        texts.append(document.text)
    number = texts.index(document.text) + 1
    stem, suffix = os.path.splitext(document.name)
    return document if number == 1 else replace(document, name=f"{stem} ({number}){suffix}")


def _without_names(text: str, documents: Sequence[Document]) -> str:
    """Remove the names of documents before and after a question. Each document begins with its
    name anyway, and the name's words would count as words of the question. If there are names
    inside the question, or nothing else, all names stay."""
    marks = tuple(f"[{document.name}]" for document in documents)
    if not 0 < len(marks) <= MAX_MARKS or len(text) > LONG + sum(map(len, marks)):
        return text
    inner = text.strip()
    while inner.startswith(marks):
        inner = inner[len(next(filter(inner.startswith, marks))) :].lstrip()
    while inner.endswith(marks):
        inner = inner[: -len(next(filter(inner.endswith, marks)))].rstrip()
    return text if not inner or any(mark in inner for mark in marks) else inner


def _parts(
    content: str | list[str | ContentPart] | None,
) -> tuple[list[str], list[str], tuple[Document, ...]]:
    """A message's texts, its thinking, and its documents."""
    if isinstance(content, str):
        return [content], [], ()
    texts: list[str] = []
    thoughts: list[str] = []
    documents: list[Document] = []
    for part in content or []:
        if isinstance(part, str):
            texts.append(part)
            continue
        if part.type in ("text", "input_text", "output_text"):
            texts.append(part.text)
        elif part.type == "refusal":
            texts.append(part.refusal)
        elif part.type in ("thinking", "redacted_thinking"):
            thoughts += [part.thinking] if part.thinking else []
        elif part.type in ("document", "file", "input_file"):
            documents.append(_document(part, len(documents) + 1))
        else:
            raise BadRequest(
                f"Only texts and files are read: leave out parts of type {part.type[:50]!r}."
            )
    return texts or [""], thoughts, tuple(documents)


def _document(part: ContentPart, number: int) -> Document:
    """The document of a part: a text, or a file in base64. Raises BadRequest."""
    source, file = part.source or {}, part.file or {}
    name = part.title or file.get("filename") or part.filename or f"document {number}"
    data = source.get("data") or file.get("file_data") or part.file_data
    if not isinstance(data, str) or not isinstance(name, str):
        raise BadRequest("Files are read from the request only: send their content in base64.")
    if source.get("type") == "text":
        return Document(name, data)
    return Document(name, _file_text(name, data))


MAX_READERS = 3
"""Files that are read at the same time. Threads are left for requests without files."""
READ_SECONDS = 120.0
"""Maximum processor time for reading a file."""
_readers = threading.BoundedSemaphore(MAX_READERS)
is_gone: ContextVar[Callable[[], bool]] = ContextVar("is_gone", default=lambda: False)
"""Tells whether the client of the request has closed the connection."""


class TooManyFiles(RequestError):
    """Other requests are having files read."""

    status = 503

    def __init__(self) -> None:
        super().__init__("Too many files are being read: try again in a few seconds.")


@lru_cache(maxsize=8)
def _file_text(name: str, data: str) -> str:
    """The text of a file in base64, or in a `data:` URL. Clients send it with every question of a
    conversation. Raises BadRequest and TooManyFiles."""
    from app.ingest.limits import ReadLimits
    from app.ingest.reader import read_content
    from app.ingest.records import IngestError, ReadCancelled

    try:
        content = base64.b64decode(data.partition(";base64,")[2] or data, validate=True)
    except ValueError:
        raise BadRequest(f"The content of {name!r} is not base64.") from None
    if not _readers.acquire(blocking=False):
        raise TooManyFiles
    try:
        limits = ReadLimits(document_total_seconds=READ_SECONDS)
        return read_content(name, content, limits, is_gone.get()).text
    except IngestError as error:
        raise BadRequest(str(error)) from None
    except ReadCancelled:
        raise BadRequest("The client has closed the connection.") from None
    finally:
        _readers.release()


def to_ask(
    messages: tuple[Message, ...],
    request: AnsweredRequest,
    headers: Mapping[str, str],
    defaults: Defaults,
) -> Ask:
    """Build an `Ask` that belongs to no conversation. Raises BadRequest."""
    thoughts = request.thoughts() if isinstance(request, Thoughts) else {}
    values = {name: value for name, value in _sampling(request).items() if value is not None}
    sampling = defaults.sampling.with_values(
        max_tokens=request.limit or NO_ANSWER_LIMIT,
        stop_repeats=False,
        **values,
        **thoughts,
    )
    mode, keep = _reading(request, headers, defaults)
    return Ask(messages, mode, keep, sampling, within_seconds=defaults.within_seconds)


def _sampling(request: AnsweredRequest) -> dict[str, Any]:
    """The corresponding fields of `Sampling`; None if the request does not set them."""
    seed, last = request.seed, request.repetition_context_size
    last = request.repeat_last_n if last is None else last
    return {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": 0 if request.top_k == NO_LIMIT else request.top_k,
        "min_p": request.min_p,
        "seed": None if seed is None or seed == -1 else seed % 2**63,
        "frequency_penalty": request.frequency_penalty,
        "presence_penalty": request.presence_penalty,
        "repetition_penalty": 1.0
        if last == 0
        else request.repetition_penalty or request.repeat_penalty,
        "penalty_tokens": NO_ANSWER_LIMIT if last == NO_LIMIT else last or None,
        "logit_bias": None if request.logit_bias is None else tuple(request.logit_bias.items()),
        "xtc_probability": request.xtc_probability,
        "xtc_threshold": request.xtc_threshold,
        "stop_ids": None if request.stop_token_ids is None else tuple(request.stop_token_ids),
        "ignore_eos": request.ignore_eos,
    }


def _reading(
    request: AnsweredRequest, headers: Mapping[str, str], defaults: Defaults
) -> tuple[Mode, float]:
    """Mode and keep from the body, or else from the headers, or else from the defaults."""
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
