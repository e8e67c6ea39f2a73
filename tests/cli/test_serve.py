"""`specchat serve`: what it says, what it refuses, and how it ends."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2 as httpx
import pytest

from app.cli import serve
from app.cli.main import run
from app.hosts.shard import free_port
from app.protocol.prompt import Message, Role
from app.serve.api import TargetTokens
from app.serve.requests import BadRequest
from tests import tiny


def test_others_are_let_in_only_by_an_explicit_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve", "--host", "0.0.0.0"]) == 2
    assert "add --allow-others if that is what you want" in capsys.readouterr().err


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
    assert told.endswith("): end what uses it, or start `specchat serve` with another --port.\n")


@pytest.mark.parametrize("host", ["192.0.2.1", "no-machine.invalid", "x" * 100, "1.2.3.4.5"])
def test_an_address_that_is_not_this_machines_is_one_sentence(
    host: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "--no-token", "--allow-others", "--host", host]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"specchat: Port 8321 of {host} cannot be used (")
    assert told.endswith("): give --host an address of this machine, or leave it out.\n")


def test_it_says_who_can_ask_without_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(host="0.0.0.0", port=1, allow_others=True)
    serve._announce(options, "tiny", None, False)
    assert "every machine that reaches this address, can ask" in capsys.readouterr().err


def test_it_ends_quietly_while_it_answers(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    environment = os.environ | {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HOME": str(tmp_path),
    }
    command = [sys.executable, "-m", "app", "serve", "--port", str(port), "--no-token"]
    text = "\n\n".join(f"The code of gate {n} is {n * 37 % 1000}." for n in range(3000))
    message = {"role": "user", "content": f"{text}\n\nWhat is the code of gate 7?"}
    body = {"messages": [message], "stream": True, "specprefill": False}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        assert process.stderr is not None
        try:
            said = [process.stderr.readline() for _ in range(3)]
            assert "can ask" in said[2]
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            with httpx.stream("POST", url, json=body, timeout=60) as reply:
                lines = reply.iter_lines()
                next(lines)
                process.send_signal(signal.SIGINT)
                rest = list(lines)
            process.wait(30)
        finally:
            process.kill()
        shown = process.stderr.read()
    assert any("Server stopped" in line for line in rest)
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
def test_a_server_that_loses_the_gpu_answers_503_and_exits_with_75(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    environment = os.environ | {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HOME": str(tmp_path),
    }
    command = [sys.executable, "-c", LOSES_GPU, "serve", "--port", str(port), "--no-token"]
    text = "\n\n".join(f"The code of gate {n} is {n * 37 % 1000}." for n in range(150))
    message = {"role": "user", "content": f"{text}\n\nWhat is the code of gate 7?"}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        assert process.stderr is not None
        try:
            while "can ask" not in process.stderr.readline():
                pass
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            reply = httpx.post(url, json={"messages": [message]}, timeout=60)
            status = process.wait(30)
        finally:
            process.kill()
        said = process.stderr.read()
    assert reply.status_code == 503
    assert "on the GPU (Impacting Interactivity)" in reply.json()["error"]["message"]
    assert status == 75
    assert "(Impacting Interactivity)" in said
    assert said.splitlines()[-1].endswith("start `specchat serve` again.")
    assert "Traceback" not in said


def test_it_answers_with_the_key_it_printed_until_interrupted(tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    environment = os.environ | {
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "HOME": str(tmp_path),
    }
    command = [sys.executable, "-m", "app", "serve", "--port", str(port)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        assert process.stderr is not None
        said = [process.stderr.readline() for _ in range(4)]
        assert said[1] == f"embedded answers at http://127.0.0.1:{port}/v1 (Ctrl+C ends).\n"
        key = said[2].removeprefix("API key, shown only this once: ").strip()
        assert said[3].startswith("The API key is in ")
        base = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=base, timeout=30) as http:
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
        second = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=60
        )
        assert second.returncode == 2
        assert f"Port {port} of 127.0.0.1 cannot be used" in second.stderr
        assert "shown only this once" not in second.stderr
        process.send_signal(signal.SIGINT)
        process.wait(30)
        rest = process.stderr.read()
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
