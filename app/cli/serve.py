"""`specchat serve`: other programs on this machine ask the loaded models over HTTP."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from app.chat.engine_session import EngineSession
from app.chat.model_pairs import resolve_pair
from app.cli.settings import requested_pair, user_settings
from app.engine.engine import MlxEngine
from app.errors import UserError
from app.paths import config_path, costs_path, display_path
from app.protocol.prompt import Message
from app.settings.definitions import KvBits
from app.util.sanitize import sanitize_line

TOKEN_FILE = "serve-token"
HEADER_SECONDS = 60
"""After which an idle connection is closed."""
CONNECTIONS = 256


def serve(options: argparse.Namespace) -> int:
    """Load the pair, and answer requests until interrupted."""
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise UserError(
            "The server's packages are not installed", f"`{_pip()} 'specchat[serve]'` does it"
        )
    import uvicorn

    from app.serve.access import Access, is_local, read_token
    from app.serve.api import Server, make_app
    from app.serve.requests import Defaults

    settings = user_settings()
    if not is_local(options.host) and not options.allow_others:
        raise UserError(
            f"Other machines can reach {options.host}",
            "add --allow-others if that is what you want, or leave --host out",
        )
    kv = KvBits(options.kv_bits) if options.kv_bits else settings.reading.kv_bits
    load = resolve_pair(*requested_pair(options.target, options.draft, settings), kv_bits=kv.bits)
    token, is_new = (None, False) if options.no_token else read_token(config_path() / TOKEN_FILE)
    policy = settings.cache_policy(None, str(costs_path()))
    engine = MlxEngine()
    reading = settings.reading
    defaults = Defaults(reading.mode, reading.keep, settings.sampling(), reading.first_word_within)
    with EngineSession(engine, policy) as session:
        sys.stderr.write(f"Loading {sanitize_line(load.names[0])}…\n")
        loaded = session.load(load)
        count = _counter(Path(load.target))
        server = Server(engine, loaded.target.name, defaults, count, load.only_quotes)
        app = make_app(server, Access(options.host, token))
        _announce(options, loaded.target.name, token, is_new)
        config = uvicorn.Config(
            app,
            host=options.host,
            port=options.port,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=HEADER_SECONDS,
            timeout_graceful_shutdown=5,
            limit_concurrency=CONNECTIONS,
        )
        _log_to_stderr()
        try:
            uvicorn.Server(config).run()
        except SystemExit:
            raise UserError(
                f"Port {options.port} of {options.host} cannot be used",
                "choose another one with --port",
            ) from None
    return 0


def _announce(options: argparse.Namespace, model: str, token: str | None, is_new: bool) -> None:
    shown = f"[{options.host}]" if ":" in options.host else options.host
    address = f"http://{shown}:{options.port}"
    lines = [f"{sanitize_line(model)} answers at {address}/v1 (Ctrl+C ends)."]
    if token is None:
        lines.append("Warning: without a token every program and user of this machine can ask.")
    elif is_new:
        lines.append(f"API key, shown only this once: {token}")
    if token is not None:
        lines.append(f"The API key is in {display_path(config_path() / TOKEN_FILE)}.")
    if options.allow_others:
        lines.append("Warning: other machines can reach this address, and nothing is encrypted.")
    sys.stderr.write("\n".join(lines) + "\n")


def _log_to_stderr() -> None:
    """One line a request, without contents."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    for name in ("specchat.serve", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.propagate = False
    logging.getLogger("specchat.serve").setLevel(logging.INFO)
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)


def _counter(folder: Path) -> Callable[[tuple[Message, ...]], int]:
    """Counts the tokens of a prompt, as the target's own. Not two at a time."""
    import threading

    from mlx_lm.utils import load_tokenizer

    from app.engine.prompt import PromptBuilder, PromptError
    from app.serve.requests import BadRequest

    builder, lock = PromptBuilder(load_tokenizer(folder)), threading.Lock()

    def count(messages: tuple[Message, ...]) -> int:
        plain = tuple(dataclasses.replace(message, token_ids=None) for message in messages)
        with lock:
            try:
                return len(builder.build(plain).ids)
            except PromptError as error:
                raise BadRequest(f"{error}.") from error

    return count


def _pip() -> str:
    return f"{sys.executable} -m pip install"
