"""`specchat bench`: which measurement was asked for, checked before anything is built."""

from __future__ import annotations

import argparse
import sys

from app.cli.parsing import MIN_PROMPT_TOKENS, parse_fraction, parse_list, parse_prompt_length
from app.errors import UserError


def bench(options: argparse.Namespace) -> int:
    """Returns the exit status. Raises UserError."""
    if options.runs is not None and options.runs < 1:
        raise UserError(f"{options.runs} is no number of runs", "give one from 1 on")
    out = sys.stdout
    match options.measure:
        case "all":
            from app.cli.bench_all import bench_all

            return bench_all(options)
        case "store":
            from app.bench.store import store

            return store(options.runs, options.json, out)
        case "ui":
            from app.cli import bench_ui

            if options.probed:
                return bench_ui.probed(options.probed)
            return bench_ui.bench_ui(options.runs, options.json, out)
        case "ttft":
            from app.cli.bench_ttft import bench_ttft

            return bench_ttft(options)
        case "turns":
            from app.bench.turns import turns

            return turns(options.runs, options.json, out)
        case "decode":
            from app.bench import decode

            shapes = tuple(options.shape.split(","))
            keep = parse_fraction(options.keep, "keep")
            asked = decode.Asked(shapes, _lengths(options), keep, options.tokens, options.runs)
            return decode.decode(asked, options.json, out)
        case "memory":
            from app.bench import memory

            keep = parse_fraction(options.keep, "keep")
            return memory.memory(
                memory.Asked(options.shape, _lengths(options), keep, options.runs),
                options.json,
                out,
            )
        case "snapshot":
            from app.bench.snapshot import snapshot

            return snapshot(options.megabytes * 10**6, options.runs, options.json, out)
        case "published":
            from app.bench.published import published

            return published(options.json, out)
        case "planner":
            from app.bench.planner import planner

            return planner(options.turns, options.runs, options.json, out)
        case "draft":
            from app.bench.draft import SHORTEST, draft

            lengths = _lengths(options, SHORTEST)
            return draft(options.shape, lengths, options.runs, options.json, out)
        case _:
            from app.bench.overhead import overhead

            return overhead(options.runs, options.json, out, _lengths(options))


def _lengths(options: argparse.Namespace, least: int = MIN_PROMPT_TOKENS) -> tuple[int, ...]:
    return parse_list(options.length, lambda text: parse_prompt_length(text, least))
