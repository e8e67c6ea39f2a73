"""The command line of the benchmarks, which run from a checkout."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from app.cli.main import run
from app.cli.options import (
    ANSWER,
    RUNS,
    add_kv_bits,
    add_models,
    number,
    parse_fraction,
    parse_prompt_length,
    whole,
)
from app.cli.parser import Parser
from benchmarks import (
    built_in,
    citations,
    copying,
    decode,
    draft,
    harness,
    hosts,
    memory,
    overhead,
    planner,
    published,
    real_pair,
    serve,
    shapes,
    snapshot,
    store,
    ttft,
    turns,
    ui,
)
from benchmarks.quality.options import settings_of
from benchmarks.quality.settings import Scoring
from benchmarks.report import bench_all, chosen_benches

T = TypeVar("T")


BENCHES: tuple[harness.Bench, ...] = (
    overhead.BENCH,
    ttft.BENCH,
    published.BENCH,
    draft.BENCH,
    built_in.BENCH,
    planner.BENCH,
    turns.BENCH,
    serve.BENCH,
    decode.BENCH,
    copying.BENCH,
    memory.BENCH,
    snapshot.BENCH,
    store.BENCH,
    hosts.BENCH,
    ui.BENCH,
)
"""In the order of the report."""


def _list_of(parse: Callable[[str], T]) -> Callable[[str], tuple[T, ...]]:
    return partial(harness.parse_list, parse=parse)


FLAGS: dict[str, dict[str, Any]] = {
    "target": {"metavar": "T", "help": "the model that answers: a folder or repository"},
    "draft": {"metavar": "D", "help": "the draft"},
    "shape": {
        "dest": "shapes",
        "type": _list_of(shapes.shape_name),
        "help": "shape of random models, such as small,windowed",
    },
    "scale": {"type": number("scale", 0.01, 1), "help": "share of the shape's layers, up to 1"},
    "bits": {"type": int, "choices": (4, 8), "help": "quantise the weights"},
    "length": {
        "dest": "lengths",
        "type": _list_of(parse_prompt_length),
        "help": "prompt tokens, such as 4k,16k",
    },
    "keep": {
        "dest": "keeps",
        "type": _list_of(parse_fraction),
        "help": "fractions of the prompt to select, such as 0.1,0.2",
    },
    "tokens": {"type": ANSWER, "help": "maximum tokens of an answer"},
    "turns": {"type": whole("number of turns", 1, 10_000), "help": "number of turns"},
    "megabytes": {"type": whole("number of megabytes", 1, 1_000_000), "help": "size of the cache"},
    "runs": {"type": RUNS, "help": "number of runs, of which the median is reported"},
}
"""Options of benchmarks; `Bench.flags` says which a benchmark has, with their defaults."""


def measure(arguments: Sequence[str]) -> int:
    """Run the command line. Returns the exit status. Raises UserError."""
    options = parsed(arguments)
    if options.measure == "quality":
        from benchmarks.quality.command import evaluate

        return evaluate(options)
    if options.measure == "citations":
        return citations.measure(options)
    if options.measure == "pair":
        return real_pair.measure(options)
    if options.measure == "all":
        return bench_all(options, BENCHES)
    if options.measure == ui.BENCH.name and options.probed:
        return ui.probed(options.probed)
    (bench,) = (bench for bench in BENCHES if bench.name == options.measure)
    return harness.run(bench, _options_of(options), options.json, sys.stdout)


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of a command line. Raises UserError for all that its command refuses before it
    opens a file or loads a model."""
    options = parser().parse_args(arguments)
    if options.measure == "quality":
        settings_of(options)
    elif options.measure == "all":
        chosen_benches(options.only, BENCHES)
    for bench in BENCHES:
        if bench.name == options.measure:
            bench.check(_options_of(options))
    return options


def _options_of(options: argparse.Namespace) -> harness.Options:
    given = {name: value for name, value in vars(options).items() if value is not None}
    names = {field.name for field in fields(harness.Options)} & given.keys()
    return harness.Options(**{name: given[name] for name in names})


@cache
def parser() -> Parser:
    top = Parser(prog="python -m benchmarks", description="Measures specchat on this machine.")
    measures = top.add_subparsers(dest="measure", metavar="WHAT", required=True)
    for bench in BENCHES:
        command = measures.add_parser(bench.name, help=bench.help)
        for flag, default in bench.flags.items():
            shown = "" if default is None else " (default %(default)s)"
            about = FLAGS[flag] | {"help": FLAGS[flag]["help"] + shown}
            command.add_argument(f"--{flag}", default=default, **about)
        command.add_argument("--json", action="store_true", help="print the results as JSON")
        if bench is ui.BENCH:  # runs the app that is measured
            command.add_argument("--probed", type=Path, help=argparse.SUPPRESS)
    _add_bench_all(measures.add_parser("all", help="run all benchmarks and write a report"))
    citations.add_arguments(
        measures.add_parser("citations", help="write citations of answers, to be judged by hand")
    )
    real_pair.add_arguments(measures.add_parser("pair", help="measure a real pair of models"))
    _add_quality(
        measures.add_parser("quality", help="compare the answers of sparse and full prefill")
    )
    return top


def _add_bench_all(every: argparse.ArgumentParser) -> None:
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
        help="the report to write, such as benchmarks/results/performance.md",
    )
    say("--only", metavar="NAMES", help="run only these benchmarks, such as ttft,decode")
    say(
        "--summary",
        metavar="FILE",
        type=Path,
        help="also update the table of `overhead` in this file",
    )
    say(
        "--quick",
        action="store_true",
        help="run the smallest version of each, to check that it works",
    )


def _add_quality(command: argparse.ArgumentParser) -> None:
    """Lists of numbers are parsed later, for better error messages."""
    say = command.add_argument
    command.description = (
        "Asks generated questions about generated documents, with sparse and with full prefill,"
        " and compares the answers. Results are saved: the same command continues after an"
        " interruption."
    )
    repeatable = "; can be repeated"
    say(
        "--suite",
        action="append",
        default=[],
        metavar="S",
        help=f"a suite, such as needle, or all{repeatable}",
    )
    add_models(command, None)
    add_kv_bits(command, None)
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
    say("--sparse-only", action="store_true", help="skip the comparison with full prefill")
    say(
        "--right-in",
        metavar="LOG",
        help="only items that this results log has as right when read in full",
    )
    say(
        "--tune",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"values of a parameter, such as chunk=16,32{repeatable}",
    )
    say(
        "--ablate",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="like --tune, but one value at a time, added to --tune",
    )
    files = f"a text for suites that ask about files, such as real{repeatable}"
    say("--file", dest="files", action="append", default=[], metavar="F", help=files)
    say("--json", metavar="OUT", help="write the settings, the results and every run as JSON")
    say("--report", metavar="OUT.md", help="write a Markdown report")
    say("--fresh", action="store_true", help="discard earlier results")
    say(
        "--saved",
        action="append",
        default=[],
        metavar="LOG",
        help="report the results in this log, and measure nothing (repeatable; the first log that"
        " has a result counts)",
    )


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], measure))
