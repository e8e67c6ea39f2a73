"""What goes wrong, as clients and the log see it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.engine.backend.memory import to_failed
from app.extras.serve import server
from app.extras.serve.answers import OURS
from app.protocol.commands import Ask
from app.protocol.reasons import Failure, FailureKind, too_long
from app.protocol.stats import Phase
from tests.extras.serve.running import chat, client, events, running, until
from tests.fakes import FakeEngine, Story, does_not_fit
from tests.tables import table

CHAT = "/v1/chat/completions"
ODD = Failure(FailureKind.TEMPLATE_FAILED, {"error": "odd prompt"})


def served(story: Story) -> Any:
    engine = FakeEngine(story)
    engine.start_thread(lambda event: 0.0)
    return running(engine)


def test_an_error_that_nobody_foresaw_is_ours() -> None:
    with pytest.raises(TypeError) as raised:
        raise TypeError
    assert to_failed(1, raised.value).failure.kind in OURS


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (too_long(59, "tiny", 50), 400, "context_length_exceeded"),
        (does_not_fit(), 503, None),
        (does_not_fit(excess=9), 400, "context_length_exceeded"),
    ],
)
def test_a_failure_says_whose_it_is(failure: Failure, status: int, code: str | None) -> None:
    with served(Story(failure=failure)) as address, client(address) as http:
        for stream in (False, True):  # no stream has begun
            reply = http.post(CHAT, json=chat(stream=stream))
            found = reply.json()["error"]
            assert (reply.status_code, found["code"]) == (status, code)
            assert ("retry-after" in reply.headers) == (status == 503)
            assert found["type"] == ("invalid_request_error" if status == 400 else "server_error")
            assert ("prompt is too long" in found["message"]) == (code is not None)


def test_a_failure_after_the_stream_has_begun_is_an_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.extras.serve.answers.PATIENCE", 0.05)
    engine = FakeEngine(Story(fails_in=Phase.PREFILL, failure=ODD))
    engine.start_thread(lambda event: 0.02)
    with running(engine) as address, client(address) as http:
        with http.stream("POST", CHAT, json=chat(stream=True)) as reply:
            assert reply.status_code == 200
            found = events(reply.iter_lines())
        assert "odd prompt" in json.loads(found[0])["error"]["message"]
        assert found[-1] == "[DONE]"


@table(
    "failure, status",
    [
        (Failure(FailureKind.OUT_OF_MEMORY), 503),
        (Failure(FailureKind.MEMORY_EXHAUSTED), 503),
        (Failure(FailureKind.NO_MODEL), 503),
        (Failure(FailureKind.INTERNAL, {"error": "KeyError in f, x"}), 500),
        (Failure(FailureKind.MLX_MISSING, {"error": "x"}), 500),
        (ODD, 400),
    ],
)
def test_a_failure_while_it_reads_has_a_status_too(failure: Failure, status: int) -> None:
    story = Story(fails_in=Phase.PREFILL, failure=failure)
    with served(story) as address, client(address) as http:
        assert http.post(CHAT, json=chat()).status_code == status


def test_a_server_that_loses_the_gpu_answers_503_and_ends() -> None:
    """What waits for the one that fails is answered in the same way."""
    lost = Failure(FailureKind.GPU_LOST, {"system": "Hang"})
    engine = FakeEngine(Story(fails_in=Phase.PREFILL, failure=lost))
    engine.start_thread(lambda event: 0.01)
    with running(engine) as address, client(address) as http, ThreadPoolExecutor(3) as threads:
        replies = list(threads.map(lambda _: http.post(CHAT, json=chat()), range(3)))
        assert {reply.status_code for reply in replies} == {503}
        assert any("work on the GPU (Hang)" in reply.text for reply in replies)
        assert all("retry-after" in reply.headers for reply in replies)
        until(lambda: not answers(address))


def answers(address: str) -> bool:
    host, port = address.removeprefix("http://").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


BODIES = {
    "a model": b'{"model":"a\\ud800","messages":[{"role":"user","content":"x"}],"max_tokens":4}',
    "a title": b'{"messages":[{"role":"user","content":[{"type":"document","title":"\\uDFFF",'
    b'"source":{"type":"text","data":"x"}},{"type":"text","text":"x"}]}],"max_tokens":4}',
    "raw bytes": b'{"messages":[{"role":"user","content":"\xed\xa0\x80"}],"max_tokens":4}',
    "another encoding": '{"messages":[{"role":"user","content":"x"}],"max_tokens":4}'.encode(
        "utf-16-le"
    ),
    "a deep one": b'{"model":"\\ud800","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.fixture
def http() -> Iterator[Any]:
    with served(Story()) as address, client(address) as http:
        yield http


@table("name", BODIES)
@table("path", [CHAT, "/v1/messages", "/v1/messages/count_tokens"])
def test_what_is_not_valid_unicode_is_refused_by_every_route(
    name: str, path: str, http: Any
) -> None:
    headers = {"Content-Type": "application/json"}
    reply = http.post(path, content=BODIES[name], headers=headers)
    assert reply.status_code == 400
    assert (reply.json().get("type") == "error") == path.startswith("/v1/messages")
    whole = BODIES["a model"].replace(b"\\ud800", b"\\ud83d\\ude00")
    assert http.post(path, content=whole, headers=headers).status_code == 200


def test_a_fault_of_ours_is_an_error_without_internals(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*given: Any) -> Ask:
        raise TypeError("a secret")

    monkeypatch.setattr(server, "to_ask", broken)
    with served(Story()) as address, client(address) as http:
        for path in (CHAT, "/v1/messages"):
            reply = http.post(path, json=chat(max_tokens=4))
            assert reply.status_code == 500
            assert "Something went wrong inside specchat" in reply.json()["error"]["message"]
            assert "secret" not in reply.text
    assert "TypeError in broken" in caplog.text
    assert "secret" not in caplog.text


def test_the_log_shows_no_control_characters(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "specchat.serve")
    with served(Story()) as address:
        at = ("127.0.0.1", int(address.rpartition(":")[2]))
        with socket.create_connection(at, 20) as connection:
            path = b"/%1b]0;owned%07%0aforged" + b"a" * 5000
            connection.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"401" in connection.recv(100)
        until(lambda: "forged" in caplog.text)
    (record,) = [each.getMessage() for each in caplog.records if "forged" in each.getMessage()]
    assert record.isprintable()
    assert len(record) < 250
