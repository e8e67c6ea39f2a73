"""Shared by all benchmarks: repetitions, progress, JSON, tables, sections of the report.

A benchmark measures rows. A row has labels, and figures by name for each run. Tables show the
median over the runs, for some figures with minimum and maximum.
"""

from __future__ import annotations

import json
import statistics
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, TextIO, TypeVar

from app.cli.bench import machine
from app.cli.terminal import ProgressLine
from app.engine.backend import blas
from app.util.tables import TextTable

T = TypeVar("T")
Run = dict[str, Any]
"""The figures of one run by name; None if not measured."""
WIDTH = 100
"""Line width of the text above a table."""


def parse_list(text: str, parse: Callable[[str], T]) -> tuple[T, ...]:
    """Parse comma-separated values, without duplicates."""
    return tuple(dict.fromkeys(parse(part.strip()) for part in text.split(",")))


@dataclass(frozen=True, slots=True)
class Options:
    """Options of all benchmarks; each uses some of them. `lengths` are in prompt tokens."""

    runs: int = 5
    lengths: tuple[int, ...] = ()
    keeps: tuple[float, ...] = ()
    shapes: tuple[str, ...] = ()
    scale: float = 1.0
    bits: int | None = None
    target: str | None = None
    draft: str | None = None
    tokens: int = 0
    turns: int = 0
    megabytes: int = 0

    @property
    def shape(self) -> str:
        return self.shapes[0]

    @property
    def keep(self) -> float:
        return self.keeps[0]


class Spread(NamedTuple):
    """Median and range; a list of three in JSON."""

    median: float
    min: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """`values` must not be empty."""
        return cls(statistics.median(values), min(values), max(values))

    def text(self, form: str = ".2f") -> str:
        return f"{self.median:{form}} ({self.min:{form}} to {self.max:{form}})"


@dataclass(frozen=True, slots=True)
class Row:
    labels: dict[str, Any]
    runs: Sequence[Run] = ()

    def __getitem__(self, label: str) -> Any:
        return self.labels[label]

    def values(self, figure: str) -> list[float]:
        """The figure in all runs in which it was measured."""
        return [run[figure] for run in self.runs if run.get(figure) is not None]

    def median(self, figure: str) -> float:
        return statistics.median(self.values(figure))

    def spread(self, figure: str) -> Spread:
        return Spread.of(self.values(figure))


@dataclass(frozen=True, slots=True)
class Result:
    """The rows of a benchmark, with the machine and the chosen options."""

    machine: str
    options: dict[str, Any]
    rows: Sequence[Row]

    def to_json(self) -> dict[str, Any]:
        """Includes the `Spread` of every figure for readers; `from_json` ignores it."""
        rows = [{**row.labels, "figures": _spreads(row), "runs": row.runs} for row in self.rows]
        return {"machine": self.machine, "options": self.options, "rows": rows}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Result:
        rows = []
        for row in content["rows"]:
            labels = {name: row[name] for name in row if name not in ("figures", "runs")}
            rows.append(Row(labels, row["runs"]))
        return cls(content["machine"], content["options"], rows)


def _spreads(row: Row) -> dict[str, Spread]:
    names = dict.fromkeys(name for run in row.runs for name in run)
    found = {name: row.values(name) for name in names}
    return {
        name: Spread.of(values)
        for name, values in found.items()
        if values and all(isinstance(value, int | float) for value in values)
    }


@dataclass(frozen=True, slots=True)
class Column:
    """A column with a label, or a statistic of a figure, formatted with `form`; with `spread`, also
    the range. `in_report` False: only in the terminal."""

    heading: str
    name: str
    form: str = ".2f"
    spread: bool = False
    in_report: bool = True
    statistic: Callable[[Sequence[float]], float] = statistics.median

    def cell(self, row: Row) -> str:
        if self.name in row.labels:
            value = row[self.name]
            if value is None or isinstance(value, str):
                return value or ""
            return f"{value:{self.form}}"
        values = row.values(self.name)
        if not values:
            return ""
        if self.spread and len(values) > 1:
            return Spread.of(values).text(self.form)
        return f"{self.statistic(values):{self.form}}"


def columns(*every: Column) -> Callable[[Result, bool], TextTable]:
    """A function that makes a table with these columns and a line for each row."""

    def table(result: Result, in_report: bool) -> TextTable:
        shown = [column for column in every if column.in_report or not in_report]
        rows = [[column.cell(row) for column in shown] for row in result.rows]
        return TextTable([column.heading for column in shown], rows)

    return table


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal and whether the figures meet it. `measured`: the figure as text."""

    goal: str
    measured: str
    met: bool

    def line(self) -> str:
        return f"- {'Met' if self.met else '**Missed**'}: {self.goal}: {self.measured}."


class Progress:
    """Repeats measurements and shows progress if standard error is a terminal."""

    def __init__(self, runs: int = 1) -> None:
        self._runs = runs
        self._line = ProgressLine()

    def repeat(self, what: str, measure: Callable[[], T], warm_up: bool = True) -> list[T]:
        """Run `measure` repeatedly, after a warm-up run whose result is discarded."""
        results = []
        for run in range(0 if warm_up else 1, self._runs + 1):
            self.show(f"{what}: {f'run {run} of {self._runs}' if run else 'warming up'}")
            result = measure()
            results += [result] if run else []
        return results

    def show(self, text: str) -> None:
        self._line.show(text)

    def clear(self) -> None:
        self._line.clear()


@dataclass(frozen=True, slots=True)
class Bench:
    """A benchmark. `help`: for the command line. `title`: its heading in the report. `about`:
    Markdown that explains the method and the columns. `flags`: its options with their defaults.
    `report_args`, `quick_args`: its arguments in the report and in a quick trial of it. `check`:
    raises UserError for options that do not go together, before anything is measured."""

    name: str
    help: str
    title: str
    measure: Callable[[Options, Progress], Iterator[Row]]
    about: Callable[[Result], str]
    table: Callable[[Result, bool], TextTable]
    goals: Callable[[Result], Iterable[Goal]] = lambda result: ()
    flags: Mapping[str, str | None] = field(default_factory=dict)
    report_args: str = ""
    quick_args: str = "--runs 1"
    check: Callable[[Options], None] = lambda options: None

    def arguments(self, quick: bool) -> list[str]:
        return [self.name, *(self.quick_args if quick else self.report_args).split()]

    def command(self, quick: bool = False) -> str:
        return " ".join(["python -m benchmarks", *self.arguments(quick)])


def run(bench: Bench, options: Options, as_json: bool, out: TextIO) -> int:
    """Measure and print. Returns the exit status. Raises UserError for invalid options. On
    KeyboardInterrupt, prints the rows measured so far and re-raises it."""
    bench.check(options)
    blas.load_openblas()  # must happen before MLX is imported
    from app.engine.backend import mlx_patches

    mlx_patches.install()
    rows: list[Row] = []
    chosen = {name: value for name, value in asdict(options).items() if value}
    progress = Progress(options.runs)
    try:
        for row in bench.measure(options, progress):
            rows.append(row)
    except KeyboardInterrupt:
        if rows and not as_json:
            out.write(_plain(bench.table(Result("", chosen, rows), False)))
        raise
    finally:
        progress.clear()
    result = Result(machine(), chosen, rows)
    if as_json:
        out.write(json.dumps(result.to_json()) + "\n")
        return 0
    about = textwrap.fill(bench.about(result).replace("*", ""), WIDTH, break_on_hyphens=False)
    table = _plain(bench.table(result, False))
    medians = f"Medians of {options.runs}. " if any(row.runs for row in rows) else ""
    out.write(f"{about}\n\n{medians}{result.machine}\n\n{table}")
    return 0


def _plain(table: TextTable) -> str:
    return table.plain().replace("**", "") + "\n"
