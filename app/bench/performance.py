"""The performance report: what is measured for it, and its Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.bench import report_sections
from app.bench.report_sections import Figures, Section

LOG = "performance-log.md"


@dataclass(frozen=True, slots=True)
class Entry:
    """One measurement: the words after `specchat bench`, and fewer of them for --quick."""

    name: str
    title: str
    words: tuple[str, ...]
    quick: tuple[str, ...]
    section: Callable[[Figures], Section]

    def arguments(self, quick: bool) -> tuple[str, ...]:
        return (self.name, *(self.quick if quick else self.words))

    def command(self, quick: bool) -> str:
        return " ".join(("specchat bench", *self.arguments(quick)))


ONE = ("--runs", "1")
ENTRIES = (
    Entry(
        "overhead",
        "What sparse reading costs",
        ("--length", "4k,16k", "--runs", "3"),
        ("--length", "512", *ONE),
        report_sections.overhead,
    ),
    Entry(
        "ttft",
        "Time to the first token",
        ("--length", "1k,4k,8k", "--runs", "2"),
        ("--length", "512", "--keep", "0.2,1", "--scale", "0.1", *ONE),
        report_sections.ttft,
    ),
    Entry("published", "Pairs that others timed", (), (), report_sections.published),
    Entry(
        "draft", "Long prompts", ("--runs", "3"), ("--length", "1k,4k", *ONE), report_sections.draft
    ),
    Entry(
        "planner",
        "What is foretold",
        ("--runs", "3"),
        ("--turns", "8", *ONE),
        report_sections.planner,
    ),
    Entry("turns", "Later turns", ("--runs", "3"), ONE, report_sections.turns),
    Entry(
        "decode", "Writing", (), ("--length", "512", "--tokens", "4", *ONE), report_sections.decode
    ),
    Entry(
        "memory",
        "Memory",
        ("--length", "4k,8k", "--runs", "1"),
        ("--length", "512", *ONE),
        report_sections.memory,
    ),
    Entry("snapshot", "Snapshots", (), ("--megabytes", "20", *ONE), report_sections.snapshot),
    Entry("store", "The store", (), ONE, report_sections.store),
    Entry("ui", "The screen", ("--runs", "3"), ONE, report_sections.ui),
)
"""In the report's order. What prints JSON with a `machine` can be added by one line here."""


@dataclass(frozen=True, slots=True)
class Measured:
    """`figures` are None where it failed; `failed` says why, one sentence."""

    command: str
    figures: Figures | None
    failed: str = ""


def report(measured: Mapping[str, Measured], folder: str) -> tuple[str, dict[str, str]]:
    """Markdown, and SVG pictures by the file names in `folder` that it shows."""
    machines = {m.figures["machine"] for m in measured.values() if m.figures}
    parts = ["# Performance", _about(machines)]
    pictures: dict[str, str] = {}
    for entry in ENTRIES:
        found = measured.get(entry.name)
        parts.append(f"## {entry.title}")
        if found is None:
            parts.append(f"Not measured: `{entry.command(False)}` does.")
            continue
        parts.append(f"```sh\n{found.command}\n```")
        if found.figures is None:
            parts.append(f"It failed: {found.failed}")
            continue
        section = entry.section(found.figures)
        parts.append(section.intro)
        if len(machines) > 1:
            parts.append(f"Measured on {found.figures['machine']}.")
        parts += [f"![{_alt(name)}]({folder}/{name})" for name in section.pictures]
        parts.append(section.table)
        if section.aims:
            parts.append("\n".join(aim.line() for aim in section.aims))
        pictures |= section.pictures
    return "\n\n".join(parts) + "\n", pictures


README_BLOCK = ("<!-- figures of `specchat bench overhead` -->\n", "<!-- end of figures -->")


def with_figures(readme: str, overhead: Figures) -> str:
    """A text with its block of figures written again. ValueError where it has none."""
    before, first, rest = readme.partition(README_BLOCK[0])
    _, last, after = rest.partition(README_BLOCK[1])
    if not first or not last:
        raise ValueError(f"no lines {README_BLOCK[0].strip()} and {README_BLOCK[1]}")
    table = f"On {overhead['machine']}:\n\n{report_sections.summary(overhead)}\n\n"
    return f"{before}{first}\n{table}{last}{after}"


def _about(machines: set[str]) -> str:
    where = f" Measured on {next(iter(machines))}." if len(machines) == 1 else ""
    return (
        "Written by `specchat bench all --report docs/performance.md`; do not edit it."
        f"{where} Figures are medians of several runs, with the least and the most in brackets;"
        " ratios are taken within a run. Models have random weights where nothing else is said:"
        f" time and memory do not depend on them. [The log]({LOG}) says what was tried, predicted"
        " and measured."
    )


def _alt(name: str) -> str:
    return name.removesuffix(".svg").replace("-", ", ")
