"""Runs a benchmark and gives back what it printed."""

from __future__ import annotations

import io
import json

from benchmarks.harness import Bench, Options, Result, run


def measured(bench: Bench, options: Options) -> Result:
    """Through the JSON that it prints."""
    out = io.StringIO()
    assert run(bench, options, True, out) == 0
    return Result.from_json(json.loads(out.getvalue()))


def printed(bench: Bench, options: Options) -> str:
    out = io.StringIO()
    assert run(bench, options, False, out) == 0
    return out.getvalue()
