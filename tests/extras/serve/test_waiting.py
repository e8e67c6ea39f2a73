"""What clients get while a prompt is read for minutes: some disconnect if nothing arrives."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from app.protocol.stats import Phase
from tests.extras.serve.running import ANSWER, TOKEN, chat, client, events, running, until
from tests.extras.serve.test_faults import ODD
from tests.extras.serve.test_responses import validator
from tests.fakes import FakeEngine, Story, does_not_fit
from tests.tables import table

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": chat(max_tokens=50),
    "/v1/completions": {"prompt": "Once upon", "max_tokens": 50},
    "/v1/messages": chat(max_tokens=50),
    "/v1/responses": {"input": "Hello?"},
}


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.extras.serve.answers.PATIENCE", 0.05)
    monkeypatch.setattr("app.extras.serve.answers.EVENT_SECONDS", 0.15)
    monkeypatch.setattr("app.extras.serve.server.WHOLE_SECONDS", 0.1)
    monkeypatch.setattr("app.extras.serve.server.BLANK_SECONDS", 0.1)


@pytest.fixture
def engine() -> FakeEngine:
    """An engine that reads for some seconds."""
    engine = FakeEngine(Story(answer=ANSWER))
    engine.start_thread(lambda event: 0.05)
    return engine


@pytest.fixture
def address(engine: FakeEngine) -> Iterator[str]:
    with running(engine) as address:
        yield address


def streamed(address: str, path: str) -> list[dict[str, Any]]:
    with (
        client(address) as http,
        http.stream("POST", path, json=BODIES[path] | {"stream": True}) as reply,
    ):
        return [json.loads(e) for e in events(reply.iter_lines()) if e != "[DONE]"]


def test_a_stream_of_messages_has_pings(address: str) -> None:
    kinds = [each["type"] for each in streamed(address, "/v1/messages")]
    pings = kinds.index("message_start")
    assert pings > 1
    assert set(kinds[:pings]) == {"ping"}
    assert kinds[-1] == "message_stop"


def test_a_response_is_created_at_once_and_then_in_progress(address: str) -> None:
    found = streamed(address, "/v1/responses")
    for each in found:
        validator("ResponseStreamEvent").validate_python(each)
    kinds = [each["type"] for each in found]
    assert kinds[:4] == ["response.created", *["response.in_progress"] * 3]
    assert kinds.count("response.created") == 1
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == ANSWER


def test_a_chat_has_empty_deltas(address: str) -> None:
    choices = [each["choices"][0] for each in streamed(address, "/v1/chat/completions")]
    deltas = [each["delta"] for each in choices]
    assert deltas[:3] == [{"role": "assistant", "content": ""}, {}, {}]
    assert "".join(each.get("content", "") for each in deltas) == ANSWER
    assert sum("role" in each for each in deltas) == 1


def test_a_completion_has_empty_texts(address: str) -> None:
    choices = [each["choices"][0] for each in streamed(address, "/v1/completions")]
    assert [each["text"] for each in choices[:2]] == ["", ""]
    assert "".join(each["text"] for each in choices) == ANSWER


@table("path", BODIES)
def test_a_whole_answer_begins_with_blanks(path: str, address: str) -> None:
    with client(address) as http:
        reply = http.post(path, json=BODIES[path])
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.text.startswith("  ")
    assert ANSWER in json.dumps(json.loads(reply.text))


@table("path", BODIES)
def test_a_failure_after_blanks_is_an_error_body(path: str) -> None:
    engine = FakeEngine(Story(fails_in=Phase.PREFILL, failure=ODD))
    engine.start_thread(lambda event: 0.05)
    with running(engine) as address, client(address) as http:
        reply = http.post(path, json=BODIES[path])
    assert reply.status_code == 200
    assert reply.text.startswith(" ")
    found = reply.json()
    assert "odd prompt" in found["error"]["message"]
    assert (found.get("type") == "error") == (path == "/v1/messages")


@table("path", BODIES)
def test_a_failure_before_them_has_a_status(path: str) -> None:
    engine = FakeEngine(Story(failure=does_not_fit()))
    engine.start_thread(lambda event: 0.0)
    with running(engine) as address, client(address) as http:
        assert http.post(path, json=BODIES[path]).status_code == 503


@table("stream", [False, True])
def test_who_leaves_a_late_answer_frees_the_server(stream: bool) -> None:
    engine = FakeEngine(stepping=True)
    body = json.dumps(chat(stream=stream)).encode()
    with running(engine) as address, client(address) as http:
        connection = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {TOKEN}\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        until(lambda: engine.turns)
        assert b"200 OK" in connection.recv(1000)
        time.sleep(0.3)
        assert not engine.cancelled
        connection.close()
        until(lambda: engine.cancelled)
        until(lambda: http.get("/health").json()["waiting"] == 0)


def test_the_clients_of_openai_and_anthropic_wait(address: str) -> None:
    import anthropic
    import openai

    messages: list[Any] = [{"role": "user", "content": "Hello?"}]
    asking = openai.OpenAI(base_url=f"{address}/v1", api_key=TOKEN, max_retries=0)
    whole = asking.chat.completions.create(model="any", messages=messages)
    assert whole.choices[0].message.content == ANSWER
    with asking.chat.completions.stream(model="any", messages=messages) as chunks:
        assert chunks.get_final_completion().choices[0].message.content == ANSWER
    with asking.responses.stream(model="any", input="Hello?") as stream:
        assert stream.get_final_response().output_text == ANSWER
    assert whole._request_id
    claude = anthropic.Anthropic(base_url=address, api_key=TOKEN, max_retries=0)
    message = claude.messages.create(model="any", max_tokens=50, messages=messages)
    assert message._request_id
    with claude.messages.stream(model="any", max_tokens=50, messages=messages) as said:
        assert said.get_final_text() == ANSWER
