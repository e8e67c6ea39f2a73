"""Whether a model's confidence tells right answers from wrong ones."""

from __future__ import annotations

from collections.abc import Iterable

from app.protocol.stats import SURE, Reading
from benchmarks.quality.results_log import Record


def confidence_note(records: Iterable[Record]) -> str | None:
    """A sentence about the answers that were read sparsely; None unless some are right, and some
    wrong."""
    known = [
        (record.right, record.confidence)
        for record in records
        if record.confidence is not None and record.reading == Reading.SPARSE
    ]
    right = [confidence for is_right, confidence in known if is_right]
    wrong = [confidence for is_right, confidence in known if not is_right]
    if not right or not wrong:
        return None
    higher = sum((r > w) + (r == w) / 2 for r in right for w in wrong)
    unsure = [sum(confidence < SURE for confidence in group) for group in (wrong, right)]
    return (
        f"Of the answers after sparse reading, the model was less than {SURE:.0%} sure of"
        f" {unsure[0]} of {len(wrong)} wrong and {unsure[1]} of {len(right)} right ones; in"
        f" {higher / (len(right) * len(wrong)):.0%} of the pairs of both it is surer of the right"
        " one."
    )
