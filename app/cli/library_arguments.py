"""Options for the models, and arguments of `specchat conversations`, `models`, `serve`, `worker`
and `hosts`."""

from __future__ import annotations

import argparse

from app.cli.parsing import number, whole
from app.protocol.hosts import MAX_PORT, WORKER_PORT


def add_model_options(
    command: argparse.ArgumentParser,
    default: str | None = argparse.SUPPRESS,
    *,
    kv_bits: bool = True,
    hosts: bool = True,
) -> None:
    """Options for the models. They may also precede the command, so a command's own option must
    have no default: it would replace theirs."""
    command.add_argument(
        "--target",
        metavar="T",
        default=default,
        help="the model that answers: a folder or an installed model",
    )
    command.add_argument(
        "--draft",
        metavar="D",
        default=default,
        help="the small model that scores the prompt: of any family, `embedded`, or `builtin`,"
        " which is no model and the default",
    )
    if hosts:
        command.add_argument(
            "--hosts",
            metavar="HOSTS",
            default=default,
            help="spread the target over this machine and others, on which `specchat worker` runs:"
            " ADDRESS,... or a file of mlx.distributed_config; SPECCHAT_HOSTS=KEY@ADDRESS in the"
            " environment does the same, and stores the key",
        )
        command.add_argument(
            "--split",
            metavar="N,N",
            default=default,
            help="whole layers for each machine, this one first, instead of a part of every layer:"
            " for machines of different size, where mlx-lm has a pipeline",
        )
    if not kv_bits:
        return
    command.add_argument(
        "--kv-bits",
        choices=["full", "8", "4"],
        default=default,
        help="bits per number in the target's KV cache: fewer need less memory",
    )


def add_conversations(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Manages saved conversations. ID is a number from the list, or `last`. Without an action,"
        " they are listed."
    )
    command.set_defaults(action="list", trash=False, json=False)
    actions = command.add_subparsers(metavar="ACTION", title="actions")

    def action(name: str, help: str, *, id: bool = True) -> argparse.ArgumentParser:
        parser = actions.add_parser(name, help=help)
        parser.set_defaults(action=name)
        if id:
            parser.add_argument("id", metavar="ID")
        return parser

    listing = action("list", "list them: pinned ones first, then by last use", id=False)
    listing.add_argument("--trash", action="store_true", help="list the trash instead")
    show = action("show", "print one")
    for parser in (listing, show):
        parser.add_argument("--json", action="store_true", help="print as JSON")
    search = action("search", "find messages and documents that contain all these words", id=False)
    search.add_argument("words", nargs="+", metavar="WORD")
    export = action("export", "write one to a file or to standard output")
    export.add_argument("-o", "--output", metavar="FILE")
    export.add_argument("--force", action="store_true", help="replace FILE if it exists")
    export.add_argument(
        "--format",
        choices=("md", "json", "html"),
        help="md and html for reading, json for importing; by default FILE's ending, or md",
    )
    action("import", "import one from JSON", id=False).add_argument(
        "file", metavar="FILE", help="a file, or - for standard input"
    )
    action("delete", "move one to the trash")
    action("restore", "restore one from the trash")
    action("rename", "change the title of one").add_argument("title", metavar="TITLE")
    pin = action("pin", "pin one to the top of the list")
    pin.add_argument("--unpin", action="store_true", help="unpin it")


def add_models(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Manages the models in the cache of huggingface_hub and mlx-lm. NAME is organisation/name."
        " Without an action, the installed models are listed, and what LM Studio, Ollama,"
        " llama.cpp and the folders of the setting models.folders have; that is never changed."
    )
    command.set_defaults(action="list", trash=False, json=False, memory=None)
    actions = command.add_subparsers(metavar="ACTION", title="actions")

    def action(name: str, help: str, *, name_too: bool = True) -> argparse.ArgumentParser:
        parser = actions.add_parser(name, help=help)
        parser.set_defaults(action=name)
        if name_too:
            parser.add_argument("name", metavar="NAME")
        return parser

    listing = action(
        "list",
        "list installed models, unfinished downloads, and models of other programs",
        name_too=False,
    )
    listing.add_argument("--trash", action="store_true", help="list the trash instead")
    listing.add_argument("--json", action="store_true", help="print as JSON")
    action("show", "show one model and its files, or a model of another program")
    finding = action("search", "search the catalogue of known models", name_too=False)
    finding.add_argument(
        "words",
        nargs="*",
        metavar="WORD",
        help="words that must all match; without any, all models are listed",
    )
    finding.add_argument("--hub", action="store_true", help="search the hub instead")
    adding = action(
        "add", "convert a GGUF file, or add a model or folder to your catalogue", name_too=False
    )
    adding.add_argument(
        "name",
        metavar="NAME",
        nargs="+",
        help="a GGUF file (or its parts, in order), a model's name, or a folder",
    )
    adding.add_argument(
        "--bits",
        type=int,
        choices=(4, 8, 16, 32),
        help="of a GGUF file, for weights that MLX cannot hold as they are (default: 8 for"
        " quantised ones, others stay); 32 dequantises all, which is fast on a CPU",
    )
    adding.add_argument("--as", dest="as_name", metavar="NAME", help="install it as local/NAME")
    pairing = action("pair", "list the drafts for a target, what each adds, and its speedup")
    pairing.add_argument(
        "--measure", action="store_true", help="measure installed pairs instead of predicting"
    )
    pairing.add_argument(
        "--keep",
        type=number("keep", 0.01, 1),
        default=0.2,
        help="fraction of the prompt to select (default %(default)s)",
    )
    fitting = action("fit", "estimate the memory that a model needs, installed or not")
    inherited = argparse.SUPPRESS
    fitting.add_argument(
        "--draft",
        metavar="D",
        default=inherited,
        help="use this draft model instead of the built-in draft",
    )
    fitting.add_argument("--length", metavar="N", help="prompt tokens, such as 64k")
    fitting.add_argument(
        "--kv-bits",
        choices=["full", "8", "4"],
        default=inherited,
        help="bits per number in the KV cache",
    )
    for parser in (listing, finding, pairing, fitting):
        parser.add_argument(
            "--memory",
            metavar="SIZE",
            help="for a Mac with this memory, such as 32GB, instead of this machine"
            + ("; also lists models to download" if parser is listing else ""),
        )
    action("pull", "download or update one")
    action("pause", "pause a download that runs in another window")
    action("resume", "continue a download")
    action("cancel", "cancel a download and delete its files")
    remove = action("rm", "move one to the trash")
    remove.add_argument("--older", action="store_true", help="remove only older commits")
    action("restore", "restore one from the trash")
    action("empty", "permanently delete the trash", name_too=False)
    action("verify", "check the checksums of all files of one")


def add_serve(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Answers other programs over HTTP as OpenAI's and Anthropic's servers do, on this machine"
        " only, with an API key."
    )
    command.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on (default %(default)s)"
    )
    command.add_argument(
        "--port",
        type=whole("port", 1, MAX_PORT),
        default=8321,
        help="the port to listen on (default %(default)s)",
    )
    command.add_argument(
        "--allow-others", action="store_true", help="allow a --host that other machines can reach"
    )
    command.add_argument("--no-token", action="store_true", help="ask for no API key")


def add_worker(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Holds a part of a target that is too large for one machine. Another machine with the key"
        " that it prints uses it; it sends token ids, never files, and nothing is encrypted."
    )
    command.add_argument(
        "address",
        metavar="ADDRESS",
        nargs="?",
        help="this machine's address at which the other reaches it; without one, all are listed",
    )
    command.add_argument(
        "--port",
        type=whole("port", 0, MAX_PORT),
        default=WORKER_PORT,
        help="the port to listen on; 0: one that is free (default %(default)s)",
    )


def add_hosts(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Prints the processor and memory of each machine, and the latency and rate of its link."
    )
    command.add_argument(
        "machines",
        metavar="HOSTS",
        nargs="?",
        help="as for --hosts; without it, all machines whose key was used before",
    )
    command.add_argument("--json", action="store_true", help="print them as JSON")
