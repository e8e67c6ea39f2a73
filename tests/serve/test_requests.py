"""What clients send for fields that they do not use."""

from __future__ import annotations

from typing import Any

import pytest

from app.protocol.options import Sampling
from app.serve.requests import ChatRequest, CompletionRequest, Defaults, MessagesRequest, to_ask

DEFAULTS = Defaults(sampling=Sampling(max_tokens=77, top_k=20))
MESSAGES = [{"role": "user", "content": "Who?"}]


def sampling(**fields: Any) -> Sampling:
    body = ChatRequest.model_validate({"messages": MESSAGES, **fields})
    body.check()
    limit = body.max_completion_tokens or body.max_tokens
    return to_ask((), body, {}, DEFAULTS, limit).sampling


@pytest.mark.parametrize("name", sorted(set(ChatRequest.model_fields) - {"messages"}))
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


def test_minus_one_is_no_limit() -> None:
    assert sampling(max_tokens=-1).max_tokens == 77
    assert sampling(max_completion_tokens=-1, max_tokens=5).max_tokens == 5
    assert (sampling().top_k, sampling(top_k=-1).top_k) == (20, 0)


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
