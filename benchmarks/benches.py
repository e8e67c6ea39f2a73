"""Which benchmark to run; its options are checked before anything is built."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TypeVar

from app.cli.options import MIN_PROMPT_TOKENS, parse_fraction, parse_prompt_length
from app.errors import UserError
from benchmarks import (
    built_in,
    copying,
    decode,
    draft,
    hosts,
    memory,
    overhead,
    planner,
    published,
    serve,
    snapshot,
    store,
    ttft,
    turns,
    ui,
)
from benchmarks.harness import Bench, Options, parse_list, run

T = TypeVar("T")

BENCHES: tuple[Bench, ...] = (
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
"""In the report's order."""


def bench(arguments: argparse.Namespace) -> int:
    """Returns the exit status. Raises UserError."""
    if arguments.measure == "all":
        from benchmarks.every import bench_all

        return bench_all(arguments, BENCHES)
    if arguments.measure == ui.BENCH.name and arguments.probed:
        return ui.probed(arguments.probed)
    (chosen,) = (bench for bench in BENCHES if bench.name == arguments.measure)
    return run(chosen, options(arguments), arguments.json, sys.stdout)


def options(arguments: argparse.Namespace) -> Options:
    """Those that the command has. Raises UserError."""
    values = vars(arguments)
    scale, shape = values.get("scale", 1.0), values.get("shape")
    if values.get("draft") and not values.get("target"):
        raise UserError("A draft needs a target", "name one with --target")
    shortest = draft.MIN_LENGTH if arguments.measure == draft.BENCH.name else MIN_PROMPT_TOKENS
    return Options(
        runs=values.get("runs") or 1,
        lengths=_list(values.get("length"), lambda text: parse_prompt_length(text, shortest)),
        keeps=_list(values.get("keep"), parse_fraction),
        shapes=tuple(shape.split(",")) if shape else (),
        scale=scale,
        bits=values.get("bits"),
        target=values.get("target"),
        draft=values.get("draft"),
        tokens=values.get("tokens", 0),
        turns=values.get("turns", 0),
        megabytes=values.get("megabytes", 0),
    )


def _list(text: str | None, parse: Callable[[str], T]) -> tuple[T, ...]:
    return () if text is None else parse_list(text, parse)
