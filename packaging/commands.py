"""The command line as plain data, read from its parser, for the man page and the completions."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

PATHS = {"PATH", "FILE", "SVG", "F", "OUT", "OUT.md", "T", "D", "M"}
"""Metavars of files and folders."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option, or, without `names`, a positional argument. `value` is its metavar, or empty."""

    names: tuple[str, ...]
    value: str
    help: str
    choices: tuple[str, ...] = ()
    many: bool = False

    @property
    def is_path(self) -> bool:
        return self.value in PATHS


@dataclass(frozen=True, slots=True)
class Command:
    """`words` are what one types for it, from `specchat` on."""

    words: tuple[str, ...]
    help: str
    description: str
    epilog: str
    options: tuple[Option, ...]
    arguments: tuple[Option, ...]
    commands: tuple[Command, ...]
    choice: str
    """The metavar of `commands`, in brackets where it is optional."""

    @property
    def name(self) -> str:
        return self.words[-1]

    def all(self) -> Iterator[Command]:
        """This command, and all below it."""
        yield self
        for each in self.commands:
            yield from each.all()


def described(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ("specchat",), help: str = ""
) -> Command:
    below: list[Command] = []
    choice = ""
    options: list[Option] = []
    arguments: list[Option] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            choice = f"{action.metavar}" if action.required else f"[{action.metavar}]"
            for each in action._choices_actions:
                inner = action.choices[each.dest]
                below.append(described(inner, (*words, each.dest), each.help or ""))
        elif action.help != argparse.SUPPRESS:
            (options if action.option_strings else arguments).append(_option(parser, action))
    if isinstance(of_app := getattr(parser, "of_app", None), argparse.ArgumentParser):
        arguments += [_option(of_app, each) for each in of_app._get_positional_actions()]
    return Command(
        words,
        help,
        parser.description or "",
        parser.epilog or "",
        tuple(options),
        tuple(arguments),
        tuple(below),
        choice,
    )


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> Option:
    value = ""
    if action.nargs != 0:
        value = str(action.metavar or action.dest.upper().replace("_", "-"))
    # Fills in placeholders such as `%(default)s`, as argparse does.
    text = (action.help or "") % {**vars(action), "prog": parser.prog}
    return Option(
        tuple(action.option_strings),
        value,
        text,
        tuple(str(each) for each in action.choices or ()),
        action.nargs in ("+", "*") or isinstance(action, argparse._AppendAction),
    )
