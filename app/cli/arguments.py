"""What a command line may hold."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NoReturn

from app.protocol.options import DEFAULT_KEEP_RATIO, Scoring, Tuning
from app.util.sanitize import sanitize_line

STRESS_RUNS, STRESS_LENGTH = 10, "32k"
_REAL = "real models instead of a shape: a folder or repository"


class Parser(argparse.ArgumentParser):
    """Quotes what was typed, names of files among it, without what a terminal would obey."""

    def error(self, message: str) -> NoReturn:
        super().error(sanitize_line(message))


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="specchat",
        description="Chat with local models about long documents."
        " Without a command, the app opens.",
    )
    top.add_argument("--version", action=_Version, nargs=0, help="say which version this is")
    _models(top, None)
    commands = top.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    _add_ask(commands.add_parser("ask", help="answer one question and print the answer"))
    _add_conversations(commands.add_parser("conversations", help="look after what was kept"))
    _add_models(commands.add_parser("models", help="download models and look after them"))
    demo = commands.add_parser(
        "demo", help="ask the embedded pair about a real long file, both ways"
    )
    demo.add_argument("--picture", metavar="SVG", help="draw the map of the sparse answer")
    settings = commands.add_parser("settings", help="print the settings and where they are kept")
    settings.add_argument("--json", action="store_true", help="print them as JSON")
    _add_doctor(commands.add_parser("doctor", help="say what is here and what is wrong"))
    launcher = commands.add_parser(
        "install-launcher", help="put specchat among the applications, for a double click"
    )
    launcher.add_argument("--remove", action="store_true", help="take it away again")
    bench = commands.add_parser("bench", help="measure on this machine")
    measures = bench.add_subparsers(dest="measure", metavar="WHAT", required=True)
    overhead = measures.add_parser(
        "overhead", help="the cost of a sparse turn beyond its two prefills"
    )
    overhead.add_argument(
        "--length", default="4k", help="tokens of a prompt, say 4k,16k (default %(default)s)"
    )
    store = measures.add_parser("store", help="how long the conversation store takes")
    turns = measures.add_parser("turns", help="time to the first word in later turns")
    first = measures.add_parser("ttft", help="time to the first token, beside mlx-lm")
    _add_ttft(first)
    foretold = measures.add_parser(
        "planner", help="accuracy of predicted times, and what auto chooses"
    )
    foretold.add_argument(
        "--turns", type=int, default=100, help="number of turns (default %(default)s)"
    )
    feel = measures.add_parser("ui", help="how fast the app starts, draws and accepts a paste")
    feel.add_argument("--probed", type=Path, help=argparse.SUPPRESS)  # the app that is measured
    decode = measures.add_parser("decode", help="how fast answers are decoded, beside mlx-lm")
    decode.add_argument("--tokens", type=int, default=32, help="of an answer (default %(default)s)")
    memory = measures.add_parser("memory", help="peak memory, sparse and dense")
    _add_lengths(decode, "small,windowed", "4k,16k")
    _add_lengths(memory, "small", "4k,8k,16k")
    snapshot = measures.add_parser("snapshot", help="how fast a conversation's cache is saved")
    snapshot.add_argument("--megabytes", type=int, default=300, help="(default %(default)s)")
    draft = measures.add_parser("draft", help="what block-sparse attention saves a draft")
    draft.add_argument("--shape", default="embedded", help="of models (default %(default)s)")
    draft.add_argument(
        "--length", default="8k,16k,32k", help="tokens of a prompt (default %(default)s)"
    )
    published = measures.add_parser(
        "published", help="speedups that others measured, beside predicted ones"
    )
    published.add_argument("--json", action="store_true", help="print the figures as JSON")
    published.set_defaults(runs=None)
    every = (overhead, store, turns, first, foretold, feel, decode, memory, snapshot, draft)
    for measure in every:
        measure.add_argument(
            "--runs", type=int, default=5, help="number of runs (default %(default)s)"
        )
        measure.add_argument("--json", action="store_true", help="print the figures as JSON")
    _add_bench_all(measures.add_parser("all", help="all of them, as a report"))
    _add_eval(
        commands.add_parser("eval", help="measure whether sparse reading gives the same answers")
    )
    return top


def _add_lengths(measure: argparse.ArgumentParser, shape: str, lengths: str) -> None:
    say = measure.add_argument
    say("--shape", default=shape, help="of models without weights (default %(default)s)")
    say("--length", default=lengths, help="tokens of a prompt (default %(default)s)")
    say("--keep", default="0.2", help="a fraction (default %(default)s)")


def _add_bench_all(every: argparse.ArgumentParser) -> None:
    every.set_defaults(runs=None)
    every.description = (
        "Runs every benchmark in a separate process, and writes the report. Results are stored"
        " beside it, so that --only can repeat one, or continue where it was stopped."
    )
    say = every.add_argument
    say(
        "--report",
        metavar="OUT.md",
        type=Path,
        required=True,
        help="for example docs/performance.md",
    )
    say("--only", metavar="NAMES", help="only these, for example ttft,decode")
    say("--readme", metavar="FILE", type=Path, help="also update the table of `overhead` in it")
    say("--quick", action="store_true", help="measure as little as possible, as a trial")


def _add_ttft(ttft: argparse.ArgumentParser) -> None:
    """Figures come as text, so that `fitting` can say in a sentence what is wrong with them."""
    say = ttft.add_argument
    say("--target", metavar="T", default=argparse.SUPPRESS, help=_REAL)
    say("--draft", metavar="D", default=argparse.SUPPRESS, help="the small one")
    say("--shape", default="small", help="of models without weights (default %(default)s)")
    say("--scale", type=float, default=1.0, help="fraction of the layers, 0 to 1, to make it fit")
    say("--bits", type=int, choices=(4, 8), help="quantise the weights")
    say("--length", default="1k,4k,16k", help="tokens of a prompt (default %(default)s)")
    say("--keep", default="0.05,0.1,0.2,0.5,1.0", help="fractions (default %(default)s)")


class _Version(argparse.Action):
    """Looks it up only now: that takes longer than the rest of this module."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        sys.stdout.write(f"specchat {version('specchat')}\n")  # argparse would take standard error
        parser.exit()


def _models(
    command: argparse.ArgumentParser,
    default: str | None = argparse.SUPPRESS,
    *,
    kv_bits: bool = True,
) -> None:
    """Not said, the settings say which. They may stand before a command, too: a command's own
    default would replace what was said there."""
    command.add_argument(
        "--target",
        metavar="T",
        default=default,
        help="the model that answers: a folder or a repository in the local cache",
    )
    command.add_argument(
        "--draft",
        metavar="D",
        default=default,
        help="the small model that skims, of the target's family",
    )
    if not kv_bits:
        return
    command.add_argument(
        "--kv-bits",
        choices=["full", "8", "4"],
        default=default,
        help="keep what the target reads in so many bits a number: less memory",
    )


def _add_ask(ask: argparse.ArgumentParser) -> None:
    ask.epilog = "What no option says, the settings do: `specchat settings` prints them."
    ask.add_argument("question", metavar="QUESTION")
    ask.add_argument(
        "-f",
        "--file",
        dest="files",
        action="append",
        default=[],
        metavar="PATH",
        help="a file or folder to ask about, or - for standard input, which is read without -f too;"
        " may be given again",
    )
    ask.add_argument(
        "--private", action="store_true", help="read files in folders that may hold secrets too"
    )
    ask.add_argument("--ignored", action="store_true", help="read what git ignores too")
    how = ask.add_mutually_exclusive_group()
    how.add_argument(
        "--keep", type=float, help=f"read this fraction (0 to 1), say {DEFAULT_KEEP_RATIO}"
    )
    how.add_argument("--full", action="store_true", help="read everything")
    how.add_argument("--auto", action="store_true", help="let the planner choose")
    ask.add_argument(
        "--conversation",
        metavar="ID",
        help="keep question and answer: in the conversation of this number, the `last` one used,"
        " or a `new` one",
    )
    _models(ask)
    ask.add_argument("--max-tokens", type=int, metavar="N", help="the longest answer")
    ask.add_argument("--temp", type=float, metavar="T", help="0 is greedy")
    ask.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest only")
    ask.add_argument("--seed", type=int, metavar="S")
    ask.add_argument(
        "--despite-memory", action="store_true", help="try what is foreseen not to fit"
    )
    ask.add_argument("--json", action="store_true", help="print the events as JSON lines")
    ask.add_argument("--map", action="store_true", help="print what was read, as text")


def _add_conversations(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Looks after what `specchat ask --conversation` has kept. ID is a number from the list, or"
        " `last`. Without an action the conversations are listed."
    )
    command.set_defaults(action="list", trash=False, json=False)
    actions = command.add_subparsers(metavar="ACTION", title="actions")

    def action(name: str, help: str, *, id: bool = True) -> argparse.ArgumentParser:
        parser = actions.add_parser(name, help=help)
        parser.set_defaults(action=name)
        if id:
            parser.add_argument("id", metavar="ID")
        return parser

    listing = action("list", "pinned ones first, then the last used ones", id=False)
    listing.add_argument("--trash", action="store_true", help="those in the trash")
    show = action("show", "print the questions and answers")
    for parser in (listing, show):
        parser.add_argument("--json", action="store_true", help="print it as JSON")
    search = action("search", "find messages that hold all these words", id=False)
    search.add_argument("words", nargs="+", metavar="WORD")
    export = action("export", "write one to a file, or to standard output")
    export.add_argument("-o", "--output", metavar="FILE")
    export.add_argument(
        "--format",
        choices=("md", "json", "html"),
        help="md and html to read, json to import; by FILE's ending, or md",
    )
    action("import", "read one that was exported as JSON", id=False).add_argument(
        "file", metavar="FILE", help="or - for standard input"
    )
    action("delete", "move one to the trash")
    action("restore", "take one out of the trash")
    action("rename", "give one another title").add_argument("title", metavar="TITLE")
    pin = action("pin", "keep one at the top of the list")
    pin.add_argument("--unpin", action="store_true", help="let it sink again")


def _add_models(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Downloads models into the cache that huggingface_hub and mlx-lm use, and looks after them."
        " NAME is organisation/name. Without an action the models are listed."
    )
    command.set_defaults(action="list", trash=False, json=False, memory=None)
    actions = command.add_subparsers(metavar="ACTION", title="actions")

    def action(name: str, help: str, *, name_too: bool = True) -> argparse.ArgumentParser:
        parser = actions.add_parser(name, help=help)
        parser.set_defaults(action=name)
        if name_too:
            parser.add_argument("name", metavar="NAME")
        return parser

    listing = action("list", "those that are here, and unfinished downloads", name_too=False)
    listing.add_argument("--trash", action="store_true", help="those in the trash")
    listing.add_argument("--json", action="store_true", help="print it as JSON")
    action("show", "one of them, with its files")
    finding = action("search", "find models that specchat knows by name", name_too=False)
    finding.add_argument("words", nargs="*", metavar="WORD", help="all of them; none lists all")
    finding.add_argument("--hub", action="store_true", help="ask the hub instead of the catalogue")
    action("add", "put one into your catalogue: organisation/name, or a folder")
    pairing = action("pair", "the drafts for a target, with what each is worth")
    pairing.add_argument(
        "--measure", action="store_true", help="time those that are here, instead of reckoning"
    )
    pairing.add_argument("--keep", type=float, default=0.2, help="0 to 1 (default %(default)s)")
    fitting = action("fit", "what a model takes in memory, line by line, also before it is here")
    inherited = argparse.SUPPRESS
    fitting.add_argument(
        "--draft", metavar="D", default=inherited, help="with this draft instead of the best one"
    )
    fitting.add_argument("--length", metavar="N", help="at so many tokens, say 64k")
    fitting.add_argument(
        "--kv-bits",
        choices=["full", "8", "4"],
        default=inherited,
        help="with its cache in so many bits a number",
    )
    for parser in (listing, finding, pairing, fitting):
        parser.add_argument(
            "--memory",
            metavar="SIZE",
            help="of a Mac, say 32GB, instead of this machine's"
            + ("; also those to download" if parser is listing else ""),
        )
    action("pull", "download one, or what has changed of it")
    action("pause", "stop a download that runs elsewhere; what it fetched is kept")
    action("resume", "go on with a download")
    action("cancel", "give a download up, and delete what was fetched")
    remove = action("rm", "move one to the trash")
    remove.add_argument("--older", action="store_true", help="only what newer commits replaced")
    action("restore", "take one out of the trash")
    action("empty", "delete what is in the trash", name_too=False)
    action("verify", "read all files of one and compare their digests")


def _add_doctor(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--stress",
        action="store_true",
        help="instead, read a long prompt again and again, and say what to report",
    )
    command.description = "All options but --stress are for it."
    command.add_argument("--runs", type=int, metavar="N", help=f"so often (default {STRESS_RUNS})")
    command.add_argument(
        "--length", metavar="N", help=f"tokens of the prompt (default {STRESS_LENGTH})"
    )
    _models(command, kv_bits=False)


def _add_eval(command: argparse.ArgumentParser) -> None:
    """Figures come as text, so that `evaluate` can say in a sentence what is wrong with them."""
    say = command.add_argument
    command.description = (
        "Asks generated questions about generated documents, in full and sparsely, and compares."
        " Results are stored: the same command continues where it was stopped."
    )
    again = "; may be repeated"
    say("--suite", action="append", default=[], metavar="S", help=f"a suite, needle or all{again}")
    _models(command)
    say("--pair", nargs="+", metavar="M", help="`embedded`, or target and draft in one option")
    say("--length", default="4k", help="tokens of a prompt, say 1k,4k,32k (default %(default)s)")
    say("--keep", default="0.05,0.1,0.2,0.3,0.5,1.0", help="fractions (default %(default)s)")
    known, default = ",".join(Scoring), str(Tuning().scoring)
    say("--scoring", default=default, help=f"of {known} (default %(default)s)")
    say("--n", default="50", help="items a suite and length (default %(default)s)")
    say("--seed", default="0", help="another seed makes other items (default %(default)s)")
    say("--held-out", action="store_true", help="ask in wordings that nothing was trained on")
    say("--auto", action="store_true", help="ask in auto mode too, and judge its guard")
    say("--published", action="store_true", help="also score as in the SpecPrefill paper")
    say("--sparse-only", action="store_true", help="without full prefills to compare with")
    say("--tune", action="append", default=[], metavar="NAME=VALUE", help=f"say chunk=16,32{again}")
    say(
        "--ablate",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="like --tune, but one changed value at a time",
    )
    files = f"a text for the perplexity suite{again}"
    say("--file", dest="files", action="append", default=[], metavar="F", help=files)
    say("--json", metavar="OUT", help="write settings, figures and every run as JSON")
    say("--report", metavar="OUT.md", help="write Markdown, and a figure beside it")
    say("--fresh", action="store_true", help="forget what was measured before")
