"""OpenAI's Responses, as its own package and the fields' words have them."""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from app.extras.serve.apis import responses
from app.protocol.prompt import Role
from app.protocol.stats import FinishReason, Phase
from tests.extras.serve.running import ANSWER, LONG_TEXT, TOKEN, client, events, running
from tests.extras.serve.test_faults import ODD
from tests.fakes import FakeEngine, Story, does_not_fit
from tests.tables import table

THOUGHT = "Let me see."
PATH = "/v1/responses"


@functools.cache
def validator(of: str) -> TypeAdapter[Any]:
    """Validates a type of the openai package, imported only where a test needs it."""
    from openai.types import responses

    return TypeAdapter(getattr(responses, of))


def post(address: str, **body: Any) -> Any:
    with client(address) as http:
        return http.post(PATH, json={"model": "any", **body})


def stream(address: str, **body: Any) -> list[dict[str, Any]]:
    body = {"model": "any", "stream": True, **body}
    with client(address) as http, http.stream("POST", PATH, json=body) as reply:
        assert reply.status_code == 200
        found = [json.loads(each) for each in events(reply.iter_lines())]
    for each in found:
        validator("ResponseStreamEvent").validate_python(each)
    return found


def asking(address: str) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{address}/v1", api_key=TOKEN, max_retries=0)


def asked(engine: FakeEngine) -> list[tuple[Role, str]]:
    return [(message.role, message.text) for message in engine.asks[-1].messages]


def test_a_text_is_a_question(address: str, engine: FakeEngine) -> None:
    found = post(address, input=f"{LONG_TEXT}\n\nWhat is due?", max_output_tokens=9).json()
    assert (found["object"], found["status"], found["error"]) == ("response", "completed", None)
    validator("Response").validate_python(found)
    (item,) = found["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"] == [
        {"type": "output_text", "text": ANSWER, "annotations": [], "logprobs": []}
    ]
    usage = found["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert usage["specchat"]["reading"] == "sparse"
    (ask,) = engine.asks
    assert (ask.messages[0].text, ask.sampling.max_tokens) == ("What is due?", 9)
    assert ask.messages[0].documents[0].text == LONG_TEXT


def test_items_are_a_conversation(address: str, engine: FakeEngine) -> None:
    items = [
        {"role": "developer", "content": "Be kind."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"role": "user", "content": "c"},
    ]
    assert post(address, input=items, instructions="Be brief.").status_code == 200
    assert asked(engine) == [
        (Role.SYSTEM, "Be brief."),
        (Role.SYSTEM, "Be kind."),
        (Role.USER, "a"),
        (Role.ASSISTANT, "b"),
        (Role.USER, "c"),
    ]
    assert engine.asks[-1].messages[3].thinking == "Hm."


def test_a_stream_has_the_events_in_their_order(address: str) -> None:
    found = stream(address, input="Hello?")
    kinds = [each["type"].removeprefix("response.") for each in found]
    deltas = kinds.count("output_text.delta")
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * deltas,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [each["sequence_number"] for each in found] == list(range(len(found)))
    assert "".join(each["delta"] for each in found if "delta" in each) == ANSWER
    assert [found[-4]["text"], found[-3]["part"]["text"]] == [ANSWER, ANSWER]
    assert found[-1]["response"]["output"] == [found[-2]["item"]]
    assert found[-1]["response"]["id"] == found[0]["response"]["id"]
    assert found[-1]["response"]["usage"]["output_tokens"] > 3


def test_thoughts_are_an_item_before_the_answer(address: str, engine: FakeEngine) -> None:
    engine.story = Story(answer=ANSWER, thinking=THOUGHT)
    found = stream(address, input="Hello?")
    added = [each for each in found if each["type"] == "response.output_item.added"]
    assert [(e["output_index"], e["item"]["type"]) for e in added] == [
        (0, "reasoning"),
        (1, "message"),
    ]
    thoughts = [e["delta"] for e in found if e["type"] == "response.reasoning_text.delta"]
    assert "".join(thoughts) == THOUGHT
    for output in (found[-1]["response"]["output"], post(address, input="Hello?").json()["output"]):
        assert [item["type"] for item in output] == ["reasoning", "message"]
        assert [item["content"][0]["text"] for item in output] == [THOUGHT, ANSWER]


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_is_cut_off_is_incomplete(
    streamed: bool, address: str, engine: FakeEngine
) -> None:
    engine.story = Story(answer=ANSWER, ended=FinishReason.LENGTH)
    if streamed:
        last = stream(address, input="Hello?")[-1]
        assert last["type"] == "response.incomplete"
        found = last["response"]
    else:
        found = post(address, input="Hello?").json()
    assert (found["status"], found["output"][-1]["status"]) == ("incomplete", "incomplete")
    assert found["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_failure_is_the_last_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.extras.serve.answers.PATIENCE", 0.05)  # the stream begins before it
    engine = FakeEngine(Story(fails_in=Phase.PREFILL, failure=ODD))
    engine.start_thread(lambda event: 0.02)
    with running(engine) as address:
        last = stream(address, input="Hello?")[-1]
    assert last["type"] == "response.failed"
    assert last["response"]["status"] == "failed"
    assert last["response"]["error"]["code"] == "invalid_prompt"
    assert "odd prompt" in last["response"]["error"]["message"]


def test_what_fails_before_a_stream_has_a_status(address: str, engine: FakeEngine) -> None:
    engine.story = Story(failure=does_not_fit())
    for streamed in (False, True):
        assert post(address, input="Hello?", stream=streamed).status_code == 503


def test_the_openai_package_asks_streams_and_continues(address: str, engine: FakeEngine) -> None:
    engine.story = Story(answer=ANSWER, thinking=THOUGHT)
    responses = asking(address).responses
    first = responses.create(model="any", input="One?", instructions="Be brief.")
    assert (first.output_text, first.status) == (ANSWER, "completed")
    with responses.stream(model="any", input="Two?", previous_response_id=first.id) as stream:
        then = stream.get_final_response()
    assert then.output_text == ANSWER
    responses.create(model="any", input="Three?", previous_response_id=then.id)
    said, user = (Role.ASSISTANT, ANSWER), Role.USER
    assert asked(engine) == [(user, "One?"), said, (user, "Two?"), said, (user, "Three?")]
    assert engine.asks[1].messages[1].thinking == THOUGHT
    assert engine.asks[1].conversation == engine.asks[2].conversation


def test_items_may_be_named_or_sent_back(address: str, engine: FakeEngine) -> None:
    engine.story = Story(answer=ANSWER, thinking=THOUGHT)
    output = post(address, input="One?").json()["output"]
    named = [{"type": "item_reference", "id": item["id"]} for item in output]
    question = [{"role": "user", "content": "One?"}], [{"role": "user", "content": "Two?"}]
    for items in (named, output):
        assert post(address, input=[*question[0], *items, *question[1]]).status_code == 200
        assert asked(engine)[1] == (Role.ASSISTANT, ANSWER)
        assert engine.asks[-1].messages[1].thinking == THOUGHT


def test_what_is_not_stored_or_long_ago_is_not_known(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unstored = post(address, input="One?", store=False).json()
    first = post(address, input="Two?").json()
    monkeypatch.setattr(responses, "MAX_REMEMBERED", 4_000)
    last = post(address, input="x" * 2_000).json()
    for unknown in (unstored, first):
        reply = post(address, input="Three?", previous_response_id=unknown["id"])
        assert (reply.status_code, reply.json()["error"]["code"]) == (
            400,
            "previous_response_not_found",
        )
        named = [{"type": "item_reference", "id": unknown["output"][0]["id"]}]
        assert post(address, input=named).status_code == 400
    assert post(address, input="Three?", previous_response_id=last["id"]).status_code == 200


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no input": ({}, "input: Field required"),
    "an image": (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "leave out parts of type 'input_image'",
    ),
    "a call": (
        {"input": [{"type": "function_call", "name": "f"}]},
        "There is no question",
    ),
    "no role": ({"input": [{"content": "x"}]}, "needs a `role`"),
    "a schema": ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "Only text"),
    "a tool's call": ({"input": "x", "tools": [{}], "tool_choice": "required"}, "Tools are not"),
    "log probabilities": (
        {"input": "x", "include": ["message.output_text.logprobs"]},
        "Log probabilities",
    ),
    "a summary that only its maker can read": (
        {"input": [{"type": "compaction", "encrypted_content": "x"}]},
        "items of type 'compaction'",
    ),
    "later": ({"input": "x", "background": True}, "background"),
    "a conversation": ({"input": "x", "conversation": "conv_1"}, "as `input`"),
    "no tokens": ({"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
}


@table("name", BAD)
def test_bad_requests_get_one_sentence(name: str, address: str, engine: FakeEngine) -> None:
    body, words = BAD[name]
    reply = post(address, **body)
    assert reply.status_code == 400
    assert words in reply.json()["error"]["message"]
    assert not engine.asks


def test_tools_are_ignored_with_a_note(address: str) -> None:
    found = post(address, input="Hello?", tools=[{"type": "function", "name": "f"}]).json()
    assert "the answer is text" in found["usage"]["specchat"]["note"]
