"""`specchat bench overhead`: what sparse reading costs beyond the two reads it cannot do without.

Random llama-like models, since time does not depend on weights. In each run, one after the other:
plain mlx-lm reads the whole prompt with the draft, then as many tokens as sparse reading keeps with
the target; then a whole sparse turn of ours, from ids to the first token. The overhead ratio is
(plain draft + plain target) / ours; above 1 the turn costs less than its parts do in mlx-lm.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from app.engine import blas
from app.engine.messages import (
    Ask,
    Event,
    Finished,
    Message,
    Mode,
    ModelInfo,
    Role,
    Sampling,
    Segment,
    SegmentKind,
    Statistics,
)

PROMPT, STEP, KEEP, VOCABULARY = 4096, 512, 0.2, 4096
TAIL = 32
"""Tokens of question and generation prompt at the end."""


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
    target, draft = _llama(512, 10, heads=8, kv_heads=4), _llama(192, 2, heads=3, kv_heads=1)
    ids = np.random.default_rng(0).integers(3, VOCABULARY, PROMPT).astype(np.int32)
    results = []
    for index in range(runs + 1):  # the first one warms up and is not counted
        begun = _turn(target, draft, ids)
        kept = begun.kept_tokens
        run = Run(
            plain_draft=_plain(draft, ids),
            plain_target=_plain(target, ids[:kept]),
            plain_dense=_plain(target, ids),
            ours=begun.ttft,
            phases={str(part.phase): part.seconds for part in begun.phases},
            kept=kept,
        )
        results += [run] if index else []
    return results


def _llama(width: int, depth: int, heads: int, kv_heads: int) -> Any:
    import mlx.core as mx
    from mlx_lm.models import llama

    arguments = llama.ModelArgs(
        model_type="llama",
        hidden_size=width,
        num_hidden_layers=depth,
        intermediate_size=3 * width,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=64,
        rms_norm_eps=1e-5,
        vocab_size=VOCABULARY,
        tie_word_embeddings=True,
    )
    model = llama.Model(arguments)
    mx.eval(model.state)
    return model


def _plain(model: Any, ids: NDArray[np.int32]) -> float:
    """Seconds until plain mlx-lm has the first token after `ids`."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step

    begun = time.perf_counter()
    tokens = generate_step(mx.array(ids), model, max_tokens=1, prefill_step_size=STEP)
    next(tokens)
    seconds = time.perf_counter() - begun
    tokens.close()
    return seconds


def _turn(target: Any, draft: Any, ids: NDArray[np.int32]) -> Statistics:
    """The figures of one sparse turn of ours on given ids."""
    from app.engine.loader import LoadedModel, Pair
    from app.engine.memory import CacheSize
    from app.engine.prefill import StepSize
    from app.engine.progress import Progress
    from app.engine.reading import Remembered
    from app.engine.turn import Turn
    from app.models.embedded import target_path

    tokenizer = _tokenizer(str(target_path()))
    info = ModelInfo("random", "llama", 0, 0, 0)
    loaded = [
        LoadedModel(model, tokenizer, info, CacheSize(0, 0), StepSize(STEP))
        for model in (target, draft)
    ]
    events: list[Event] = []
    models = Pair(loaded[0], loaded[1], None, _Ids(ids))  # type: ignore[arg-type]
    ask = Ask(1, (Message(Role.USER, ""),), Mode.SPARSE, KEEP, Sampling(max_tokens=1))
    progress = Progress(ask.turn, events.append, lambda: False)
    Turn(models, ask, Remembered(models), progress).run()
    finished = events[-1]
    if not isinstance(finished, Finished) or finished.statistics is None:
        raise RuntimeError("the turn did not finish")
    if finished.statistics.fallback:
        raise RuntimeError(finished.statistics.fallback)
    return finished.statistics


def _tokenizer(folder: str) -> Any:
    from pathlib import Path

    from mlx_lm.utils import load_tokenizer

    return load_tokenizer(Path(folder))


class _Ids:
    """Stands in for a prompt builder: the ids are given."""

    def __init__(self, ids: NDArray[np.int32]) -> None:
        self._ids = ids

    def build(self, messages: tuple[Message, ...]) -> Any:
        from app.engine.prompt import Prompt

        border = len(self._ids) - TAIL
        segments = (
            Segment(SegmentKind.DOCUMENT, 0, border, 0, 0),
            Segment(SegmentKind.QUESTION, border, len(self._ids), 0),
        )
        offsets = np.arange(border + 1, dtype=np.int64)
        return Prompt(self._ids, segments, {(0, 0): offsets})


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
