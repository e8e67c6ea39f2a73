"""What the performance report says of each measurement: a table, its aims, and figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.bench.chart import curves, stacks
from app.bench.median_range import Spread, spread
from app.eval.markdown import markdown_table

Figures = dict[str, Any]
"""What a measurement prints with --json."""
PHASES = ("tokenise", "score", "lookahead", "select", "prefill", "decode")


@dataclass(frozen=True, slots=True)
class Aim:
    """`found` is what was measured, as text."""

    wanted: str
    found: str
    met: bool

    def line(self) -> str:
        return f"- {'Met' if self.met else '**Missed**'}: {self.wanted}: {self.found}."


@dataclass(frozen=True, slots=True)
class Section:
    """`pictures` are SVG texts by file name."""

    intro: str
    table: str
    aims: list[Aim] = field(default_factory=list)
    pictures: dict[str, str] = field(default_factory=dict)


def around(values: Sequence[float], form: str = ".2f") -> str:
    """A spread, as JSON has it, in words."""
    return Spread(*values).text(form)


def overhead(figures: Figures) -> Section:
    lines, aims, pictures = [], [], {}
    for found in figures["lengths"]:
        lines.append(
            (f"**{found['prompt_tokens']:,} tokens, {found['runs'][0]['kept']:,} kept**", "")
        )
        lines += _overhead_rows(found["runs"])
        for words, key in TWO_BASELINES:
            if found["runs"][0][key] is not None:
                lines.append((words, around(spread(run[key] for run in found["runs"]))))
        for words, key, least in OVERHEADS:
            ratio = spread(run[key] for run in found["runs"])
            lines.append((words, around(ratio)))
            wanted = f"{words}, {found['prompt_tokens']:,} tokens: at least {least:g}"
            aims.append(Aim(wanted, around(ratio), ratio[0] >= least))
        name = f"overhead-{found['prompt_tokens']}.svg"
        pictures[name] = _overhead_picture(found["prompt_tokens"], found["runs"])
    for row in figures["prompts"]:
        words = f"building a prompt of {row['tokens']:,} tokens, embedded pair"
        lines.append((words, f"{row['building']:.3f}"))
        share = f"{row['share']:.1%} of {row['ttft']:.2f} s"
        aims.append(Aim(f"{words}: under 5 % of TTFT", share, row["share"] < 0.05))
    select = figures["selecting"]
    words = f"selecting from {select['tokens']:,} tokens"
    lines.append((words, f"{select['seconds']:.4f}"))
    found = f"{1000 * select['seconds']:.1f} ms"
    aims.append(Aim(f"{words}: under 10 ms", found, select["seconds"] < 0.01))
    intro = (
        f"Keep {figures['keep']:g}, steps of {figures['step']}. {ENGINES} *Parts / ours* has both"
        " in it: above 1, a turn costs less than its two reads do in plain mlx-lm. *Half way*: the"
        " draft stops after half of its layers, and only the question is observed."
    )
    return Section(intro, markdown_table(("", "seconds"), lines), aims, pictures)


TWO_BASELINES = (
    ("saved by reading sparsely: ours, all / sparse", "speedup"),
    ("our engine: plain / ours, all read", "engine"),
)
ENGINES = (
    "What reading sparsely saves is measured within our engine, and our engine beside mlx-lm with"
    " everything read. On a Mac the second is about 1, since both call MLX's attention there; on a"
    " CPU ours works in blocks, which has nothing to do with reading sparsely."
)


def summary(figures: Figures) -> str:
    """The README's table, of the figures of `bench overhead`."""
    every = figures["lengths"]
    head = (
        f"medians of {len(every[0]['runs'])}",
        *(f"{x['prompt_tokens']:,} tokens" for x in every),
    )
    rows = []
    for name, key in SECONDS:
        cells = (_cell(found["runs"], key, " s") for found in every)
        rows.append((name, *cells))
    for words, key in (*TWO_BASELINES, OVERHEADS[0][:2]):
        rows.append((words, *(_cell(found["runs"], key, "") for found in every)))
    return markdown_table(head, rows)


def _cell(runs: list[Figures], key: str, unit: str) -> str:
    if runs[0][key] is None:
        return "not measured"
    found = spread(run[key] for run in runs)
    return f"{found[0]:.2f}{unit}" if unit else around(found)


OVERHEADS = (
    ("parts / ours", "ratio", 1.05),
    ("parts / ours, half way", "ratio_half_way", 1.2),
)


SECONDS = (
    ("plain mlx-lm, draft reads all", "plain_draft"),
    ("plain mlx-lm, target reads N", "plain_target"),
    ("plain mlx-lm, target reads all", "plain_dense"),
    ("ours, target reads all", "dense"),
    ("ours, ids to first token", "ours"),
)


def _overhead_rows(runs: list[Figures]) -> Iterator[tuple[str, str]]:
    for name, key in (*SECONDS, ("ours, the draft stops half way", "half_way")):
        if runs[0][key] is not None:
            yield name, around(spread(run[key] for run in runs), ".3f")
    for phase in _phases(runs):
        yield f"ours: {phase}", around(spread(r["phases"][phase] for r in runs), ".3f")


def _phases(runs: list[Figures]) -> list[str]:
    return [phase for phase in PHASES if phase in runs[0]["phases"]]


def _overhead_picture(length: int, runs: list[Figures]) -> str:
    bars = {
        name: [spread(run[key] for run in runs)[0], 0.0]
        for name, key in (("draft reads", "plain_draft"), ("target reads N", "plain_target"))
    }
    bars |= {p: [0.0, spread(run["phases"][p] for run in runs)[0]] for p in _phases(runs)}
    labels = ("parts, plain mlx-lm", "a sparse turn of ours")
    return stacks(f"A sparse turn beside its two reads, {length:,} tokens", labels, bars, "s", "")


def ttft(figures: Figures) -> Section:
    rows, asked = figures["rows"], figures["asked"]
    timed = ("plain, s", "dense, s", "sparse, s", "engine", "sooner")
    head = ("tokens", "keep", *timed, "1/(r+k+e)", "r", "e", "G", "memory")
    forms = {"plain": ".2f", "dense": ".2f", "TTFT": ".2f", "engine": ".2f", "sooner": "spread"}
    forms |= {"1/(r+k+e)": ".2f"}
    forms |= {"r": ".3f", "e": ".3f", "G": ".2f", "memory": ".2f"}
    lines = []
    for row in rows:
        found = row["figures"]
        cells = (
            around(found[name]) if form == "spread" else f"{found[name][0]:{form}}"
            for name, form in forms.items()
        )
        lines.append((f"{row['length']:,}", f"{row['keep']:g}", *cells))
    what = asked["target"] or f"{asked['shape']}, {asked['scale']:.0%} of the layers"
    intro = (
        f"{what}. *Plain* is mlx-lm with everything read, *dense* and *sparse* are ours. {ENGINES}"
        " *Engine* is plain over dense; *sooner* is dense over sparse, with the range. *r* is the"
        " draft's share of our dense turn, *e* that of what is neither model's reading; *G* is"
        " predicted over measured, both against our dense turn: below 1 on a quiet machine, since"
        " attention grows with the square of what is read. *Memory* is the peak as a share of our"
        " dense turn's."
    )
    return Section(intro, markdown_table(head, lines), [], _ttft_pictures(rows))


def _ttft_pictures(rows: list[Figures]) -> dict[str, str]:
    lengths = sorted({row["length"] for row in rows})
    keeps = sorted({row["keep"] for row in rows})
    labels = [f"{length:,}" for length in lengths]

    def values(name: str, keep: float) -> list[tuple[float, float]]:
        own = [row for row in rows if row["keep"] == keep]
        return [(lengths.index(row["length"]), row["figures"][name][0]) for row in own]

    series = {"dense, plain mlx-lm": values("plain", keeps[0])}
    series |= {"dense, ours": values("dense", keeps[0])}
    series |= {f"sparse, keep {keep:g}": values("TTFT", keep) for keep in keeps}
    parts: dict[str, list[float]] = {
        name: [] for name in ("dense", "draft", "look", "select", "target", "rest")
    }
    bars: list[str] = []
    for row in rows:
        found = {name: spread[0] for name, spread in row["figures"].items()}
        if row["length"] != lengths[-1]:
            continue
        if not bars:
            bars.append("dense")
            for name, column in parts.items():
                column.append(found["dense"] if name == "dense" else 0.0)
        bars.append(f"keep {row['keep']:g}")
        own = {name: found[name] for name in ("draft", "look", "select", "target")}
        own |= {"dense": 0.0, "rest": max(found["TTFT"] - sum(own.values()), 0.0)}
        for name, column in parts.items():
            column.append(own[name])
    phases = f"Where the time goes, {lengths[-1]:,} tokens"
    gs = {f"keep {keep:g}": values("G", keep) for keep in keeps}
    return {
        "ttft.svg": curves("Time to the first token", labels, series, "s", "tokens", powers=True),
        "ttft-phases.svg": stacks(phases, bars, parts, "s", ""),
        "g.svg": curves("G: predicted over measured", labels, gs, "", "tokens"),
    }


def published(figures: Figures) -> Section:
    rows, at = figures["rows"], figures["at"]
    lengths = sorted({int(tokens) for row in rows for tokens in row["sooner"]})
    lines = []
    for row in rows:
        times = {int(tokens): f"{found:.2f}" for tokens, found in row["sooner"].items()}
        measured = (times.get(tokens, "") for tokens in lengths)
        lines.append((row["name"], *measured, f"{row['predicted']:.2f}", f"{row['r']:.3f}"))
    predicted = [row["predicted"] for row in rows]
    off = [row["predicted"] / row["measured"] for row in rows]
    aims = [
        Aim(
            "the order is that of what was measured",
            ", ".join(f"{each:.2f}" for each in predicted),
            predicted == sorted(predicted, reverse=True),
        )
    ]
    intro = (
        "How many times sooner the first token came on an M2 Ultra at keep"
        f" {figures['keep']:g}, by the port of SpecPrefill to unified memory (Green 2026, doi"
        " 10.5281/zenodo.19120919; the 122B with a 4B draft: issue 179 of `waybarrios/vllm-mlx`),"
        f" and what is predicted here for {at}K tokens from configurations alone:"
        f" {min(off):.2f} to {max(off):.2f} times what was measured. Nothing of it was run here."
        " Both are against a dense prefill by the same engine."
    )
    head = ("pair", *(f"{tokens}K" for tokens in lengths), f"predicted, {at}K", "r")
    return Section(intro, markdown_table(head, lines), aims)


def turns(figures: Figures) -> Section:
    lines = []
    for name, found in figures["ratios_to_turn_1"].items():
        runs = found["runs"]
        first = spread(run["first"]["seconds"] for run in runs)
        lines.append((f"{name}, turn 1", around(first), "", "", ""))
        for key, what, ratio in (
            ("second", "turn 2", "turn_2_spread"),
            ("restarted", "turn 2 after a restart", "turn_2_restarted_spread"),
        ):
            turn = runs[-1][key]
            seconds = around(spread(run[key]["seconds"] for run in runs))
            counts = (f"{turn['reused']:,}", f"{turn['recalled']:,}")
            lines.append((f"{name}, {what}", seconds, around(found[ratio], ".1%"), *counts))
    head = ("", "seconds to the first word", "of turn 1", "tokens reused", "recalled")
    intro = "The embedded pair and a text of more than 4,096 tokens; turn 2 asks of another place."
    return Section(intro, markdown_table(head, lines))


def decode(figures: Figures) -> Section:
    lines, aims = [], []
    for row in figures["rows"]:
        runs, ratios = row["runs"], row["ratios"]
        rates = [
            around(spread(1000 / run[name] for run in runs), ".1f")
            for name in ("ours", "plain_kept", "plain_all")
        ]
        some, every = ratios["to_plain_kept"], ratios["to_plain_all"]
        name = (row["shape"], f"{row['length']:,}", f"{row['kept']:,}")
        lines.append((*name, *rates, around(some), around(every)))
        what = f"{row['shape']}, M = {row['length']:,}"
        for words, found, least in (("N", some, 0.97), ("M", every, 1.0)):
            wanted = f"{what}: at least {least:g} of plain mlx-lm over {words} entries"
            aims.append(Aim(wanted, around(found), found[0] >= least))
    head = ("model", "M", "N", "ours", "plain, N", "plain, M", "ours / plain N", "ours / plain M")
    intro = (
        "Tokens a second of an answer after sparse reading: N entries at positions up to M, beside"
        " plain mlx-lm's `generate_step` over N entries and over M. Ours makes text of them, too."
    )
    return Section(intro, markdown_table(head, lines), aims)


def memory(figures: Figures) -> Section:
    lines, aims, series = [], [], {}
    names = ("plain", "dense", "foreseen_dense", "sparse", "foreseen_sparse")
    rows = figures["rows"]
    for row in rows:
        cells = (f"{spread(run[name] / 1e6 for run in row['runs'])[0]:,.0f}" for name in names)
        lines.append((f"{row['length']:,}", f"{row['kept']:,}", *cells, around(row["ratio"])))
        wanted = f"{row['length']:,} tokens: a sparse turn below plain mlx-lm's dense one"
        aims.append(Aim(wanted, around(row["ratio"]), row["ratio"][0] < 1))
    for name in ("plain", "dense", "sparse"):
        values = [spread(run[name] / 1e6 for run in row["runs"])[0] for row in rows]
        series[name] = list(enumerate(values))
    head = ("tokens", "read", "plain", "ours, dense", "foreseen", "ours, sparse", "foreseen")
    intro = (
        f"Peak of MLX's memory in megabytes, with the weights that each needs, at keep"
        f" {figures['asked']['keep']:g}. *Foreseen* is what is told before a turn begins."
    )
    labels = [f"{row['length']:,}" for row in rows]
    picture = curves("Peak of memory", labels, series, "MB", "tokens")
    content = markdown_table((*head, "sparse / plain"), lines)
    return Section(intro, content, aims, {"memory.svg": picture})


def draft(figures: Figures) -> Section:
    lines, rows = [], figures["rows"]
    names = ("plain", "dense", "sparse", "/plain", "/dense", "read", "sparsely", "/read")
    for row in rows:
        found = row["figures"]
        cells = (
            around(found[name]) if name in ("/dense", "/read") else f"{found[name][0]:.2f}"
            for name in names
        )
        lines.append((f"{row['length']:,}", *cells))
    longest = rows[-1]
    wanted = f"attention at {longest['length']:,} tokens at most a third of dense attention"
    aims = []
    for name, words in (("/plain", "mlx-lm's"), ("/dense", "ours")):
        ratio = longest["figures"][name]
        aims.append(Aim(f"{wanted}, {words}", around(ratio), ratio[0] <= 1 / 3))
    series = {
        words: [(index, row["figures"][name][0]) for index, row in enumerate(rows)]
        for words, name in (("dense", "read"), ("block-sparse", "sparsely"))
    }
    labels = [f"{row['length']:,}" for row in rows]
    intro = (
        f"The draft of the pair {figures['shape']}, whose attention is block-sparse while it reads"
        " a long prompt: seconds of one layer's attention over the whole prompt, as mlx-lm does it"
        " (*plain*), densely by us, and block-sparse; then of the whole reading."
    )
    head = ("tokens", "plain", "dense", "block-sparse", "of plain", "of dense")
    content = markdown_table((*head, "reading", "block-sparse", "of reading"), lines)
    picture = curves("A draft reads", labels, series, "s", "tokens")
    return Section(intro, content, aims, {"draft.svg": picture})


def planner(figures: Figures) -> Section:
    turns, error, within = figures["turns"], figures["error"], figures["within"]
    lines = []
    for shape, crossed in figures["crossing"].items():
        own = [turn for turn in turns if turn["shape"] == shape]
        regrets = around(spread(turn["regret"] for turn in own))
        sparse = sum(turn["reading"] == "sparse" for turn in own)
        crossing = "never" if crossed is None else f"{crossed:,}"
        lines.append((shape, str(len(own)), str(sparse), regrets, crossing))
    head = ("pair", "turns", "of them sparse", "auto / the better way", "sparse pays from, tokens")
    aims = [
        Aim("median error of the foretold first word under 15 %", f"{error:.1%}", error < 0.15),
        Aim(
            "auto at most 1.25 times the better way, or a second, in 95 % of the turns",
            f"{within:.0%} of {len(turns)}",
            within >= 0.95,
        ),
    ]
    intro = (
        "Random conversations on random models, of which one draft costs half of its target. Every"
        " turn is asked in auto mode, then both ways on the same history. The error is that of"
        f" turns with three or more before them; a tenth of them were further off than"
        f" {figures['error_p90']:.0%}. Sparse pays from so many new tokens on at keep 0.2."
    )
    return Section(intro, markdown_table(head, lines), aims)


def snapshot(figures: Figures) -> Section:
    names = ("save", "disk_write", "load", "disk_read")
    rows = [(name.replace("_", " "), around(figures[name])) for name in names]
    aims = []
    for name, disk in (("save", "disk_write"), ("load", "disk_read")):
        rate, own = figures[name][0], figures[disk][0]
        found = f"{rate:.2f} GB/s, {rate / own:.2f} of the disk's {own:.2f}"
        wanted = f"{name} at least 1 GB/s, or 0.8 of the disk's own rate"
        aims.append(Aim(wanted, found, rate >= 1 or rate >= 0.8 * own))
    intro = (
        f"A conversation's cache of {figures['bytes'] / 1e6:,.0f} MB, beside a plain file of the"
        " same size that is written with fsync, and read after the system forgot it."
    )
    return Section(intro, markdown_table(("", "GB a second"), rows), aims)


def store(figures: Figures) -> Section:
    lines, aims = [], []
    for name, found in figures["figures"].items():
        aim = found["aim_ms"]
        lines.append((name, around(found["spread_ms"], ".1f"), f"{aim:g}" if aim else ""))
        if aim:
            words = f"{found['median_ms']:.1f} ms"
            aims.append(Aim(f"{name}: below {aim:g} ms", words, found["median_ms"] < aim))
    intro = "50 conversations of 200 messages, one of them about a document of 5 MB."
    return Section(intro, markdown_table(("", "ms", "aim"), lines), aims)


def ui(figures: Figures) -> Section:
    lines, aims = [], []
    for name, value in figures["milliseconds"].items():
        words, wanted = name.replace("_", " "), figures["wanted"][name]
        of = figures["spread"].get(name)
        lines.append((words, around(of, ".1f") if of else f"{value:.1f}", f"{wanted:g}"))
        aims.append(Aim(f"{words}: under {wanted:g} ms", f"{value:.1f} ms", value < wanted))
    intro = (
        "The app in a pseudo-terminal, from the byte written to the byte drawn, on the embedded"
        " pair; keys while it prefills."
    )
    return Section(intro, markdown_table(("", "ms", "aim"), lines), aims)
