"""Compares published measurements of real pairs with the predictions of `app/models/speedup.py`.

No model runs: predictions are computed from public configurations. It shows how accurate they are
before a pair was timed on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator

from app.models import speedup
from app.models.catalogue import catalogue, find
from app.models.fit import ModelSize
from app.util.tables import TextTable
from benchmarks.harness import Bench, Goal, Options, Progress, Result, Row

COMPARED_AT = 16
"""Prompt length in thousands of tokens at which all pairs were measured."""


def measure(options: Options, progress: Progress) -> Iterator[Row]:
    """A row for each pair, sorted by measured speedup: `speedups` by thousands of tokens, and the
    `measured` and `predicted` one at COMPARED_AT."""
    for pair in speedup.published_pairs():
        target = _sized(pair["target"], pair["target_bits"])
        draft = _sized(pair["draft"], pair["draft_bits"])
        r = speedup.cost_ratio(target, draft, COMPARED_AT * 1024)
        labels = {
            "pair": pair["name"],
            "speedups": pair["speedups"],
            "measured": pair["speedups"][str(COMPARED_AT)],
            "predicted": speedup.speedup(r, speedup.PUBLISHED_KEEP),
            "r": r,
        }
        yield Row(labels)


def _sized(name: str, bits: float) -> ModelSize:
    entry = find(catalogue(), name)
    if entry is None or entry.architecture is None:
        raise RuntimeError(f"{name} is not in the catalogue")
    return ModelSize(name, entry.architecture, round(entry.architecture.parameters * bits / 8))


def table(result: Result, in_report: bool) -> TextTable:
    lengths = sorted({int(length) for row in result.rows for length in row["speedups"]})
    lines = []
    for row in result.rows:
        measured = {int(length): f"{times:.2f}" for length, times in row["speedups"].items()}
        cells = [measured.get(length, "") for length in lengths]
        lines.append([row["pair"], *cells, f"{row['predicted']:.2f}", f"{row['r']:.3f}"])
    head = ["pair", *(f"{length}K" for length in lengths), f"predicted, {COMPARED_AT}K", "r"]
    return TextTable(head, lines)


def about(result: Result) -> str:
    off = [row["predicted"] / row["measured"] for row in result.rows]
    return (
        f"Speedup of the first token on an M2 Ultra at keep {speedup.PUBLISHED_KEEP:g}, measured by"
        " the port of SpecPrefill to unified memory (Green 2026, doi 10.5281/zenodo.19120919; the"
        " 122B with a 4B draft: issue 179 of `waybarrios/vllm-mlx`), and as predicted here for"
        f" {COMPARED_AT}K tokens from the configurations alone: {min(off):.2f} to {max(off):.2f}"
        " times what was measured. None of these pairs ran here. Both compare with a dense prefill"
        " by the same engine."
    )


def goals(result: Result) -> Iterator[Goal]:
    predicted = [row["predicted"] for row in result.rows]
    shown = ", ".join(f"{each:.2f}" for each in predicted)
    in_order = predicted == sorted(predicted, reverse=True)
    yield Goal("predictions are in the order of what was measured", shown, in_order)


BENCH = Bench(
    "published",
    "published speedups of real model pairs, and the predictions for them",
    "Pairs that others timed",
    measure,
    about,
    table,
    goals,
    quick_args="",
    flags={},
)
