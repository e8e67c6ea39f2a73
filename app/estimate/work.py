"""How many tokens a turn reads with each model, and whether reading less is worth it."""

from __future__ import annotations

import math

from app.protocol.cost_model import AttentionWork
from app.protocol.options import Blocks

SPARSE_DRAFT_FROM = 8192
"""Minimum prompt tokens for which the draft's attention is block-sparse."""


def scoring_work(tokens: int, before: int) -> AttentionWork:
    """The draft's prefill when it scores a prompt. For long prompts its attention is
    block-sparse."""
    blocks, long = Blocks(), tokens + before >= SPARSE_DRAFT_FROM
    return AttentionWork(tokens, before, blocks.keys + blocks.size if long else 0)


MIN_SAVING = 0.2
"""Minimum predicted saving, as a fraction, for reading less. Skipped text may matter, so a small
saving is not worth it."""
MIN_SAVING_LOSING = 0.5
"""The same if what was read for earlier questions would be dropped."""
DENSE_WITHIN_SECONDS = 1.0
"""A prompt is read in full if that is predicted to take at most this time."""
MIN_SKIPPABLE = 1024
"""If fewer tokens than this could be skipped, everything is read. They are at most 32 chunks, and
choosing a few of so few costs about as much time as it saves."""


def sparse_pays(sparse: float, full: float) -> bool:
    return full > DENSE_WITHIN_SECONDS and sparse <= (1 - MIN_SAVING) * full


def recalled_tokens(keep_ratio: float, recall_share: float, eligible: int, skipped: int) -> int:
    """Number of an earlier prompt's `skipped` tokens that a later question recalls. `eligible` is
    the number of tokens that could be skipped. Agrees with `selection.select`, which counts
    chunks."""
    allowed = math.ceil(keep_ratio * eligible) - (eligible - skipped)
    return max(0, min(skipped, max(allowed, math.ceil(recall_share * keep_ratio * eligible))))


def sparse_work(
    new: int,
    recalled: int,
    cached: int,
    prefix: int,
    question: int = 0,
    reprefilled: int | None = None,
) -> AttentionWork:
    """The target's prefill of `new` tokens and of `recalled` tokens before them, with `cached` of
    the `prefix` tokens in its cache. Tokens after a recalled chunk, and a cached `question`, are
    prefilled again; with recurrent layers, `reprefilled` tokens instead."""
    if recalled and reprefilled is None:
        reprefilled = question + recalled * cached // max(prefix, 1)
    again = min(reprefilled or 0, cached) if recalled else 0
    return AttentionWork(max(new + recalled + again, 0), cached - again)
