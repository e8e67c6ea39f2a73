"""Which command was asked for. Each one imports what it needs, so that the screen opens fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from app.errors import UserError

BAD_INPUT, INTERRUPTED = 2, 130


def run(arguments: Sequence[str]) -> int:
    """Carry a command line out; returns the exit status, 2 for bad input."""
    try:
        return _dispatch(arguments)
    except UserError as error:
        from app.ui.sanitize import sanitize

        # It may quote names that came from elsewhere.
        sys.stderr.write(f"specchat: {sanitize(str(error))}\n")
        return BAD_INPUT
    except BrokenPipeError:
        # Whoever read our output has gone; Python must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _dispatch(arguments: Sequence[str]) -> int:
    if not arguments:  # the app, as it is mostly started: not even the parser is waited for
        from app.cli.screen import screen

        return screen()
    from app.cli.arguments import parser

    options = parser().parse_args(arguments)
    match options.command:
        case "ask":
            from app.cli.ask import ask

            return ask(options)
        case "conversations":
            from app.cli.conversations import conversations

            return conversations(options)
        case "models":
            from app.cli.models import models

            return models(options)
        case "demo":
            from app.cli.demo import demo

            return demo(options.picture)
        case "settings":
            from app.cli.settings import settings

            return settings(options.json, sys.stdout)
        case "install-launcher":
            from app.cli.launcher import install_launcher

            return install_launcher(options.remove, sys.stdout)
        case "doctor" if options.stress:
            from app.cli.stress import stress

            return stress(options, sys.stdout)
        case "doctor":
            from app.cli.doctor import doctor

            return doctor(sys.stdout)
        case "bench" if options.measure == "store":
            from app.bench.store import store

            return store(options.runs, options.json, sys.stdout)
        case "bench" if options.measure == "ui":
            from app.cli import bench_ui

            if options.probed:
                return bench_ui.probed(options.probed)
            return bench_ui.bench_ui(options.runs, options.json, sys.stdout)
        case "bench" if options.measure == "ttft":
            from app.cli.bench_ttft import bench_ttft

            return bench_ttft(options)
        case "bench" if options.measure == "draft":
            from app.bench.draft import LEAST_LENGTH, draft
            from app.cli.typed import listed, prompt_length

            lengths = listed(options.length, lambda text: prompt_length(text, LEAST_LENGTH))
            return draft(options.shape, lengths, options.runs, options.json, sys.stdout)
        case "bench" if options.measure == "turns":
            from app.bench.turns import turns

            return turns(options.runs, options.json, sys.stdout)
        case "bench":
            from app.bench.overhead import overhead

            return overhead(options.runs, options.json, sys.stdout)
        case "eval":
            from app.cli.evaluate import evaluate

            return evaluate(options)
    from app.cli.screen import screen

    return screen(options.target, options.draft, options.kv_bits)
