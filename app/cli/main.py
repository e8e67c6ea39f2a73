"""Runs the command. Each one imports what it needs, so that the app starts quickly."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from app.cli.exit_codes import BAD_INPUT, FAILED, PIPE_CLOSED
from app.errors import UserError

HOSTS_VARIABLE = "SPECCHAT_HOSTS"
WITH_HOSTS = (None, "ask", "serve", "hosts")
"""Commands that use the machines of --hosts."""


def run(arguments: Sequence[str], command: Callable[[Sequence[str]], int] | None = None) -> int:
    """Run a command line, by another `command` than specchat's; returns the exit status."""
    from app.cli.streams import OutputError, discard_output

    try:
        try:
            return (command or _dispatch)(arguments)
        finally:
            sys.stdout.flush()
    except OutputError as error:
        _print_error(error)
        discard_output()
        return FAILED
    except UserError as error:
        _print_error(error)
        return BAD_INPUT
    except BrokenPipeError:  # the program that reads the output has gone
        discard_output()
        return PIPE_CLOSED


def _print_error(error: UserError) -> None:
    from app.util.sanitize import sanitize_line

    # It may quote untrusted names.
    sys.stderr.write(f"specchat: {sanitize_line(str(error))}\n")


def _check_environment() -> None:
    """UserError when huggingface_hub, which nearly everything imports, would fail at import."""
    from urllib.parse import urlsplit

    for name, parse in (
        ("HF_ENDPOINT", lambda text: urlsplit(text).port),
        ("HF_HUB_ETAG_TIMEOUT", int),
        ("HF_HUB_DOWNLOAD_TIMEOUT", int),
    ):
        try:
            parse(os.environ.get(name) or "0")
        except ValueError as error:
            raise UserError(f"{name} cannot be used ({error})", "correct or unset it") from None


def _dispatch(arguments: Sequence[str]) -> int:
    _check_environment()
    if not arguments and HOSTS_VARIABLE not in os.environ:  # it starts without even the parser
        from app.cli.run_app import run_app

        return run_app()
    from app.cli.arguments import parser

    options = parser().parse_args(arguments)
    if options.hosts is not None and options.command not in WITH_HOSTS:
        raise UserError(f"`specchat {options.command}` uses this machine only", "remove --hosts")
    match options.command:
        case "ask":
            from app.cli.ask import ask

            return ask(options)
        case "conversations":
            from app.cli.conversations import conversations

            return conversations(options)
        case "models":
            from app.cli.models import models

            return models(options)
        case "demo":
            from app.cli.demo import demo

            return demo(options.picture, options.real)
        case "serve":
            from app.cli.serve import serve

            return serve(options)
        case "worker":
            from app.cli.worker import worker

            return worker(options.address, options.port)
        case "hosts":
            from app.cli.hosts import hosts

            return hosts(options.machines or options.hosts, options.json, sys.stdout)
        case "settings":
            from app.cli.settings import settings

            return settings(options.json, sys.stdout)
        case "install-launcher":
            from app.cli.launcher import install_launcher

            return install_launcher(options.remove, sys.stdout)
        case "doctor" if options.stress:
            from app.cli.stress import stress

            return stress(options, sys.stdout)
        case "doctor":
            from app.cli.doctor import doctor, only_for_stress

            only_for_stress(options)
            return doctor(sys.stdout, options.target)
        case "bench":
            from app.cli.bench import bench

            return bench(options)
        case "eval":
            from app.cli.evaluate import evaluate

            return evaluate(options)
    from app.cli.hosts import chosen_hosts
    from app.cli.run_app import run_app

    spread = chosen_hosts(options.hosts, options.split)
    return run_app(options.target, options.draft, options.kv_bits, spread, options.paths)
