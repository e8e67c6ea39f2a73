"""`specchat serve`: other programs on this machine ask the loaded models over HTTP."""

from __future__ import annotations

import argparse
import dataclasses
import errno
import logging
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.chat import wording
from app.chat.engine_session import EngineSession
from app.cli.exit_codes import RESTART
from app.cli.hosts import chosen_hosts, connect
from app.cli.options import add_hosts, add_kv_bits, add_models, whole
from app.cli.settings import requested_load, user_settings
from app.engine.engine import MlxEngine
from app.engine.model.chat_template import PromptError
from app.engine.model.prompt import PromptBuilder
from app.errors import UserError
from app.paths import config_path, costs_path, display_path
from app.protocol.hosts import MAX_PORT
from app.protocol.prompt import Message
from app.settings.definitions import Settings
from app.util.sanitize import sanitize_line

if TYPE_CHECKING:
    from app.serve.answers import RequestQueue
    from app.serve.http import App, HttpServer
    from app.serve.requests import Defaults

TOKEN_FILE = "serve-token"
CONNECTIONS = BACKLOG = 256


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Serves your models over OpenAI- and Anthropic-compatible HTTP APIs, to programs on this"
        " machine only, with an API key."
    )
    command.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default %(default)s)"
    )
    command.add_argument(
        "--port",
        type=whole("port", 1, MAX_PORT),
        default=8321,
        help="the port to listen on (default %(default)s)",
    )
    command.add_argument(
        "--allow-others", action="store_true", help="allow a --host that other machines can reach"
    )
    command.add_argument("--no-token", action="store_true", help="ask for no API key")
    add_models(command)
    add_hosts(command)
    add_kv_bits(command)


def run(options: argparse.Namespace) -> int:
    """Load the pair, and answer requests until interrupted."""
    from app.serve.api import Server, make_app
    from app.serve.http import Access, is_local, read_token

    settings = user_settings()
    if not is_local(options.host) and not options.allow_others:
        raise UserError(
            f"Other machines can reach {options.host}",
            "add --allow-others if that is what you want, or leave --host out",
        )
    load = requested_load(options, settings, chosen_hosts(options.hosts, options.split))
    token, is_new = (None, False) if options.no_token else read_token(config_path() / TOKEN_FILE)
    policy = settings.cache_policy(None, str(costs_path()))
    engine = MlxEngine(connect=connect)
    with (
        listening_socket(options.host, options.port) as listening,
        EngineSession(engine, policy) as session,
    ):
        sys.stderr.write(f"Loading {sanitize_line(load.names[0])}…\n")
        loaded = session.load(load)
        tokens = TargetTokens(Path(load.target))
        server = Server(
            engine,
            loaded.target.name,
            defaults_of(settings),
            tokens.count,
            load.only_quotes,
            context=loaded.target.context_length,
            to_text=tokens.text,
        )
        app = make_app(server, Access(options.host, token))
        _announce(options, loaded.target.name, token, is_new)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        log_to([handler])
        uvicorn_server(app, server.queue).run(sockets=[listening])
    if (lost := server.queue.gpu_lost) is not None:
        problem = sanitize_line(wording.problem(lost.failure))
        sys.stderr.write(f"{problem}: start `specchat serve` again.\n")
        return RESTART
    return 0


def listening_socket(host: str, port: int) -> socket.socket:
    """Raises UserError if the port is taken, or `host` is no address of this machine."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)  # whoever reads that it answers may ask at once
    except (OSError, UnicodeError, TypeError, ValueError) as error:  # it can be no name
        listening.close()
        reason = getattr(error, "strerror", None) or "no name of a machine"
        raise UserError(
            f"Port {port} of {host} cannot be used ({reason})", _port_advice(error)
        ) from None
    return listening


def _port_advice(error: Exception) -> str:
    match getattr(error, "errno", None):
        case errno.EADDRINUSE:
            return "end what uses it, or start `specchat serve` with another --port"
        case errno.EACCES:
            return "use a --port from 1,024 on"
    return "give --host an address of this machine, or leave it out"


def uvicorn_server(app: App, queue: RequestQueue) -> HttpServer:
    """Not started."""
    import uvicorn

    from app.serve.http import HEADER_SECONDS, HttpServer, TimedConnection

    config = uvicorn.Config(
        app,
        http=TimedConnection,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=int(HEADER_SECONDS),
        timeout_graceful_shutdown=5,
        limit_concurrency=CONNECTIONS,
        lifespan="off",
    )
    return HttpServer(config, queue)


def _announce(options: argparse.Namespace, model: str, token: str | None, is_new: bool) -> None:
    shown = f"[{options.host}]" if ":" in options.host else options.host
    address = f"http://{shown}:{options.port}"
    lines = [f"{sanitize_line(model)} answers at {address}/v1 (Ctrl+C ends)."]
    if token is None:
        who = "every program and user of this machine"
        if options.allow_others:
            who += ", and every machine that reaches this address,"
        lines.append(f"Warning: without a token {who} can ask.")
    elif is_new:
        lines.append(f"API key, shown only this once: {token}")
    if token is not None:
        lines.append(f"The API key is in {display_path(config_path() / TOKEN_FILE)}.")
    if options.allow_others:
        lines.append("Warning: other machines can reach this address, and nothing is encrypted.")
    sys.stderr.write("\n".join(lines) + "\n")


def log_to(handlers: list[logging.Handler]) -> None:
    """Log a line for each request, without contents, to these handlers only."""
    for name, level in (("specchat.serve", logging.INFO), ("uvicorn.error", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = handlers, False
        logger.setLevel(level)


def defaults_of(settings: Settings) -> Defaults:
    """What a request gets that does not say how to read and sample."""
    from app.serve.requests import Defaults

    reading = settings.reading
    return Defaults(reading.mode, reading.keep, settings.sampling(), reading.first_word_within)


class TargetTokens:
    """Texts and tokens of a target, by its own tokenizer, which is loaded when it is first needed.
    One thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._loaded: tuple[PromptBuilder, Any] | None = None

    def count(self, messages: tuple[Message, ...]) -> int:
        """The tokens of a prompt. Raises BadRequest."""
        from app.serve.requests import BadRequest

        asked = tuple(m if m.plain else dataclasses.replace(m, token_ids=None) for m in messages)
        with self._lock:
            try:
                return len(self._load()[0].build(asked).ids)
            except PromptError as error:
                raise BadRequest(f"{wording.failure(error.failure).problem}.") from error

    def text(self, ids: Sequence[int]) -> str:
        """The text of these tokens. Raises BadRequest."""
        from app.serve.requests import BadRequest

        with self._lock:
            tokenizer = self._load()[1]
            size = 1 + max(tokenizer.get_vocab().values())
            if any(not 0 <= token < size for token in ids):
                raise BadRequest(f"The prompt's tokens must be numbers from 0 to {size - 1:,}.")
            text: str = tokenizer.decode(list(ids))
            return text

    def _load(self) -> tuple[PromptBuilder, Any]:
        if self._loaded is None:
            from mlx_lm.utils import load_tokenizer

            tokenizer = load_tokenizer(self._folder)
            self._loaded = PromptBuilder(tokenizer), tokenizer
        return self._loaded
