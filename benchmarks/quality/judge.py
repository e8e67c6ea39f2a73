"""What a run's events say about the answer."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace

from app.chat import wording
from app.protocol.events import Finished, Selected
from benchmarks.quality.results_log import Record
from benchmarks.quality.suites import Item
from benchmarks.quality.tasks import is_correct


def judge(record: Record, item: Item, event: Finished) -> Record:
    statistics = event.statistics
    assert statistics is not None
    return replace(
        record,
        right=is_correct(event.text, item.expected, item.check),
        answer=event.text,
        tokens=hashlib.sha256(repr(event.generated_ids).encode()).hexdigest()[:12],
        prompt_tokens=statistics.prompt_tokens,
        read_fraction=round(statistics.read_fraction, 6),
        ttft=round(statistics.ttft, 6),
        reading=str(statistics.reading),
        ended=str(event.finish_reason),
        fallback=None if statistics.fallback is None else wording.reason(statistics.fallback),
        confidence=None if statistics.confidence is None else round(statistics.confidence, 4),
    )


def share_selected(event: Selected, item: Item) -> float | None:
    """Of the characters of the answer's passages, the share in selected spans; None without
    any."""
    if not item.passages:
        return None
    selected = sum(
        max(0, min(end, text.end) - max(start, text.start))
        for text in event.texts
        for start, end in item.passages
    )
    return round(selected / sum(end - start for start, end in item.passages), 4)


def normalised_entropy(buckets: Sequence[float]) -> float:
    """The exponential of the entropy of the buckets' shares, over their number: 1 when all are
    equal, near 0 when one has everything."""
    total = sum(buckets)
    shares = [bucket / total for bucket in buckets if bucket > 0]
    entropy = -sum(share * math.log(share) for share in shares)
    return math.exp(entropy) / len(buckets) if shares else 0.0
