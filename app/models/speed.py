"""How much sooner the first word comes when a draft skims: 1 / (r + keep + e).

`r` is what a draft costs per token, as a share of what the target costs: from the configurations
before, from the clock once the pair was used. `e` is what is neither's reading. The model is that
of the port of SpecPrefill to unified memory (Green 2026, doi 10.5281/zenodo.19120919).
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from app.models.shape import Layer, Shape
from app.sessions.records import Run

OVERHEAD = 0.02
"""`e` until it was measured on a Mac: the question and eight tokens are observed, chunks chosen."""
MOST_RATIO = 0.15
"""Of `r`, from where on a warning is due: at keep 20 % a third of the gain is gone."""
LENGTH = 32_768
"""Tokens of the prompt that costs are compared at."""


def speedup(ratio: float, keep: float, overhead: float = OVERHEAD) -> float:
    """How many times sooner. `ratio` and `keep` as fractions."""
    return 1 / (ratio + keep + overhead)


def operations(shape: Shape, tokens: int = LENGTH) -> float:
    """Multiplications and additions for one prompt token, on average over a prompt of `tokens`."""
    return sum(2 * layer.used + _attention(layer, tokens) for layer in shape.layers)


def _attention(layer: Layer, tokens: int) -> float:
    """Each query is compared with half the prompt on average, and sums up as many values. A state
    is decayed, written and read once for each token."""
    seen = min(layer.window, tokens / 2) if layer.window else tokens / 2
    return 4 * layer.heads * layer.width * seen + 6 * layer.state


def ratio(target: Shape, draft: Shape, tokens: int = LENGTH) -> float:
    """`r` by the configurations: equal pace for every operation, which memory is shared for."""
    return operations(draft, tokens) / operations(target, tokens)


def measured_ratio(runs: Iterable[Run], target: str, draft: str) -> float | None:
    """`r` by the clock: the median over answers of this pair that read their prompt sparsely from
    the beginning. Models by the names that runs have. None when there is no such answer."""
    found = []
    for run in runs:
        seconds = dict(run.phases)
        fresh = not (run.reused_tokens or run.recalled_tokens or run.fallback)
        if (run.target, run.draft, run.reading) != (target, draft, "sparse") or not fresh:
            continue
        score, prefill = seconds.get("score", 0.0), seconds.get("prefill", 0.0)
        if score > 0 and prefill > 0 and run.kept_tokens and run.prompt_tokens:
            found.append((score / run.prompt_tokens) / (prefill / run.kept_tokens))
    return median(found) if found else None
