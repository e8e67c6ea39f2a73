"""The two rows of a prefill panel that show the prompt from left to right. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.protocol.prompt import Span, SpanReason

BLOCKS = "▁▂▃▄▅▆▇█"
UNSCORED = "·"
SELECTED, PARTIAL, PINNED, SKIPPED = "▄", "▂", "═", " "
"""Low, so that they stand apart from the importance above them."""
READ_ON = "◆"


def resample(buckets: Sequence[float], width: int) -> list[float]:
    """`width` values from any number of buckets. Each is the highest of the buckets it covers, so
    that a lone important chunk of a long prompt stays visible."""
    total = len(buckets)
    if not total or width <= 0:
        return [0.0] * max(width, 0)
    starts = [cell * total // width for cell in range(width)]
    ends = [-(-(cell + 1) * total // width) for cell in range(width)]
    return [max(buckets[start:end]) for start, end in zip(starts, ends, strict=True)]


def intensity(value: float) -> int:
    """The index into BLOCKS for an importance of 0..1. By the square root: a few chunks score far
    above the others, and the others should still be distinguishable."""
    return min(len(BLOCKS) - 1, int(max(0.0, value) ** 0.5 * len(BLOCKS)))


def heat_row(buckets: Sequence[float], width: int, complete: bool) -> str:
    """One block character per cell. Until all is observed, a bucket of 0 is one not scored yet."""
    return "".join(
        UNSCORED if not complete and value <= 0 else BLOCKS[intensity(value)]
        for value in resample(buckets, width)
    )


def skim_row(fraction: float, width: int) -> str:
    """Shown instead of the heat while the draft still reads: how far it has come."""
    seen = min(width, int(fraction * width))
    return BLOCKS[0] * seen + UNSCORED * (width - seen)


def span_row(spans: Iterable[Span], prompt_tokens: int, width: int) -> str:
    """One character per cell: with something that was read while the answer was written, selected
    (at least half), partly selected, mostly pinned, skipped."""
    if prompt_tokens <= 0 or width <= 0:
        return SKIPPED * max(width, 0)
    covered = {reason: [0.0] * width for reason in SpanReason}
    for span in spans:
        _cover(covered[span.reason], span, prompt_tokens)
    return "".join(_mark(*cell) for cell in zip(*covered.values(), strict=True))


def _cover(cells: list[float], span: Span, prompt_tokens: int) -> None:
    """Add to each cell the fraction of it that `span` covers."""
    width = len(cells)
    left = span.start * width / prompt_tokens
    right = span.end * width / prompt_tokens
    for cell in range(int(left), min(width, int(right) + 1)):
        cells[cell] += max(0.0, min(right, cell + 1) - max(left, cell))


def _mark(pinned: float, important: float, needed_later: float) -> str:
    if needed_later:
        return READ_ON
    if pinned > important:
        return PINNED
    if important >= 0.5:
        return SELECTED
    return PARTIAL if important > 0 else SKIPPED
