"""The API of CONTRIBUTING.md, as written there."""

from __future__ import annotations

import json

import pytest

from app.extras.serve import apis, application
from tests.extras.serve.running import ANSWER, client, events, running
from tests.fakes import FakeEngine, Story
from tests.worked_examples import module_of


def test_the_api_answers_whole_and_as_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of("Add an API", "app.extras.serve.apis.ask", monkeypatch)
    every = (*apis.apis(), module)
    for where in (apis, application):
        monkeypatch.setattr(where, "apis", lambda: every)
    body = {"text": "The rent is due on the first.", "question": "When is the rent due?"}
    with running(FakeEngine(Story(answer=ANSWER))) as address, client(address) as http:
        assert http.post("/v1/ask", json=body).json() == {"answer": ANSWER}
        lines = iter(http.post("/v1/ask", json=body | {"stream": True}).text.splitlines())
        streamed = [json.loads(each) for each in events(lines)]
        assert "".join(each.get("text", "") for each in streamed) == ANSWER
        assert streamed[-1] == {"done": True}
        refused = http.post("/v1/ask", json={"text": "Nothing is asked."})
        assert refused.status_code == 400
        assert "question" in refused.json()["error"]["message"]
        assert "/v1/ask" in http.get("/openapi.json").json()["paths"]
