"""`specchat serve`: serves the loaded models to other programs on this machine over HTTP."""

from __future__ import annotations

import argparse
import logging
import sys

from app.chat import wording
from app.chat.engine_session import EngineSession
from app.cli.machines import chosen_hosts, load_spread
from app.cli.options import add_hosts, add_kv_bits, add_models, whole
from app.cli.settings import requested_load, user_settings
from app.cli.status import RESTART
from app.engine.engine import MlxEngine
from app.errors import UserError
from app.extras.serve.application import make_app
from app.extras.serve.http import (
    Access,
    HttpServer,
    is_local,
    listening_socket,
    log_requests,
    read_token,
)
from app.extras.serve.requests import defaults_of
from app.extras.serve.server import Server, served_pair
from app.paths import config_path, costs_path, display_path
from app.protocol.hosts import MAX_PORT
from app.util.sanitize import sanitize_line

TOKEN_FILE = "serve-token"


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
    command.add_argument("--no-token", action="store_true", help="do not require an API key")
    add_models(command)
    add_hosts(command)
    add_kv_bits(command)


def run(options: argparse.Namespace) -> int:
    """Load the pair, and answer requests until interrupted."""
    settings = user_settings()
    if not is_local(options.host) and not options.allow_others:
        raise UserError(
            f"Other machines can reach {options.host}",
            "add --allow-others if you want that, or leave out --host",
        )
    load = requested_load(options, settings, chosen_hosts(options.hosts))
    token, is_new = (None, False) if options.no_token else read_token(config_path() / TOKEN_FILE)
    policy = settings.cache_policy(None, str(costs_path()))
    engine = MlxEngine(load_spread=load_spread)
    with (
        listening_socket(options.host, options.port) as listening,
        EngineSession(engine, policy) as session,
    ):
        sys.stderr.write(f"Loading {sanitize_line(load.names[0])}…\n")
        loaded = session.load(load)
        server = Server(engine, served_pair(load, loaded), defaults_of(settings))
        app = make_app(server, Access(options.host, token))
        _announce(options, loaded.target.name, token, is_new)
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        log_requests([handler])
        HttpServer(app, server.queue).run(sockets=[listening])
    if (lost := server.queue.gpu_lost) is not None:
        problem = sanitize_line(wording.problem(lost.failure))
        sys.stderr.write(f"{problem}: start `specchat serve` again.\n")
        return RESTART
    return 0


def _announce(options: argparse.Namespace, model: str, token: str | None, is_new: bool) -> None:
    shown = f"[{options.host}]" if ":" in options.host else options.host
    address = f"http://{shown}:{options.port}"
    lines = [f"Serving {sanitize_line(model)} at {address}/v1 (Ctrl+C stops)."]
    if token is None:
        who = "every program and user of this machine"
        if options.allow_others:
            who += ", and every machine that reaches this address,"
        lines.append(f"Warning: without an API key, {who} can send requests.")
    elif is_new:
        lines.append(f"API key (shown only once): {token}")
    if token is not None:
        lines.append(f"The API key is in {display_path(config_path() / TOKEN_FILE)}.")
    if options.allow_others:
        lines.append("Warning: other machines can reach this address, and nothing is encrypted.")
    sys.stderr.write("\n".join(lines) + "\n")
