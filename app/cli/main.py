"""Runs a command line. Only the module of the command that is named is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from app.cli.status import BAD_INPUT, FAILED, HOSTS_VARIABLE, PIPE_CLOSED, Subcommand
from app.errors import UserError

if TYPE_CHECKING:
    from app.cli.parser import TopParser

CORE = {
    "ask": Subcommand("app.cli.ask", "answer one question and print the answer", hosts=True),
    "conversations": Subcommand(
        "app.cli.conversations", "list, show, export and delete saved conversations"
    ),
    "models": Subcommand("app.cli.models", "list, download and remove models"),
    "demo": Subcommand(
        "app.cli.demo",
        "answer a question about a long file sparsely and in full, and compare",
    ),
    "settings": Subcommand("app.cli.settings", "print the settings and the path of their file"),
    "doctor": Subcommand(
        "app.cli.doctor", "check the installation, and report versions, memory and folders"
    ),
    "bench": Subcommand("app.cli.bench", "measure how fast your models are on this machine"),
    "eval": Subcommand(
        "app.cli.evaluate",
        "ask your models sparsely and in full, and compare the answers",
    ),
}
"""Commands that every specchat has."""


def commands() -> dict[str, Subcommand]:
    """All commands of this specchat."""
    from app.extras import EXTRAS

    added = {
        name: Subcommand(*fields)
        for extra in EXTRAS
        if extra.is_installed
        for name, fields in extra.commands.items()
    }
    return CORE | added


def parser() -> TopParser:
    from app.cli.parser import TopParser
    from app.extras import EXTRAS

    missing = {name: extra.missing for extra in EXTRAS for name in extra.commands}
    return TopParser(commands(), missing)


def run(arguments: Sequence[str], command: Callable[[Sequence[str]], int] | None = None) -> int:
    """Run a command line, with `command` instead of specchat's own if given; return the exit
    status."""
    from app.cli.terminal import OutputError, discard_output

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
    except BrokenPipeError:  # the program that reads the output has ended
        discard_output()
        return PIPE_CLOSED


def _print_error(error: UserError) -> None:
    from app.util.sanitize import sanitize_line

    # The message may quote untrusted names.
    sys.stderr.write(f"specchat: {sanitize_line(str(error))}\n")


def _check_environment() -> None:
    """Raise UserError if huggingface_hub, which nearly everything imports, would fail at import."""
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
    if not arguments and HOSTS_VARIABLE not in os.environ:  # start faster, without the parser
        from app.cli.run_app import StartOptions, run_app

        return run_app(StartOptions())
    args = parser().parse_args(arguments)
    if args.hosts is not None and args.command and not commands()[args.command].hosts:
        raise UserError(f"`specchat {args.command}` uses this machine only", "remove --hosts")
    status: int = args.run(args)
    return status
