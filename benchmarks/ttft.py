"""The time to the first token, by length and keep.

Each run on random models measures a dense prefill with the target in mlx-lm, our dense turn, and
our sparse turn at each keep, from token ids to the first token. So the savings of sparse prefill
are measured within one engine, and that engine is compared with mlx-lm separately.

The prediction is the one of the port of SpecPrefill to unified memory (Green 2026, doi
10.5281/zenodo.19120919): speedup = 1 / (r + keep + e), where r is the time of the draft's prefill
and e the time of everything but the two prefills, both as shares of our dense turn. G is the
predicted over the measured speedup.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from app.chat import wording
from app.errors import UserError
from app.protocol.options import Mode
from benchmarks.harness import Bench, Column, Options, Progress, Result, Row, Run, columns
from benchmarks.shapes import random_pair, shapes
from benchmarks.token_turn import check_fits, loaded, plain, turn

if TYPE_CHECKING:
    from app.engine.model.loader import LoadedModel

STEP = 512
T = TypeVar("T")
TWO_COMPARISONS = (
    "What a sparse prefill saves is measured within our engine, and our engine beside mlx-lm with"
    " everything prefilled. On a Mac the second is about 1, since both call MLX's attention there;"
    " on a CPU ours works in blocks, which has nothing to do with sparse prefill."
)


def check(options: Options) -> None:
    """Raises UserError for a draft without a target."""
    if options.draft and not options.target:
        raise UserError("A draft needs a target", "name one with --target")


def measure(options: Options, progress: Progress) -> Iterator[Row]:
    """Raises UserError for an unknown shape, or a length that does not fit."""
    models, vocabulary = _models(options)
    check_fits(models[0], options.lengths, STEP)
    rng = np.random.default_rng(0)
    for length in options.lengths:
        ids = rng.integers(3, vocabulary, length).astype(np.int32)

        def one_run(ids: np.ndarray = ids) -> dict[float, tuple[int, Run]]:
            mlx_lm = plain(models[0].model, ids, STEP)
            dense, dense_peak = _with_peak(partial(turn, models, ids, 1.0, Mode.FULL))
            runs = {}
            for keep in options.keeps:
                sparse, peak = _with_peak(partial(turn, models, ids, keep))
                phases = {str(part.phase): part.seconds for part in sparse.phases}
                share = sparse.read_tokens / len(ids)
                run = figures(share, mlx_lm, dense.ttft, sparse.ttft, phases)
                runs[keep] = sparse.read_tokens, run | {"memory": peak / dense_peak, "peak": peak}
            return runs

        measured = progress.repeat(f"{length:,} tokens", one_run)
        for keep in options.keeps:
            labels = {"length": length, "keep": keep, "selected": measured[0][keep][0]}
            yield Row(labels, [run[keep][1] for run in measured])


def figures(
    share: float, mlx_lm: float, dense: float, sparse: float, phases: dict[str, float]
) -> Run:
    """Figures of one run that selected this `share` of the prompt; times in seconds."""
    prefills = phases.get("score", 0.0) + phases.get("prefill", 0.0)
    r, e = phases.get("score", 0.0) / dense, (sparse - prefills) / dense
    predicted = 1 / (r + share + e)
    return {
        "plain": mlx_lm,
        "dense": dense,
        "sparse": sparse,
        **{name: phases.get(name, 0.0) for name in ("score", "lookahead", "select", "prefill")},
        "speedup": dense / sparse,
        "engine": mlx_lm / dense,
        "predicted": predicted,
        "r": r,
        "e": e,
        "g": predicted / (dense / sparse),
    }


def _models(options: Options) -> tuple[list[LoadedModel], int]:
    """Target and draft, and the size of their common vocabulary. Raises UserError."""
    if options.target is None:
        pair = random_pair(options.shape, options.scale, options.bits)
        configs = [shapes()[options.shape][name] for name in ("target", "draft")]
        models = [loaded(model, each, STEP) for model, each in zip(pair, configs, strict=True)]
        return models, configs[0]["vocab_size"]
    from app.chat.model_pairs import resolve_pair
    from app.engine.pair_loader import load_pair

    found = load_pair(resolve_pair(options.target, options.draft), STEP)
    if found.draft is None or found.dense_only is not None:
        why = "no draft" if found.dense_only is None else wording.reason(found.dense_only)
        raise UserError(f"There is nothing to compare: {why}", "name another pair")
    return [found.target, found.draft], min(found.target.vocab_size, found.draft.vocab_size)


def _with_peak(measure: Callable[[], T]) -> tuple[T, int]:
    import mlx.core as mx

    mx.clear_cache()
    mx.reset_peak_memory()
    return measure(), mx.get_peak_memory()


def about(result: Result) -> str:
    options = result.options
    if target := options.get("target"):
        models = f"{target} with {options.get('draft') or 'its own draft'}"
    else:
        bits = f" in {options['bits']} bits" if options.get("bits") else ""
        models = (
            f"{options['shapes'][0]}, {options['scale']:.0%} of the layers, random weights{bits}"
        )
    return (
        f"{models}. Seconds to the first token: *mlx-lm* and *dense* prefill everything, *sparse*"
        f" is our sparse turn. {TWO_COMPARISONS} *Engine* is mlx-lm over dense; *speedup* is dense"
        " over sparse, with the range. *r* is the draft's share of our dense turn, *e* the share of"
        " what is neither model's prefill; *G* is the predicted speedup 1/(r+k+e) over the measured"
        " one: below 1 on a quiet machine, since attention grows with the square of what is"
        " prefilled. *Memory* is the peak as a share of our dense turn's."
    )


PHASES = (
    ("draft", "score"),
    ("lookahead", "lookahead"),
    ("select", "select"),
    ("target", "prefill"),
)
"""Names in tables and in a turn's statistics."""

BENCH = Bench(
    "ttft",
    "time to the first word, compared with mlx-lm",
    "Time to the first token",
    measure,
    about,
    columns(
        Column("tokens", "length", ","),
        Column("keep", "keep", "g"),
        Column("mlx-lm, s", "plain"),
        Column("dense, s", "dense"),
        *(Column(name, figure, ".3f", in_report=False) for name, figure in PHASES),
        Column("sparse, s", "sparse"),
        Column("engine", "engine"),
        Column("speedup", "speedup", spread=True),
        Column("1/(r+k+e)", "predicted"),
        Column("r", "r", ".3f"),
        Column("e", "e", ".3f"),
        Column("G", "g"),
        Column("memory", "memory"),
    ),
    report_args="--length 1k,4k,8k --runs 2",
    quick_args="--length 512 --keep 0.2,1 --scale 0.1 --runs 1",
    flags={"target": None, "draft": None, "shape": "small", "scale": "1", "bits": None}
    | {"length": "1k,4k,16k", "keep": "0.05,0.1,0.2,0.5,1.0", "runs": "5"},
    check=check,
)
