"""The time to the first token on one machine and on two, and the data that they exchange.

The machines are processes on this computer, each with one thread for matrix products, so that all
compute at the same speed. Each run reads the same prompt with one process, with two over loopback,
and with two over a relay with a delay and a limited rate (`benchmarks/relay.py`). The time over the
relay is predicted from the time of one process in the same run and the link's speed as the app
measures it. Times for two Macs are predicted in the same way from assumed speeds.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path

from app.models.architecture import Architecture, parse_architecture
from app.util.tables import TextTable
from benchmarks import hosts_on_paper
from benchmarks.harness import Bench, Goal, Options, Progress, Result, Row, Run
from benchmarks.machines import LOOP, MODES, ONE, SLOWED, STEP, TOKEN, machines

MAX_ERROR = 0.2


def measure(options: Options, progress: Progress) -> Iterator[Row]:
    """Raises UserError for an unknown shape."""
    (length, *_) = options.lengths
    with tempfile.TemporaryDirectory() as folder, machines(folder, options) as ask:
        link = hosts_on_paper.LinkSpeed(*ask("link"))
        shape = parse_architecture(json.loads((Path(folder) / "config.json").read_text("utf-8")))
        order = [ONE, LOOP, SLOWED]

        def one_run() -> dict[tuple[str, str], Run]:
            order.append(order.pop(0))
            runs = {(mode, name): ask(name, mode, length) for mode in MODES for name in order}
            return {key: _compared(shape, link, runs, *key) for key in runs}

        measured = progress.repeat(f"{length:,} tokens", one_run)
        for mode in MODES:
            for name in (ONE, LOOP, SLOWED):
                labels = {"part": "measured", "reading": mode, "machines": name}
                labels |= asdict(link) if name == SLOWED else {}
                yield Row(labels, [run[mode, name] for run in measured])
        for name in (ONE, LOOP, SLOWED):
            runs = progress.repeat(f"writing, {name}", partial(ask, name, TOKEN, length), False)
            yield Row({"part": "token", "machines": name}, runs)
    yield from hosts_on_paper.on_paper(options.keep)


def _compared(
    shape: Architecture,
    link: hosts_on_paper.LinkSpeed,
    runs: dict[tuple[str, str], Run],
    mode: str,
    name: str,
) -> Run:
    """A run, compared with the others of the same round."""
    run, one = runs[mode, name], runs[mode, ONE]
    more: Run = {"ratio": run["seconds"] / one["seconds"]}
    if name == SLOWED:
        steps = hosts_on_paper.steps_of(one["read"], STEP)
        more["predicted"] = _predicted(shape, link, one)
        more["error"] = more["predicted"] / run["seconds"] - 1
        more["added"] = run["seconds"] - runs[mode, LOOP]["seconds"]
        more["exchange"] = hosts_on_paper.exchange_seconds(shape, steps, 2, link)
    return run | more


def _predicted(shape: Architecture, link: hosts_on_paper.LinkSpeed, one: Run) -> float:
    """The predicted seconds on two machines, from a run on one."""
    steps = hosts_on_paper.steps_of(one["read"], STEP)
    return hosts_on_paper.first_token_seconds(shape, one["target"], one["other"], steps, 2, link)


# ------------------------------------------------------------------------- the report


def about(result: Result) -> str:
    of = {(row["reading"], row["machines"]): row for row in result.rows if _is(row, "measured")}
    dense, sparse = (of[mode, SLOWED] for mode in MODES)
    keep = result.options["keeps"][0]
    share = sparse.median("bytes") / dense.median("bytes")
    return (
        f"A random llama (*{result.options['shapes'][0]}*) on one machine and over two, which are"
        " processes with one thread each, on loopback and through a relay with 1 ms and 1 Gb/s each"
        f" way; the app measures that link as {1e3 * dense['latency']:.2f} ms and"
        f" {8e-9 * dense['rate']:.2f} Gb/s. The prompt has {dense.median('prompt'):,.0f} tokens, of"
        f" which the target reads {sparse.median('read'):,.0f} sparsely (keep {keep:g}), in steps"
        f" of {STEP}: then the layers exchange {share:.0%} of what they do for a dense prefill."
        " *Predicted* is the time to the first token over the relay, from that of one machine in"
        " the same run, with the link as the app measures it. *The link adds* is the difference"
        " between the relay and loopback in a run, and beside it the predicted exchange."
        " Ranks wait for each other in busy loops: whatever else runs on the cores meanwhile makes"
        " two machines slower by several times what it takes."
        " Nothing below *on paper* was measured: machines of"
        f" {hosts_on_paper.OPERATIONS / 1e12:.0f} TFLOP/s, Thunderbolt 5 with 40 Gb/s and Ethernet"
        " with 9.4 Gb/s for TCP, 0.3 ms one way, weights in 4 bits, a prompt of"
        f" {hosts_on_paper.TOKENS:,} tokens; *first token* is that over two machines."
    )


def _is(row: Row, part: str) -> bool:
    return bool(row["part"] == part)


HEADINGS = (
    "",
    "first token, s",
    "of one machine",
    "predicted, s",
    "the link adds, s",
    "layers, MB",
    "sums",
    "KB a token",
    "control, KB",
)


def table(result: Result, in_report: bool) -> TextTable:
    lines: list[list[str]] = []
    part = ""
    titles = {"token": "**each written token**", "paper": "**on paper, two machines**"}
    for row in result.rows:
        if row["part"] != part and row["part"] in titles:
            lines.append([titles[row["part"]], *[""] * (len(HEADINGS) - 1)])
        part = row["part"]
        found = CELLS[part](row)
        lines.append([found.get(heading, "") for heading in HEADINGS])
    return TextTable(list(HEADINGS), lines)


def _measured(row: Row) -> dict[str, str]:
    cells = {"": f"{row['reading']}, {row['machines']}"}
    cells["first token, s"] = row.spread("seconds").text()
    if row["machines"] == ONE:
        return cells
    cells["of one machine"] = row.spread("ratio").text()
    megabytes = row.median("bytes") / 1e6
    cells |= {"layers, MB": f"{megabytes:.1f}", "sums": f"{row.median('sums'):,.0f}"}
    cells["KB a token"] = f"{1e3 * megabytes / row.median('read'):.1f}"
    cells["control, KB"] = f"{row.median('control') / 1e3:.1f}"
    if row["machines"] == SLOWED:
        cells["predicted, s"] = row.spread("predicted").text()
        added = row.spread("added").text()
        cells["the link adds, s"] = f"{added}, predicted {row.median('exchange'):.2f}"
    return cells


def _token(row: Row) -> dict[str, str]:
    cells = {"": row["machines"], "first token, s": row.spread("seconds").text(".3f")}
    if row["machines"] != ONE:
        cells |= {"KB a token": f"{row.median('bytes') / 1e3:.1f}"}
        cells |= {"sums": f"{row.median('sums'):.0f}"}
        cells |= {"control, KB": f"{row.median('control') / 1e3:.2f}"}
    return cells


def _paper(row: Row) -> dict[str, str]:
    weights = f"{row['weights'] / 1e9:.0f} GB on each instead of {row['weights_one'] / 1e9:.0f}"
    return {
        "": f"{row['model']} ({weights}), {row['link']}, {row['reading']}",
        "first token, s": f"{row['two']:.0f}",
        "of one machine": f"{row['two'] / row['one']:.2f}",
        "the link adds, s": f"{row['exchange']:.1f}",
        "layers, MB": f"{row['bytes'] / 1e6:,.0f}",
    }


CELLS = {"measured": _measured, "token": _token, "paper": _paper}
"""By the part of a row: a function that makes its cells, by heading."""


def goals(result: Result) -> Iterator[Goal]:
    for row in result.rows:
        if _is(row, "measured") and row["machines"] == SLOWED:
            error = row.spread("error")
            what = f"{row['reading']}, {SLOWED}: predicted within {MAX_ERROR:.0%}"
            yield Goal(what, f"{error.text('+.0%')} off", abs(error.median) <= MAX_ERROR)


BENCH = Bench(
    "hosts",
    "a target over two machines, and their link",
    "Two machines",
    measure,
    about,
    table,
    goals,
    report_args="--runs 7",
    quick_args="--length 256 --runs 1",
    flags={"shape": "wide", "length": "1k", "keep": "0.2", "runs": "5"},
)
