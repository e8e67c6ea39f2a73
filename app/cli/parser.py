"""The command-line parser. It imports only the command that is named."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

from app.cli import run_app
from app.cli.status import Subcommand
from app.errors import UserError

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

    def __init__(
        self, commands: Mapping[str, Subcommand], missing: Mapping[str, UserError]
    ) -> None:
        """`missing` are the errors of commands that are in an extra which may not be installed."""
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
        self._missing = missing
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
        """Raises UserError for a word that is neither a command of this specchat nor a path."""
        words = sys.argv[1:] if args is None else list(args)
        first = self._first_word(words)
        commands = self._subcommands.choices
        if first is None or first in commands:
            self.declare(first or "")
            return super().parse_known_args(words, namespace)
        if first in self._missing:
            raise self._missing[first]
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
