"""What clients send: what is too much or wrong ends early, and each field is honoured, refused or
known to change nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from app.extras.serve import requests, server
from app.extras.serve.apis import apis
from app.extras.serve.apis.chat import ChatRequest, CompletionRequest
from app.extras.serve.apis.messages import MessagesRequest
from app.extras.serve.apis.responses import ResponsesRequest
from app.extras.serve.fields import HARMLESS, REFUSED, BadRequest, ignored
from app.extras.serve.message_fields import ChatMessage, ContentPart
from app.extras.serve.requests import (
    MAX_CONTAINERS,
    MAX_VALUES,
    Defaults,
    defaults_of,
    read_body,
    to_ask,
    to_messages,
)
from app.protocol.options import FROM_MODEL, NO_ANSWER_LIMIT, ModelSampling, Sampling
from app.settings.definitions import Settings
from tests.extras.serve.running import chat, client, running
from tests.fakes import FakeEngine, Story
from tests.tables import table


@pytest.mark.parametrize("function", [(requests, "read_body"), (server, "to_ask")])
def test_others_are_answered_while_a_request_is_read(
    function: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name = function
    original, entered, go = getattr(module, name), threading.Event(), threading.Event()

    def waiting(*given: Any) -> Any:
        entered.set()
        assert go.wait(30)
        return original(*given)

    monkeypatch.setattr(module, name, waiting)
    engine = FakeEngine(Story(answer="Yes."))
    engine.start_thread(lambda event: 0.0)
    found = []
    with running(engine) as address, client(address) as http:

        def ask() -> None:
            found.append(http.post("/v1/chat/completions", json=chat()).status_code)

        thread = threading.Thread(target=ask)
        thread.start()
        assert entered.wait(30)
        assert http.get("/health").status_code == 200
        go.set()
        thread.join(30)
    assert found == [200]


def lists(schema: Any) -> Iterator[dict[str, Any]]:
    """The lists in a schema of pydantic's core, whatever they are in."""
    for each in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(each, dict | list):
            yield from lists(each)
    if isinstance(schema, dict) and schema.get("type") == "list":
        yield schema


@table("model", [body for api in apis() for body in api.BODIES])
def test_every_list_is_bounded_and_ends_at_its_first_mistake(model: type[BaseModel]) -> None:
    found = list(lists(model.__pydantic_core_schema__))
    assert found
    for schema in found:
        assert schema.get("max_length"), schema
        assert schema.get("fail_fast"), schema


def test_a_list_of_mistakes_is_one_mistake() -> None:
    with pytest.raises(ValidationError) as raised:
        ChatRequest.model_validate(chat([1] * 5000))  # type: ignore[arg-type]
    assert raised.value.error_count() < 5


KINDS_OF_VALUES: list[tuple[Any, dict[str, Any], str]] = [
    (
        CompletionRequest,
        {"prompt": {"prompt_string": "x"}},
        "prompt: Input should be a valid string or",
    ),
    (ChatRequest, {"stop": 5}, "stop: Input should be a valid string or a valid list"),
    (ChatRequest, {"stop": [5]}, r"stop\.0: Input should be a valid string"),
    (
        ChatRequest,
        {"messages": [{"role": "user", "content": 5}]},
        r"messages\.0\.content: Input should",
    ),
    (
        ChatRequest,
        {"messages": [{"role": "user", "content": [{"text": "x"}]}]},
        r"messages\.0\.content\.0\.type: Field required",
    ),
    (ResponsesRequest, {"input": 5}, "input: Input should be a valid string or a valid list"),
]


@table("kind, fields, words", KINDS_OF_VALUES)
def test_a_mistake_is_named_by_fields_and_not_by_types(
    kind: Any, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadRequest, match=f"^{words}"):
        read_body(kind, json.dumps(BODIES[kind] | fields).encode())


def test_a_suffix_is_refused_in_one_sentence() -> None:
    with pytest.raises(BadRequest, match="A text cannot be filled in before a `suffix`"):
        CompletionRequest.model_validate({"prompt": "x", "suffix": "y"}).check()


TOO_MUCH = f"more than {MAX_VALUES:,} values, or {MAX_CONTAINERS:,} lists"


NO_OBJECTS = enumerate((b"{", b"\xff\xfe", b'{"messages": "\xff"}', b"[]", b"null", b""))
WRONG_BODIES = {
    "wrong items": (b'{"messages": [' + b"{}," * 5000 + b"{}]}", "messages.0.role: Field required"),
    "many lists": (b'{"x": [' + b"[]," * MAX_CONTAINERS + b"1]}", TOO_MUCH),
    "many numbers": (b'{"x": [' + b"1," * (MAX_VALUES + 1) + b"1]}", TOO_MUCH),
    "many biases": (
        b'{"messages": [{"role": "user"}], "logit_bias": {'
        + b",".join(b'"a%d": 1' % i for i in range(2_000))
        + b"}}",
        "logit_bias: Dictionary should have at most",
    ),
    "depth": (b'{"x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "nested too deeply"),
    "no end of a text": (b'{"x": "' + rb"\"" * 200_000, "not JSON"),
    **{f"no object {n}": (body, "not JSON in UTF-8: send one object") for n, body in NO_OBJECTS},
}


@table("name", WRONG_BODIES)
def test_what_is_too_much_or_wrong_is_one_sentence(name: str) -> None:
    body, words = WRONG_BODIES[name]
    with pytest.raises(BadRequest, match=words):
        read_body(ChatRequest, body)


def test_brackets_and_commas_in_texts_do_not_count() -> None:
    text = rb"[{\"," * 200_000 + b"[{," * 200_000
    body = b'{"messages": [{"role": "user", "content": "' + text + b'"}]}'
    assert read_body(ChatRequest, body).messages[0].content == text.decode().replace("\\", "")


DEFAULTS = Defaults(sampling=Sampling(max_tokens=77, top_k=20))
MESSAGES = [{"role": "user", "content": "Who?"}]


def sampling(**fields: Any) -> Sampling:
    body = ChatRequest.model_validate({"messages": MESSAGES, **fields})
    body.check()
    return to_ask((), body, {}, DEFAULTS).sampling


@table("name", sorted(set(ChatRequest.model_fields) - {"messages"}))
def test_null_is_as_good_as_absent(name: str) -> None:
    body = ChatRequest.model_validate({"messages": MESSAGES, name: None})
    body.check()
    assert body == ChatRequest.model_validate({"messages": MESSAGES})


def test_null_is_as_good_as_absent_within_fields() -> None:
    fields: dict[str, Any] = {
        "stream_options": {"include_usage": None},
        "response_format": {"type": None},
    }
    ChatRequest.model_validate({"messages": MESSAGES, **fields}).check()
    CompletionRequest.model_validate({"prompt": "x", "echo": None, "n": None}).check()
    given = {"messages": MESSAGES, "max_tokens": 5, "stream": None, "system": None}
    assert not MessagesRequest.model_validate(given).stream


def test_without_a_limit_or_with_minus_one_only_the_context_limits_the_answer() -> None:
    for fields in ({}, {"max_tokens": -1}, {"max_completion_tokens": -1}, {"n_predict": -1}):
        assert sampling(**fields).max_tokens == NO_ANSWER_LIMIT
    assert sampling(max_completion_tokens=-1, max_tokens=5).max_tokens == 5
    assert sampling(n_predict=6).max_tokens == 6
    assert (
        MessagesRequest.model_validate({"messages": MESSAGES, "max_tokens": -1}).max_tokens is None
    )
    assert (sampling().top_k, sampling(top_k=-1).top_k) == (20, 0)


def test_a_request_without_a_limit_has_that_of_the_settings() -> None:
    defaults = defaults_of(Settings())
    for fields, limit in (({}, 32_768), ({"max_tokens": -1}, 32_768), ({"max_tokens": 50}, 50)):
        body = ChatRequest.model_validate({"messages": MESSAGES, **fields})
        assert to_ask((), body, {}, defaults).sampling.max_tokens == limit


def test_any_whole_number_is_a_seed() -> None:
    assert sampling(seed=-1).seed is None
    seeds = {sampling(seed=seed).seed for seed in (-2, -3, 0, 5, 2**63 - 1)}
    assert len(seeds) == 5
    assert all(seed is not None and 0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    "fields", [{"max_tokens": 0}, {"max_tokens": -2}, {"top_k": -2}, {"n": "many"}]
)
def test_what_means_nothing_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Input should"):
        sampling(**fields)


HONOURED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"frequency_penalty": 2}, {"frequency_penalty": 2.0}),
    ({"presence_penalty": -2}, {"presence_penalty": -2.0}),
    ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
    ({"repeat_penalty": 1.5, "repeat_last_n": -1}, {"penalty_tokens": NO_ANSWER_LIMIT}),
    ({"repetition_penalty": 1.5, "repetition_context_size": 9}, {"penalty_tokens": 9}),
    ({"repetition_penalty": 1.5, "repeat_last_n": 0}, {"repetition_penalty": 1.0}),
    ({"min_p": 0.9}, {"min_p": 0.9}),
    ({"top_p": 0}, {"top_p": 0.0}),
    ({"logit_bias": {"5": -100, "7": 1.5}}, {"logit_bias": ((5, -100.0), (7, 1.5))}),
    ({"xtc_probability": 0.5, "xtc_threshold": 0.2}, {"xtc_threshold": 0.2}),
    ({"stop_token_ids": [3, 4]}, {"stop_ids": (3, 4)}),
    ({"ignore_eos": True}, {"ignore_eos": True}),
    ({"enable_thinking": False}, {"thinking": False}),
    ({"think": False}, {"thinking": False}),
    ({"think": "low"}, {"thinking_budget": 2_048}),
    ({"thinking": {"type": "disabled"}}, {"thinking": False}),
    ({"thinking": {"type": "adaptive"}}, {"thinking": True}),
    ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, {"thinking_budget": 2000}),
    ({"thinking_budget": 0}, {"thinking": False}),
    ({"reasoning_budget": -1}, {"thinking_budget": 0}),
    ({"reasoning_effort": "none"}, {"thinking": False}),
    ({"reasoning_effort": "xhigh"}, {"template_values": (("reasoning_effort", "high"),)}),
    ({"reasoning_effort": "medium"}, {"thinking_budget": 8_192}),
    ({"reasoning_effort": "high"}, {"thinking": True, "thinking_budget": 0}),
    ({"reasoning": {"effort": "minimal"}}, {"thinking": True, "thinking_budget": 512}),
    ({"reasoning": {"max_tokens": 99}}, {"thinking_budget": 99}),
    ({"reasoning": {"enabled": False}}, {"thinking": False}),
    ({"output_config": {"effort": "low"}}, {"thinking_budget": 2_048}),
    ({"chat_template_kwargs": {"enable_thinking": False}}, {"thinking": False}),
    (
        {"chat_template_kwargs": {"thinking": False, "style": "x", "level": 3}},
        {"thinking": False, "template_values": (("style", "x"), ("level", 3))},
    ),
]


@table("given, expected", HONOURED)
@table("kind", [ChatRequest, MessagesRequest])
def test_a_field_that_changes_the_answer_is_honoured(
    kind: Any, given: dict[str, Any], expected: dict[str, Any]
) -> None:
    body = kind.model_validate({"messages": MESSAGES, "max_tokens": 8, **given})
    body.check()
    found = to_ask((), body, {}, DEFAULTS).sampling
    assert {name: getattr(found, name) for name in expected} == expected
    assert not ignored(body)


BODIES: dict[Any, dict[str, Any]] = {
    ChatRequest: {"messages": MESSAGES},
    MessagesRequest: {"messages": MESSAGES, "max_tokens": 8},
    CompletionRequest: {"prompt": "x"},
    ResponsesRequest: {"input": "x"},
}
UNSUPPORTED: list[tuple[str, Any]] = [
    ("grammar", "root ::= x"),
    ("json_schema", {"type": "object"}),
    ("guided_choice", ["a", "b"]),
    ("guided_json", {"type": "object"}),
    ("structured_outputs", {"regex": "a"}),
    ("response_format", {"type": "json_object"}),
    ("bad_words", ["no"]),
    ("best_of", 2),
    ("min_tokens", 5),
    ("mirostat", 2),
    ("typical_p", 0.5),
    ("dry_multiplier", 0.8),
    ("prompt_logprobs", 0),
    ("logprobs", 1),
    ("top_logprobs", 2),
    ("do_sample", False),
    ("skip_special_tokens", False),
    ("chat_template", "{{ messages }}"),
    ("modalities", ["text", "audio"]),
    ("verbosity", "low"),
    ("extra_body", {"min_p": 0.1}),
    ("n", 2),
    ("web_search_options", {}),
    ("guided_json", {}),
    ("json_schema", {}),
    ("structured_outputs", {}),
]


@table("name, value", UNSUPPORTED)
@table("kind", BODIES)
def test_what_is_not_supported_is_refused_in_one_sentence(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(BadRequest, match=name if name != "top_logprobs" else "logprobs"):
        kind.model_validate(BODIES[kind] | {name: value}).check()


@pytest.mark.parametrize("kind", BODIES)
def test_what_asks_for_nothing_is_no_error(kind: Any) -> None:
    nothing = {name: values[0] for name, values in REFUSED.items() if name not in kind.model_fields}
    body = kind.model_validate(BODIES[kind] | nothing | {"metadata": {"a": "b"}, "user": "me"})
    body.check()
    assert not ignored(body)


def test_no_field_is_in_two_parts_of_the_table() -> None:
    assert not REFUSED.keys() & HARMLESS


@table(
    "kind, fields",
    [
        (CompletionRequest, {"logprobs": 0}),
        (CompletionRequest, {"reasoning_effort": "low"}),
        (CompletionRequest, {"max_completion_tokens": 5}),
        (MessagesRequest, {"stop": ["x"]}),
        (ChatRequest, {"stop_sequences": ["x"]}),
        (ChatRequest, {"system": "Be brief."}),
        (ChatRequest, {"max_output_tokens": 5}),
        (ResponsesRequest, {"max_tokens": 5}),
    ],
)
def test_a_field_of_another_route_is_refused(kind: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="leave"):
        kind.model_validate(BODIES[kind] | fields).check()


@table(
    "fields",
    [
        {"reasoning_effort": "much"},
        {"thinking": {"type": "loud"}},
        {"thinking": {"type": "enabled", "budget_tokens": "many"}},
        {"reasoning": {"exclude": True}},
        {"output_config": {"format": {"type": "json_schema"}}},
        {"chat_template_kwargs": {"chat_template": "x"}},
        {"chat_template_kwargs": {"messages": "x"}},
        {"chat_template_kwargs": {"a b": 1}},
        {"chat_template_kwargs": {"list": [1]}},
        {"chat_template_kwargs": {"long": "x" * 2000}},
        {"logit_bias": {"many": 1}},
        {"logit_bias": {"-1": 1}},
        {"logit_bias": {"5": 101}},
        {"frequency_penalty": 3},
        {"repetition_penalty": 0},
        {"stop_token_ids": [-1]},
    ],
)
def test_values_that_mean_nothing_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises((ValueError, BadRequest), match=r"must be|leave|Input should|cannot set"):
        sampling(**fields)


def test_fields_of_a_request_win_over_the_model_s_own_sampling() -> None:
    defaults = Defaults(sampling=Sampling(from_model=FROM_MODEL))
    body = ChatRequest.model_validate({"messages": MESSAGES, "temperature": 0, "top_k": 5})
    found = to_ask((), body, {}, defaults).sampling
    own = found.resolved(ModelSampling(0.6, 0.95, 20, 0.1))
    assert (own.temperature, own.top_p, own.top_k, own.min_p) == (0, 0.95, 5, 0.1)


def test_an_answer_that_repeats_itself_is_not_ended() -> None:
    repeating = Defaults(sampling=Sampling(stop_repeats=True))
    body = ChatRequest.model_validate({"messages": MESSAGES})
    found = to_ask((), body, {}, repeating).sampling
    assert (found.stop_repeats, found.yield_repeats) == (False, True)


@table(
    "text, question",
    [
        ("[a.txt]\n\nWhy?", "Why?"),
        ("Why?\n[b.txt]\n[a.txt]\n", "Why?"),
        ("[a.txt] Why? [b.txt]", "Why?"),
        ("The old one: [a.txt]\nThe new one: [b.txt]", None),
        ("[a.txt] [b.txt]", None),
    ],
)
def test_names_around_a_question_are_not_asked_about(text: str, question: str | None) -> None:
    long = "x\n" * 2000
    for name in ("a.txt", "b.txt"):
        text = text.replace(f"[{name}]", f'<file path="{name}">{long}</file>')
    (message,) = to_messages([ChatMessage(role="user", content=text)])
    assert [document.name for document in message.documents]
    if question is not None:
        assert message.text == question
    else:
        assert all(f"[{document.name}]" in message.text for document in message.documents)


def test_files_of_the_same_name_are_told_apart() -> None:
    parts = [
        ContentPart(type="document", title="a.pdf", source={"type": "text", "data": each})
        for each in ("old", "new", "old")
    ]
    messages = [ChatMessage(role="user", content=list(parts)) for _ in range(2)]
    for message in to_messages(messages):
        names = [document.name for document in message.documents]
        assert names == ["a.pdf", "a (2).pdf", "a.pdf"]
