"""Measures specchat, from a checkout of it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from app.cli.main import run
from app.cli.options import ANSWER, RUNS, Parser, add_kv_bits, add_models, number, whole
from benchmarks.quality.settings import Scoring

_REAL = "real models instead of a shape: a folder or repository"


def measure(arguments: Sequence[str]) -> int:
    """Run what the command line says; returns the exit status. Raises UserError."""
    options = parser().parse_args(arguments)
    if options.measure == "quality":
        from benchmarks.quality.command import evaluate

        return evaluate(options)
    from benchmarks.benches import bench

    return bench(options)


def parser() -> Parser:
    top = Parser(prog="python -m benchmarks", description="Measures specchat on this machine.")
    measures = top.add_subparsers(dest="measure", metavar="WHAT", required=True)
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
    _add_quality(
        measures.add_parser("quality", help="compare the answers of sparse and full prefill")
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


def _add_quality(command: argparse.ArgumentParser) -> None:
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
    files = f"a text for suites that ask about files, such as real{again}"
    say("--file", dest="files", action="append", default=[], metavar="F", help=files)
    say("--json", metavar="OUT", help="write the settings, the results and every run as JSON")
    say("--report", metavar="OUT.md", help="write a Markdown report with a chart")
    say("--fresh", action="store_true", help="discard earlier results")


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:], measure))
