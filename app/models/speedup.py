"""Speedup of the first token with a draft: 1 / (r + keep + e).

`r` is the cost of the draft's prefill per token relative to the target's. It is measured on this
machine, computed from a published speedup of the pair (`published.toml`), or predicted from the
configurations. `e` is the overhead in addition to both prefills. The formula is from the port of
SpecPrefill to unified memory (Green 2026, doi 10.5281/zenodo.19120919). The prediction is tested
against its five pairs (`tests/models/test_speedup.py`).

A token costs operations and memory bandwidth. Matrices are read once per tile of tokens, which is
cheap in a dense model. In a mixture of experts, a tile uses most experts, for a token or two each,
so operations depend on the active parameters, and bandwidth on all parameters. A dense draft can
therefore be worthwhile even if it has more active parameters than its target.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from statistics import median
from typing import Any

from app.models.architecture import Architecture, Layer
from app.models.fit import SSM_CHUNK, ModelSize
from app.protocol.options import DEFAULT_KEEP_RATIO
from app.protocol.stats import Phase, Reading
from app.store.records import AnswerStats

OVERHEAD = 0.02
"""`e`, an estimate of the cost of observing the question and eight tokens, and selecting chunks."""
REFERENCE_TOKENS = 32_768
"""Prompt tokens at which costs are compared."""
TILE = 32
"""Tokens that share one read of a matrix in MLX's quantised products on Metal."""
OPERATIONS_PER_BYTE = 34
"""Operations in the time of reading one byte: an M2 Ultra's 27.2 TFLOP/s over its 800 GB/s. Other M
chips are similar, because cores and memory channels scale together."""
SSM_PASSES = 13
"""Number of times that the float32 matrices of a Mamba layer's chunk are written or read, as
counted in `ssm_attn` of `mlx_lm/models/ssm.py`."""


def speedup(ratio: float, keep: float, overhead: float = OVERHEAD) -> float:
    """Speedup of the first token. `ratio` (r) and `keep` are fractions."""
    return 1 / (ratio + keep + overhead)


def built_in_speedup() -> float:
    """Speedup with the built-in scorer, which runs no model, at the default keep."""
    return speedup(0.0, DEFAULT_KEEP_RATIO)


def cost_ratio(target: ModelSize, draft: ModelSize, tokens: int = REFERENCE_TOKENS) -> float:
    """`r`, predicted from both configurations and the sizes of the weights."""
    return token_cost(draft, tokens) / token_cost(target, tokens)


def token_cost(model: ModelSize, tokens: int = REFERENCE_TOKENS) -> float:
    """Cost of prefilling one token, in operations, averaged over a prompt of `tokens` tokens."""
    element = model.weight_bytes / model.architecture.parameters
    return operations_per_token(model.architecture, tokens) + OPERATIONS_PER_BYTE * bytes_per_token(
        model.architecture, element
    )


def operations_per_token(shape: Architecture, tokens: int = REFERENCE_TOKENS) -> float:
    """Multiplications and additions per token, averaged over a prompt of `tokens` tokens."""
    return sum(2 * layer.macs + _attention(layer, tokens) for layer in shape.layers)


def _attention(layer: Layer, tokens: int) -> float:
    """Operations of attention per token. A query attends to half the prompt on average. A recurrent
    state is decayed, written and read once per token, in float32."""
    seen = min(layer.window, tokens / 2) if layer.window else tokens / 2
    return 4 * layer.heads * layer.head_dim * seen + 1.5 * layer.state_bytes


def bytes_per_token(shape: Architecture, element: float) -> float:
    """Bytes read from memory per prompt token: the parameters that a tile uses, divided by its
    tokens, with `element` bytes each, and the reads of Mamba layers."""
    return sum(
        element * _params_per_tile(layer) / TILE + _ssm_bytes(layer) for layer in shape.layers
    )


def _params_per_tile(layer: Layer) -> float:
    """Parameters that a tile of tokens uses, if each token chooses its experts independently."""
    if layer.expert_share >= 1:
        return layer.params
    experts = (layer.params - layer.macs) / (1 - layer.expert_share)
    return layer.params - experts * (1 - layer.expert_share) ** TILE


def _ssm_bytes(layer: Layer) -> float:
    """Bytes that a Mamba layer reads per token, in float32: its state, and several times the
    (tokens by tokens) matrices of its heads in a chunk. Other states stay in registers."""
    if not layer.ssm_heads:
        return 0.0
    return layer.state_bytes + 4 * SSM_PASSES * layer.ssm_heads * SSM_CHUNK


PUBLISHED_KEEP = 0.2
"""Keep at which the published pairs were timed."""


@cache
def published_pairs() -> tuple[dict[str, Any], ...]:
    """Published measurements of pairs, from `published.toml`."""
    text = (files("app.models") / "published.toml").read_text("utf-8")
    return tuple(tomllib.loads(text)["pair"])


def published_ratio(target: str, draft: str) -> float | None:
    """`r` that corresponds to the published speedup of a pair at the length nearest to
    REFERENCE_TOKENS; None if there is no measurement."""
    for pair in published_pairs():
        if (pair["target"], pair["draft"]) == (target, draft):
            by_length = {1024 * int(length): times for length, times in pair["speedups"].items()}
            nearest = min(by_length, key=lambda length: abs(length - REFERENCE_TOKENS))
            return max(float(1 / by_length[nearest] - PUBLISHED_KEEP - OVERHEAD), 0.0)
    return None


def measured_ratio(answers: Iterable[AnswerStats], target: str, draft: str) -> float | None:
    """Measured `r`: the median over answers of this pair whose whole prompt was read sparsely.
    `target` and `draft` are stored names. None if there is no such answer."""
    found = []
    for stats in answers:
        seconds = {time.phase: time.seconds for time in stats.phases}
        fresh = not (stats.reused_tokens or stats.recalled_tokens or stats.fallback)
        same_pair = (stats.target, stats.draft) == (target, draft)
        if not same_pair or stats.reading is not Reading.SPARSE or not fresh:
            continue
        score, prefill = seconds.get(Phase.SCORE, 0.0), seconds.get(Phase.PREFILL, 0.0)
        if score > 0 and prefill > 0 and stats.read_tokens and stats.prompt_tokens:
            found.append((score / stats.prompt_tokens) / (prefill / stats.read_tokens))
    return median(found) if found else None
