"""Parses and checks requests, and converts them to an `Ask` for the engine."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)
from pydantic.json_schema import models_json_schema
from pydantic_core import ErrorDetails

from app.extras.serve.cutting import (
    cut,
    ends_with_command,
    introduces,
    message_asks,
    names_rules,
    text_document,
    without_outer_names,
)
from app.extras.serve.fields import (
    NO_LIMIT,
    BadRequest,
    RequestError,
    Thoughts,
    ignored,
    refuse_unsupported,
)
from app.extras.serve.message_fields import ChatMessage, ContentPart, Fields, Items
from app.extras.serve.tool_texts import CALL, ToolResult, call_text, calls, has_media, key, label
from app.protocol.commands import Ask
from app.protocol.options import (
    AUTO_KEEP,
    DEFAULT_SAMPLING,
    NO_ANSWER_LIMIT,
    Mode,
    Sampling,
)
from app.protocol.prompt import Document, Message, Role
from app.settings.definitions import Settings
from app.util.json_amount import is_too_much

MAX_VALUES, MAX_CONTAINERS = 1_000_000, 100_000
"""Maximum values in a request, and lists and objects among them. While JSON is parsed, no other
thread runs."""
EXPECTED = "Input should be "
KINDS = frozenset({"str", "int", "bool", "float", "ContentPart"})
"""Names of types in pydantic's locations."""
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
        found = error.errors(include_url=False, include_context=False, include_input=False)
        raise BadRequest(_sentence(found)) from None


def _sentence(errors: Sequence[ErrorDetails]) -> str:
    """A sentence about the first mistake. Where several kinds of values are allowed, it is about
    the kind that was sent, or else about all of them."""
    places = [tuple(each for each in error["loc"] if not _is_kind(each)) for error in errors]
    near = [i for i, place in enumerate(places) if place[:1] == places[0][:1]]
    at = max(near, key=lambda i: len(places[i]))
    where = ".".join(map(str, places[at]))[:200]
    problems = [str(errors[i]["msg"]) for i in near if places[i] == places[at]]
    problems = [
        each.removeprefix("Value error, ").partition(" or instance of")[0] for each in problems
    ]
    first, *others = dict.fromkeys(problems)
    message = " or ".join([first, *(each.removeprefix(EXPECTED) for each in others)])[:300]
    return f"{where}: {message}" if where else message


def _is_kind(part: int | str) -> bool:
    """Whether a part of pydantic's location is the name of a type, not a field or an index."""
    return isinstance(part, str) and (part in KINDS or "[" in part)


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


MAX_STOPS = 128
"""Maximum stop sequences."""
MAX_STOP_IDS, MAX_BIASES = 64, 1_000
"""Maximum stop token ids, and logit biases."""
SPARSE_HEADER, KEEP_HEADER = "x-specprefill", "x-specprefill-keep-pct"
"""Headers for clients that cannot send custom fields."""


HEADER_VALUES: dict[str, bool | str] = {"true": True, "false": False, "auto": "auto"}

TOOLS_IGNORED = (
    "Tools are not supported: those of the request were ignored, and the answer is text."
)
MEDIA_IGNORED = "Images and files in tool results were ignored."
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


Bias = Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Repetition = Annotated[float, Field(gt=0, le=10, allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Biases = Annotated[dict[TokenId, Bias], BeforeValidator(_not_too_many)]
"""Bias of each token id. The number of entries is checked before the entries."""
StopIds = Annotated[list[TokenId], Field(max_length=MAX_STOP_IDS, fail_fast=True)]


class AnsweredRequest(Fields):
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

    @property
    def tool_results(self) -> Iterator[Any]:
        """The contents of all tool results."""
        yield from ()


class Tools(Fields):
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


class WithMessages(Fields):
    """A request with a list of messages."""

    messages: Items[ChatMessage] = Field(min_length=1)

    @property
    def tool_results(self) -> Iterator[Any]:
        """The contents of all tool results."""
        for message in self.messages:
            if message.role == "tool":
                yield _plain(message)
            elif isinstance(message.content, list):
                parts = (each for each in message.content if isinstance(each, ContentPart))
                yield from (each.content for each in parts)


def note(request: AnsweredRequest) -> str:
    """Sentences about ignored parts of a request; an empty string if there are none."""
    has_tools = isinstance(request, Tools) and request.are_tools_ignored
    media = any(map(has_media, request.tool_results))
    sentences = TOOLS_IGNORED if has_tools else "", MEDIA_IGNORED if media else ""
    return " ".join(filter(None, (*sentences, ignored(request))))


@dataclass(frozen=True, slots=True)
class Defaults:
    """Values for what a request does not set."""

    mode: Mode = Mode.AUTO
    keep: float = AUTO_KEEP
    sampling: Sampling = DEFAULT_SAMPLING
    within_seconds: float = 0.0
    max_tokens: int = NO_ANSWER_LIMIT


def defaults_of(settings: Settings) -> Defaults:
    """Defaults for reading and sampling, from the settings."""
    reading = settings.reading
    return Defaults(
        reading.mode,
        reading.keep,
        settings.sampling(),
        reading.first_word_within_s,
        settings.answers.request_max_tokens,
    )


BILLING = "x-anthropic-billing-header:"
"""Begins a line in Claude Code's system prompts that differs between sessions."""


def to_messages(messages: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """Raises BadRequest."""
    found: list[Message] = []
    texts_by_name: dict[str, list[str]] = {}
    labels: dict[str, str] = {}
    after_command = False
    for message, is_asked in zip(messages, _asked_elsewhere(messages), strict=True):
        if message.role in ("tool", "function"):
            name = labels.get(key(message.tool_call_id or message.name))
            name = name or (label(message.name, None) if message.name else CALL)
            result = ToolResult(name, _plain(message)).message
            found.append(_with_numbers(result, texts_by_name))
            continue
        parts = _parts(message.content, labels)
        if message.role == "user":
            found += [_with_numbers(each.message, texts_by_name) for each in parts.results]
            if not parts.results or parts.documents or any(map(str.strip, parts.texts)):
                found.append(_asked(parts, texts_by_name, is_asked, after_command))
            after_command = ends_with_command(parts.texts)
        elif message.role == "assistant":
            after_command = False
            texts = [*parts.texts, *(each.text for each in parts.results), *parts.document_texts]
            texts += calls(message, labels)
            thinking = message.reasoning_content or "\n\n".join(parts.thoughts)
            text = "\n\n".join(texts if len(texts) < 2 else filter(None, texts))
            found.append(Message(Role.ASSISTANT, text, thinking=thinking))
        else:
            texts = [*map(_without_billing, parts.texts), *parts.document_texts]
            if any(texts) or texts == parts.texts:
                found.append(Message(Role.SYSTEM, "\n\n".join(filter(None, texts))))
    asks = any(message.role in ("user", "system", "developer") for message in messages)
    if not asks or not found:
        raise BadRequest(
            "There is no question: send a message of the role `user`. Tool results alone cannot be"
            " answered."
        )
    return _ordered(found)


def _asked_elsewhere(messages: Sequence[ChatMessage]) -> Iterator[bool]:
    """For each message, whether a user asks in another one, with no answer between the two."""
    for _, run in groupby(messages, lambda each: each.role == "assistant"):
        own = [_texts(each.content) if each.role == "user" else [] for each in run]
        asking = [sum(map(bool, own)) > 1 and message_asks(each) for each in own]
        count = sum(asking)
        yield from (count > each for each in asking)


def _asked(
    parts: _Parts, texts_by_name: dict[str, list[str]], is_asked: bool, after_command: bool
) -> Message:
    """A user's message."""
    documents = [_numbered(each, texts_by_name) for each in parts.documents]
    about = zip(documents, parts.contexts, strict=True)
    context = [f"[about {document.name}]\n{text}" for document, text in about if text]
    cut_out, text = cut(parts.texts, context, is_asked=is_asked, after_command=after_command)
    question = without_outer_names(text, cut_out) or text
    return Message(
        Role.USER, question, (*documents, *cut_out), context="\n\n".join(context).strip()
    )


def _ordered(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages, such that the user's own words are the last ones before each answer: system
    prompts and messages with nothing but documents and context that follow them stand before them.
    Where there are no own words, the last of the others is what is answered."""
    found: list[Message] = []
    run: list[Message] = []
    last = max(
        (i for i, each in enumerate(messages) if each.role is not Role.ASSISTANT), default=-1
    )
    for index, message in enumerate(messages):
        if message.role is Role.ASSISTANT:
            found.append(message)
            continue
        rank = _rank(message)
        if run and rank < _rank(run[-1]) and not (rank and run[-1].documents):
            run.insert(-1, message)
        else:
            run.append(message)
        is_last = index == last
        if not is_last and messages[index + 1].role is not Role.ASSISTANT:
            continue
        if run[-1].role is Role.SYSTEM and (found or is_last):
            run[-1] = Message(Role.USER, "", context=run[-1].text.strip())
        if is_last and not _rank(run[-1]):
            run[-1] = replace(run[-1], text=run[-1].body, context="")
        found += run
        run = []
    return tuple(found)


def _rank(message: Message) -> int:
    """How likely it is that a message is the question: 0 if it has none of the user's words, 1 if
    they only announce its documents."""
    words = without_outer_names(message.text, message.documents).strip()
    if message.role is not Role.USER or not words:
        return 0
    return 1 if message.documents and introduces(words) else 2


def _without_billing(text: str) -> str:
    line, _, rest = text.partition("\n")
    return rest.lstrip("\n") if line.lower().startswith(BILLING) else text


def _with_numbers(message: Message, texts_by_name: dict[str, list[str]]) -> Message:
    documents = tuple(_numbered(each, texts_by_name) for each in message.documents)
    return replace(message, documents=documents)


def _numbered(document: Document, texts_by_name: dict[str, list[str]]) -> Document:
    """The document, with a number in its name if earlier ones of that name have other texts."""
    texts = texts_by_name.setdefault(document.name, [])
    if document.text not in texts:
        texts.append(document.text)
    number = texts.index(document.text) + 1
    stem, suffix = os.path.splitext(document.name)
    return document if number == 1 else replace(document, name=f"{stem} ({number}){suffix}")


class _Parts(NamedTuple):
    """The parts of a message, by their kinds. Texts include those of tool calls. `contexts` has
    what is said about each document."""

    texts: list[str]
    thoughts: list[str]
    documents: list[Document]
    contexts: list[str]
    results: list[ToolResult]

    @property
    def document_texts(self) -> list[str]:
        """The documents as texts, for messages that cannot have documents."""
        about = zip(self.documents, self.contexts, strict=True)
        return ["\n".join(filter(None, (each.name, text, each.text))) for each, text in about]


TEXT_TYPES = ("text", "input_text", "output_text")


def _texts(content: str | list[str | ContentPart] | None) -> list[str]:
    parts = [content] if isinstance(content, str) else content or []
    found = (each for each in parts if isinstance(each, str) or each.type in TEXT_TYPES)
    return [each if isinstance(each, str) else each.text for each in found]


def _parts(content: str | list[str | ContentPart] | None, labels: dict[str, str]) -> _Parts:
    """Stores the labels of tool calls. Raises BadRequest."""
    found = _Parts([], [], [], [], [])
    for part in [content] if isinstance(content, str) else content or []:
        if isinstance(part, str) or part.type in TEXT_TYPES:
            found.texts.extend(_texts([part]))
        elif part.type == "refusal":
            found.texts.append(part.refusal)
        elif part.type in ("thinking", "redacted_thinking"):
            found.thoughts.extend([part.thinking] if part.thinking else [])
        elif part.type in ("document", "file", "input_file", "search_result"):
            found.documents.append(_document(part, len(found.documents) + 1))
            is_source = isinstance(part.source, str) and part.source != part.title
            found.contexts.append(f"Source: {part.source}" if is_source else part.context)
        elif part.type.endswith("tool_use"):
            labels[key(part.id)] = label(part.name, part.input)
            found.texts.append(call_text(part.name, part.input))
        elif part.type.endswith("tool_result"):
            name = labels.get(key(part.tool_use_id), CALL)
            found.results.append(ToolResult(name, part.content, part.is_error))
        else:
            raise BadRequest(
                "Only texts and files are read, images and sounds are not: leave out parts of type"
                f" {part.type[:50]!r}."
            )
    if not found.texts and not found.results:
        found.texts.append("")
    return found


def _plain(message: ChatMessage) -> Any:
    return message.model_dump(exclude_unset=True).get("content")


def _document(part: ContentPart, number: int) -> Document:
    """The document of a part: a text, a list of texts, or a file in base64. Raises BadRequest."""
    source, file = part.source or {}, part.file or {}
    if isinstance(source, str):
        name, source = part.title or source, {"type": "content", "content": part.content}
    else:
        name = part.title or file.get("filename") or part.filename or f"document {number}"
    if source.get("type") == "content" and isinstance(name, str):
        return text_document(name, "\n\n".join(_block_texts(source.get("content"))))
    found = source.get("data"), file.get("file_data"), part.file_data
    data = next((each for each in found if each is not None), None)
    if not isinstance(data, str) or not isinstance(name, str):
        raise BadRequest("Files are read from the request only: send their content in base64.")
    if source.get("type") == "text":
        return text_document(name, data)
    text = _file_text(name, data)
    return Document(name, text, ((0, len(text)),) if names_rules(name) else ())


def _block_texts(content: Any) -> Iterator[str]:
    """The texts in the content of a document. Raises BadRequest."""
    for block in content if isinstance(content, list) else [{"type": "text", "text": content}]:
        kind, text = (block.get("type"), block.get("text")) if isinstance(block, dict) else ("", "")
        if kind != "text":
            raise BadRequest(f"Documents have only texts: leave out blocks of type {kind!r:.50}.")
        if not isinstance(text, str):
            raise BadRequest("A document has no text: send it as `content`.")
        yield text


MAX_READERS = 3
"""Files that are read at the same time. Threads are left for requests without files."""
READ_SECONDS = 120.0
"""Maximum processor time for reading a file, and seconds after which a request's next file is not
read."""
_spent: ContextVar[float] = ContextVar("_spent", default=0.0)
"""Seconds in which files of the request were read."""
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
        content = base64.b64decode(data.rpartition(";base64,")[2], validate=True)
    except ValueError:
        raise BadRequest(f"The content of {name!r} is not base64.") from None
    if _spent.get() > READ_SECONDS:
        raise BadRequest("The files of the request take too long to read: send fewer.")
    if not _readers.acquire(blocking=False):
        raise TooManyFiles
    began = time.monotonic()
    try:
        limits = ReadLimits(document_total_seconds=READ_SECONDS)
        return read_content(name, content, limits, is_gone.get()).text
    except IngestError as error:
        raise BadRequest(str(error)) from None
    except ReadCancelled:
        raise BadRequest("The client has closed the connection.") from None
    finally:
        _spent.set(_spent.get() + time.monotonic() - began)
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
        max_tokens=request.limit or defaults.max_tokens,
        stop_repeats=False,
        yield_repeats=True,
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
