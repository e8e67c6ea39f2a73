"""The command line's parser: commands, options and their help."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from app.cli.library_arguments import (
    add_conversations,
    add_hosts,
    add_model_options,
    add_models,
    add_serve,
    add_worker,
)
from app.cli.parsing import ANSWER, MAX_ANSWER, RUNS, number, parse_keep, whole
from app.errors import UserError
from app.protocol.options import DEFAULT_KEEP_RATIO, Scoring

STRESS_RUNS, STRESS_LENGTH = 10, "32k"
_WORD = re.compile(r"[A-Za-z][A-Za-z-]*")
"""What may be meant as a command."""
_REAL = "real models instead of a shape: a folder or repository"


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
    bench = commands.add_parser("bench", help="run benchmarks on this machine")
    measures = bench.add_subparsers(dest="measure", metavar="WHAT", required=True)
    overhead = measures.add_parser(
        "overhead", help="the overhead of sparse prefill over the two prefills"
    )
    overhead.add_argument(
        "--length", default="4k", help="prompt tokens, such as 4k,16k (default %(default)s)"
    )
    store = measures.add_parser("store", help="latency of saving and opening conversations")
    turns = measures.add_parser("turns", help="time to the first word in later turns")
    turns.add_argument(
        "--shape", help="shape of a random target, such as hybrid (default: the embedded pair)"
    )
    turns.add_argument(
        "--scale",
        type=number("scale", 0.01, 1),
        default=1.0,
        help="share of the shape's layers (default %(default)s)",
    )
    turns.add_argument("--length", help="tokens of the text (default: all of it)")
    over_http = measures.add_parser("serve", help="a conversation over HTTP and in the app")
    first = measures.add_parser("ttft", help="time to the first word, compared with mlx-lm")
    _add_ttft(first)
    planner = measures.add_parser(
        "planner",
        help="accuracy of the predicted time to the first word, and what auto mode chooses",
    )
    planner.add_argument(
        "--turns",
        type=whole("number of turns", 1, 10_000),
        default=100,
        help="number of turns (default %(default)s)",
    )
    feel = measures.add_parser("ui", help="latency of drawing, starting and pasting in the app")
    feel.add_argument(
        "--probed", type=Path, help=argparse.SUPPRESS
    )  # the measured app runs this way
    decode = measures.add_parser(
        "decode", help="tokens per second of answers, compared with mlx-lm"
    )
    decode.add_argument(
        "--tokens",
        type=ANSWER,
        default=32,
        help="tokens of an answer (default %(default)s)",
    )
    copying = measures.add_parser("copying", help="speed of answers that copy")
    copying.add_argument("--target", metavar="T", help="the model that answers (default embedded)")
    copying.add_argument(
        "--tokens",
        type=ANSWER,
        default=128,
        help="maximum tokens of an answer (default %(default)s)",
    )
    copying.add_argument(
        "--shape", default="small,windowed", help="shape of random models (default %(default)s)"
    )
    copying.add_argument("--length", default="4k", help="prompt tokens (default %(default)s)")
    memory = measures.add_parser("memory", help="peak memory of sparse and full prefill")
    _add_lengths(decode, "small,windowed", "4k,16k")
    _add_lengths(memory, "small", "4k,8k,16k")
    snapshot = measures.add_parser("snapshot", help="time to save and load a conversation's cache")
    snapshot.add_argument(
        "--megabytes",
        type=whole("number of megabytes", 1, 1_000_000),
        default=300,
        help="size of the cache (default %(default)s)",
    )
    draft = measures.add_parser("draft", help="speedup of the draft's block-sparse attention")
    draft.add_argument(
        "--shape", default="embedded", help="shape of the models (default %(default)s)"
    )
    draft.add_argument("--length", default="8k,16k,32k", help="prompt tokens (default %(default)s)")
    built_in = measures.add_parser("built-in", help="what it takes the built-in draft to choose")
    built_in.add_argument(
        "--shape", default="qwen3-8b+0.6b", help="shape of the embeddings (default %(default)s)"
    )
    built_in.add_argument(
        "--length", default="4k,32k,128k", help="prompt tokens (default %(default)s)"
    )
    over_hosts = measures.add_parser("hosts", help="a target over two machines, and their link")
    _add_lengths(over_hosts, "wide", "1k")
    published = measures.add_parser(
        "published", help="published speedups of real model pairs, and the predictions for them"
    )
    published.add_argument("--json", action="store_true", help="print the results as JSON")
    published.set_defaults(runs=None)
    every = (
        overhead,
        store,
        turns,
        over_http,
        first,
        planner,
        feel,
        decode,
        copying,
        memory,
        snapshot,
        draft,
        built_in,
        over_hosts,
    )
    for measure in every:
        measure.add_argument(
            "--runs",
            type=RUNS,
            default=5,
            help="number of runs, of which the median is reported (default %(default)s)",
        )
        measure.add_argument("--json", action="store_true", help="print the results as JSON")
    _add_bench_all(measures.add_parser("all", help="run all benchmarks and write a report"))
    _add_eval(
        commands.add_parser("eval", help="compare the answer quality of sparse and full prefill")
    )
    return top


def _add_lengths(measure: argparse.ArgumentParser, shape: str, lengths: str) -> None:
    say = measure.add_argument
    say("--shape", default=shape, help="shape of random models (default %(default)s)")
    say("--length", default=lengths, help="prompt tokens (default %(default)s)")
    say("--keep", default="0.2", help="fraction of the prompt to select (default %(default)s)")


def _add_bench_all(every: argparse.ArgumentParser) -> None:
    every.set_defaults(runs=None)
    every.description = (
        "Runs every benchmark in a separate process and writes a report. The results are saved in a"
        " folder beside it, so that --only repeats some, or continues after an interruption."
    )
    say = every.add_argument
    say(
        "--report",
        metavar="OUT.md",
        type=Path,
        required=True,
        help="the report to write, such as docs/performance.md",
    )
    say("--only", metavar="NAMES", help="run only these benchmarks, such as ttft,decode")
    say(
        "--readme",
        metavar="FILE",
        type=Path,
        help="also update the table of `overhead` in this file",
    )
    say(
        "--quick",
        action="store_true",
        help="run the smallest version of each, to check that it works",
    )


def _add_ttft(ttft: argparse.ArgumentParser) -> None:
    """Numbers are parsed later, where an error is reported in one sentence."""
    say = ttft.add_argument
    say("--target", metavar="T", default=argparse.SUPPRESS, help=_REAL)
    say("--draft", metavar="D", default=argparse.SUPPRESS, help="the draft")
    say("--shape", default="small", help="shape of random models (default %(default)s)")
    say(
        "--scale",
        type=number("fraction of the layers", 0.01, 1),
        default=1.0,
        help="fraction of the layers, up to 1, to save memory",
    )
    say("--bits", type=int, choices=(4, 8), help="quantise the weights")
    say("--length", default="1k,4k,16k", help="prompt tokens (default %(default)s)")
    say(
        "--keep",
        default="0.05,0.1,0.2,0.5,1.0",
        help="fractions of the prompt to select (default %(default)s)",
    )


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


def _add_eval(command: argparse.ArgumentParser) -> None:
    """Numbers are parsed later, where an error is reported in one sentence."""
    say = command.add_argument
    command.description = (
        "Asks generated questions about generated documents, with sparse and with full prefill,"
        " and compares the answers. Results are saved: the same command continues after an"
        " interruption."
    )
    again = "; can be repeated"
    say(
        "--suite",
        action="append",
        default=[],
        metavar="S",
        help=f"a suite, such as needle, or all{again}",
    )
    add_model_options(command, hosts=False)
    say("--pair", nargs="+", metavar="M", help="target and draft in one option, or `embedded`")
    say("--length", default="4k", help="prompt tokens, such as 1k,4k,32k (default %(default)s)")
    say(
        "--keep",
        default="0.05,0.1,0.2,0.3,0.5,1.0",
        help="fractions of the prompt to select (default %(default)s)",
    )
    say(
        "--scoring",
        help=f"scoring methods, of {','.join(Scoring)} (default {Scoring.JOINED}; with the"
        f" embedded draft {Scoring.BOTH}, without a draft {Scoring.BUILT_IN})",
    )
    say(
        "--n",
        type=whole("number of items", 1, 1_000_000),
        default=50,
        help="items per suite and length (default %(default)s)",
    )
    say(
        "--seed",
        type=whole("seed", 0, 999_999_999),
        default=0,
        help="seed for generating the items (default %(default)s)",
    )
    say(
        "--held-out",
        action="store_true",
        help="use phrasings that the embedded pair was not trained on",
    )
    say("--auto", action="store_true", help="also measure auto mode and its guard")
    say("--published", action="store_true", help="also measure the published SpecPrefill scoring")
    say("--sparse-only", action="store_true", help="skip the comparison with full prefill")
    say(
        "--tune",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"values of a parameter, such as chunk=16,32{again}",
    )
    say(
        "--ablate",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="like --tune, but one value at a time, added to --tune",
    )
    files = f"a text for the suites perplexity and real{again}"
    say("--file", dest="files", action="append", default=[], metavar="F", help=files)
    say("--json", metavar="OUT", help="write the settings, the results and every run as JSON")
    say("--report", metavar="OUT.md", help="write a Markdown report with a chart")
    say("--fresh", action="store_true", help="discard earlier results")
