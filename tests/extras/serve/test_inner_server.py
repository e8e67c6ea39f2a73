"""`/serve` in the app: other programs ask the pair that the app has loaded."""

from __future__ import annotations

import logging
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from app.chat.model_pairs import resolve_pair
from app.engine.engine import MlxEngine
from app.errors import UserError
from app.extras.serve import command, inner_server
from app.extras.serve.inner_server import InnerServer
from app.protocol.commands import Ask, CachePolicy, Close, Load
from app.protocol.events import Finished, Loaded, Token
from app.protocol.options import BackgroundPolicy
from app.protocol.prompt import Message, Role
from app.settings.definitions import Settings
from tests import tiny
from tests.extras.serve.running import LONG_TEXT, until

KEY = "specchat-key"


class App:
    """What the screen does with the engine."""

    def __init__(self, snapshots: Path) -> None:
        self.events: queue.Queue[Any] = queue.Queue()
        self.engine = MlxEngine()
        self.engine.listen(self.events.put)
        self.engine.send(CachePolicy(BackgroundPolicy.OFF, snapshot_folder=str(snapshots)))

    def load(self, load: Load) -> None:
        self.engine.send(load)
        self.until(Loaded)

    def until(self, kind: type) -> Any:
        while not isinstance(event := self.events.get(timeout=60), kind):
            pass
        return event

    def close(self) -> None:
        self.engine.send(Close())
        self.engine.join(30)


@pytest.fixture(autouse=True)
def _log_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests read the log of requests, which the server takes for itself."""
    logger = logging.getLogger("specchat.serve")
    for name in ("handlers", "propagate"):
        monkeypatch.setattr(logger, name, getattr(logger, name))


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found = int(probe.getsockname()[1])
    monkeypatch.setattr(inner_server, "PORT", found)
    monkeypatch.setattr(inner_server, "config_path", lambda: tmp_path)
    (tmp_path / command.TOKEN_FILE).write_text(KEY)
    (tmp_path / command.TOKEN_FILE).chmod(0o600)
    return found


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """With the demo pair, until a test loads another one."""
    found = App(tmp_path_factory.mktemp("snapshots"))
    found.load(resolve_pair())
    yield found
    found.close()


GATES = LONG_TEXT[:4200]


def post(port: int, question: str, document: str = GATES) -> dict[str, Any]:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        message = {"role": "user", "content": f"{document}\n\n{question}"}
        reply = http.post(
            "/v1/chat/completions",
            json={"messages": [message], "max_tokens": 5, "specprefill": False},
            headers={"Authorization": f"Bearer {KEY}"},
        )
        assert reply.status_code == 200, reply.text
        return dict(reply.json())


def test_programs_and_the_app_ask_one_pair(port: int, tmp_path: Path) -> None:
    app = App(tmp_path / "snapshots")
    server = InnerServer(app.engine, Settings)
    with pytest.raises(UserError, match="No models are loaded yet: try again in a moment"):
        server.switch()
    app.load(resolve_pair())
    assert server.switch().startswith(f"Server started at http://127.0.0.1:{port}/v1.")
    first = post(port, "What is the code of gate 7?")
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    again = post(port, "And that of gate 9?")
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 1000
    app.engine.ask(Ask((Message(Role.USER, "Who?"),), conversation="mine"), app.events.put)
    app.until(Finished)
    assert not [each for each in app.events.queue if isinstance(each, Token | Finished)]
    assert server.status == ""
    assert server.switch() == "Server stopped."
    with pytest.raises(httpx.ConnectError):
        post(port, "Still there?")
    app.close()
    assert len(list((tmp_path / "snapshots").iterdir())) == 1, "only what the app asked"


def test_a_port_that_is_taken_is_one_sentence(app: App, port: int) -> None:
    server = InnerServer(app.engine, Settings)
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(UserError, match=f"Port {port} of 127.0.0.1 cannot be used"):
            server.switch()
    assert server.switch().startswith("Server started")
    server.stop()


def test_it_ends_and_starts_again_while_a_request_runs(app: App, port: int) -> None:
    server, found = InnerServer(app.engine, Settings), list[int]()
    answered: list[Any] = []
    server.report_answers(lambda ask, events: answered.append(events[-1]))
    server.switch()

    def slow() -> None:
        message = {"role": "user", "content": f"{LONG_TEXT * 12}\n\nWhat is the code of gate 7?"}
        headers = {"Authorization": f"Bearer {KEY}"}
        body = {"messages": [message], "specprefill": False}
        url = f"http://127.0.0.1:{port}/v1/chat/completions"
        found.append(httpx.post(url, json=body, headers=headers, timeout=60).status_code)

    request = threading.Thread(target=slow)
    request.start()
    until(lambda: server.status)
    server.switch()
    request.join(30)
    assert found == [503]
    server.switch()
    assert post(port, "What is the code of gate 9?")["usage"]["completion_tokens"]
    app.engine.ask(Ask((Message(Role.USER, "Who?"),), conversation="mine"), app.events.put)
    app.until(Finished)
    until(lambda: not server.status)
    until(lambda: answered)
    assert len(answered) == 1
    server.stop()


def test_another_pair_answers_once_it_is_loaded(app: App, port: int, tmp_path: Path) -> None:
    server = InnerServer(app.engine, Settings)
    server.switch()
    post(port, "What is the code of gate 7?")
    folders = [tiny.save(tmp_path / name, "qwen3", seed) for seed, name in enumerate(("a", "b"))]
    app.load(Load(*map(str, folders)))
    assert post(port, "Who?", "")["model"] == "a"
    server.stop()
