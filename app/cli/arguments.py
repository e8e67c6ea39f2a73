"""The command line's parser: commands, options and their help."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from app.cli.library_arguments import (
    add_conversations,
    add_hosts,
    add_model_options,
    add_models,
    add_serve,
    add_worker,
)
from app.cli.parsing import (
    ANSWER,
    MAX_ANSWER,
    RUNS,
    number,
    parse_fraction,
    parse_keep,
    parse_prompt_length,
    whole,
)
from app.errors import UserError
from app.protocol.options import DEFAULT_KEEP_RATIO

STRESS_RUNS, STRESS_LENGTH = 10, "32k"
_WORD = re.compile(r"[A-Za-z][A-Za-z-]*")
"""What may be meant as a command."""


class Parser(argparse.ArgumentParser):
    """Its errors are one sentence, as all others of the command line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(
            message[:1].upper() + message[1:], f"`{self.prog} --help` lists what there is"
        )


class TopParser(Parser):
    """Where the first word is no command, all words are files and folders for the app.

    A file that is named like a command can be given as `./ask`.
    """

    def __init__(self) -> None:
        super().__init__(
            prog="specchat",
            usage="%(prog)s [OPTION]... [PATH]...\n       %(prog)s [OPTION]... COMMAND ...",
            description="Chat with local models about long documents. Without a command, the app"
            " opens, with the files and folders of the command line attached.",
        )
        self.of_app = Parser(prog="specchat", usage=self.usage)
        self.of_app.add_argument("paths", nargs="+", metavar="PATH", help="a file or a folder")
        self.of_app.format_help = self.format_help  # type: ignore[method-assign]
        self.set_defaults(paths=[])
        for parser in (self, self.of_app):
            parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
            add_model_options(parser, None)
        self.of_app.set_defaults(command=None)
        self.commands = self.add_subparsers(
            prog="specchat",
            parser_class=Parser,
            dest="command",
            metavar="COMMAND",
            title="commands",
        )

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Raises UserError for a word that is neither a command nor a path."""
        words = sys.argv[1:] if args is None else list(args)
        first = self._first_word(words)
        if first is None or first in self.commands.choices:
            return super().parse_known_args(words, namespace)
        if _WORD.fullmatch(first) and not os.path.lexists(first):
            found = get_close_matches(first, self.commands.choices, 1)
            advice = f"use `specchat {found[0]}`" if found else "name a file or a folder"
            raise UserError(
                f"{first!r} is neither a command nor a file or folder here",
                f"{advice}, or see `specchat --help` for the commands",
            )
        return self.of_app.parse_known_intermixed_args(words, namespace)

    def _first_word(self, words: Sequence[str]) -> str | None:
        """The first that is neither an option nor the value of one."""
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


def parser() -> TopParser:
    top = TopParser()
    commands = top.commands
    _add_ask(commands.add_parser("ask", help="answer one question and print the answer"))
    add_conversations(
        commands.add_parser(
            "conversations", help="list, show, export and delete saved conversations"
        )
    )
    add_models(commands.add_parser("models", help="list, download and remove models"))
    demo = commands.add_parser(
        "demo", help="answer a question about a long file sparsely and in full, and compare"
    )
    demo.add_argument(
        "--picture", metavar="SVG", help="draw what the sparse answer read as an SVG file"
    )
    demo.add_argument(
        "--real",
        action="store_true",
        help="by a real model, SmolLM2 135M, which is downloaded once (93 MB)",
    )
    serve = commands.add_parser("serve", help="answer other programs on this machine over HTTP")
    add_serve(serve)
    add_model_options(serve)
    add_worker(
        commands.add_parser("worker", help="lend this machine to another, for a part of its target")
    )
    add_hosts(commands.add_parser("hosts", help="show the machines of --hosts and their links"))
    settings = commands.add_parser("settings", help="print the settings and the path of their file")
    settings.add_argument("--json", action="store_true", help="print them as JSON")
    _add_doctor(
        commands.add_parser(
            "doctor", help="check the installation, and report versions, memory and folders"
        )
    )
    launcher = commands.add_parser("install-launcher", help="add specchat to the applications menu")
    launcher.add_argument("--remove", action="store_true", help="remove it again")
    measured = commands.add_parser(
        "bench", help="measure how fast a pair of models is on this machine"
    )
    _add_bench(measured)
    add_model_options(measured, hosts=False)
    asked = commands.add_parser(
        "eval", help="ask a pair of models sparsely and in full, and compare the answers"
    )
    _add_eval(asked)
    add_model_options(asked, hosts=False)
    return top


class _Version(argparse.Action):
    """Looks the version up only when it is needed, because that is slow."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        sys.stdout.write(f"specchat {version('specchat')}\n")  # argparse would use standard error
        parser.exit()


def _add_ask(ask: argparse.ArgumentParser) -> None:
    ask.epilog = "Defaults come from the settings, which `specchat settings` prints."
    ask.add_argument("question", metavar="QUESTION")
    ask.add_argument(
        "-f",
        "--file",
        dest="files",
        action="append",
        default=[],
        metavar="PATH",
        help="a file or folder to ask about, or - for standard input (also read if there is no -f);"
        " can be repeated",
    )
    ask.add_argument(
        "--private", action="store_true", help="also read files in folders that may contain secrets"
    )
    ask.add_argument("--ignored", action="store_true", help="also read files that git ignores")
    how = ask.add_mutually_exclusive_group()
    how.add_argument(
        "--keep",
        type=parse_keep,
        help=f"read this fraction, 0 to 1, such as {DEFAULT_KEEP_RATIO}, or auto",
    )
    how.add_argument("--full", action="store_true", help="read the whole prompt")
    how.add_argument("--auto", action="store_true", help="choose sparse or full automatically")
    ask.add_argument(
        "--conversation",
        metavar="ID",
        help="save question and answer in the conversation with this number, in the `last` one, or"
        " in a `new` one",
    )
    add_model_options(ask)
    ask.add_argument(
        "--max-tokens", type=ANSWER, metavar="N", help="the maximum length of the answer"
    )
    ask.add_argument(
        "--temp",
        type=number("temperature", 0, 100),
        metavar="T",
        help="sampling temperature; 0 is greedy",
    )
    ask.add_argument(
        "--top-p",
        type=number("top-p", 0.0001, 1),
        metavar="P",
        help="sample only from the most likely tokens",
    )
    ask.add_argument(
        "--top-k",
        type=whole("top-k", 0, 1_000_000),
        metavar="K",
        help="sample only from this many of the most likely tokens",
    )
    ask.add_argument(
        "--min-p",
        type=number("min-p", 0, 1),
        metavar="P",
        help="sample only from tokens at least this share as likely as the likeliest",
    )
    ask.add_argument(
        "--repetition-penalty",
        type=number("repetition penalty", 0.5, 2),
        metavar="R",
        help="above 1, what the last 64 tokens said becomes less likely",
    )
    ask.add_argument(
        "--thinking",
        action=argparse.BooleanOptionalAction,
        help="whether a model that can think before it answers does so",
    )
    ask.add_argument(
        "--thinking-budget",
        type=whole("thinking budget", 0, MAX_ANSWER),
        metavar="N",
        help="maximum thinking tokens (0: unlimited)",
    )
    ask.add_argument(
        "--seed", type=whole("seed", 0, 2**64 - 1), metavar="S", help="seed for sampling"
    )
    ask.add_argument(
        "--skip-memory-check",
        action="store_true",
        help="try even if the memory estimate says that it does not fit",
    )
    ask.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="also print phases, tokens, certainty and the reason for how it was read",
    )
    ask.add_argument("--json", action="store_true", help="print the events as JSON lines")
    ask.add_argument("--map", action="store_true", help="print a map of what was read")


def _add_doctor(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--stress",
        action="store_true",
        help="run a stress test with long prompts instead, and print what to report",
    )
    command.description = (
        "With --target, that model is loaded and checked as on its first load: what later loads"
        " remember of it is replaced. All other options are for --stress."
    )
    command.add_argument(
        "--runs", type=RUNS, metavar="N", help=f"number of runs (default {STRESS_RUNS})"
    )
    command.add_argument("--length", metavar="N", help=f"prompt tokens (default {STRESS_LENGTH})")
    add_model_options(command, kv_bits=False, hosts=False)


def _add_length(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--length",
        type=parse_prompt_length,
        default=4096,
        metavar="N",
        help="prompt tokens, such as 4096 or 16k (default 4k)",
    )


def _add_bench(command: argparse.ArgumentParser) -> None:
    _add_length(command)
    command.add_argument(
        "--keep",
        type=lambda text: parse_fraction(text, "keep"),
        default=DEFAULT_KEEP_RATIO,
        help="fraction of the prompt that the sparse turn reads (default %(default)s)",
    )
    command.add_argument("--runs", type=RUNS, default=3, help="runs (default %(default)s)")
    command.add_argument("--json", action="store_true", help="print every run as JSON")


def _add_eval(command: argparse.ArgumentParser) -> None:
    _add_length(command)
    command.add_argument(
        "--keep",
        type=parse_keep,
        default=DEFAULT_KEEP_RATIO,
        help="fraction of the prompt that is read, or auto (default %(default)s)",
    )
    command.add_argument(
        "--n",
        type=whole("number of questions", 1, 100_000),
        default=10,
        metavar="N",
        help="questions of each kind (default %(default)s)",
    )
    command.add_argument(
        "--seed", type=whole("seed", 0, 2**63), default=0, help="seed of the questions (default 0)"
    )
    command.add_argument("--json", action="store_true", help="print every result as JSON")
