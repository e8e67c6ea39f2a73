"""The routes, against an engine that plays a script."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from app.extras.serve import application, requests
from app.extras.serve import http as layer
from app.extras.serve.requests import MAX_READERS
from app.ingest import reader
from app.ingest.records import ReadCancelled
from app.models.cache import ModelCache
from app.protocol.commands import Close
from app.protocol.options import Mode
from app.protocol.prompt import Document, Role
from app.protocol.stats import FinishReason
from tests.extras.serve.running import (
    ANSWER,
    LONG_TEXT,
    TOKEN,
    Words,
    chat,
    client,
    events,
    running,
    until,
)
from tests.fakes import FakeEngine, Story
from tests.tables import table


def post(address: str, path: str, body: Any, **headers: str) -> Any:
    with client(address, headers=headers) as http:
        return http.post(path, json=body)


def test_a_chat_completion_says_how_it_was_read(address: str, engine: FakeEngine) -> None:
    reply = post(address, "/v1/chat/completions", chat(LONG_TEXT + "\n\nWhat is due?"))
    assert reply.status_code == 200
    found = reply.json()
    (choice,) = found["choices"]
    assert choice["message"] == {"role": "assistant", "content": ANSWER}
    assert choice["finish_reason"] == "stop"
    usage = found["usage"]
    assert usage["completion_tokens"] > 3
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}
    assert usage["specchat"]["reading"] == "sparse"
    assert 0 < usage["specchat"]["read_tokens"] < usage["prompt_tokens"]
    (asked,) = engine.asks
    assert asked.messages[0].text == "What is due?"
    assert asked.messages[0].documents[0].text == LONG_TEXT


def test_a_stream_ends_with_usage_and_done(address: str) -> None:
    body = chat(stream=True, stream_options={"include_usage": True})
    with client(address) as http, http.stream("POST", "/v1/chat/completions", json=body) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        found = events(reply.iter_lines())
    assert found[-1] == "[DONE]"
    chunks = [json.loads(each) for each in found[:-1]]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert text == ANSWER
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["specchat"]["mode"] == "auto"
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_messages_stream_as_anthropic_does(address: str) -> None:
    body = chat(stream=True, max_tokens=50) | {"system": "Be brief."}
    with client(address) as http, http.stream("POST", "/v1/messages", json=body) as reply:
        found = [json.loads(each) for each in events(reply.iter_lines())]
    kinds = [each["type"] for each in found]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(e["delta"]["text"] for e in found if e["type"] == "content_block_delta")
    assert text == ANSWER
    assert found[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert found[0]["message"]["usage"]["input_tokens"] == found[-2]["usage"]["input_tokens"] > 0


@table(
    "fields, headers, mode, keep",
    [
        ({}, {}, Mode.AUTO, 0.0),
        ({"specprefill": True}, {}, Mode.SPARSE, 0.0),
        ({"specprefill": False}, {}, Mode.FULL, 0.0),
        ({"specprefill": "auto", "specprefill_keep_pct": 0.3}, {}, Mode.AUTO, 0.3),
        ({"specprefill_keep_pct": 0.25}, {}, Mode.SPARSE, 0.25),
        ({}, {"X-Specprefill": "false"}, Mode.FULL, 0.0),
        ({}, {"X-Specprefill": "true", "X-Specprefill-Keep-Pct": "0.1"}, Mode.SPARSE, 0.1),
        ({"specprefill": True}, {"X-Specprefill": "false"}, Mode.SPARSE, 0.0),
    ],
)
@table("route", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
def test_each_route_lets_choose_how_much_is_read(
    address: str,
    engine: FakeEngine,
    route: str,
    fields: dict[str, Any],
    headers: dict[str, str],
    mode: Mode,
    keep: float,
) -> None:
    body = {**chat(max_tokens=9), "prompt": "Once upon", **fields}
    assert post(address, route, body, **headers).status_code == 200
    asked = engine.asks[-1]
    assert (asked.mode, asked.keep_ratio, asked.sampling.max_tokens) == (mode, keep, 9)
    assert asked.messages[0].plain == (route == "/v1/completions")


def test_a_stop_sequence_ends_the_answer_and_the_work(address: str, engine: FakeEngine) -> None:
    reply = post(address, "/v1/chat/completions", chat(stop=["the rent"])).json()
    assert reply["choices"][0]["message"]["content"] == "The tenant pays "
    assert reply["choices"][0]["finish_reason"] == "stop"
    body = {**chat(max_tokens=50), "stop_sequences": ["pays"]}
    reply = post(address, "/v1/messages", body).json()
    assert reply["content"] == [{"type": "text", "text": "The tenant "}]
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "pays")


def test_what_was_cut_off_says_so(address: str, engine: FakeEngine) -> None:
    engine.story = Story(answer=ANSWER, ended=FinishReason.LENGTH)
    reply = post(address, "/v1/chat/completions", chat()).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    reply = post(address, "/v1/messages", chat(max_tokens=5)).json()
    assert reply["stop_reason"] == "max_tokens"


def test_the_next_turn_continues_the_conversation(address: str, engine: FakeEngine) -> None:
    body = chat()
    post(address, "/v1/chat/completions", body)
    body["messages"] += [
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": "And then?"},
    ]
    post(address, "/v1/chat/completions", body)
    first, then = engine.asks
    assert first.conversation == then.conversation
    assert then.messages[1].token_ids is not None


BAD: dict[str, tuple[str, Any, str]] = {
    "no messages": ("/v1/chat/completions", {"messages": []}, "messages"),
    "several answers": ("/v1/chat/completions", chat(n=2), "n must be 1"),
    "log probabilities": ("/v1/chat/completions", chat(logprobs=True), "Log probabilities"),
    "a format": ("/v1/chat/completions", chat(response_format={"type": "json_object"}), "text"),
    "an image": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "Only texts and files are read",
    ),
    "a temperature": ("/v1/chat/completions", chat(temperature=-1), "temperature"),
    "a keep": ("/v1/chat/completions", chat(specprefill_keep_pct=20), "specprefill_keep_pct"),
    "no question": (
        "/v1/chat/completions",
        {"messages": [{"role": "assistant", "content": "x"}]},
        "no question",
    ),
    "no limit": ("/v1/messages", chat(), "max_tokens"),
    "a tool's message": ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "tool"}]}, "Tool"),
    "two prompts": ("/v1/completions", {"prompt": ["a", "b"]}, "one prompt"),
}


@table("name", BAD)
def test_bad_requests_get_one_sentence_in_the_form_of_the_route(name: str, address: str) -> None:
    path, body, words = BAD[name]
    reply = post(address, path, body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    assert (reply.json().get("type") == "error") == path.startswith("/v1/messages")


def test_models_health_counting_and_the_schema(address: str) -> None:
    with client(address) as http:
        assert [m["id"] for m in http.get("/v1/models").json()["data"]] == ["tiny"]
        model = http.get("/v1/models/tiny").json()
        assert (model["object"], model["type"], model["display_name"]) == ("model", "model", "tiny")
        assert datetime.fromisoformat(model["created_at"]).timestamp() == model["created"] > 0
        assert http.get("/v1/models/maker/Tiny").json() == model
        unknown = http.get("/v1/models/other")
        assert (unknown.status_code, "tiny" in unknown.json()["error"]["message"]) == (404, True)
        counted = http.post("/v1/messages/count_tokens", json=chat("one two three"))
        assert counted.json() == {"input_tokens": 3}
        schema = http.get("/openapi.json").json()
        assert "/v1/chat/completions" in schema["paths"]
        assert http.get("/docs").status_code == 404
    with client(address, headers={"Authorization": ""}) as http:
        assert http.get("/health").json()["status"] == "ok"
        assert http.get("/v1/models").status_code == 401
        assert http.post("/v1/chat/completions", json=chat()).status_code == 401


@table(
    "path",
    [
        "/chat/completions",
        "/v1/v1/chat/completions",
        "//v1/chat/completions",
        "/v1/chat/completions/",
        "/completions",
        "/messages",
        "/v1/v1/messages",
        "/v1/v1/v1/messages/count_tokens",
    ],
)
def test_a_base_address_may_lack_v1_or_have_it_twice(address: str, path: str) -> None:
    body = {**chat(max_tokens=9), "prompt": "x"}
    assert post(address, path, body).status_code == 200
    bad = post(address, path, {})
    assert bad.status_code == 400
    assert (bad.json().get("type") == "error") == ("messages" in path)
    with client(address) as http:
        assert http.get("/models").json()["data"] == http.get("/v1/v1/models").json()["data"]
        unknown, other = http.get("/v2/models"), http.delete("/v1/models")
    assert (unknown.status_code, other.status_code) == (404, 405)
    assert unknown.json()["error"]["message"] == "There is no such route."
    assert other.json()["error"]["message"] == "This route does not allow this method."


@table(
    "path",
    [
        "/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21",
        "/openai/v1/chat/completions",
    ],
)
def test_paths_and_keys_of_azure_are_known(address: str, path: str) -> None:
    headers = {"Authorization": "", "api-key": TOKEN}
    assert post(address, path, chat(), **headers).json()["object"] == "chat.completion"


def test_head_is_get_without_a_body(address: str) -> None:
    with client(address) as http:
        for path in ("/", "/v1", "/health", "/v1/models", "/v1/models/tiny", "/openapi.json"):
            head, get = http.head(path), http.get(path)
            assert (head.status_code, head.content) == (200, b""), path
            assert head.headers["content-length"] == str(len(get.content))
        assert http.head("/v1/models/other").status_code == 404
        assert http.head("/v1/chat/completions").status_code == 405


def test_the_root_says_what_this_is(address: str) -> None:
    with client(address, headers={"Authorization": ""}) as http:
        for path in ("/", "/v1", "/v1/"):
            found = http.get(path).json()
            assert (found["name"], "Anthropic" in found["about"]) == ("specchat", True)
        other = http.get("/", headers={"Origin": "http://evil.example"})
        assert other.status_code == 403


def test_an_installed_model_that_is_not_loaded_is_known(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models--maker--Small-4bit"
    (folder / "snapshots" / ("a" * 40)).mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr(application, "default_cache", lambda: ModelCache(tmp_path))
    with client(address) as http:
        found = http.get("/v1/models/maker/small-4bit").json()
        assert (found["id"], found["state"]) == ("maker/Small-4bit", "not-loaded")
        unknown = http.get("/v1/models/maker/large")
    assert unknown.status_code == 404
    assert "'maker/large' is not installed" in unknown.json()["error"]["message"]


def test_every_reply_has_an_id(address: str) -> None:
    ids = set()
    for path, body in (("/v1/messages", chat(max_tokens=5)), ("/v1/messages", {}), ("/x", {})):
        reply = post(address, path, body)
        assert reply.headers["request-id"] == reply.headers["x-request-id"]
        ids.add(reply.headers["request-id"])
    assert len(ids) == 3
    with client(address, headers={"Authorization": ""}) as http:
        assert http.get("/v1/models").headers["x-request-id"].startswith("req_")


@table("encoding", ["gzip", "GZIP", "deflate"])
def test_compressed_bodies_are_read(address: str, engine: FakeEngine, encoding: str) -> None:
    squeeze = gzip.compress if encoding.lower() == "gzip" else zlib.compress
    headers = {"Content-Encoding": encoding}
    with client(address, headers=headers) as http:
        body = squeeze(json.dumps(chat("Who?")).encode())
        assert http.post("/v1/chat/completions", content=body).status_code == 200
        assert engine.asks[-1].question == "Who?"
        for damaged in (body[:-9], body[9:], b"", b"{}"):
            reply = http.post("/v1/chat/completions", content=damaged)
            assert reply.status_code == 400
            assert "is not complete" in reply.json()["error"]["message"]
        huge = squeeze(b" " * (layer.MAX_BODY + 1))
        assert http.post("/v1/chat/completions", content=huge).status_code == 413
        other = http.post("/v1/messages", content=body, headers={"Content-Encoding": "zstd"})
    assert other.status_code == 415
    assert "use gzip" in other.json()["error"]["message"]


def test_an_answer_that_was_ended_for_others_is_cut_off(address: str, engine: FakeEngine) -> None:
    engine.story = Story(answer=ANSWER, ended=FinishReason.REPEATED)
    reply = post(address, "/v1/chat/completions", chat()).json()
    assert reply["choices"][0]["finish_reason"] == "length"


@table("kind", ["application/x-www-form-urlencoded", "text/plain", None])
def test_a_body_is_json_whatever_its_type_is_said_to_be(
    address: str, engine: FakeEngine, kind: str | None
) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    with client(address) as http:
        for body in (
            json.dumps(chat("ä")).encode(),
            b"\xef\xbb\xbf" + json.dumps(chat("ä")).encode(),
        ):
            reply = http.post("/v1/chat/completions", content=body, headers=headers)
            assert reply.status_code == 200
    assert [asked.question for asked in engine.asks[-2:]] == ["ä", "ä"]


def test_a_system_prompt_alone_is_answered(address: str, engine: FakeEngine) -> None:
    system = {"role": "system", "content": "Say yes."}
    assert post(address, "/v1/chat/completions", {"messages": [system]}).status_code == 200
    assert [(m.role, m.text) for m in engine.asks[0].messages] == [(Role.USER, "Say yes.")]


def test_tokens_are_continued_as_they_are(address: str, engine: FakeEngine) -> None:
    for prompt in ([5, 6, 7], [[5, 6, 7]]):
        assert post(address, "/v1/completions", {"prompt": prompt}).status_code == 200
        (message,) = engine.asks[-1].messages
        assert (message.token_ids, message.text, message.plain) == ((5, 6, 7), "5 6 7", True)
    for wrong in ([5, "x"], [[5], [6]], [True], [1.5], [], [[]], [None], [{}]):
        assert post(address, "/v1/completions", {"prompt": wrong}).status_code == 400
    assert len(engine.asks) == 2


def test_a_long_text_is_not_cut_within_a_special_token(address: str, engine: FakeEngine) -> None:
    for text in ("<|im_start|>" * 500, "some words <|im_start|>" * 300, "<|im_start|>a\n" * 500):
        assert post(address, "/v1/completions", {"prompt": text}).status_code == 200
        (message,) = engine.asks[-1].messages
        cut = "".join(document.text for document in message.documents)
        assert cut + message.text == text
        assert cut.count("<|") == cut.count("|>")


def test_an_unknown_field_is_named_in_the_usage(address: str) -> None:
    usage = post(address, "/v1/chat/completions", chat(wishes=3)).json()["usage"]
    assert usage["specchat"]["note"].endswith("ignored: wishes.")


def test_without_a_token_other_pages_and_other_names_are_refused(engine: FakeEngine) -> None:
    with running(engine, token=None) as address:
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            reply = post(address, "/v1/chat/completions", chat(), **headers)
            assert reply.status_code == 403
    assert not engine.asks


def test_a_page_with_the_token_may_ask_and_read_the_answer(address: str) -> None:
    asked = {
        "Origin": "app://obsidian.md",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    with httpx.Client(base_url=address, verify=False) as http:
        may = http.options("/v1/chat/completions", headers=asked)
        assert may.status_code == 200
        assert may.headers["access-control-allow-origin"] == "*"
        assert may.headers["access-control-allow-headers"] == "authorization,content-type"
    reply = post(address, "/v1/chat/completions", chat(), Origin="app://obsidian.md")
    assert (reply.status_code, reply.headers["access-control-allow-origin"]) == (200, "*")


def test_huge_bodies_are_refused(address: str) -> None:
    with client(address) as http:
        headers = {"Content-Type": "application/json"}
        path = "/v1/chat/completions"
        huge = b'{"x": "' + b"a" * layer.MAX_BODY + b'"}'
        assert http.post(path, content=huge, headers=headers).status_code == 413
        pieces = (b"a" * 100_000 for _ in range(layer.MAX_BODY // 100_000 + 1))
        assert http.post(path, content=pieces, headers=headers).status_code == 413
        assert http.post(path, json=chat()).status_code == 200


def test_half_a_request_holds_nothing_up(
    address: str, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer, "BODY_SECONDS", 0.5)
    port = int(address.rpartition(":")[2])
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {TOKEN}\r\n"
    halves = [head.encode(), f"{head}Content-Length: 500\r\n\r\n{{".encode()]
    opened = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    for index, connection in enumerate(opened):
        connection.sendall(halves[index % 2])
    assert post(address, "/v1/chat/completions", chat()).status_code == 200
    opened[1].settimeout(20)
    assert b"408" in opened[1].recv(1000)
    for connection in opened:
        connection.close()
    assert len(engine.asks) == 1


def test_connections_without_a_whole_header_are_closed(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer, "HEADER_SECONDS", 1.0)
    half = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    with running(engine) as address:
        at = ("127.0.0.1", int(address.rpartition(":")[2]))
        with socket.create_connection(at, 20) as first, socket.create_connection(at, 20) as second:
            first.sendall(half)
            second.sendall(half + b"\r\n" + half)
            assert b"200 OK" in second.recv(1000)
            for connection in (first, second):
                while connection.recv(1000):
                    pass  # until it is closed


def test_an_answer_may_take_longer_than_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer, "HEADER_SECONDS", 0.3)
    engine = FakeEngine(Story(answer="word " * 50))
    engine.start_thread(lambda event: 0.02)
    with running(engine) as address:
        assert post(address, "/v1/chat/completions", chat()).status_code == 200


def test_a_client_that_goes_away_stops_its_answer() -> None:
    engine = FakeEngine(Story(answer="word " * 200))
    engine.start_thread(lambda event: 0.02)
    with running(engine) as address, client(address) as http:
        with http.stream("POST", "/v1/chat/completions", json=chat(stream=True)) as reply:
            next(reply.iter_lines())
            until(lambda: engine.asks)
        until(lambda: engine.cancelled)
        with pytest.raises(Exception, match="timed out"):
            http.post("/v1/chat/completions", json=chat(), timeout=0.5)
        until(lambda: len(engine.cancelled) == 2)


def test_a_slow_reader_holds_nobody_up(address: str, engine: FakeEngine) -> None:
    engine.story = Story(answer="word " * 3000)
    port = int(address.rpartition(":")[2])
    body = json.dumps(chat(stream=True))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {TOKEN}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.sendall((head + body).encode())
        until(lambda: engine.asks)
        assert post(address, "/v1/chat/completions", chat()).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages"])
def test_a_stream_that_is_too_long_is_refused_before_it_begins(path: str) -> None:
    engine = FakeEngine(Story(answer=ANSWER), stepping=True)  # it never gets to the request
    words = "word " * 60
    body = {**chat(words, max_tokens=5, stream=True), "prompt": words}
    with running(engine, context=50) as address:
        reply = post(address, path, body)
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert "prompt is too long" in error["message"]
        assert ("60" in error["message"], "50" in error["message"]) == (True, True)
        if path != "/v1/messages":
            assert error["code"] == "context_length_exceeded"
    assert not engine.asks


def test_what_is_far_too_long_is_not_counted_to_its_end(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[object] = []
    monkeypatch.setattr(Words, "count", counted.append)
    with running(engine, context=50) as address:
        body = {"prompt": "word " * 4_000, "stream": True, "max_tokens": 5}
        reply = post(address, "/v1/completions", body)
    assert reply.status_code == 400
    assert "about 5,000 tokens" in reply.json()["error"]["message"]
    assert (counted, engine.asks) == ([], [])


def test_documents_that_do_not_all_fit_are_not_too_long(engine: FakeEngine) -> None:
    body = chat(f"{LONG_TEXT}\n\nWhat is due?", stream=True)
    with running(engine, context=50) as address:
        assert post(address, "/v1/chat/completions", body).status_code == 200


def test_a_client_that_goes_before_its_stream_begins_gives_its_place_back() -> None:
    engine = FakeEngine(Story(answer=ANSWER), stepping=True)
    with running(engine) as address, client(address) as http:
        with pytest.raises(httpx.TimeoutException):
            http.post("/v1/chat/completions", json=chat(stream=True), timeout=0.3)
        until(lambda: engine.cancelled)
        engine.finish()
        until(lambda: http.get("/health").json()["waiting"] == 0)


@pytest.mark.slow
def test_fifty_clients_are_answered_in_turn_and_more_are_told_to_wait() -> None:
    engine = FakeEngine(Story(answer=ANSWER), stepping=True)
    found: list[int] = []

    def one(address: str) -> None:
        reply = post(address, "/v1/chat/completions", chat())
        found.append(reply.status_code)
        if reply.status_code == 503:
            assert int(reply.headers["retry-after"]) > 0
            assert "try again" in reply.json()["error"]["message"]

    with running(engine, waiting=29) as address:
        threads = [threading.Thread(target=one, args=(address,)) for _ in range(50)]
        for thread in threads:
            thread.start()
        until(lambda: len(found) == 20)
        assert set(found) == {503}
        engine.start_thread(lambda event: 0.0)
        for thread in threads:
            thread.join(30)
    assert sorted(found) == [200] * 30 + [503] * 20
    assert len(engine.asks) == 30


def test_while_it_reads_the_connection_is_kept_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.extras.serve.answers.PATIENCE", 0.3)
    engine = FakeEngine(Story(answer=ANSWER))
    engine.start_thread(lambda event: 0.1)  # it reads on all the time, faster than that
    body = chat(stream=True)
    with (
        running(engine) as address,
        client(address) as http,
        http.stream("POST", "/v1/chat/completions", json=body) as reply,
    ):
        lines = list(reply.iter_lines())
    comments = [line for line in lines if line.startswith(":")]
    assert any("prefill" in comment for comment in comments)


def test_thoughts_are_apart_from_the_answer(address: str, engine: FakeEngine) -> None:
    engine.story = Story(answer=ANSWER, thinking="Let me see.")
    reply = post(address, "/v1/chat/completions", chat()).json()
    message = reply["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == (ANSWER, "Let me see.")
    thought, said = post(address, "/v1/messages", chat(max_tokens=50)).json()["content"]
    assert (thought["type"], thought["thinking"]) == ("thinking", "Let me see.")
    assert said == {"type": "text", "text": ANSWER}


def test_thoughts_are_streamed_as_a_block_of_their_own(address: str, engine: FakeEngine) -> None:
    engine.story = Story(answer=ANSWER, thinking="Let me see.")
    body = chat(stream=True, max_tokens=50)
    with client(address) as http, http.stream("POST", "/v1/messages", json=body) as reply:
        found = [json.loads(each) for each in events(reply.iter_lines())]
    blocks = [each for each in found if each["type"].startswith("content_block")]
    starts = [e["content_block"]["type"] for e in blocks if e["type"] == "content_block_start"]
    assert starts == ["thinking", "text"]
    assert [e["index"] for e in blocks] == sorted(e["index"] for e in blocks)
    assert [e["index"] for e in blocks if e["type"] == "content_block_stop"] == [0, 1]
    deltas = [each["delta"] for each in blocks if "delta" in each]
    assert "".join(each.get("thinking", "") for each in deltas) == "Let me see."
    assert "".join(each.get("text", "") for each in deltas) == ANSWER


NO_TOOLS = [{}, {"tools": []}, {"tools": [{}], "tool_choice": "none"}]
IGNORED_TOOLS = [
    {"tools": [{"type": "function", "function": {"name": "f"}}]},
    {"tools": [{}], "tool_choice": "auto", "parallel_tool_calls": True},
    {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "auto"}},
    {"tools": [{}], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{}]}},
    {"functions": [{}], "function_call": "auto"},
]
NEEDED_TOOLS = [
    {"tools": [{}], "tool_choice": "required"},
    {"tools": [{}], "tool_choice": {"type": "any"}},
    {"tools": [{}], "tool_choice": {"type": "tool", "name": "f"}},
    {"tools": [{}], "tool_choice": {"type": "function", "function": {"name": "f"}}},
    {"tools": [{}], "tool_choice": {"type": "allowed_tools", "mode": "required"}},
    {"functions": [{}], "function_call": {"name": "f"}},
]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_tools_that_may_be_ignored_are_answered_in_text(path: str, address: str) -> None:
    for tools in NO_TOOLS + IGNORED_TOOLS:
        reply = post(address, path, chat(max_tokens=50, **tools))
        assert reply.status_code == 200
        note = reply.json()["usage"]["specchat"].get("note", "")
        assert ("the answer is text" in note) == (tools in IGNORED_TOOLS)
    for tools in NEEDED_TOOLS:
        reply = post(address, path, chat(max_tokens=50, **tools))
        assert reply.status_code == 400
        message = reply.json()["error"]["message"]
        assert message.startswith("Tools are not supported: set `tool_choice` to auto or none")


@table(
    "content, text, thinking",
    [
        ([{"type": "thinking", "thinking": "Hm.", "signature": "x"}, "Yes."], "Yes.", "Hm."),
        ([{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "a"}], "a", ""),
        ([{"type": "refusal", "refusal": "No."}], "No.", ""),
        (["a", "b"], "a\n\nb", ""),
    ],
)
def test_what_was_thought_before_an_earlier_answer_is_no_part_of_it(
    content: list[Any], text: str, thinking: str, address: str, engine: FakeEngine
) -> None:
    earlier = [{"role": "user", "content": "a"}, {"role": "assistant", "content": content}]
    for path in ("/v1/chat/completions", "/v1/messages"):
        body = {"messages": [*earlier, {"role": "user", "content": "c"}], "max_tokens": 5}
        assert post(address, path, body).status_code == 200
        answer = engine.asks[-1].messages[1]
        assert (answer.text, answer.thinking) == (text, thinking)


@pytest.mark.parametrize("sent", ["content", "reasoning_content"])
def test_an_answer_after_thoughts_is_continued_with_and_without_them(
    sent: str, address: str, engine: FakeEngine
) -> None:
    engine.story = Story(answer=ANSWER, thinking="Let me see.")
    body = chat()
    message = post(address, "/v1/chat/completions", body).json()["choices"][0]["message"]
    earlier = {name: message[name] for name in ("role", "content", sent)}
    body["messages"] += [earlier, {"role": "user", "content": "And then?"}]
    post(address, "/v1/chat/completions", body)
    first, then = engine.asks
    assert first.conversation == then.conversation
    assert then.messages[1].thinking == "Let me see."


def test_documents_of_messages_are_documents(address: str, engine: FakeEngine) -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "The rent is due."}
    parts = [
        {"type": "document", "title": "lease", "source": source},
        {"type": "text", "text": "?"},
    ]
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": parts}]}
    assert post(address, "/v1/messages", body).status_code == 200
    (message,) = engine.asks[0].messages
    assert message.role is Role.USER
    assert (message.documents[0].name, message.documents[0].text) == ("lease", "The rent is due.")


RTF = base64.b64encode(rb"{\rtf1 The rent is due.}").decode()
FILES = {
    "/v1/messages": {
        "type": "document",
        "title": "lease.rtf",
        "source": {"type": "base64", "media_type": "application/rtf", "data": RTF},
    },
    "/v1/chat/completions": {
        "type": "file",
        "file": {"filename": "lease.rtf", "file_data": f"data:application/rtf;base64,{RTF}"},
    },
    "/v1/responses": {"type": "input_file", "filename": "lease.rtf", "file_data": RTF},
}


@table("path", FILES)
def test_files_of_messages_are_documents(path: str, address: str, engine: FakeEngine) -> None:
    messages = [{"role": "user", "content": [FILES[path], {"type": "text", "text": "When?"}]}]
    body: dict[str, object] = {"max_tokens": 5, "messages": messages}
    if path == "/v1/responses":
        body = {"input": messages}
    answer = post(address, path, body)
    assert answer.status_code == 200, answer.text
    (message,) = engine.asks[-1].messages
    document = message.documents[0]
    assert (document.name, document.text, message.text) == (
        "lease.rtf",
        "The rent is due.",
        "When?",
    )


@table(
    "data, told",
    [
        ("JVBERi0=", "PDF file that is damaged"),
        ("?", "not base64"),
        (None, "in base64"),
        ("", "is empty"),
        ("data:text/plain;base64,", "is empty"),
    ],
)
def test_files_that_cannot_be_read(data: str | None, told: str, address: str) -> None:
    part = {"type": "document", "source": {"type": "base64", "data": data}}
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": [part]}]}
    answer = post(address, "/v1/messages", body)
    assert (answer.status_code, told in answer.json()["error"]["message"]) == (400, True)


MAIL = b"""From: a@example.org
Subject: Offer
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="b"

--b
Content-Type: text/plain

The rent is 900.
--b
Content-Type: application/octet-stream
Content-Disposition: attachment; filename="x.bin"
Content-Transfer-Encoding: base64

AAEC
--b--
"""


def test_what_was_not_read_of_a_file_is_in_the_note(address: str) -> None:
    data = base64.b64encode(MAIL).decode()
    part = {"type": "input_file", "filename": "offer.eml", "file_data": data}
    body = {"input": [{"role": "user", "content": [part, {"type": "input_text", "text": "What?"}]}]}
    usage = post(address, "/v1/responses", body).json()["usage"]
    assert usage["specchat"]["note"] == "offer.eml: 1 attachment not read."


def with_file(name: str) -> dict[str, object]:
    data = base64.b64encode(name.encode()).decode()
    part = {"type": "document", "title": name, "source": {"type": "base64", "data": data}}
    return {"max_tokens": 5, "messages": [{"role": "user", "content": [part]}]}


def test_files_are_read_no_further_once_their_clients_are_gone(
    address: str, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    ended: list[str] = []

    def read_on(name: str, data: bytes, limits: object, cancelled: Callable[[], bool]) -> None:
        begun.append(name)
        until(cancelled)
        ended.append(name)
        raise ReadCancelled

    monkeypatch.setattr(reader, "read_content", read_on)

    port = int(address.rpartition(":")[2])
    clients = []
    for number in range(MAX_READERS):
        body = json.dumps(with_file(f"{number}.epub")).encode()
        clients.append(socket.create_connection(("127.0.0.1", port)))
        head = f"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Api-Key: {TOKEN}\r\n"
        clients[-1].sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    until(lambda: len(begun) == MAX_READERS)
    refused = post(address, "/v1/messages", with_file("one too many.epub"))
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert post(address, "/v1/chat/completions", chat("Without a file?")).status_code == 200
    assert ended == []
    for each in clients:
        each.close()
    until(lambda: len(ended) == MAX_READERS)


def test_all_files_of_a_request_have_one_limit_of_time(
    address: str, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(name: str, data: bytes, limits: object, cancelled: object) -> Document:
        time.sleep(0.05)
        return Document(name, name)

    monkeypatch.setattr(reader, "read_content", slowly)
    monkeypatch.setattr(requests, "READ_SECONDS", 0.01)
    bodies = [with_file("one.epub"), with_file("two.epub")]
    assert [post(address, "/v1/messages", each).status_code for each in bodies] == [200, 200]
    parts: list[Any] = [with_file(name)["messages"] for name in ("three.epub", "four.epub")]
    content = [each[0]["content"][0] for each in parts]
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": content}]}
    reply = post(address, "/v1/messages", body)
    assert reply.status_code == 400
    assert "take too long to read" in reply.json()["error"]["message"]


def test_the_log_has_no_contents(
    address: str, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "specchat.serve")
    post(address, "/v1/chat/completions", chat("a secret"))
    until(lambda: caplog.text)
    assert "POST /v1/chat/completions 200" in caplog.text
    assert "secret" not in caplog.text


def _ignore(address: str) -> None:
    with suppress(httpx.HTTPError):
        post(address, "/v1/chat/completions", chat())


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_it_ends_while_a_request_runs_and_the_answer_may_outlive_it() -> None:
    engine = FakeEngine(Story(answer="word " * 500))
    engine.start_thread(lambda event: 0.02)
    started = time.monotonic()
    with running(engine) as address:
        request = threading.Thread(target=_ignore, args=(address,), daemon=True)
        request.start()
        until(lambda: engine.asks)
    assert time.monotonic() - started < 20
    engine.send(Close())
    engine.join(30)
