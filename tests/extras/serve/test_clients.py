"""Programs that people use, against the server on the demo pair."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.chat.engine_session import EngineSession
from app.chat.model_pairs import resolve_pair
from app.engine.engine import MlxEngine
from app.extras.serve.requests import Defaults
from app.protocol.commands import CachePolicy
from app.protocol.options import BackgroundPolicy, Sampling
from app.util.assets import assets_path
from tests.extras.serve.running import ANSWER, TOKEN, chat, client, running
from tests.extras.serve.test_citations import ASKED, CITED, PASSAGE
from tests.fakes import FakeEngine, Story
from tests.patience import ROUNDS

LICENCE = (assets_path() / "demo" / "gpl-3.0.txt").read_text(encoding="utf-8")[:14_000]
QUESTIONS = ('What does it say of "Basic Permissions"?', 'What does it say of "Source Code"?')
FIRST = f"{LICENCE[:8_000]}\n\n{QUESTIONS[0]}"


@pytest.fixture(scope="module")
def engine() -> Iterator[MlxEngine]:
    engine = MlxEngine()
    with EngineSession(engine, CachePolicy(BackgroundPolicy.OFF)) as session:
        session.load(resolve_pair())
        yield engine


@pytest.fixture
def address(engine: MlxEngine) -> Iterator[str]:
    with running(engine) as address:
        yield address


@contextmanager
def playing(story: Story) -> Iterator[str]:
    """The address of a server whose engine plays it."""
    engine = FakeEngine(story)
    engine.start_thread(lambda event: 0.0)
    with running(engine) as address:
        yield address


def test_the_openai_package_chats_and_continues(address: str) -> None:
    import openai

    asking = openai.OpenAI(base_url=f"{address}/v1", api_key=TOKEN)
    messages: list[Any] = [{"role": "user", "content": FIRST}]
    first = asking.chat.completions.create(
        model="any", messages=messages, extra_body={"specprefill": True}, max_tokens=40
    )
    assert first.usage is not None
    answer = first.choices[0].message.content
    assert answer
    about: Any = first.usage.model_extra
    assert about["specchat"]["reading"] == "sparse"
    assert 0 < about["specchat"]["read_tokens"] < first.usage.prompt_tokens
    messages += [
        {"role": "assistant", "content": answer},
        {"role": "user", "content": QUESTIONS[1]},
    ]
    usage = None
    for chunk in asking.chat.completions.create(
        model="any",
        messages=messages,
        stream=True,
        stream_options={"include_usage": True},
        max_tokens=40,
    ):
        usage = chunk.usage or usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    cached = usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert cached > 0.8 * about["specchat"]["read_tokens"]
    then: Any = usage.model_extra
    assert 0 < then["specchat"]["read_tokens"] <= usage.prompt_tokens - cached  # what is new
    assert [model.id for model in asking.models.list()] == ["tiny"]
    with pytest.raises(openai.BadRequestError, match="n must be 1"):
        asking.chat.completions.create(model="any", messages=messages, n=2)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{address}/v1", api_key="x").models.list()


def test_the_anthropic_package_chats_and_counts(address: str) -> None:
    import anthropic

    asking = anthropic.Anthropic(base_url=address, api_key=TOKEN)
    messages: list[Any] = [{"role": "user", "content": FIRST}]
    whole = asking.messages.create(model="any", max_tokens=40, messages=messages)
    assert whole.content[0].type == "text"
    with asking.messages.stream(model="any", max_tokens=40, messages=messages) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        final = stream.get_final_message()
    assert final.usage.cache_read_input_tokens
    assert final.stop_reason == whole.stop_reason
    assert asking.messages.count_tokens(model="any", messages=messages).input_tokens > 5
    assert asking.models.retrieve("tiny").created_at.year > 2000
    with pytest.raises(anthropic.BadRequestError, match="Tools are not supported"):
        asking.messages.create(
            model="any",
            max_tokens=5,
            messages=messages,
            tools=[{"name": "f", "input_schema": {}}],  # type: ignore[typeddict-item]
            tool_choice={"type": "any"},
        )


def test_the_anthropic_package_gets_citations() -> None:
    import anthropic

    with playing(Story(answer=ANSWER, citations=CITED)) as address:
        asking = anthropic.Anthropic(base_url=address, api_key=TOKEN, max_retries=0)
        messages: list[Any] = [{"role": "user", "content": ASKED}]
        with asking.messages.stream(model="any", max_tokens=9, messages=messages) as stream:
            final = json.loads(stream.get_final_message().to_json())
    assert final["content"][0]["text"] == ANSWER
    assert final["content"][0]["citations"][0]["cited_text"] == PASSAGE


def test_the_anthropic_package_gets_thoughts_as_a_block_of_their_own() -> None:
    import anthropic

    with playing(Story(answer=ANSWER, thinking="Let me see.")) as address:
        asking = anthropic.Anthropic(base_url=address, api_key=TOKEN)
        messages: list[Any] = [{"role": "user", "content": "Hello?"}]
        with asking.messages.stream(model="any", max_tokens=50, messages=messages) as stream:
            content = stream.get_final_message().content
    assert [each.type for each in content] == ["thinking", "text"]


@pytest.mark.slow
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_file_between_tags_is_asked_about_as_a_document(address: str, question: str) -> None:
    """The words of its name are no words of the question."""
    with client(address) as http:

        def answer(text: str) -> Any:
            reply = http.post("/v1/chat/completions", json=chat(text, max_tokens=60)).json()
            return reply["choices"][0]["message"]["content"]

        named = f'<file path="gpl/developers/object code.txt">{LICENCE}</file>'
        plain = answer(f"{LICENCE}\n\n{question}")
        assert answer(f"{named}\n\n{question}") == plain
        assert answer(f"{question}\n\n{named}") == plain


@pytest.mark.slow
def test_llm_asks_through_its_own_settings(address: str, tmp_path: Path) -> None:
    (tmp_path / "extra-openai-models.yaml").write_text(
        f"- model_id: specchat\n  model_name: any\n  api_base: {address}/v1\n"
        "  api_key_name: specchat\n"
    )
    (tmp_path / "keys.json").write_text(json.dumps({"specchat": TOKEN}))
    command = [sys.executable, "-m", "llm", "-m", "specchat", QUESTIONS[0]]
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path)}
    done = subprocess.run(
        command, input=LICENCE, capture_output=True, text=True, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.strip()) > 10


@pytest.mark.slow
def test_memory_stays_flat_over_two_thousand_requests(address: str) -> None:
    process, sizes = psutil.Process(), []
    with client(address) as http:
        for number in range(2000):
            long = number % 20 == 0
            text = (
                f"{LICENCE[number : number + (4500 if long else 300)]}\n\n{QUESTIONS[number % 2]}"
            )
            reply = http.post("/v1/chat/completions", json=chat(text, max_tokens=2))
            assert reply.status_code == 200
            if number % 100 == 99:
                sizes.append(process.memory_info().rss)
    assert sizes[-1] < 1.1 * max(sizes[5:10]), sizes


def fuzz(address: str, folder: Path, examples: int) -> None:
    """Requests by the schema, valid and not, to each of the routes."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{address}/openapi.json"]
    command += ["--header", f"Authorization: Bearer {TOKEN}", "--checks", "not_a_server_error"]
    command += ["--max-examples", str(examples), "--request-timeout", "60", "--phases", "fuzzing"]
    command += ["--seed", "1", "--no-color"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=3000 * ROUNDS, cwd=folder
    )
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
def test_random_requests_get_no_fault_and_no_hang(tmp_path: Path) -> None:
    with playing(Story(answer="Yes.")) as address:
        fuzz(address, tmp_path, 100 * ROUNDS)


@pytest.mark.slow
def test_nor_from_a_real_engine(engine: MlxEngine, tmp_path: Path) -> None:
    with running(engine, defaults=Defaults(sampling=Sampling(max_tokens=4))) as address:
        fuzz(address, tmp_path, 40)
