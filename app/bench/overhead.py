"""`specchat bench overhead`: what sparse reading costs beyond the two reads it cannot do without.

Random llama-like models, since time does not depend on weights. In each run, one after the other:
plain mlx-lm reads the whole prompt with the draft, then as many tokens as sparse reading keeps with
the target; then a whole sparse turn of ours, from ids to the first token. The overhead ratio is
(plain draft + plain target) / ours; above 1 the turn costs less than its parts do in mlx-lm.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TextIO

import numpy as np

from app.bench.given_ids import plain, sparse_turn
from app.bench.shapes import SMALL, random_pair, shapes
from app.engine import blas

PROMPT, STEP, KEEP = 4096, 512, 0.2


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds. `plain_target` reads `kept` tokens, `plain_dense` all of them."""

    plain_draft: float
    plain_target: float
    plain_dense: float
    ours: float
    phases: dict[str, float]
    kept: int

    @property
    def ratio(self) -> float:
        return (self.plain_draft + self.plain_target) / self.ours

    @property
    def speedup(self) -> float:
        return self.plain_dense / self.ours


def overhead(runs: int, as_json: bool, out: TextIO) -> int:
    """Measure `runs` times and print medians; returns the exit status."""
    blas.load_openblas()
    from app.engine import seams

    seams.install()
    measured = _measure(max(runs, 1))
    from app.bench.machine import machine

    report = _json if as_json else _table
    out.write(report(measured, machine()))
    return 0


def _measure(runs: int) -> list[Run]:
    target, draft = random_pair(SMALL)
    vocabulary = shapes()[SMALL]["target"]["vocab_size"]
    ids = np.random.default_rng(0).integers(3, vocabulary, PROMPT).astype(np.int32)
    results = []
    for index in range(runs + 1):  # the first one warms up and is not counted
        begun = sparse_turn(target, draft, ids, KEEP, STEP)
        kept = begun.kept_tokens
        run = Run(
            plain_draft=plain(draft, ids, STEP),
            plain_target=plain(target, ids[:kept], STEP),
            plain_dense=plain(target, ids, STEP),
            ours=begun.ttft,
            phases={str(part.phase): part.seconds for part in begun.phases},
            kept=kept,
        )
        results += [run] if index else []
    return results


def _median(runs: list[Run], figure: Callable[[Run], float]) -> float:
    return statistics.median(figure(run) for run in runs)


def _table(runs: list[Run], described: str) -> str:
    rows: list[tuple[str, Callable[[Run], float]]] = [
        ("plain mlx-lm, draft reads all", lambda r: r.plain_draft),
        ("plain mlx-lm, target reads N", lambda r: r.plain_target),
        ("plain mlx-lm, target reads all", lambda r: r.plain_dense),
        ("ours, ids to first token", lambda r: r.ours),
        *((f"  {phase}", lambda r, p=phase: r.phases[p]) for phase in runs[0].phases),
    ]
    lines = [
        f"{PROMPT:,} tokens, keep {KEEP:.0%} (N = {runs[0].kept:,}), steps of {STEP},"
        f" medians of {len(runs)}",
        described,
        "",
        *(f"{name:<34}{_median(runs, figure):9.3f} s" for name, figure in rows),
        "",
        _ratio("overhead ratio (parts / ours)", [run.ratio for run in runs]),
        _ratio("speed-up (dense / ours)", [run.speedup for run in runs]),
    ]
    return "\n".join(lines) + "\n"


def _ratio(name: str, values: list[float]) -> str:
    spread = f"{min(values):.2f} to {max(values):.2f}"
    return f"{name:<34}{statistics.median(values):9.2f}   ({spread})"


def _json(runs: list[Run], described: str) -> str:
    figures = {
        "machine": described,
        "prompt_tokens": PROMPT,
        "keep": KEEP,
        "step": STEP,
        "ratio": _median(runs, lambda r: r.ratio),
        "speedup": _median(runs, lambda r: r.speedup),
        "runs": [asdict(run) for run in runs],
    }
    return json.dumps(figures) + "\n"
