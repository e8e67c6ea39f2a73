"""Runs all benchmarks and writes the performance report in Markdown. Each one runs in its own
process, so that its caches and memory do not affect the others."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.cli.status import INTERRUPTED
from app.errors import UserError
from app.util.atomic_files import write_durably
from app.util.sanitize import sanitize, sanitize_line
from benchmarks.harness import Bench, Result
from benchmarks.overhead import summary_table

LOG = "performance-log.md"


@dataclass(frozen=True, slots=True)
class Measured:
    """The result of a command. None if it failed; `error` is a sentence with the reason then."""

    command: str
    result: Result | None
    error: str = ""


def report(benches: Sequence[Bench], measured: Mapping[str, Measured]) -> str:
    """The report as Markdown."""
    machines = {each.result.machine for each in measured.values() if each.result}
    parts = ["# Performance", _about(machines)]
    for bench in benches:
        found = measured.get(bench.name)
        parts.append(f"## {bench.title}")
        if found is None:
            parts.append(f"Not measured yet. To measure it: `{bench.command()}`.")
            continue
        parts.append(f"```sh\n{found.command}\n```")
        if found.result is None:
            parts.append(f"It failed: {found.error}")
            continue
        parts.append(bench.about(found.result))
        if len(machines) > 1:
            parts.append(f"Measured on {found.result.machine}.")
        parts.append(bench.table(found.result, True).markdown())
        if goals := list(bench.goals(found.result)):
            parts.append("\n".join(goal.line() for goal in goals))
    return "\n\n".join(parts) + "\n"


FIGURES_BLOCK = ("<!-- figures of `python -m benchmarks overhead` -->\n", "<!-- end of figures -->")


def with_figures(page: str, overhead: Result) -> str:
    """Replace the block of figures in a text. Raises ValueError if it has none."""
    before, first, rest = page.partition(FIGURES_BLOCK[0])
    _, last, after = rest.partition(FIGURES_BLOCK[1])
    if not first or not last:
        raise ValueError(f"no lines {FIGURES_BLOCK[0].strip()} and {FIGURES_BLOCK[1]}")
    table = f"On {overhead.machine}:\n\n{summary_table(overhead)}\n\n"
    return f"{before}{first}\n{table}{last}{after}"


def _about(machines: set[str]) -> str:
    where = f" Measured on {next(iter(machines))}." if len(machines) == 1 else ""
    return (
        "Written by `python -m benchmarks all --report benchmarks/results/performance.md`; do not"
        f" edit it.{where} Figures are medians of several runs, with the smallest and the largest"
        " in brackets; ratios are taken within a run. *mlx-lm* is plain mlx-lm without specchat."
        " Models have random weights unless stated otherwise: time and memory do not depend on"
        f" them. [The log]({LOG}) says what was tried, predicted and measured."
    )


PROGRAM = (sys.executable, "-m", "benchmarks")
KILL_AFTER = 10.0
"""Seconds that an interrupted benchmark has to end."""


def bench_all(
    arguments: argparse.Namespace, benches: Sequence[Bench], program: Sequence[str] = PROGRAM
) -> int:
    """Run benchmarks and write the report. Returns 1 if one failed, else 0. Raises UserError."""
    chosen, path = chosen_benches(arguments.only, benches), arguments.report
    folder = path.with_suffix("")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{folder} cannot be created ({error.strerror})", "name another file"
        ) from error
    for number, bench in enumerate(chosen, 1):
        _show(f"{number}/{len(chosen)} {bench.command(arguments.quick)}")
        started = time.monotonic()
        try:
            measured = _run(bench, arguments.quick, program)
        except KeyboardInterrupt:
            rest = ",".join(bench.name for bench in chosen[number - 1 :])
            _show(f"Stopped. To continue: python -m benchmarks all --report {path} --only {rest}")
            return INTERRUPTED
        _save(folder / f"{bench.name}.json", measured)
        _show(measured.error or f"    {time.monotonic() - started:.0f} s")
    every = _load(folder, benches)
    write_durably(path, report(benches, every).encode())
    if arguments.summary is not None:
        _update_summary(arguments.summary, every.get("overhead"))
    sys.stdout.write(f"{sanitize_line(str(path))}\n")
    return int(any(measured.result is None for measured in every.values()))


def chosen_benches(names: str | None, benches: Sequence[Bench]) -> list[Bench]:
    """The named ones, or all. Raises UserError."""
    known = {bench.name: bench for bench in benches}
    chosen = [name.strip() for name in names.split(",")] if names else list(known)
    for name in chosen:
        if name not in known:
            raise UserError(f"There is no benchmark {name!r}", f"choose from {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(chosen)]


def _run(bench: Bench, quick: bool, program: Sequence[str]) -> Measured:
    command = [*program, *bench.arguments(quick), "--json"]
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
    try:
        out, errors = child.communicate()
    except KeyboardInterrupt:  # the terminal has interrupted the child, too
        try:
            child.communicate(timeout=KILL_AFTER)
        except subprocess.TimeoutExpired:
            child.kill()
        raise
    try:
        if child.returncode == 0:
            result = Result.from_json(json.loads(out.splitlines()[-1]))
            return Measured(bench.command(quick), result)
    except (ValueError, KeyError, IndexError):
        errors = "Its output is not the JSON of a benchmark"
    last = errors.strip().splitlines()[-1:] or ["No error message"]
    return Measured(bench.command(quick), None, f"{last[0]} (exit status {child.returncode}).")


def _save(path: Path, measured: Measured) -> None:
    result = measured.result.to_json() if measured.result else None
    content = {"command": measured.command, "result": result, "error": measured.error}
    write_durably(path, (json.dumps(content, indent=1) + "\n").encode())


def _load(folder: Path, benches: Sequence[Bench]) -> dict[str, Measured]:
    found = {}
    for bench in benches:
        path = folder / f"{bench.name}.json"
        if path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            result = Result.from_json(content["result"]) if content["result"] else None
            found[bench.name] = Measured(content["command"], result, content["error"])
    return found


def _update_summary(page: Path, overhead: Measured | None) -> None:
    if overhead is None or overhead.result is None:
        raise UserError("There are no figures of `overhead`", "measure with --only overhead")
    try:
        text = with_figures(page.read_text(encoding="utf-8"), overhead.result)
        write_durably(page, text.encode())
    except (OSError, ValueError) as error:
        raise UserError(
            f"The figures in {page} cannot be updated ({error})", "name another file"
        ) from error


def _show(text: str) -> None:
    sys.stderr.write(sanitize(text) + "\n")
