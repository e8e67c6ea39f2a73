"""`specchat serve`: what it says, what it refuses, and how it ends."""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx2 as httpx
import pytest

from app.cli.main import run
from app.extras.hosts.shard import free_port
from app.extras.serve import command
from app.extras.serve.fields import BadRequest
from app.extras.serve.server import TargetTokens
from app.protocol.prompt import Message, Role
from tests import tiny
from tests.tables import table


def test_others_are_let_in_only_by_an_explicit_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--host", "0.0.0.0"]) == 2
    assert "add --allow-others if you want that" in capsys.readouterr().err


def test_a_port_that_is_taken_is_refused_before_the_models_are_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        assert run(["serve", "--no-token", "--port", port]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"specchat: Port {port} of 127.0.0.1 cannot be used (")
    assert told.endswith("): stop the program that uses it, or choose another --port.\n")


@table("host", ["192.0.2.1", "no-machine.invalid", "x" * 100, "1.2.3.4.5"])
def test_an_address_that_is_not_this_machines_is_one_sentence(
    host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "--no-token", "--allow-others", "--host", host]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"specchat: Port 8321 of {host} cannot be used (")
    assert told.endswith("): give --host an address of this machine, or leave it out.\n")


def test_it_says_who_can_ask_without_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(host="0.0.0.0", port=1, allow_others=True)
    command._announce(options, "tiny", None, False)
    assert "every machine that reaches this address, can send requests" in capsys.readouterr().err


@contextmanager
def serving(
    *options: str, program: Sequence[str] = ("-m", "app")
) -> Iterator[tuple[subprocess.Popen[str], IO[str], str]]:
    """The program, its standard error, and its address."""
    port = free_port("127.0.0.1")
    command = [sys.executable, *program, "serve", "--port", str(port), *options]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stderr is not None
        try:
            yield process, process.stderr, f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def question(gates: int) -> dict[str, Any]:
    text = "\n\n".join(f"The code of gate {n} is {n * 37 % 1000}." for n in range(gates))
    message = {"role": "user", "content": f"{text}\n\nWhat is the code of gate 7?"}
    return {"messages": [message]}


@pytest.mark.slow
def test_it_ends_quietly_while_it_answers(home: Path) -> None:
    body = question(3000) | {"stream": True, "specprefill": False}
    with serving("--no-token") as (process, errors, url):
        assert "can send requests" in [errors.readline() for _ in range(3)][2]
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as reply:
            lines = reply.iter_lines()
            next(lines)
            process.send_signal(signal.SIGINT)
            rest = list(lines)
        process.wait(30)
        shown = errors.read()
    assert any("The server was stopped" in line for line in rest)
    assert "POST /v1/chat/completions 200" in shown
    assert len(shown.splitlines()) <= 2, shown


LOSES_GPU = """
import sys
from app.cli.main import run
from app.engine.cache import prefix_cache
def lose(*args, **named):
    raise RuntimeError("[METAL] Command buffer execution failed: Impacting Interactivity.")
prefix_cache.prefill = lose
sys.exit(run(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_server_that_loses_the_gpu_answers_503_and_exits_with_75(home: Path) -> None:
    with serving("--no-token", program=("-c", LOSES_GPU)) as (process, errors, url):
        while "can send requests" not in errors.readline():
            pass
        reply = httpx.post(f"{url}/v1/chat/completions", json=question(150), timeout=60)
        status = process.wait(30)
        said = errors.read()
    assert reply.status_code == 503
    assert "on the GPU (Impacting Interactivity)" in reply.json()["error"]["message"]
    assert status == 75
    assert "(Impacting Interactivity)" in said
    assert said.splitlines()[-1].endswith("start `specchat serve` again.")
    assert "Traceback" not in said


def test_it_answers_with_the_key_it_printed_until_interrupted(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving() as (process, errors, url):
        said = [errors.readline() for _ in range(4)]
        assert said[1] == f"Serving demo model at {url}/v1 (Ctrl+C stops).\n"
        key = said[2].removeprefix("API key (shown only once): ").strip()
        assert said[3].startswith("The API key is in ")
        with httpx.Client(base_url=url, timeout=30) as http:
            for _ in range(100):
                try:
                    http.get("/health")
                    break
                except httpx.ConnectError:
                    continue
            assert http.get("/v1/models").status_code == 401
            headers = {"Authorization": f"Bearer {key}"}
            body = {"messages": [{"role": "user", "content": "Hello?"}]}
            reply = http.post("/v1/chat/completions", json=body, headers=headers)
            assert "answers questions about documents" in reply.json()["error"]["message"]
        port = url.rpartition(":")[2]
        assert run(["serve", "--port", port]) == 2, "a second one beside it"
        refused = capsys.readouterr().err
        assert f"Port {port} of 127.0.0.1 cannot be used" in refused
        assert "shown only once" not in refused
        process.send_signal(signal.SIGINT)
        process.wait(30)
        rest = errors.read()
    assert "POST /v1/chat/completions 400" in rest
    assert "Traceback" not in rest


def test_a_prompt_that_comes_as_tokens_is_shown_as_their_text(tmp_path: Path) -> None:
    tokens = TargetTokens(tiny.save(tmp_path))
    ids = tiny.byte_tokenizer().encode("<|im_start|>Hi").ids
    assert tokens.text(ids) == "<|im_start|>Hi"
    assert tokens.count((Message(Role.USER, "?", token_ids=tuple(ids), plain=True),)) == 3
    for wrong in (-1, tiny.BYTES, 2**40):
        with pytest.raises(BadRequest, match=f"from 0 to {tiny.BYTES - 1}"):
            tokens.text([*ids, wrong])
