"""The command-line parser, the options that several commands share, and the types of their values.

Types are passed to `add_argument`, so that every command refuses invalid values before it starts.
All types raise UserError. The parser imports only the command that is named.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from app.cli import run_app
from app.errors import UserError

if TYPE_CHECKING:
    from app.cli.main import Subcommand


MIN_PROMPT_TOKENS = 256
"""Shortest prompt length that can be measured, in tokens."""
MAX_PROMPT_TOKENS = 1 << 30


# --------------------------------------------------------------------------- types


def whole(what: str, low: int, high: int) -> Callable[[str], int]:
    """A parser of whole numbers from `low` to `high`, inclusive."""

    def parse(text: str) -> int:
        value = int(text) if re.fullmatch(r"-?[0-9]{1,20}", text) else None
        if value is None or not low <= value <= high:
            advice = f"use a whole number from {low:,} to {high:,}"
            raise UserError(f"{text!r} is not a valid {what}", advice)
        return value

    return parse


def number(what: str, low: float, high: float) -> Callable[[str], float]:
    """A parser of numbers from `low` to `high`, inclusive."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:
            raise UserError(
                f"{text!r} is not a valid {what}", f"use a number from {low:g} to {high:g}"
            )
        return value

    return parse


MAX_ANSWER = 1 << 20
ANSWER = whole("number of tokens", 1, MAX_ANSWER)
RUNS = whole("number of runs", 1, 10_000)


def parse_fraction(text: str, what: str = "keep") -> float:
    """A fraction from 0 to 1."""
    return number(what, 0, 1)(text)


def parse_keep(text: str) -> float:
    """A fraction from 0 to 1, or `auto`."""
    from app.protocol.options import AUTO_KEEP

    return AUTO_KEEP if text == "auto" else parse_fraction(text)


def parse_prompt_length(text: str, minimum: int = MIN_PROMPT_TOKENS) -> int:
    """A number of tokens, such as 4096 or 4k."""
    match = re.fullmatch(r"([0-9]{1,9})(k?)", text.strip(), re.IGNORECASE)
    tokens = int(match[1]) * (1024 if match[2] else 1) if match else 0
    if not minimum <= tokens < MAX_PROMPT_TOKENS:
        advice = f"use a number of tokens, at least {minimum}, such as 4096 or 4k"
        raise UserError(f"{text!r} is not a valid length", advice)
    return tokens


# --------------------------------------------------------------------------- shared options

# Options for the models may also precede the command. The command's own copy of such an option must
# have no default, because it would replace the value before the command.


def add_models(command: argparse.ArgumentParser, default: Any = argparse.SUPPRESS) -> None:
    command.add_argument(
        "--target",
        metavar="T",
        default=default,
        help="the model that answers: an installed model, a folder, or `embedded`, the demo model",
    )
    command.add_argument(
        "--draft",
        metavar="D",
        default=default,
        help="a small model of any family that takes part in scoring, such as `embedded`, or a text"
        " encoder; with `builtin` (the default) the built-in scorer works alone",
    )


def add_hosts(command: argparse.ArgumentParser, default: Any = argparse.SUPPRESS) -> None:
    command.add_argument(
        "--hosts",
        metavar="HOSTS",
        default=default,
        help="spread the target over this machine and others that run `specchat worker`; the"
        " environment variable SPECCHAT_HOSTS=KEY@ADDRESS,... does the same and stores the keys",
    )


def add_kv_bits(command: argparse.ArgumentParser, default: Any = argparse.SUPPRESS) -> None:
    command.add_argument(
        "--kv-bits",
        choices=["full", "8", "4"],
        default=default,
        help="bits per number in the target's KV cache; fewer bits need less memory",
    )


def add_length(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--length",
        type=parse_prompt_length,
        default=4096,
        metavar="N",
        help="prompt tokens, such as 4096 or 16k (default 4k)",
    )


def add_action(
    actions: argparse._SubParsersAction[Any],
    name: str,
    run: Callable[..., Any],
    help: str,
    argument: str = "",
) -> argparse.ArgumentParser:
    """An action of a command, such as `models pull NAME`: `run` becomes the value of `action`."""
    parser: argparse.ArgumentParser = actions.add_parser(name, help=help)
    parser.set_defaults(action=run)
    if argument:
        parser.add_argument(argument.lower(), metavar=argument)
    return parser


_WORD = re.compile(r"[A-Za-z][A-Za-z-]*")
"""Matches a word that may be meant as a command."""


class Parser(argparse.ArgumentParser):
    """Reports an error as one sentence, like all other errors of the command line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(
            message[:1].upper() + message[1:], f"`{self.prog} --help` lists all options"
        )


class TopParser(Parser):
    """If the first word is not a command, all words are files and folders to attach in the app.

    A file that has a command's name can be given as `./ask`.
    """

    def __init__(self, commands: Mapping[str, Subcommand]) -> None:
        super().__init__(
            prog="specchat",
            usage="%(prog)s [OPTION]... [PATH]...\n       %(prog)s [OPTION]... COMMAND ...",
            description="Chat with local models about long documents. Without a command, opens the"
            " app with the given files and folders attached.",
        )
        self.of_app = Parser(prog="specchat", usage=self.usage)
        self.of_app.add_argument("paths", nargs="+", metavar="PATH", help="a file or a folder")
        self.of_app.format_help = self.format_help  # type: ignore[method-assign]
        for parser in (self, self.of_app):
            parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
            run_app.add_arguments(parser)
            parser.set_defaults(run=run_app.run, command=None)
        self.set_defaults(paths=[])
        self._undeclared = dict(commands)
        """Modules of commands whose options are not declared yet, by command."""
        self._subcommands = self.add_subparsers(
            prog="specchat",
            parser_class=Parser,
            dest="command",
            metavar="COMMAND",
            title="commands",
        )
        for name, command in commands.items():
            self._subcommands.add_parser(name, help=command.help)

    def declare(self, name: str) -> None:
        """Import a command's module and add its options."""
        command = self._undeclared.pop(name, None)
        if command is not None:
            module = import_module(command.module)
            parser = self._subcommands.choices[name]
            module.add_arguments(parser)
            parser.set_defaults(run=module.run)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Raises UserError for a word that is neither a command nor a path."""
        words = sys.argv[1:] if args is None else list(args)
        first = self._first_word(words)
        commands = self._subcommands.choices
        if first is None or first in commands:
            self.declare(first or "")
            return super().parse_known_args(words, namespace)
        if _WORD.fullmatch(first) and not os.path.lexists(first):
            found = get_close_matches(first, commands, 1)
            advice = f"use `specchat {found[0]}`" if found else "name a file or a folder"
            raise UserError(
                f"{first!r} is neither a command nor a file or folder here",
                f"{advice}, or see `specchat --help` for the commands",
            )
        return self.of_app.parse_known_intermixed_args(words, namespace)

    def _first_word(self, words: Sequence[str]) -> str | None:
        """The first word that is neither an option nor an option's value."""
        rest = iter(words)
        for word in rest:
            if word == "--":
                return next(rest, None)
            if not word.startswith("-"):
                return word
            action = self._option_string_actions.get(word)
            if action is not None and action.nargs != 0:
                next(rest, None)
        return None


class _Version(argparse.Action):
    """Looks up the version only when needed, because that is slow."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        sys.stdout.write(f"specchat {version('specchat')}\n")  # argparse would use standard error
        parser.exit()
