"""How much sooner the first token comes with a draft: 1 / (r + keep + e).

`r` is what the draft's prefill costs per token, as a share of the target's: predicted from the
configurations, or measured once the pair was used. `e` is the share of what is neither's prefill.
The formula is that of the port of SpecPrefill to unified memory (Green 2026, doi
10.5281/zenodo.19120919), whose five pairs are what the prediction is tested against
(`tests/models/test_speedup.py`).

A token costs its operations and what has to be read from memory for it. Matrices are read once for
each tile of tokens, so a dense model's take little. Of a mixture a tile touches most experts, for a
token or two each: operations follow the active parameters, bytes the total ones. That is why a
dense draft with more active parameters than its target can still pay.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from app.models.architecture import Architecture, Layer
from app.models.fit import SSM_CHUNK, ModelSize
from app.protocol.stats import Phase, Reading
from app.sessions.records import AnswerStats

OVERHEAD = 0.02
"""`e` until it was measured on a Mac: the question and eight tokens are observed, chunks chosen."""
MAX_RATIO = 0.15
"""Of `r`, from where on a warning is due: at keep 20 % a third of the gain is gone."""
REFERENCE_TOKENS = 32_768
"""Tokens of the prompt that costs are compared at."""
TILE = 32
"""Tokens that share one read of a matrix in MLX's quantised products on Metal."""
OPERATIONS_PER_BYTE = 34
"""Operations in the time of reading one byte: an M2 Ultra's 27.2 TFLOP/s over its 800 GB/s. The
other M chips are near it, since cores and memory channels grow together."""
SSM_PASSES = 13
"""Times that the float32 matrices of a Mamba layer's chunk are written or read: counted in
`ssm_attn` of `mlx_lm/models/ssm.py`."""


def speedup(ratio: float, keep: float, overhead: float = OVERHEAD) -> float:
    """How many times sooner. `ratio` and `keep` as fractions."""
    return 1 / (ratio + keep + overhead)


def cost_ratio(target: ModelSize, draft: ModelSize, tokens: int = REFERENCE_TOKENS) -> float:
    """`r`, predicted from both configurations and from how large their weights are."""
    return token_cost(draft, tokens) / token_cost(target, tokens)


def token_cost(model: ModelSize, tokens: int = REFERENCE_TOKENS) -> float:
    """What the prefill of one token takes, in operations, on average over a prompt of `tokens`."""
    element = model.weight_bytes / model.architecture.parameters
    return operations_per_token(model.architecture, tokens) + OPERATIONS_PER_BYTE * bytes_per_token(
        model.architecture, element
    )


def operations_per_token(shape: Architecture, tokens: int = REFERENCE_TOKENS) -> float:
    """Multiplications and additions for one prompt token, on average over a prompt of `tokens`."""
    return sum(2 * layer.macs + _attention(layer, tokens) for layer in shape.layers)


def _attention(layer: Layer, tokens: int) -> float:
    """Each query is compared with half the prompt on average, and sums up as many values. A state
    is decayed, written and read once for each token."""
    seen = min(layer.window, tokens / 2) if layer.window else tokens / 2
    return 4 * layer.heads * layer.head_dim * seen + 6 * layer.state_elements


def bytes_per_token(shape: Architecture, element: float) -> float:
    """Bytes from memory for one prompt token: a tile's share of the matrices, `element` bytes for
    each of their numbers, and what Mamba layers read besides."""
    return sum(
        element * _params_per_tile(layer) / TILE + _ssm_bytes(layer) for layer in shape.layers
    )


def _params_per_tile(layer: Layer) -> float:
    """Elements of matrices that a tile of tokens needs: each expert that one of them takes, if
    they take theirs independently."""
    if layer.expert_share >= 1:
        return layer.params
    experts = (layer.params - layer.macs) / (1 - layer.expert_share)
    return layer.params - experts * (1 - layer.expert_share) ** TILE


def _ssm_bytes(layer: Layer) -> float:
    """Bytes that a Mamba layer reads for one token, in float32: its state, and its heads' matrices
    of a chunk's tokens by tokens, again and again. Other states stay in registers."""
    if not layer.ssm_heads:
        return 0.0
    return 4 * (layer.state_elements + SSM_PASSES * layer.ssm_heads * SSM_CHUNK)


def measured_ratio(answers: Iterable[AnswerStats], target: str, draft: str) -> float | None:
    """`r` as measured: the median over answers of this pair that read their whole prompt sparsely.
    Models by their stored names. None when there is no such answer."""
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
