"""Bodies are read on a thread, and what is too much or wrong ends early."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from app.serve import api, requests
from app.serve.requests import MAX_CONTAINERS, MAX_VALUES, BadRequest, ChatRequest, read_body
from tests.fakes import FakeEngine, Story
from tests.serve.running import chat, client, running


@pytest.mark.parametrize("function", [(requests, "read_body"), (api, "to_ask")])
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


@pytest.mark.parametrize("model", api.BODIES)
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


TOO_MUCH = f"more than {MAX_VALUES:,} values, or {MAX_CONTAINERS:,} lists"


BODIES = {
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
    "no object": (b"[]", "not JSON in UTF-8: send one object"),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_too_much_or_wrong_is_one_sentence(name: str) -> None:
    body, words = BODIES[name]
    with pytest.raises(BadRequest, match=words):
        read_body(ChatRequest, body)


def test_brackets_and_commas_in_texts_do_not_count() -> None:
    text = rb"[{\"," * 200_000 + b"[{," * 200_000
    body = b'{"messages": [{"role": "user", "content": "' + text + b'"}]}'
    assert read_body(ChatRequest, body).messages[0].content == text.decode().replace("\\", "")
