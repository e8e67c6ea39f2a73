"""`specchat bench overhead`: what sparse reading costs beyond the two reads it cannot do without.

Random llama-like models, since time does not depend on weights. In each run, one after the other:
plain mlx-lm reads the whole prompt with the draft, then as many tokens as sparse reading keeps with
the target; then a whole sparse turn of ours, from ids to the first token, and one whose draft stops
half way; and everything with the target, by us and by plain mlx-lm. So time saved by reading less
(our dense turn over our sparse one) and our engine's own speed (plain over our dense turn) are two
ratios. The overhead ratio, (plain draft + plain target) / ours, has both in it: above 1 the turn
costs less than its parts do in mlx-lm. Then what a turn does beside
reading: `app/bench/overhead_parts.py`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from app.bench.overhead_parts import LONG, Built, built, selecting
from app.bench.shapes import SMALL, random_pair, shapes
from app.bench.token_turn import dense_turn, plain, sparse_turn
from app.engine import blas
from app.protocol.options import Scoring, Tuning

PROMPT, STEP, KEEP = 4096, 512, 0.2
DENSE_UP_TO = 4096
"""Tokens. To read more in full takes minutes on a CPU; `bench ttft` does."""
HALF_WAY = Tuning(scoring=Scoring.QUESTION, layers=0.5)


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds. `plain_target` reads `kept` tokens, `plain_dense` and our `dense` all of them, if
    there are few enough. The draft of `half_way` stops there, and so observes the question only."""

    plain_draft: float
    plain_target: float
    plain_dense: float | None
    dense: float | None
    ours: float
    half_way: float
    phases: dict[str, float]
    kept: int

    @property
    def ratio(self) -> float:
        return self._parts / self.ours

    @property
    def ratio_half_way(self) -> float:
        return self._parts / self.half_way

    @property
    def _parts(self) -> float:
        return self.plain_draft + self.plain_target

    @property
    def speedup(self) -> float | None:
        """By reading sparsely: both turns are ours."""
        return None if self.dense is None else self.dense / self.ours

    @property
    def engine(self) -> float | None:
        """Our engine beside mlx-lm: both read everything."""
        return None if self.dense is None else (self.plain_dense or 0.0) / self.dense


@dataclass(frozen=True, slots=True)
class Measured:
    """The runs of each length, prompts that were built, and seconds to select from LONG tokens."""

    runs: dict[int, list[Run]]
    built: tuple[Built, ...]
    selecting: float


def overhead(runs: int, as_json: bool, out: TextIO, lengths: tuple[int, ...] = (PROMPT,)) -> int:
    """Measure `runs` times at each of `lengths`, in tokens, and print medians; returns the exit
    status."""
    blas.load_openblas()
    from app.engine import mlx_patches

    mlx_patches.install()
    runs = max(runs, 1)
    measured = Measured(
        dict(_measure(runs, lengths)), tuple(built(lengths, KEEP, runs)), selecting(KEEP, runs)
    )
    from app.bench.machine import machine

    report = _json if as_json else _table
    out.write(report(measured, machine()))
    return 0


def _measure(runs: int, lengths: tuple[int, ...]) -> Iterator[tuple[int, list[Run]]]:
    """Each length and its runs. The first run of a length warms up and is not counted."""
    target, draft = random_pair(SMALL)
    vocabulary = shapes()[SMALL]["target"]["vocab_size"]
    for length in lengths:
        ids = np.random.default_rng(0).integers(3, vocabulary, length).astype(np.int32)
        yield length, [_run(target, draft, ids) for _ in range(runs + 1)][1:]


def _run(target: Any, draft: Any, ids: NDArray[np.int32]) -> Run:
    ours = sparse_turn(target, draft, ids, KEEP, STEP)
    in_full = len(ids) <= DENSE_UP_TO
    return Run(
        plain_draft=plain(draft, ids, STEP),
        plain_target=plain(target, ids[: ours.read_tokens], STEP),
        plain_dense=plain(target, ids, STEP) if in_full else None,
        dense=dense_turn(target, draft, ids, STEP).ttft if in_full else None,
        ours=ours.ttft,
        half_way=sparse_turn(target, draft, ids, KEEP, STEP, HALF_WAY).ttft,
        phases={str(part.phase): part.seconds for part in ours.phases},
        kept=ours.read_tokens,
    )


def _known(runs: list[Run], figure: Callable[[Run], float | None]) -> list[float]:
    return [value for run in runs if (value := figure(run)) is not None]


def _table(measured: Measured, described: str) -> str:
    lines = [f"keep {KEEP:.0%}, steps of {STEP}", described]
    for length, runs in measured.runs.items():
        lines += ["", *_rows(length, runs)]
    lines += ["", "embedded pair, a real text"]
    for row in measured.built:
        lines.append(
            f"{f'building {row.tokens:,} tokens of prompt':<37}{row.building:9.3f} s"
            f"   ({row.share:.1%} of {row.ttft:.3f} s to the first token)"
        )
    select = 1000 * measured.selecting
    lines += ["", f"{f'selecting from {LONG:,} tokens, ms':<37}{select:9.1f}"]
    return "\n".join(lines) + "\n"


def _rows(length: int, runs: list[Run]) -> Iterator[str]:
    yield f"{length:,} tokens (N = {runs[0].kept:,}), medians of {len(runs)}"
    rows: list[tuple[str, Callable[[Run], float | None]]] = [
        ("plain mlx-lm, draft reads all", lambda r: r.plain_draft),
        ("plain mlx-lm, target reads N", lambda r: r.plain_target),
        ("plain mlx-lm, target reads all", lambda r: r.plain_dense),
        ("ours, target reads all", lambda r: r.dense),
        ("ours, ids to first token", lambda r: r.ours),
        *((f"  {phase}", lambda r, p=phase: r.phases[p]) for phase in runs[0].phases),
        ("ours, the draft stops half way", lambda r: r.half_way),
    ]
    for name, figure in rows:
        if values := _known(runs, figure):
            yield f"{name:<37}{statistics.median(values):9.3f} s"
    ratios: list[tuple[str, Callable[[Run], float | None]]] = [
        ("overhead ratio (parts / ours)", lambda r: r.ratio),
        ("  where the draft stops half way", lambda r: r.ratio_half_way),
        ("saved by reading sparsely (ours)", lambda r: r.speedup),
        ("our engine (plain / ours, all read)", lambda r: r.engine),
    ]
    for name, figure in ratios:
        if values := _known(runs, figure):
            spread = f"{min(values):.2f} to {max(values):.2f}"
            yield f"{name:<37}{statistics.median(values):9.2f}   ({spread})"


def _json(measured: Measured, described: str) -> str:
    lengths = [
        {
            "prompt_tokens": length,
            "ratio": statistics.median(run.ratio for run in runs),
            "ratio_half_way": statistics.median(run.ratio_half_way for run in runs),
            "speedup": _median(runs, lambda run: run.speedup),
            "engine": _median(runs, lambda run: run.engine),
            "runs": [_as_dict(run) for run in runs],
        }
        for length, runs in measured.runs.items()
    ]
    figures = {
        "machine": described,
        "keep": KEEP,
        "step": STEP,
        "lengths": lengths,
        "prompts": [asdict(row) for row in measured.built],
        "selecting": {"tokens": LONG, "seconds": measured.selecting},
    }
    return json.dumps(figures) + "\n"


def _median(runs: list[Run], figure: Callable[[Run], float | None]) -> float | None:
    found = _known(runs, figure)
    return statistics.median(found) if found else None


def _as_dict(run: Run) -> dict[str, Any]:
    names = ("ratio", "ratio_half_way", "speedup", "engine")
    return asdict(run) | {name: getattr(run, name) for name in names}
