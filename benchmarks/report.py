"""The performance report: its benchmarks and its Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.harness import Bench, Result
from benchmarks.overhead import summary_table

LOG = "performance-log.md"


@dataclass(frozen=True, slots=True)
class Measured:
    """`result` is None where the command failed; `error` says why, one sentence."""

    command: str
    result: Result | None
    error: str = ""


def report(
    benches: Sequence[Bench], measured: Mapping[str, Measured], folder: str
) -> tuple[str, dict[str, str]]:
    """Markdown, and SVG charts by their file names in `folder`."""
    machines = {each.result.machine for each in measured.values() if each.result}
    parts = ["# Performance", _about(machines)]
    charts: dict[str, str] = {}
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
        own = bench.charts(found.result)
        charts |= own
        parts.append(bench.about(found.result))
        if len(machines) > 1:
            parts.append(f"Measured on {found.result.machine}.")
        parts += [f"![{_alt(name)}]({folder}/{name})" for name in own]
        parts.append(bench.table(found.result, True).markdown())
        if goals := list(bench.goals(found.result)):
            parts.append("\n".join(goal.line() for goal in goals))
    return "\n\n".join(parts) + "\n", charts


FIGURES_BLOCK = ("<!-- figures of `python -m benchmarks overhead` -->\n", "<!-- end of figures -->")


def with_figures(page: str, overhead: Result) -> str:
    """A text with its block of figures replaced. ValueError where it has none."""
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


def _alt(name: str) -> str:
    return name.removesuffix(".svg").replace("-", ", ")
